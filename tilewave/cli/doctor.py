"""`tilewave doctor`: what is here, and what is missing for what."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import warnings
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from tilewave._version import __version__
from tilewave.backend.cpu.instruction_sets import host_instruction_set
from tilewave.backend.nvidia.ptxas import ptxas
from tilewave.backend.targets import TARGETS, target_here
from tilewave.bench.measured_on import this_cpu
from tilewave.emulator.disassembly import find_objdump
from tilewave.errors import TilewaveError
from tilewave.records import dataclass
from tilewave.runtime.cache import CacheUnavailable, default_directory, default_limit_bytes, held_bytes
from tilewave.runtime.pool import default_threads
from tilewave.sim.explain import size
from tilewave.view.tables import names, print_table, words

PACKAGES = {
    "numpy": "needed: arrays and the interpreter",
    "ml_dtypes": "needed: bf16 and f8",
    "llvmlite": "needed: machine code for every target",
    "rich": "needed: tables in the terminal",
    "typer": "needed: this command line",
    "sympy": "optional: its ceiling, floor, Min, Max over our symbols",
    "torch": "optional: its tensors as arguments; tilewave bench",
    "numba": "optional: a faster trace engine of the simulator",
}


@dataclass(frozen=True)
class Diagnosis:
    """One line: what was looked for, what was found, and what it is for."""

    what: str
    found: str
    purpose: str
    is_here: bool = True


def doctor_command(
    *,
    as_json: bool,
) -> None:
    findings = [*_machine(), *_devices(), *_cache(), *_tools()]
    packages = [_package(name, purpose) for name, purpose in PACKAGES.items()]
    if as_json:
        print(json.dumps(_report(findings, packages), indent=2))
        return
    console = Console(highlight=False)
    console.print(Text(f"tilewave {__version__}, Python {platform.python_version()}", style="bold"))
    _print(console, "here", findings)
    _print(console, "package", packages)
    for one in (*findings, *packages):
        if not one.is_here and one.purpose:
            console.print(Text(f"missing: {one.what}, {one.purpose}"), soft_wrap=True)


def _report(findings: list[Diagnosis], packages: list[Diagnosis]) -> dict[str, Any]:
    return {
        "tilewave": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": _cores(),
        "threads": default_threads(),
        "target": target_here(),
        "findings": [asdict(one) for one in findings],
        "packages": {one.what: one.found if one.is_here else None for one in packages},
    }


def _print(console: Console, title: str, findings: list[Diagnosis]) -> None:
    rows = [(one.what, one.found, one.purpose) for one in findings]
    print_table(console, (*names(title), *words("", "for")), rows)


def _machine() -> list[Diagnosis]:
    try:
        instructions = host_instruction_set().name
    except TilewaveError as error:
        instructions = error.what
    threads = f"{default_threads()} (TILEWAVE_NUM_THREADS), of {_cores()} cores"
    return [
        Diagnosis("processor", this_cpu().device, "kernels on the CPU"),
        Diagnosis("instruction set", instructions, "the best that tilewave generates code for"),
        Diagnosis("threads", threads, "workgroups on the CPU at the same time"),
        Diagnosis("kernels run on", target_here(), "default target (arrays and TILEWAVE_TARGET override it)"),
    ]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _devices() -> list[Diagnosis]:
    """The GPUs of each vendor whose code can be compiled; those are found once, however many chips a vendor has."""
    found: list[Diagnosis] = []
    seen: set[str] = set()
    for target in TARGETS.values():
        if not target.device or not (driver := target.driver()) or target.device in seen:
            continue
        seen.add(target.device)
        chips = ", ".join(t.name for t in TARGETS.values() if t.device == target.device)
        count = target.device_count()
        for number in range(count):
            able = [t.name for t in TARGETS.values() if t.device == target.device and t.runs_on(number)]
            code = f"runs code for {', '.join(able)}" if able else f"no code for it: the chips are {chips}"
            found.append(Diagnosis(f"{target.device}:{number}", f"{target.device_name(number)}, {driver}", code))
        if not count:
            purpose = f"running kernels for {chips}; compiling, simulating and interpreting them needs no card"
            found.append(Diagnosis(target.device, f"none: {driver}", purpose, is_here=False))
    return found


def _cache() -> list[Diagnosis]:
    purpose = "compiled code, for the next process (TILEWAVE_CACHE_DIR, TILEWAVE_CACHE_BYTES)"
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", CacheUnavailable)
        directory = default_directory()
    if directory is None:
        why = str(given[0].message) if given else "off"
        return [Diagnosis("cache", why, purpose, is_here=False)]
    return [Diagnosis("cache", f"{directory}: {size(held_bytes(directory))} of {size(default_limit_bytes())}", purpose)]


def _tools() -> list[Diagnosis]:
    try:
        objdump = find_objdump()
    except TilewaveError:
        objdump = ""
    tools = {
        "llvm-objdump": (objdump, "emulating code objects (.hsaco); assembly needs nothing"),
        "ptxas": (ptxas(), "registers and spills of NVIDIA code without a card"),
        "chromium": (shutil.which("chromium") or "", "tests of pages in a browser; pages open in any"),
    }
    return [
        Diagnosis(name, path or "not found", purpose, is_here=bool(path)) for name, (path, purpose) in tools.items()
    ]


def _package(name: str, purpose: str) -> Diagnosis:
    try:
        return Diagnosis(name, importlib.metadata.version(name), purpose)
    except importlib.metadata.PackageNotFoundError:
        return Diagnosis(name, "not found", purpose, is_here=False)
