"""`tilewave emulate`: machine code of AMD chips run on this machine, and checked."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import typer
from rich.box import SQUARE
from rich.console import Console
from rich.table import Table

from tilewave.backend.protocol import CountedLoop
from tilewave.cli.asked import refuse_given
from tilewave.emulator import EmulationReport, Emulator, Finding, LoopStatistics
from tilewave.emulator.chips import CHIP_NAMES
from tilewave.emulator.emulator import read_machine_code
from tilewave.emulator.findings import Check
from tilewave.emulator.kernel import LoadedKernel
from tilewave.emulator.launch import Given
from tilewave.emulator.machine import LANES
from tilewave.emulator.numbers import Array
from tilewave.emulator.run import Order
from tilewave.emulator.statistics import module_statistics
from tilewave.errors import TilewaveError, text_error
from tilewave.files import open_plain
from tilewave.records import dataclass

NUMBERS: dict[str, Callable[[Any], np.generic]] = {
    "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "i32": np.int32, "u32": np.uint32,
    "i64": np.int64, "u64": np.uint64, "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
CHECKS: dict[str, Check] = {"strict": "strict", "warn": "warn", "off": "off"}
ORDERS: dict[str, Order] = {"barrier": "barrier", "random": "random"}
MOST_RESULT_BYTES = 1 << 32
STRIDE = re.compile(r"(\w+)\.(\d)")
"""How tilewave's kernels name the stride of an array along an axis, in elements."""
ANY_WORKGROUP = 1024
"""What compilers write where a kernel says nothing of its workgroups."""
LAUNCHING = ("grid", "block", "arguments", "order", "seed", "check", "shared")
"""Options that say how a kernel is run."""


def emulate_command(
    *,
    context: typer.Context,
    file: Path,
    kernel: str,
    grid: str,
    block: str,
    arguments: list[str] | None,
    order: str,
    seed: int,
    check: str,
    shared: int,
    limit: int,
    stats: bool,
    as_json: bool,
) -> None:
    emulator = emulator_of(file)
    if not kernel:
        named = "name the kernel after the file, or leave it out"
        refuse_given(context, (*LAUNCHING, "stats"), "has no effect without a kernel", named)
        _print_kernels(emulator, as_json)
        return
    if stats:
        refuse_given(context, LAUNCHING, "has no effect on --stats", "code is counted without being run: leave it out")
        _print_statistics(module_statistics(emulator.module, kernel), as_json)
        return
    if order != "random":
        refuse_given(context, ("seed",), "has no effect without --order random", "add --order random, or leave it out")
    given = [_argument(text) for text in arguments or ()]
    loaded = emulator.kernel(kernel)
    report = emulator.launch(
        kernel,
        _extent("--grid", grid),
        _block(loaded, block),
        _with_strides(loaded, [argument.value for argument in given]),
        order=_choice("--order", order, ORDERS),
        seed=seed,
        check=_choice("--check", check, CHECKS),
        dynamic_shared=shared,
        limit=limit or None,
    )
    for argument in given:
        if argument.written is not None and isinstance(argument.value, np.ndarray):
            np.save(argument.written, argument.value)
    _print_json(report) if as_json else _print_report(report)
    if report.findings:
        raise typer.Exit(1)


# -- what was asked ----------------------------------------------------------------------------------------------------


def emulator_of(file: Path) -> Emulator:
    """Return the machine code of a file, assembly or a code object, ready to be launched."""
    if not file.is_file():
        raise TilewaveError(f"there is no file {file}", remedy="name LLVM's assembly (.s) or a code object (.hsaco)")
    if file.suffix == ".py":
        make = f"tilewave compile {file} --target {CHIP_NAMES[0]} --out build"
        what = f"{file} is a Python file, and machine code is emulated"
        raise TilewaveError(what, remedy=f"write that first, {make}, and name build/KERNEL.s")
    content = read_machine_code(file)
    is_object = content[:4] == b"\x7fELF"
    return Emulator.from_code_object(content) if is_object else Emulator.from_assembly(content.decode(errors="replace"))


@dataclass(frozen=True)
class _Argument:
    """A value for the kernel, and the file that its result goes to."""

    value: Given
    written: Path | None = None


def _argument(text: str) -> _Argument:
    kind, _, rest = text.partition(":")
    match kind:
        case "in":
            return _Argument(_load(text, rest))
        case "inout":
            return _Argument(_load(text, rest), Path(rest))
        case "out":
            return _output(text, rest)
        case _ if kind in NUMBERS:
            return _Argument(_number(text, kind, rest))
        case _:
            known = f"in, inout, out, {', '.join(NUMBERS)}"
            raise TilewaveError(text_error(f"--arg: `{kind}` is no kind", text, 0, len(kind), f"there are {known}"))


def _load(text: str, name: str) -> Array:
    if not Path(name).is_file():
        start = text.index(":") + 1
        remedy = "numpy.save writes such files"
        raise TilewaveError(text_error(f"--arg: there is no file {name}", text, start, len(text), remedy))
    try:
        with os.fdopen(open_plain(name), "rb") as file:
            if (size := os.fstat(file.fileno()).st_size) > MOST_RESULT_BYTES:
                raise ValueError(f"it has {size:,} bytes, and at most {MOST_RESULT_BYTES:,} are emulated")
            found = np.load(file, allow_pickle=False)
            if not isinstance(found, np.ndarray):
                raise ValueError("it is an archive of several")
            return np.ascontiguousarray(found)
    except (EOFError, MemoryError, OSError, RecursionError, SyntaxError, ValueError, BadZipFile) as error:
        raise TilewaveError(
            f"--arg: {name} is no array: {str(error)[:200]}", remedy="numpy.save writes such files"
        ) from None


def _output(text: str, rest: str) -> _Argument:
    found = re.fullmatch(r"(.+):(\w+):(\d{1,9}(?:x\d{1,9}){0,7})", rest, re.ASCII)
    if found is None:
        remedy = "write out:C.npy:float32:256x256"
        raise TilewaveError(text_error("--arg: a result has a file, a dtype and a shape", text, 4, len(text), remedy))
    try:
        dtype = np.dtype(found[2])
    except TypeError:
        start = text.index(f":{found[2]}:") + 1
        remedy = "numpy's names: float32, float16, bfloat16, int8"
        what = f"--arg: unknown dtype {found[2]}"
        raise TilewaveError(text_error(what, text, start, start + len(found[2]), remedy)) from None
    shape = [int(extent) for extent in found[3].split("x")]
    if prod(shape) * dtype.itemsize > MOST_RESULT_BYTES:
        what = f"--arg: a result of {prod(shape) * dtype.itemsize:,} bytes"
        raise TilewaveError(text_error(what, text, 4, len(text), f"at most {MOST_RESULT_BYTES:,} are emulated"))
    poisoned = np.full(prod(shape) * dtype.itemsize, 0xFF, np.uint8)
    return _Argument(poisoned.view(dtype).reshape(shape), Path(found[1]))


def _number(text: str, kind: str, rest: str) -> np.generic:
    try:
        return NUMBERS[kind](float(rest) if kind.startswith("f") else int(rest, 0))
    except (ValueError, OverflowError):
        start = len(kind) + 1
        what = f"--arg: `{rest}` is no {kind}"
        raise TilewaveError(text_error(what, text, start, len(text), f"write {kind}:1")) from None


def _extent(option: str, text: str) -> tuple[int, ...]:
    if re.fullmatch(r"\d{1,9}(,\d{1,9}){0,2}", text, re.ASCII) is None:
        raise TilewaveError(text_error(f"{option}: one to three numbers", text, 0, len(text), "write 4,8 or 4,8,1"))
    return tuple(int(n) for n in text.split(","))


def _block(kernel: LoadedKernel, text: str) -> tuple[int, ...]:
    """The lanes of a workgroup; a kernel that does not say how many it needs may be given fewer, but is warned of."""
    most = kernel.resources.largest_workgroup or ANY_WORKGROUP
    if not text:
        return (most if most < ANY_WORKGROUP else LANES,)
    block = _extent("--block", text)
    said = f"--block: {kernel.name} was compiled for workgroups of up to {most} lanes, not {prod(block)}"
    if prod(block) > most:
        raise TilewaveError(text_error(said, text, 0, len(text), f"leave --block out, or write --block {most}"))
    if prod(block) < most < ANY_WORKGROUP:
        print(f"warning: {said}; one that needs them all computes too little", file=sys.stderr)
    return block


def _with_strides(kernel: LoadedKernel, given: list[Given]) -> list[Given]:
    """Insert the strides that a tilewave kernel takes after each array (a, a.0, a.1), where they are not given."""
    wanted = [argument for argument in kernel.arguments if not argument.is_hidden]
    own = [STRIDE.fullmatch(argument.name or "") for argument in wanted]
    if len(given) != own.count(None):
        return given
    found: list[Given] = []
    arrays: dict[str, Array] = {}
    rest = iter(given)
    for argument, stride in zip(wanted, own, strict=True):
        if stride is None:
            value = next(rest)
            if isinstance(value, np.ndarray):
                arrays[argument.name or ""] = value
        elif stride[1] not in arrays or int(stride[2]) >= arrays[stride[1]].ndim:
            return given
        else:
            array = arrays[stride[1]]
            value = np.int64(array.strides[int(stride[2])] // array.itemsize)
        found.append(value)
    return found


def _choice(option: str, text: str, known: dict[str, Any]) -> Any:
    if text not in known:
        remedy = f"there are {', '.join(known)}"
        raise TilewaveError(text_error(f"{option}: `{text}` is none", text, 0, len(text), remedy))
    return known[text]


# -- what is printed ---------------------------------------------------------------------------------------------------


def _print_kernels(emulator: Emulator, as_json: bool) -> None:
    kernels = [emulator.kernel(name) for name in emulator.kernels]
    if as_json:
        print(json.dumps({"chip": emulator.chip, "kernels": [asdict(kernel) for kernel in kernels]}, indent=2))
        return
    table = Table("Kernel", "Arguments", box=SQUARE)
    for title in ("Lanes", "Registers", "Shared bytes", "Spills"):
        table.add_column(title, justify="right")
    for kernel in kernels:
        names = ", ".join(a.name or a.kind for a in kernel.arguments if not a.is_hidden)
        needs = kernel.resources
        numbers = needs.largest_workgroup, needs.vector_registers, kernel.descriptor.shared_bytes, needs.spills
        table.add_row(kernel.name, names, *map(str, numbers))
    console = Console(highlight=False)
    console.print(f"{emulator.chip} machine code", style="bold")
    console.print(table)


def _print_report(report: EmulationReport) -> None:
    console = Console(highlight=False)
    order = f"random order, seed {report.seed}" if report.order == "random" else "barrier order"
    console.print(f"{report.kernel} on {report.chip}: {report.workgroups} workgroups, {report.waves} waves, {order}")
    console.print(f"{report.instructions} instructions of waves in {report.seconds:.2f} s")
    for finding in report.findings:
        console.print(f"\n{finding}", markup=False, soft_wrap=True)
    count = len(report.findings)
    console.print("✓ no findings" if not count else f"\n✗ {count} finding{'s' * (count > 1)}",
                  style="red" if count else "green")  # fmt: skip


def _print_json(report: EmulationReport) -> None:
    found = [_finding_json(finding) for finding in report.findings]
    print(json.dumps({**asdict(report), "findings": found}, indent=2))


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "loc": {"file": finding.loc.file, "line": finding.loc.line}}


def _print_statistics(statistics: LoopStatistics, as_json: bool) -> None:
    if as_json:
        ratios = {
            "instructions_per_matrix": statistics.instructions_per_matrix,
            "matrix_over_next": statistics.matrix_over_next,
        }
        print(json.dumps({**asdict(statistics), **ratios}, indent=2))
        return
    console = Console(highlight=False)
    console.print(f"K loop of {statistics.kernel}, {statistics.chip}, {statistics.waves} waves", style="bold")
    console.print(statistics_table(statistics))


def statistics_table(statistics: CountedLoop) -> Table:
    """The K loop in the terms in which kernels are compared."""
    table = Table(statistics.heading, box=SQUARE)
    table.add_column("", justify="right")
    for name, value in statistics.rows.items():
        table.add_row(name, value)
    return table
