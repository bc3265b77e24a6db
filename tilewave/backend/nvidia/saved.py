"""PTX ↔ the members of a file: code for aligned arrays, for contiguous rows, and for any strides."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any

from tilewave.analysis.loads import LaneLoads
from tilewave.backend.nvidia.build import NvidiaBuild, Passed
from tilewave.backend.nvidia.code import ALIGNED, BY_LANES, CACHE_LINE, NvidiaCode, Specialization
from tilewave.backend.nvidia.packing import ALLOCATED_BYTES, RowCopy
from tilewave.backend.nvidia.program import NvidiaProgram
from tilewave.backend.nvidia.resources import NvidiaResources
from tilewave.backend.nvidia.row_copies import launch_of_copy
from tilewave.backend.protocol import Build
from tilewave.ir.core import Kernel
from tilewave.machine.chips import TENSOR_MAPS, Chip
from tilewave.runtime.array_view import ArrayView
from tilewave.runtime.records import Record, restored
from tilewave.runtime.saved_file import Contents, Stored

LANES = {CACHE_LINE: "lanes.ir", BY_LANES: "plain.ir", TENSOR_MAPS.grain_bytes: "unaligned_lines.ir"}
"""The members with lane-level kernels, by the alignment of rows that each was built for."""


def stored_nvidia(build: Build) -> Stored:
    assert isinstance(build, NvidiaBuild)
    program = build.program
    alignments = [rows for rows in LANES if rows == CACHE_LINE or rows in build.others]
    members = {LANES[rows]: str(build.for_key(Specialization(rows)).lanes).encode() for rows in alignments}
    codes: list[dict[str, Any]] = []
    for key, name in reversed(_names(program).items()):
        code = program.code_for(key)
        members[f"{name}.ptx"] = code.ptx.encode()
        codes.append({"member": name, "variant": _facts(key), **code.facts})
    copies: list[dict[str, Any]] = []
    for copy in program.copies_needed:
        code = program.copies.code(copy)
        members[f"{copy.member}.ptx"] = code.ptx.encode()
        copies.append({"copy": asdict(copy), **code.facts})
    counted = {f.name: getattr(build.resources, f.name) for f in fields(NvidiaResources) if f.repr}
    counted["loads"] = [asdict(x) for x in build.resources.loads]
    return {"codes": codes, "copies": copies, "resources": counted}, members


def _names(program: NvidiaProgram) -> dict[Specialization, str]:
    """Return the keys of all code that a file has, with the names of its members."""
    accesses = program.accesses
    in_rows = _in_rows(program)
    names = {accesses.fallback: "code_any_strides"}
    if accesses.beside:
        anywhere = tuple((name, 0) for name in accesses.beside)
        names[replace(in_rows, widths=anywhere)] = "code_rows_beside"
        names[replace(ALIGNED, widths=anywhere)] = "code_beside"
    if accesses.is_open:
        names[accesses.contiguous([v.type.dtype.bytes for v in program.memories])] = "code_contiguous"
    names |= {in_rows: "code_rows", ALIGNED: "code"}
    if accesses.is_open and accesses.transposed:
        names[Specialization(BY_LANES)] = "code_whole_rows"
    return names


def _in_rows(program: NvidiaProgram) -> Specialization:
    """Return the key for dense arrays at addresses that CUDA allocates; for dynamic rows, that on TMA's grain."""
    if program.is_open:
        grain = TENSOR_MAPS.grain_bytes
        return Specialization(grain) if grain in program.alignments else ALIGNED
    views = []
    for v in program.memories:
        strides = [v.type.dtype.bytes]
        for extent in v.type.shape[:0:-1]:
            strides.insert(0, strides[0] * extent)
        views.append(ArrayView(ALLOCATED_BYTES, v.type.shape, tuple(strides), v.type.dtype, "cuda"))
    return program.plans.plan_for(views).key


def _facts(key: Specialization) -> dict[str, Any]:
    """Return a key as files of all releases have it."""
    in_rows = key.rows == TENSOR_MAPS.grain_bytes
    facts = {"is_plain": key.is_by_lanes, "unaligned_lines": in_rows, "vector_bytes": key.vector_bytes}
    return {**facts, "any_strides": key.any_strides, "narrow": dict(key.narrow)}


def loaded_nvidia(contents: Contents, chip: Chip, kernel: Kernel) -> NvidiaBuild:
    """Return the build from a file: PTX, and its lane-level kernels."""
    about = contents.about
    codes = dict(_loaded_ptx(contents, code) for code in about.records("codes"))
    members = {rows: name for rows, name in LANES.items() if rows == CACHE_LINE or name in contents.members}
    lanes = {rows: contents.kernel(name) for rows, name in members.items()}
    builds = {rows: NvidiaBuild(kernel, chip, None, partial(_passed, found)) for rows, found in lanes.items()}
    others = {rows: lambda key: builds[key.rows] for rows in builds if rows != CACHE_LINE}
    counted = _loaded_resources(about.record("resources"))
    known = about.records("copies") if "copies" in about.fields else ()  # files of older releases have none
    copies = dict(_loaded_copy(contents, one) for one in known)
    made = codes, counted, bool(copies), copies
    loaded = NvidiaBuild(kernel, chip, None, partial(_passed, lanes[CACHE_LINE]), others, *made)
    has_all = ALIGNED in codes and loaded.program.accesses.fallback in codes
    if lanes[CACHE_LINE].name != kernel.name or not has_all:
        raise contents.unaligned(LANES[CACHE_LINE])
    for code in codes.values():
        with contents.holding_against("kernel.ir"):
            loaded.program.launch_of(code)
    for copy, code in copies.items():
        with contents.holding_against(f"{copy.member}.ptx"):
            launch_of_copy(copy, code)
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


def _passed(lanes: Kernel) -> Passed:
    return lanes, ()


def _loaded_ptx(contents: Contents, about: Record) -> tuple[Specialization, NvidiaCode]:
    v = about.record("variant")
    narrow = v.record("narrow")
    widths = dict.fromkeys(v.texts("any_strides"), 0) | {name: narrow.number(name) for name in narrow.fields}
    rows = BY_LANES if v.truth("is_plain") else TENSOR_MAPS.grain_bytes if v.truth("unaligned_lines") else CACHE_LINE
    ptx = contents.text(f"{about.text('member')}.ptx")
    return Specialization(rows, tuple(widths.items())), NvidiaCode.of(about, ptx)
