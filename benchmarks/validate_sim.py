"""Print the errors of the simulator's predictions for every measured row.

--write puts the summary into docs/ref/simulator-validation.md and every row into docs/data/sim_validation.csv.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, median

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

DOCS = Path(__file__).parents[1] / "docs"
DOCUMENT = DOCS / "ref" / "simulator-validation.md"
DATA = DOCS / "data" / "sim_validation.csv"
BEGIN, END = "<!-- validation: made by benchmarks/validate_sim.py --write -->\n", "<!-- end of validation -->\n"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ("---",) * len(head), *rows)]
    return "\n".join(lines) + "\n"


def compared() -> dict[str, list[Compared]]:
    """Every measured row beside its prediction, by where it was measured."""
    return {
        "MI355X, published rates": mi355x_rows(),
        "MI300X, Wave's table": mi300x_rows(),
        "H200, sustained speeds": baseline_rows(),
        "H200, tilewave's own kernel, K to and fro": own_rows(),
        "H200, other shapes": unseen_rows(),
        "H200, hardware counters": h200_rows(),
    }


def unit(quantity: str) -> tuple[str, float, int]:
    """(in which unit it is shown, how many of them are one, digits behind the point)."""
    match quantity:
        case "HBM read" | "L2 requests":
            return "MB", 1e-6, 1
        case "seconds":
            return "µs", 1e6, 1
        case "TFLOP/s":
            return "TFLOP/s", 1.0, 0
        case "gain":
            return "times", 1.0, 3
        case _:
            return "%", 100.0, 1


def in_points(quantity: str) -> bool:
    """Shares are compared by their difference, everything else by how much of it the prediction is off."""
    return quantity.endswith("hit") or quantity == "gain"


def off_by(row: Compared) -> float:
    return 100 * (row.predicted - row.measured if in_points(row.quantity) else row.error)


def every_row() -> str:
    """docs/data/sim_validation.csv: what was predicted and measured of every launch."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    head = ("where", "launch", "mapping", "what", "unit", "predicted", "measured", "error", "error_in")
    out.writerow((*head, "fitted", "cliff_from", "cliff_to", "inside"))
    for where, rows in compared().items():
        for row in rows:
            name, times, digits = unit(row.quantity)
            values = (f"{times * value:.{digits}f}" for value in (row.predicted, row.measured))
            ends = ("" if end is None else f"{times * end:.0f}" for end in (row.low, row.high))
            error = (f"{off_by(row):+.1f}", "points" if in_points(row.quantity) else "%")
            of_fit = ("yes" if row.fitted else "", *ends, ("yes" if row.inside else "no") if row.on_cliff else "")
            out.writerow((where, row.problem, row.mapping, row.quantity, name, *values, *error, *of_fit))
    return text.getvalue()


def errors_table() -> str:
    """How far predictions are off, by where and what was measured."""
    cells = []
    for where, rows in compared().items():
        for what in dict.fromkeys(row.quantity for row in rows):
            cells.append((where, what, *errors_of([row for row in rows if row.quantity == what])))
    return table(("where", "what", "rows", "fitted", "median error", "mean", "worst", "inside the interval"), cells)


def errors_of(rows: list[Compared]) -> Iterable[str]:
    errors, cliffs = [abs(off_by(row)) for row in rows], [row for row in rows if row.on_cliff]
    name = " points" if in_points(rows[0].quantity) else " %"
    yield from (str(len(rows)), str(sum(row.fitted for row in rows)))
    yield from (f"{value:.1f}{name}" for value in (median(errors), fmean(errors), max(errors)))
    yield f"{sum(row.inside for row in cliffs)} of {len(cliffs)} on a cliff" if cliffs else ""


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
        "Errors by where and what was measured": errors_table(),
        "Choosing an order by predicted time": choice_table(),
    }
    return "\n".join(f"### {title}\n\n{text}" for title, text in parts.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/ref/simulator-validation.md and docs/data")
    if parser.parse_args().write:
        head, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
        _, tail = rest.split(END)
        DOCUMENT.write_text(f"{head}{BEGIN}\n{everything()}\n{END}{tail}", encoding="utf-8")
        DATA.write_text(every_row(), encoding="utf-8")
    else:
        print(everything())
        print(every_row())
    if not all(figure.kept for figure in summary()):
        sys.exit("the model has become worse than it is held to")


if __name__ == "__main__":
    main()
