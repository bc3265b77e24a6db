"""Machines that a user describes: a TOML file, read strictly."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from tilewave.files import read_plain
from tilewave.machine.cards import find
from tilewave.machine.description import (
    L2,
    LONGEST_NAME,
    Hbm,
    LastLevel,
    Machine,
    MachineError,
    Merging,
    PowerLimit,
    Rate,
    Source,
    SustainedClock,
    UnitRun,
    shown,
)

T = TypeVar("T")
PARTS: dict[str, type[Any]] = {"l2": L2, "hbm": Hbm, "last_level": LastLevel, "merging": Merging}
MOST_BYTES = 1 << 18
"""The largest description file; one usually takes some 2 KB."""


def load(path: str | Path) -> Machine:
    """Return the machine that a TOML file describes; an error names every mistake in it."""
    file, toml = Path(path), _toml_reader()
    try:
        data = toml.loads(read_plain(file, MOST_BYTES).decode())
    except OSError as error:
        raise MachineError(f"{file} cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise MachineError(f"{file} is no machine's description: its lists or tables are nested too deep") from None
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError, and numbers that Python does not read
        raise MachineError(f"{file} is no TOML: {error}") from None
    try:
        return _machine(data)
    except MachineError as error:
        raise MachineError(f"{file}: {error.what}", remedy=error.remedy) from None


def _toml_reader() -> Any:
    """Return `tomllib`, which Python has from 3.11 on, or its substitute."""
    return import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


def find_or_load(text: str) -> Machine:
    """Return a machine by name, or from the file that describes it."""
    return load(text) if text.lower().endswith(".toml") else find(text)


def _machine(data: Mapping[str, Any]) -> Machine:
    given: dict[str, Any] = dict(data)
    rates = given.pop("rates", {})
    if not isinstance(rates, dict):
        raise MachineError("rates is a table", remedy="write [rates] and below it f16 = 1307e12")
    sources = given.pop("sources", {})
    if not isinstance(sources, dict) or not all(isinstance(text, str) for text in sources.values()):
        raise MachineError("sources is a table of texts", remedy='write [sources] and below it l2 = "data sheet"')
    if "power" in given:
        given["power"] = _power(given["power"])
    for name, kind in PARTS.items():
        if name in given:
            given[name] = _record(kind, name, given[name])
    dispatch_order = given.pop("dispatch_order", [])
    if not isinstance(dispatch_order, list):
        raise MachineError(
            "dispatch_order is a list of tables", remedy="write [[dispatch_order]] and below it units = 16"
        )
    given["rates"] = tuple(Rate(dtype, flops) for dtype, flops in rates.items())
    given["sources"] = tuple(Source(field, text) for field, text in sources.items())
    given["dispatch_order"] = tuple(_record(UnitRun, "dispatch_order", entry) for entry in dispatch_order)
    return _record(Machine, "", given)


def _power(given: Any) -> PowerLimit:
    """Return the limit that `[power]` describes, with a table of sustained clocks by dtype."""
    clocks = given.get("clocks") if isinstance(given, dict) else None
    if not isinstance(clocks, dict):
        raise MachineError("power has no clocks", remedy="write [power.clocks] and below it f16 = 1.1e9")
    return _record(PowerLimit, "power", {**given, "clocks": tuple(SustainedClock(*one) for one in clocks.items())})


def _record(kind: type[T], where: str, given: Any) -> T:
    """Return a dataclass from a table; no field may be missing or unknown."""
    assert is_dataclass(kind)
    prefix = f"{where}." if where else ""
    if not isinstance(given, dict):
        raise MachineError(f"{where} is a table, not {shown(given)}", remedy=f"write [{where}]")
    known = {f.name: f for f in fields(kind)}
    for name in given:
        if name not in known:
            raise MachineError(f"{prefix}{name[:LONGEST_NAME]} is no field", remedy=f"there are {', '.join(known)}")
    for name, field in known.items():
        if name not in given and field.default is MISSING and field.default_factory is MISSING:
            raise MachineError(f"{prefix}{name} is missing")
    for name in ("name", "target"):
        if name in given and not isinstance(given[name], str):
            raise MachineError(f"{prefix}{name} is a text, not {shown(given[name])}")
    return kind(**given)
