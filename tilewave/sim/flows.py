"""The result of an engine: for each walk of a stream by an L2 domain in a wave, which level delivered its bytes."""

from __future__ import annotations

import numpy as np

from tilewave.records import dataclass
from tilewave.sim.accesses import NO_STREAM, Accesses, Array
from tilewave.sim.dispatch import Placed


@dataclass(frozen=True, eq=False)
class OwnWalks:
    """The walks of a launch: one per wave, L2 domain and stream read there, with the number of tasks that share it."""

    launch_wave: Array
    domain: Array
    stream: Array
    size: Array
    peers: Array
    of_read: Array
    """of_read[task, i] is the walk of a task's i-th read, or -1."""

    def __len__(self) -> int:
        return len(self.launch_wave)


def own_walks(accesses: Accesses, placed: Placed) -> OwnWalks:
    """Return the walks of a launch; tasks of one domain and wave that read one stream share one walk."""
    domains, streams = len(placed.domain_xcd), accesses.streams
    key = ((placed.launch_wave * domains + placed.domain)[:, None] * streams + accesses.reads).reshape(-1)
    reads = accesses.reads.reshape(-1) != NO_STREAM
    found, member, peers = np.unique(key[reads], return_inverse=True, return_counts=True)
    of_read = np.full(len(key), -1, np.int64)
    of_read[reads] = member
    place, stream = np.divmod(found, streams)
    launch_wave, domain = np.divmod(place, domains)
    return OwnWalks(
        launch_wave, domain, stream, accesses.stream_bytes[stream], peers, of_read.reshape(accesses.reads.shape)
    )


@dataclass(frozen=True, eq=False)
class Flows:
    """Bytes per walk: missed in its domain, fetched from another partition, requested from memory, read from HBM."""

    walks: OwnWalks
    missed: Array
    crossed: Array
    asked_of_memory: Array
    hbm: Array
    hbm_if_narrow: float
    hbm_if_wide: float
    """What HBM would deliver if the caches held as little, or as much, as they ever seem to."""
