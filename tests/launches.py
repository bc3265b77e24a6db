"""Random small launches on random small machines, and both engines on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tilewave.machine import L2, Hbm, LastLevel, Machine, Rate
from tilewave.sim import Gemm, Residency
from tilewave.sim.accesses import Accesses, gemm_accesses
from tilewave.sim.calibration import Softness
from tilewave.sim.closed_form import closed_form
from tilewave.sim.dispatch import Placed, place
from tilewave.sim.flows import Flows
from tilewave.sim.problem import WALKS
from tilewave.sim.trace import trace

SHARP = Softness()
ENGINES = {"closed": closed_form, "trace": trace}


@dataclass(frozen=True)
class Launch:
    """A GEMM in some order on some machine."""

    gemm: Gemm
    mapping: str
    machine: Machine

    def accesses(self) -> Accesses:
        return gemm_accesses(self.gemm, self.mapping)

    def placed(self) -> tuple[Accesses, Placed]:
        accesses = self.accesses()
        return accesses, place(accesses, self.machine, Residency())

    def flows(self, engine: str) -> Flows:
        accesses, placed = self.placed()
        return ENGINES[engine](accesses, placed, self.machine, Residency(), SHARP)


def chip(**changes: Any) -> Machine:
    """A small machine: one xcd of four units, 1 MB of L2."""
    given: dict[str, Any] = {
        "name": "small",
        "target": "",
        "xcds": 1,
        "units_per_xcd": 4,
        "clock_hz": 1e9,
        "rates": (Rate("f16", 1e13),),
        "l2": L2(1 << 20),
        "hbm": Hbm(1 << 34, 1e12),
    }
    return Machine(**{**given, **changes})


def pairs_walked(one: list[tuple[int, int]], other: list[tuple[int, int]], stream_bytes: int) -> Accesses:
    """Return two workgroups with equally many tasks, each of which reads two streams; nothing is written."""
    tasks, streams = len(one), 1 + max(stream for pair in one + other for stream in pair)
    return Accesses(
        arrays=("x",),
        array_written_bytes=np.zeros(1),
        stream_bytes=np.full(streams, float(stream_bytes)),
        stream_array=np.zeros(streams, np.int64),
        workgroups=2,
        workgroup=np.repeat([0, 1], tasks),
        turn=np.tile(np.arange(tasks), 2),
        reads=np.array(one + other),
        written_bytes=np.zeros(2 * tasks),
        steps=32,
        flops=0.0,
        step_flops=0.0,
        dtype="f16",
    )


@st.composite
def machines(draw: Any, partitions: tuple[int, ...] = (1, 2), smallest: float = 13, last_level: Any = None) -> Machine:
    """Up to four xcds of up to eight units; caches from 2^smallest bytes to far more than the matrices."""
    xcds, parts = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from(partitions))
    l2_bytes = int(2 ** draw(st.floats(smallest, 22)))
    last = draw(st.none() | st.floats(2, 8) if last_level is None else last_level)
    return chip(
        xcds=xcds,
        units_per_xcd=draw(st.integers(parts, 8)),
        l2=L2(l2_bytes, parts, holds_writes=draw(st.booleans())),
        last_level=LastLevel(int(l2_bytes * xcds * last)) if last else None,
    )


@st.composite
def launches(
    draw: Any, machine: Any = None, depths: tuple[int, ...] = (64, 128, 200), walks: tuple[str, ...] = WALKS
) -> Launch:
    """Draw GEMMs of a few dozen boundary tiles, plain and persistent, with K in either direction."""
    tile = (draw(st.sampled_from((16, 24, 32))), draw(st.sampled_from((16, 32, 48))), 8)
    m, n = draw(st.integers(1, 400)), draw(st.integers(1, 400))
    k = draw(st.sampled_from(depths))
    workgroups, walk = draw(st.none() | st.integers(1, 40)), draw(st.sampled_from(walks))
    gemm = Gemm(m, n, k, tile, "f16", workgroups=workgroups, walk=walk)
    orders = ("linear()", "grouped(3)", 'grouped(2, along="n")', "hilbert()", "xcd_contiguous(4) >> snake(2)")
    return Launch(gemm, draw(st.sampled_from(orders)), draw(machine if machine is not None else machines()))
