"""Machines in a terminal: one line each, or one page of a single one, every number with its source."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from tilewave.machine import Machine
from tilewave.view.tables import names, numbers, print_table, words

MIB = 1 << 20
UNKNOWN = "–"


def print_machines(console: Console, machines: tuple[Machine, ...]) -> None:
    """One line a machine."""
    columns = (
        *names("machine", "target"),
        *numbers("XCDs", "units", "L2 of an XCD", "last level"),
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


def _row(m: Machine) -> tuple[str, ...]:
    f16 = m.flops("f16")
    parts = f" in {m.l2.partitions}" if m.l2.partitions > 1 else ""
    return (
        m.name,
        m.target,
        str(m.xcds),
        str(m.units),
        f"{m.l2.bytes / MIB:g} MiB{parts}",
        f"{m.last_level.bytes / MIB:g} MiB" if m.last_level else UNKNOWN,
        f"{m.hbm.bytes / 1e9:g} GB, {m.hbm.bytes_per_second / 1e12:g} TB/s",
        f"{f16 / 1e12:.0f} TFLOP/s" if f16 else UNKNOWN,
        f"{m.clock_hz / 1e9:g} GHz",
    )


def _facts(m: Machine) -> list[tuple[str, str, str]]:
    """(title, value, the field whose source it has)."""
    facts = [
        ("XCDs", str(m.xcds), "xcds"),
        ("units of an XCD", f"{m.units_per_xcd}, in all {m.units}", "units_per_xcd"),
        ("clock", f"{m.clock_hz / 1e9:g} GHz", "clock_hz"),
        ("L2 of an XCD", _l2(m), "l2"),
        ("last level", _last_level(m), "last_level"),
        ("HBM", f"{m.hbm.bytes / 1e9:g} GB, {m.hbm.bytes_per_second / 1e12:g} TB/s", "hbm"),
        ("shared memory", f"{m.shared_bytes / 1024:g} KiB a unit" if m.shared_bytes else UNKNOWN, "shared_bytes"),
        ("requests merged", _merging(m), "merging"),
        ("dispatch order", _dispatch(m), "dispatch_order"),
    ]
    rates = [(f"{rate.dtype} dense", f"{rate.flops / 1e12:,.0f} TFLOP/s", "rates") for rate in m.rates]
    return facts + rates


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
    return f"up to {m.merging.most} of {m.merging.units} neighbouring units" if m.merging else "none"


def _dispatch(m: Machine) -> str:
    if not m.dispatch_order:
        return "workgroup w to XCD w % " + str(m.xcds) if m.xcds > 1 else "unit after unit"
    return f"{len(m.dispatch_order)} runs of units of one partition"
