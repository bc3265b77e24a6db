"""Machine code of AMD chips ↔ the members of a file: code for arrays with contiguous rows, and for any strides."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tilewave.backend.amd.build import AmdBuild, LaneResources
from tilewave.backend.amd.code import AmdCode
from tilewave.backend.protocol import Build
from tilewave.ir.core import Kernel
from tilewave.machine.chips import Chip
from tilewave.runtime.records import Record, restored
from tilewave.runtime.saved_file import Contents, Stored

LANES, TILES = "lanes.ir", "kernel.ir"


def stored_amd(build: Build) -> Stored:
    assert isinstance(build, AmdBuild)
    program = build.program
    everything = frozenset(reach.name for reach in program.code.reaches)
    variants = {"code": frozenset[str](), **({"code_any_strides": everything} if everything else {})}
    codes: list[dict[str, Any]] = []
    members = {LANES: str(build.lanes).encode()}
    for name, any_strides in variants.items():
        code = program.code_for(any_strides)
        members[f"{name}.s"], members[f"{name}.hsaco"] = code.asm.encode(), code.code_object
        codes.append({"member": name, "any_strides": sorted(any_strides), **code.facts})
    return {"codes": codes, "resources": asdict(build.resources)}, members


def loaded_amd(contents: Contents, chip: Chip, kernel: Kernel) -> AmdBuild:
    """Return the build from a file: machine code, and its lane-level kernel."""
    codes = dict(_loaded_code(contents, about) for about in contents.about.records("codes"))
    lanes = contents.kernel(LANES)
    reached = {reach.name for code in codes.values() for reach in code.reaches}
    if frozenset(reached) not in codes or lanes.name != kernel.name:
        raise contents.unaligned(LANES)
    resources = restored(LaneResources, contents.about.record("resources"))
    loaded = AmdBuild(kernel, chip, None, lambda: (lanes, ()), codes, resources)
    for code in codes.values():
        with contents.holding_against(TILES):
            loaded.program.want_launch(code)
    return loaded


def _loaded_code(contents: Contents, about: Record) -> tuple[frozenset[str], AmdCode]:
    name = about.text("member")
    code = AmdCode.of(about, contents.text(f"{name}.s"), contents.member(f"{name}.hsaco"))
    return frozenset(about.texts("any_strides")), code
