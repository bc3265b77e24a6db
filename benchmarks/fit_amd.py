"""Fit the model of launches on AMD cards to published launches, and judge it on launches that no fit has seen.

    python benchmarks/fit_amd.py [--fit] [--write]

Without `--fit`: whole kernels left out, whole families left out, the choice among 34 kernels, and hipBLASLt's stream-K
solutions by `simulate`, each with machine code and with matrix cycles alone. `--fit` prints the parameters of
`tilewave/cost/parameters.py` and the sustained clocks of MI308X and MI355X (`tilewave/machine/cards.py`). `--write`
puts the tables into docs/benchmarks/mi300x-without-hardware.md. A fit sees 40 rows of each family and nothing of what
it is judged on; errors are of |predicted / measured - 1|.
"""

import argparse
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from amd_rows import launches, loops, tuned_products
from nelder_mead import minimum

from tilewave.cost.cdna import UnitLaunch, launch_time, memory_time
from tilewave.cost.clocked import LaunchClock
from tilewave.cost.parameters import CDNA3_CLOCKED, CDNA4_CLOCKED
from tilewave.machine import find
from tilewave.sim.simulate import run

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "mi300x-without-hardware.md"
BEGIN, END = "<!-- made by benchmarks/fit_amd.py --write -->\n", "<!-- end of fit_amd.py -->\n"
SEEN = 40
"""Rows of each family that a fit sees."""
LONG, SHORT = 60.0, 15.0
"""Microseconds: below, launches are not modelled well, or not at all."""
NAMES = ("launch", "workgroup", "store_bytes_per_us", "memory_percent", "exposed_percent")
FORMULA_NAMES = ("join", "loop_percent", "load_percent")
START = (5.0, 1.5, 4.5, 60.0, 20.0)
SCALE = (1e6, 1e6, 1e6, 1.0, 1.0)
LIMITS = (60.0, 60.0, 60.0, 100.0, 40.0)
FIRST_HZ = {"gfx942": 1.2, "gfx950": 1.5}


@dataclass(frozen=True)
class Model:
    """Parameters and clocks, in GHz, by family; `matrix_alone` ignores machine code."""

    card: object
    parameters: object
    clocks: dict
    matrix_alone: bool = False

    def microseconds(self, row):
        loop, p = row.loop, self.parameters
        latency = 0 if self.matrix_alone else p.latency_cycles
        work = UnitLaunch(
            tiles=row.tiles,
            waves=-(-row.tiles // row.units),
            steps=1,
            step_matrix_cycles=round(row.k / loop.k * loop.matrix_cycles),
            step_cycles=round(row.k / loop.k * loop.at(latency)),
            tile_stored_bytes=2 * loop.tile[0] * loop.tile[1],
            memory=memory_time(self.card.hbm.bytes_per_second, row.moved_bytes, p),
        )
        clock = self.clocks.get(loop.family) or sum(self.clocks.values()) / len(self.clocks)
        return launch_time(work, row.units, LaunchClock.of(clock * 1e9, self.card.clock_hz), p).total / 1e6


def error(predicted, measured):
    return predicted / measured - 1


def loss_of(predicted, measured):
    e = np.log(np.array(predicted) / np.array(measured))
    return float(np.mean(np.abs(e)) + 0.4 * math.sqrt(np.mean(e * e)))


def fitted(chip, rows, matrix_alone=False, one_clock=False):
    """Return the model whose launches take what the rows say; with one clock for all families, or one for each."""
    card, base = (find("MI308X"), CDNA3_CLOCKED) if chip == "gfx942" else (find("MI355X"), CDNA4_CLOCKED)
    families = sorted({row.loop.family for row in rows})
    clocks = 1 if one_clock or chip == "gfx942" else len(families)

    def model(x):
        values = {name: max(1, round(v * by)) for name, v, by in zip(NAMES, x, SCALE, strict=False)}
        hz = dict(zip(families, x[len(NAMES) :] if clocks > 1 else [x[len(NAMES)]] * len(families), strict=True))
        constant = replace(card, clock_hz=1e9 * hz[families[0]]) if chip == "gfx942" else card
        return Model(constant, replace(base, **values), hz, matrix_alone)

    def loss(x):
        if min(x) <= 0 or any(v > most for v, most in zip(x, LIMITS, strict=False)) or max(x[len(NAMES) :]) > 2.4:
            return 1e9
        now = model(x)
        return loss_of([now.microseconds(row) for row in rows], [row.us for row in rows])

    return model(minimum(loss, (*START, *[FIRST_HZ[chip]] * clocks)))


def some(rows, seed, count=SEEN):
    """Return rows of each family by chance."""
    by_family = defaultdict(list)
    for row in rows:
        by_family[row.loop.family].append(row)
    draw = np.random.default_rng(seed)
    return [every[i] for every in by_family.values() for i in draw.permutation(len(every))[:count]]


def without(rows, out):
    gone = set(map(id, out))
    return [row for row in rows if id(row) not in gone]


def errors_of(model, rows):
    return [error(model.microseconds(row), row.us) for row in rows]


def spread_text(errors):
    size = np.abs(errors)
    return f"{100 * np.median(size):.1f} %, {100 * np.quantile(size, 0.9):.0f} %"


# -- whole kernels left out --------------------------------------------------------------------------------------------


def kernels_left_out(chip, families, matrix_alone=False, at_least=3):
    """Return the errors of all kernels, each judged by a fit to rows of the others."""
    rows = [row for row in launches(chip) if row.loop.family in families]
    found = []
    for kernel in sorted({row.loop.kernel for row in rows}):
        mine = [row for row in rows if row.loop.kernel == kernel]
        if len(mine) >= at_least:
            others = some(without(rows, mine), 1, SEEN // len(families))
            found += errors_of(fitted(chip, others, matrix_alone, one_clock=True), mine)
    return found


def rows_left_out(chip, family, matrix_alone=False):
    """Return the errors of a family with a single kernel, whose other rows are fitted."""
    rows = [row for row in launches(chip) if row.loop.family == family]
    seen = some(rows, 1)
    return errors_of(fitted(chip, seen, matrix_alone), without(rows, seen))


# -- whole families left out -------------------------------------------------------------------------------------------


def family_left_out(family, matrix_alone=False):
    """Return the long rows of a family of MI355X with their predictions by a fit to the other families."""
    rows = launches("gfx950")
    others = [row for row in rows if row.loop.family != family and row.us > SHORT]
    model = fitted("gfx950", some(others, 5), matrix_alone, one_clock=True)
    return [(row, model.microseconds(row)) for row in rows if row.loop.family == family and row.us > LONG]


def rank_correlation(a, b):
    ranks = [np.argsort(np.argsort(x)) for x in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


# -- the choice among 34 kernels ---------------------------------------------------------------------------------------


def f4_choices(matrix_alone=False):
    """Return, for each launch of f4 that no fit has seen, the place of its measured kernel among the predicted ones."""
    rows = [row for row in launches("gfx950") if row.loop.family in ("bf16", "f4") and row.us > 8]
    seen = some(rows, 1, 60)
    model = fitted("gfx950", seen, matrix_alone)
    kernels = [loop for loop in loops().values() if loop.family == "f4"]
    found = []
    for row in without(rows, seen):
        if row.loop.family == "f4" and row.us > SHORT:
            times = {loop.kernel: model.microseconds(replace(row, loop=loop)) for loop in kernels}
            found.append(sorted(times, key=lambda name: times[name]).index(row.loop.kernel))
    return found


# -- hipBLASLt's stream-K solutions ------------------------------------------------------------------------------------


def is_seen(one):
    """Return whether a shape is one that the formulas are fitted on: every second of them."""
    sizes = one.gemm.m, one.gemm.n, one.gemm.k
    return sum(x.bit_length() for x in sizes) % 2 == 0


def simulated(rows):
    """Return the rows with their simulated launches, whose time depends on the parameters."""
    card, found = find("MI300X"), []
    for one in rows:
        made = run(one.gemm, card, one.order)
        found.append((one, made.clocked))
    return found


def formula_fit():
    """Return the parameters of the formulas that half of the shapes give."""
    names = (*NAMES, *FORMULA_NAMES)
    rows = simulated([one for one in tuned_products() if is_seen(one)][::6])
    scales = (*SCALE, 1e6, 1.0, 1.0)

    def parameters(x):
        return replace(CDNA3_CLOCKED, **{n: max(1, round(v * by)) for n, v, by in zip(names, x, scales, strict=True)})

    def loss(x):
        if min(x) <= 0 or x[6] > 100 or any(v > most for v, most in zip(x, LIMITS, strict=False)):
            return 1e9
        p = parameters(x)
        return loss_of([launch.with_parameters(p).microseconds for _, launch in rows], [one.us for one, _ in rows])

    return parameters(minimum(loss, (1.0, 2.0, 4.5, 60.0, 30.0, 2.0, 55.0, 40.0), 350))


def formula_errors(every=1):
    """Return the errors of `simulate` for stream-K solutions of shapes that were not fitted, and of long ones."""
    rows = [one for one in tuned_products() if not is_seen(one)][::every]
    found = [(one, error(1e6 * run(one.gemm, "MI300X", one.order).report.seconds, one.us)) for one in rows]
    return [e for _, e in found], [e for one, e in found if one.us > LONG]


# -- tables ------------------------------------------------------------------------------------------------------------


def table(head, rows):
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ("---",) * len(head), *rows)]
    return "\n".join(lines) + "\n"


def held_out_table():
    rows = []
    for name, found in (
        ("MI308X, f8 and i8: each kernel left out", lambda x: kernels_left_out("gfx942", ("f8", "i8"), x)),
        ("MI355X, f8: each kernel left out", lambda x: kernels_left_out("gfx950", ("f8",), x)),
        ("MI355X, bf16: rows left out, one kernel", lambda x: rows_left_out("gfx950", "bf16", x)),
    ):
        code, alone = found(False), found(True)
        rows.append((name, str(len(code)), spread_text(code), spread_text(alone)))
    pairs = {x: [family_left_out(f, x) for f in ("bf16", "f4", "f8")] for x in (False, True)}
    for name, at in (("bf16", 0), ("f4", 1), ("f8", 2)):
        texts = [spread_text([error(t, row.us) for row, t in pairs[x][at]]) for x in (False, True)]
        rows.append((f"MI355X, {name}: family left out, above 60 µs", str(len(pairs[False][at])), *texts))
    every = {x: [pair for found in pairs[x] for pair in found] for x in pairs}
    texts = [spread_text([error(t, row.us) for row, t in every[x]]) for x in (False, True)]
    ranks = [rank_correlation(*zip(*((r.flops / t, r.flops / r.us) for r, t in every[x]), strict=True)) for x in every]
    texts = [f"{text}; rank {rank:.2f}" for text, rank in zip(texts, ranks, strict=True)]
    rows.append(("MI355X: every family left out in turn, above 60 µs", str(len(every[False])), *texts))
    return table(("judged on rows that no fit has seen", "rows", "median, p90", "matrix cycles alone"), rows)


def choice_table():
    rows = []
    for name, alone in (("machine code", False), ("matrix cycles alone", True)):
        places = f4_choices(alone)
        shares = (sum(place < n for place in places) / len(places) for n in (1, 3))
        rows.append((name, str(len(places)), *(f"{100 * share:.0f} %" for share in shares)))
    return table(("cycles", "shapes", "right", "among the first three"), rows)


def formula_table():
    rows = []
    for name, errors in zip(("all", "above 60 µs"), formula_errors(), strict=True):
        p90 = np.quantile(np.abs(errors), 0.9)
        cells = f"{100 * median(errors):+.1f} %", f"{100 * np.median(np.abs(errors)):.1f} %", f"{100 * p90:.0f} %"
        rows.append((name, str(len(errors)), *cells))
    return table(("shapes that were not fitted", "rows", "signed median", "median", "p90"), rows)


def everything():
    return "\n".join((held_out_table(), choice_table(), formula_table()))


def print_fit():
    rows = launches("gfx950")
    found = fitted("gfx950", some([row for row in rows if row.us > 8], 0, 60))
    named = {name: getattr(found.parameters, name) for name in NAMES}
    print("gfx950 (MI355X)", named, {f: f"{hz:.3f} GHz" for f, hz in found.clocks.items()})
    found = fitted("gfx942", some(launches("gfx942"), 0))
    print(f"gfx942 (MI308X): one clock of {found.card.clock_hz / 1e9:.3f} GHz")
    formulas = formula_fit()
    print("gfx942 (formulas)", {name: getattr(formulas, name) for name in (*NAMES, *FORMULA_NAMES)})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", action="store_true", help="fit the parameters, and print them")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    asked = parser.parse_args()
    if asked.fit:
        print_fit()
    elif asked.write:
        text = everything()
        head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    else:
        print(everything())


if __name__ == "__main__":
    main()
