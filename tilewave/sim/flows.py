"""What an engine answers: for each stream that a cache walks in a beat, where its bytes came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewave.sim.accesses import NO_STREAM, Accesses, Array
from tilewave.sim.dispatch import Placed


@dataclass(frozen=True, eq=False)
class OwnWalks:
    """The streams that the residents of each L2 domain walk in each beat, and how many tasks walk each."""

    launch_wave: Array
    domain: Array
    stream: Array
    size: Array
    peers: Array
    of_read: Array
    """of_read[task, i] is the walk of a task's i-th read."""

    def __len__(self) -> int:
        return len(self.launch_wave)


def own_walks(accesses: Accesses, placed: Placed) -> OwnWalks:
    """Tasks of one domain and beat that read one stream make one walk of it."""
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
    """Bytes of each own walk: missed in its domain, fetched from another partition, asked of memory, read from HBM."""

    walks: OwnWalks
    missed: Array
    crossed: Array
    asked_of_memory: Array
    hbm: Array
    hbm_if_narrow: float
    hbm_if_wide: float
    """What HBM would deliver if the caches held as little, or as much, as they ever seem to."""
