"""Print every measured row beside what the simulator predicts, and the summary; --write puts both into docs/sim.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tilewave.sim.validation import (
    FIXED_RULE,
    Compared,
    baseline_rows,
    choices,
    h200_rows,
    mi300x_rows,
    mi355x_rows,
    own_rows,
    summary,
    tile_choices,
    unseen_rows,
)

DOCUMENT = Path(__file__).parents[1] / "docs" / "sim.md"
BEGIN, END = "<!-- validation: made by benchmarks/validate_sim.py --write -->\n", "<!-- end of validation -->\n"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ("---",) * len(head), *rows)]
    return "\n".join(lines) + "\n"


def shown(quantity: str, value: float) -> str:
    match quantity:
        case "HBM read" | "L2 requests":
            return f"{value / 1e6:,.1f} MB"
        case "seconds":
            return f"{1e6 * value:,.1f} µs"
        case "TFLOP/s":
            return f"{value:.0f}"
        case "gain":
            return f"{100 * (value - 1):+.1f} %"
        case _:
            return f"{100 * value:.1f} %"


def remark(row: Compared) -> str:
    found = ["fitted"] if row.fitted else []
    if row.low is not None and row.high is not None:
        ends = f"{row.low / 1e6:,.0f} – {row.high / 1e6:,.0f} MB"
        found.append(f"cliff: {ends}" + ("" if row.inside else ", missed"))
    return ", ".join(found)


def compared(rows: list[Compared]) -> str:
    cells = []
    for row in rows:
        points = row.quantity.endswith("hit") or row.quantity == "gain"
        error = f"{100 * (row.predicted - row.measured):+.1f} points" if points else f"{100 * row.error:+.1f} %"
        values = (shown(row.quantity, row.predicted), shown(row.quantity, row.measured))
        cells.append((row.problem, f"`{row.mapping}`", row.quantity, *values, error, remark(row)))
    return table(("launch", "mapping", "what", "predicted", "measured", "error", ""), cells)


def summary_table() -> str:
    rows = [(f.name, f"{100 * f.value:.2f} %", f"{100 * f.bound:g} %", "" if f.kept else "worse") for f in summary()]
    rows[-1] = (summary()[-1].name, f"{summary()[-1].value:.0f}", "0", "" if summary()[-1].kept else "worse")
    return table(("figure", "value", "at most", ""), rows)


def choice_table() -> str:
    rows = []
    for c in [*choices(), *tile_choices()]:
        tile = "×".join(map(str, c.tile[:2]))
        shape = "×".join(map(str, c.shape))
        rows.append((shape, tile, str(c.chosen), str(c.best), f"{100 * c.loss:.2f} %", f"{100 * c.fixed_loss:.2f} %"))
    last = len(choices())
    free = [(shape, f"{tile} (chosen)", *rest) for shape, tile, *rest in rows[last:]]
    head = ("shape left out", "tile", "chosen group_m", "best", "loss", f"loss of group_m = {FIXED_RULE}")
    return table(head, rows[:last] + free)


def everything() -> str:
    parts = {
        "Summary": summary_table(),
        "Choosing an order by predicted time": choice_table(),
        "MI355X, published rates": compared(mi355x_rows()),
        "MI300X, Wave's table": compared(mi300x_rows()),
        "H200, sustained speeds": compared(baseline_rows()),
        "H200, tilewave's own kernel, K to and fro": compared(own_rows()),
        "H200, other shapes": compared(unseen_rows()),
        "H200, hardware counters": compared(h200_rows()),
    }
    return "\n".join(f"### {title}\n\n{text}" for title, text in parts.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/sim.md")
    if parser.parse_args().write:
        head, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
        _, tail = rest.split(END)
        DOCUMENT.write_text(f"{head}{BEGIN}\n{everything()}\n{END}{tail}", encoding="utf-8")
    else:
        print(everything())
    if not all(figure.kept for figure in summary()):
        sys.exit("the model has become worse than it is held to")


if __name__ == "__main__":
    main()
