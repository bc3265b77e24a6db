"""Machines in a terminal: one line each, or one page of a single one, every number with its source."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from tilewave.machine import Machine
from tilewave.records import dataclass
from tilewave.view.tables import names, numbers, print_table, words

MIB = 1 << 20
UNKNOWN = "–"


@dataclass(frozen=True)
class Terms:
    """The vendor's words for a processor, its shared memory and the last-level cache."""

    unit: str = "unit"
    shared: str = "shared memory"
    last_level: str = "last-level cache"


VENDOR_TERMS = {"gfx": Terms("CU", "LDS", "Infinity Cache"), "sm_": Terms("SM")}
"""By how the name of a target begins."""


def print_machines(console: Console, machines: tuple[Machine, ...]) -> None:
    """One line a machine."""
    columns = (
        *names("machine", "target"),
        *numbers("XCDs", "", "L2", "Infinity Cache"),
        *numbers("HBM", "f16 dense", "clock"),
    )
    print_table(console, columns, [_row(m) for m in machines])


def print_machine(console: Console, machine: Machine) -> None:
    """A page: what it has, in words, and where each number was found."""
    console.print(Text(f"{machine.name}, {machine.target}", style="bold"))
    rows, last = [], ""
    for title, value, field in _facts(machine):
        source = machine.source(field) or UNKNOWN
        rows.append((title, value, "the same" if source == last != UNKNOWN else source))
        last = source
    print_table(console, (*names(""), *words("", "source")), rows)


def _terms(m: Machine) -> Terms:
    return VENDOR_TERMS.get(m.target[:3], Terms())


def _row(m: Machine) -> tuple[str, ...]:
    f16 = m.flops("f16")
    each = f"{m.xcds} × " if m.xcds > 1 else ""
    parts = f" in {m.l2.partitions} partitions" if m.l2.partitions > 1 else ""
    return (
        m.name,
        m.target,
        str(m.xcds) if m.xcds > 1 else "",
        f"{m.units} {_terms(m).unit}s",
        f"{each}{m.l2.bytes / MIB:g} MiB{parts}",
        f"{m.last_level.bytes / MIB:g} MiB" if m.last_level else "",
        f"{m.hbm.bytes / 1e9:g} GB, {m.hbm.bytes_per_second / 1e12:g} TB/s",
        f"{f16 / 1e12:.0f} TFLOP/s" if f16 else UNKNOWN,
        f"{m.clock_hz / 1e9:g} GHz",
    )


def _facts(m: Machine) -> list[tuple[str, str, str]]:
    """(title, value, the field whose source it has)."""
    terms = _terms(m)
    has_xcds = m.xcds > 1
    facts = [
        *([("XCDs", str(m.xcds), "xcds")] if has_xcds else []),
        (f"{terms.unit}s", f"{m.units}, {m.units_per_xcd} per XCD" if has_xcds else str(m.units), "units_per_xcd"),
        ("clock", f"{m.clock_hz / 1e9:g} GHz", "clock_hz"),
        ("L2 per XCD" if has_xcds else "L2", _l2(m), "l2"),
        (terms.last_level, _last_level(m), "last_level"),
        ("HBM", f"{m.hbm.bytes / 1e9:g} GB, {m.hbm.bytes_per_second / 1e12:g} TB/s", "hbm"),
        (
            terms.shared,
            f"{m.shared_bytes / 1024:g} KiB per {terms.unit}" if m.shared_bytes else UNKNOWN,
            "shared_bytes",
        ),
        ("requests merged", _merging(m), "merging"),
        ("dispatch order", _dispatch(m), "dispatch_order"),
    ]
    rates = [(f"{rate.dtype} dense", f"{rate.flops / 1e12:,.0f} TFLOP/s", "rates") for rate in m.rates]
    return facts + rates + _sustained(m)


def _sustained(m: Machine) -> list[tuple[str, str, str]]:
    """Return the clocks that power leaves, if the machine says."""
    if m.power is None:
        return []
    clocks = ", ".join(f"{clock.dtype} {clock.hz / 1e9:.3g} GHz" for clock in m.power.clocks)
    return [("clock under load", f"{clocks}; on zeros × {m.power.zeros:g}", "power")]


def _l2(m: Machine) -> str:
    parts = [f"{m.l2.bytes / MIB:g} MiB"]
    if m.l2.partitions > 1:
        parts.append(f"in {m.l2.partitions} partitions")
    parts.append(f"lines of {m.l2.line_bytes} bytes")
    if m.l2.ways:
        parts.append(f"{m.l2.ways} ways")
    parts.append("writes stay in it" if m.l2.holds_writes else "writes pass through")
    return ", ".join(parts)


def _last_level(m: Machine) -> str:
    if m.last_level is None:
        return "none"
    rate = m.last_level.bytes_per_second
    return f"{m.last_level.bytes / MIB:g} MiB" + (f", {rate / 1e12:g} TB/s" if rate else "")


def _merging(m: Machine) -> str:
    return f"up to {m.merging.most} of {m.merging.units} neighbouring {_terms(m).unit}s" if m.merging else "none"


def _dispatch(m: Machine) -> str:
    if not m.dispatch_order:
        return "workgroup w to XCD w % " + str(m.xcds) if m.xcds > 1 else "in order"
    return f"{len(m.dispatch_order)} runs of {_terms(m).unit}s of one partition"
