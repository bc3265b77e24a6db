"""A pipeline stage that lanes loaded from is released by an mbarrier arrival whose address depends on the loaded
data."""

import re
from dataclasses import replace
from pathlib import Path

from tilewave.backend.nvidia.code import ALIGNED
from tilewave.backend.nvidia.compiler import code_of
from tilewave.ir.ops import Arrive
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import rewrite
from tilewave.machine.chips import SM_90A
from tilewave.passes.schedule.specialize_waves import SpecializeWaves

CASES = (Path(__file__).parents[2] / "check" / "specialize_waves.ir").read_text().split("// -----")


def loaded(ptx):
    """The registers that come from shared memory."""
    return {register for line in re.findall(r"ld\.shared\.\S+\s+\{(.*?)\}", ptx) for register in line.split(", ")}


def behind(ptx, register, found=()):
    """A register and those that it is computed from."""
    if register in found:
        return found
    found = (*found, register)
    for operands in re.findall(rf"^\s*[\w.]+\s+{re.escape(register)}, (.*);$", ptx, re.MULTILINE):
        for other in re.findall(r"%r\d+", operands):
            found = behind(ptx, other, found)
    return found


def arrival_depends_on(kernel):
    ptx = code_of(kernel, SM_90A, ALIGNED).ptx
    (address,) = re.findall(r"mbarrier\.arrive\.shared::cta\.b64 _, \[(%r\d+)\]", ptx)
    return loaded(ptx).intersection(behind(ptx, address))


def test_the_arrival_waits_for_the_registers_of_a_load():
    (text,) = (case for case in CASES if "@loaded_by_lanes" in case)
    kernel = SpecializeWaves(SM_90A, SM_90A.tuning.pipeline, 3)(parse(text, "k.ir"))
    bare = rewrite(kernel, lambda op: [replace(op, seen=())] if isinstance(op, Arrive) else None)
    assert arrival_depends_on(kernel)
    assert not arrival_depends_on(bare)
