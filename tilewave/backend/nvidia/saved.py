"""PTX ↔ the members of a file: code for aligned arrays, for contiguous rows, and for any strides."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any

from tilewave.analysis.loads import LaneLoads
from tilewave.backend.nvidia.build import NvidiaBuild, NvidiaResources
from tilewave.backend.nvidia.code import NvidiaCode, Variant
from tilewave.backend.nvidia.packing import ALLOCATED_BYTES, RowCopy
from tilewave.backend.nvidia.program import NvidiaProgram
from tilewave.backend.nvidia.row_copies import want_copy
from tilewave.backend.protocol import Build
from tilewave.ir.core import Kernel
from tilewave.machine.chips import Chip
from tilewave.runtime.arrays import ArrayView
from tilewave.runtime.records import Record, restored
from tilewave.runtime.saved_file import Contents, Stored

LANES, PLAIN, UNALIGNED_LINES = "lanes.ir", "plain.ir", "unaligned_lines.ir"


def stored_nvidia(build: Build) -> Stored:
    assert isinstance(build, NvidiaBuild)
    program = build.program
    members = {LANES: str(build.lanes).encode()}
    if build.otherwise:
        members[PLAIN] = str(build.plain.lanes).encode()
    if build.unaligned_lines:
        members[UNALIGNED_LINES] = str(build.sharing.lanes).encode()
    codes: list[dict[str, Any]] = []
    in_rows = Variant(unaligned_lines=build.unaligned_lines is not None) if program.is_open else _in_rows(program)
    beside = (
        {v: f"{name}_beside" for v, name in ((in_rows, "code_rows"), (Variant(), "code"))} if program.beside else {}
    )
    variants = {program.for_any: "code_any_strides"}
    variants |= {replace(v, any_strides=program.beside): name for v, name in beside.items()}
    variants |= {in_rows: "code_rows", Variant(): "code"}
    if program.is_open and program.transposed:
        variants[Variant(is_plain=True)] = "code_whole_rows"
    for variant, name in reversed(variants.items()):
        code = program.code_for(variant)
        members[f"{name}.ptx"] = code.ptx.encode()
        codes.append({"member": name, "variant": {**asdict(variant), "narrow": dict(variant.narrow)}, **code.facts})
    copies: list[dict[str, Any]] = []
    for copy in program.copies_needed:
        code = program.copies.code(copy)
        members[f"{copy.member}.ptx"] = code.ptx.encode()
        copies.append({"copy": asdict(copy), **code.facts})
    counted = {f.name: getattr(build.resources, f.name) for f in fields(NvidiaResources) if f.repr}
    counted["loads"] = [asdict(x) for x in build.resources.loads]
    return {"codes": codes, "copies": copies, "resources": counted}, members


def _in_rows(program: NvidiaProgram) -> Variant:
    """Return the variant for dense arrays at addresses that CUDA allocates."""
    views = []
    for v in program.memories:
        strides = [v.type.dtype.bytes]
        for extent in v.type.shape[:0:-1]:
            strides.insert(0, strides[0] * extent)
        views.append(ArrayView(ALLOCATED_BYTES, v.type.shape, tuple(strides), v.type.dtype, "cuda", False, None))
    return program.plan_for(views).variant


def loaded_nvidia(contents: Contents, chip: Chip, kernel: Kernel) -> NvidiaBuild:
    """Return the build from a file: PTX, and its lane-level kernels."""
    about = contents.about
    codes = dict(_loaded_ptx(contents, code) for code in about.records("codes"))
    lanes = contents.kernel(LANES)
    plain_lanes = contents.kernel(PLAIN) if PLAIN in contents.members else None
    plain = NvidiaBuild(kernel, chip, None, lambda: (plain_lanes, ())) if plain_lanes else None
    counted = _loaded_resources(about.record("resources"))
    otherwise = (lambda: plain) if plain else None
    shared_lanes = contents.kernel(UNALIGNED_LINES) if UNALIGNED_LINES in contents.members else None
    sharing = NvidiaBuild(kernel, chip, None, lambda: (shared_lanes, ())) if shared_lanes else None
    unaligned_lines = (lambda: sharing) if sharing else None
    known = about.records("copies") if "copies" in about.fields else ()  # files of older releases have none
    copies = dict(_loaded_copy(contents, one) for one in known)
    made = codes, counted, unaligned_lines, bool(copies), copies
    loaded = NvidiaBuild(kernel, chip, None, lambda: (lanes, ()), otherwise, *made)
    if lanes.name != kernel.name or not {Variant(), loaded.program.for_any} <= codes.keys():
        raise contents.unaligned(LANES)
    for code in codes.values():
        with contents.holding_against("kernel.ir"):
            loaded.program.want_launch(code)
    for copy, code in copies.items():
        with contents.holding_against(f"{copy.member}.ptx"):
            want_copy(copy, code)
    return loaded


def _loaded_copy(contents: Contents, about: Record) -> tuple[RowCopy, NvidiaCode]:
    copy = restored(RowCopy, about.record("copy"))
    return copy, NvidiaCode.of(about, contents.text(f"{copy.member}.ptx"))


def _loaded_resources(r: Record) -> NvidiaResources:
    return NvidiaResources(
        r.text("machine"),
        r.numbers("waves"),
        r.number("lanes"),
        r.texts("instructions"),
        r.number("shared_bytes"),
        tuple(restored(LaneLoads, one) for one in r.records("loads")),
        _no_build,
        r.texts("not_as_asked"),
    )


def _no_build() -> NvidiaBuild:
    raise AssertionError("`NvidiaBuild.resources` puts the build in its place")


def _loaded_ptx(contents: Contents, about: Record) -> tuple[Variant, NvidiaCode]:
    v = about.record("variant")
    narrow = v.record("narrow")
    widths = tuple((name, narrow.number(name)) for name in narrow.fields)
    variant = Variant(v.truth("is_plain"), v.texts("any_strides"), widths, v.truth("unaligned_lines"))
    return variant, NvidiaCode.of(about, contents.text(f"{about.text('member')}.ptx"))
