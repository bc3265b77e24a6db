"""The tuner's choices on an NVIDIA GPU, compared with the best of a whole space: the model alone, and with eight runs.

    python benchmarks/tuner_h200.py [--seed 20] [--shapes 40] [--skip 0] [--points 64] [--least 256]
                                    [--seconds 280] [--like FILE.csv] [--orders] [--json FILE] [--dry]

Shapes are drawn by the seed: M log-uniform from 1 to 16384, N and K from 256 to 16384, every other one with odd sizes,
in all four layouts; f16 with sums in f32. With another `--least` N and K begin there, and are taken as they are drawn.
With `--like` they are those of the rows of a file, which are measured again.
From each shape's space, which has hundreds of configs, `--points` are compiled: those that a search would time if it
had so many runs, which are predicted well and differ from each other, but none that is predicted to take `HOPELESS`
times as long as the best; and in addition 128x256x64 in the orders `grouped(12)` and `grouped(16)`. `--orders` compares
the chosen order with others on six shapes.

First, worker processes compile all configs and launch each once, so that the driver assembles it; then the GPU
measures: each config is compared with cuBLAS and timed as a CUDA graph; one that takes half as long again as the best
so far is timed once. The best few, and those that a search times, are then timed in turns with cuBLAS, and only these
times are compared: a warm GPU runs large products up to 15 % slower than a cool one. Printed are shares of the best
config's speed (1: as fast), and of cuBLAS's. Every row is written to `--json`, by default into the folder $OUT, for
`benchmarks/fit_tiles.py`. `--dry` compiles a few configs of each shape and measures nothing.
"""

import argparse
import csv
import gc
import json
import math
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

os.environ.setdefault("CUDA_CACHE_MAXSIZE", str(4 << 30))
os.environ.setdefault("CUDA_CACHE_PATH", tempfile.mkdtemp(prefix="tuner_"))
sys.path.insert(0, str(Path(__file__).parent))

from default_tile_h200 import BLOCKS, LAYOUTS, TARGET, WRONG, K, M, N, product

from tilewave import TilewaveError, WaveCompileOptions, wave_compile
from tilewave.cli.bench import SHAPES
from tilewave.options import as_chosen
from tilewave.runtime.cuda_driver import DeviceMemory, cuda_driver
from tilewave.tune.choose import rank
from tilewave.tune.default import TunableKernel
from tilewave.tune.search import candidates, unlike_each_other

LONGEST, LEAST = 16384, 256
FIXED = (128, 256, 64)
FIXED_ORDERS = ("grouped(12)", "grouped(16)")
ORDERS = ("linear()", "grouped(4)", "grouped(8)", "grouped(12)", "grouped(16)", "hilbert()")
RUNS = 8
HOPELESS = 2.5
"""Times the best predicted time: what is to take longer is left out."""
LARGE_COPIES = 100 << 20
COMPILING = 0.55
"""The share of the time for compiling; configs that are not compiled by then are compiled when they are measured."""
PRUNED = 1.5
BURST_SECONDS, SAMPLES, FINAL_ROUNDS, FINALISTS = 0.0003, 3, 7, 8


def shapes(count, seed, least):
    """(shape, layout) of each; where they begin below `LEAST`, as they are drawn."""
    draw = random.Random(seed)
    for number in range(count):
        m, n, k = (round(math.exp(draw.uniform(math.log(x), math.log(LONGEST)))) for x in (1, least, least))
        if number % 2 and least == LEAST:
            n, k = n | 1, k | 1
        elif least == LEAST:
            m, n, k = m if m < 16 else -(-m // 8) * 8, -(-n // 64) * 64, -(-k // 64) * 64
        yield (m, n, k), LAYOUTS[number // 2 % len(LAYOUTS)]


def shapes_like(file):
    """Return the shapes of rows that were measured before."""
    rows = csv.DictReader(file.read_text().splitlines())
    return dict.fromkeys((tuple(int(row[name]) for name in "mnk"), row["layout"]) for row in rows)


def undecided(shape, layout):
    return TunableKernel.of(product(layout), dict(zip((M, N, K), shape, strict=True)), (), {}, TARGET)


@dataclass(frozen=True)
class Point:
    """What is compiled: a choice of the tuner's, for a shape."""

    shape: tuple
    layout: str
    choice: object
    runs: int = 0
    """The config's position among those that a search of eight runs times; 0 where it is not among them."""

    @property
    def tile(self):
        return tuple(self.choice.config[s] for s in BLOCKS)

    @property
    def facts(self):
        c = self.choice
        return {
            **dict(zip("mnk", self.shape, strict=True)),
            "layout": self.layout,
            "dtype": "f16",
            "tile": "x".join(map(str, self.tile)),
            "split": c.split,
            "buffers": c.num_stages or 0,
            "order": c.order,
            "predicted": round(1e6 * c.prediction.seconds, 3),
            "runs": self.runs,
        }

    def compiled(self):
        open_tiles = undecided(self.shape, self.layout)
        options = WaveCompileOptions(subs=dict(zip((M, N, K), self.shape, strict=True)), target=TARGET)
        return wave_compile(as_chosen(options, self.choice), open_tiles.decided(self.choice))


def points_of(shape, layout, count):
    """The model's first, then those that a search times, and more that it would time if it had the runs."""
    open_tiles = undecided(shape, layout)
    found = open_tiles.predicted({})
    order = found[0].order
    timed = candidates(open_tiles, "measured", RUNS)
    spaces = open_tiles.space.within(open_tiles.problem.values), open_tiles.space  # tiles beyond the dims as well
    every = {p.text: p for space in spaces for p in rank(open_tiles.problem, space, open_tiles.machine).legal}
    filled = [replace(found[0], config=p.config, prediction=p.prediction, order=order) for p in every.values()]
    filled.sort(key=lambda c: c.prediction.seconds)
    most = HOPELESS * found[0].prediction.seconds
    count = count // 2 if large_copies(shape) else count
    likely = unlike_each_other(open_tiles, [c for c in filled if c.prediction.seconds < most], count)
    chosen = [*timed, *likely]
    point = dict(zip(BLOCKS, FIXED, strict=True))
    predicted = open_tiles.machine.predict(open_tiles.problem.cut(point))
    chosen += [replace(found[0], config=point, prediction=predicted, order=o) for o in FIXED_ORDERS]
    made = {}
    for choice in chosen:
        made.setdefault(choice.text, choice)
    numbers = {c.text: i for i, c in enumerate(timed, 1)}
    return [Point(shape, layout, c, numbers.get(text, 0)) for text, c in made.items()]


def large_copies(shape):
    """Return whether each kernel needs so much memory for packed copies of operands that few fit on a GPU."""
    m, n, k = shape
    return n % 2 == 1 and 2 * (m + n) * k > LARGE_COPIES


def order_points(shape):
    """The model's tile in its own order, and in others."""
    first = undecided(shape, "NT").predicted({})[0]
    orders = dict.fromkeys([first.order, *ORDERS])
    return [Point(shape, "NT", replace(first, order=order)) for order in orders]


def compile_ahead(point):
    """Compile in a worker process; the result is in the caches for the process that measures."""
    try:
        kernel = point.compiled()
        len(kernel.build.code)
        if cards():
            kernel(*arrays_of(point))  # the layout of the arrays decides which code a launch uses
            cuda_driver().synchronize(0, 0)
        return ""
    except TilewaveError as error:
        return str(error).splitlines()[0][:160]


class Somewhere:
    """An array of f16 in the memory of a card, which holds anything."""

    def __init__(self, shape, at):
        interface = {"shape": shape, "typestr": "<f2", "data": (at, False), "version": 3, "strides": None}
        self.__cuda_array_interface__ = interface


def arrays_of(point):
    m, n, k = point.shape
    a, b = (k, m) if point.layout[0] == "T" else (m, k), (n, k) if point.layout[1] == "T" else (k, n)
    at, found = memory().address, []
    for shape in (a, b, (m, n)):
        found.append(Somewhere(shape, at))
        at += -(-2 * math.prod(shape) // 1024) * 1024
    return found


@cache
def memory():
    return DeviceMemory.zeroed(cuda_driver(), 0, 3 * 2 * LONGEST * LONGEST + 4096, "product")


@cache
def cards():
    try:
        return cuda_driver().device_count()
    except (TilewaveError, OSError):
        return 0


# -- on the card ------------------------------------------------------------------------------------------------------


class Card:
    """Operands of one shape and layout, and cuBLAS on them."""

    def __init__(self, torch, shape, layout):
        self.torch, self.stream = torch, torch.cuda.Stream()
        m, n, k = shape
        half = {"device": "cuda", "dtype": torch.float16}
        self.a = torch.randn((k, m) if layout[0] == "T" else (m, k), **half) / math.sqrt(math.sqrt(k))
        self.b = torch.randn((n, k) if layout[1] == "T" else (k, n), **half) / math.sqrt(math.sqrt(k))
        left = self.a.T if layout[0] == "T" else self.a
        right = self.b.T if layout[1] == "T" else self.b
        self.c, self.want = torch.empty((m, n), **half), torch.empty((m, n), **half)
        self.cublas = lambda: torch.mm(left, right, out=self.want)
        self.cublas()
        self.norm = self.want.float().norm()

    def off(self, kernel):
        """How far a launch is from cuBLAS."""
        with self.torch.cuda.stream(self.stream):  # what it launches here and in a graph's first run has one memory
            self.c.fill_(math.nan)
            kernel(self.a, self.b, self.c)
        self.torch.cuda.synchronize()
        found = float((self.c.float() - self.want.float()).norm() / self.norm)
        return found if math.isfinite(found) else math.inf

    def graph(self, launch, expected):
        """(what replays, launches of a replay)."""
        count = max(2, min(60, math.ceil(BURST_SECONDS / expected)))
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.stream(self.stream):
            launch()
        self.torch.cuda.synchronize()
        with self.torch.cuda.graph(graph, stream=self.stream):
            for _ in range(count):
                launch()
        graph.replay()
        return graph, count

    def seconds(self, recorded):
        graph, count = recorded
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        self.torch.cuda.synchronize()
        return start.elapsed_time(stop) / 1e3 / count


@dataclass
class Shape:
    """The points of a shape, and what was measured of them."""

    points: list
    rows: list = field(default_factory=list)

    def measure(self, torch, deadline):
        first = self.points[0]
        card = Card(torch, first.shape, first.layout)
        graphs = {"cublas": card.graph(card.cublas, first.choice.prediction.seconds)}
        best = math.inf
        for number, point in enumerate(self.points):
            row = point.facts
            self.rows.append(row)
            if time.monotonic() > deadline:
                row["left_out"] = "the time was over"
                continue
            try:
                kernel = point.compiled()
                off = card.off(kernel)
                if off > WRONG:
                    row["wrong"] = off if math.isfinite(off) else "nan"
                    continue
                recorded = card.graph(partial(kernel, card.a, card.b, card.c), point.choice.prediction.seconds)
                seconds = card.seconds(recorded)
                if seconds < PRUNED * best:
                    seconds = statistics.median([seconds, *(card.seconds(recorded) for _ in range(SAMPLES - 1))])
                best = min(best, seconds)
                row["microseconds"] = round(1e6 * seconds, 3)
                graphs[number] = recorded
                self.forget(graphs)
            except (TilewaveError, RuntimeError) as error:
                row["refused"] = str(error).splitlines()[0][:160]
                if "illegal" in row["refused"] or "unspecified" in row["refused"]:
                    raise  # the card takes nothing from this process any more
        self.finals(card, graphs)

    def forget(self, graphs):
        """Delete the graphs that are no longer among the best, because each holds memory."""
        timed = sorted((i for i in graphs if i != "cublas"), key=lambda i: self.rows[i]["microseconds"])
        for number in timed[FINALISTS:]:
            if not self.rows[number]["runs"]:
                del graphs[number]

    def finals(self, card, graphs):
        """The best, the model's, and those that a search times: in turns with cuBLAS."""
        timed = sorted((i for i in graphs if i != "cublas"), key=lambda i: self.rows[i]["microseconds"])
        kept = dict.fromkeys(["cublas", *timed[:FINALISTS], *(i for i in timed if self.rows[i]["runs"])])
        samples = {name: [] for name in kept}
        for _ in range(FINAL_ROUNDS):
            for name in kept:
                samples[name].append(card.seconds(graphs[name]))
        times = {name: round(1e6 * statistics.median(found), 3) for name, found in samples.items()}
        for row in self.rows:
            row["cublas_microseconds"] = times["cublas"]
        for name in kept:
            if name != "cublas":
                self.rows[name]["final_microseconds"] = times[name]

    @property
    def timed(self):
        return [row for row in self.rows if "microseconds" in row]

    @property
    def finalists(self):
        """Return the configs that were timed in turns: only their times can be compared."""
        return [row for row in self.rows if "final_microseconds" in row]


def seconds_of(row):
    return row["final_microseconds"]


# -- what it shows ----------------------------------------------------------------------------------------------------


def mean(shares):
    return math.exp(sum(map(math.log, shares)) / len(shares)) if shares else math.nan


def report(measured):
    model, eight, cublas, fixed = [], [], [], {order: [] for order in FIXED_ORDERS}
    print("# shape, layout: the model's point, its share of the best; with 8 runs; of cuBLAS (model, 8 runs); the best")
    for one in measured:
        timed, finalists = one.timed, one.finalists
        if not finalists or "microseconds" not in one.rows[0]:
            print("#", *(one.rows[0].get(x) for x in ("m", "n", "k", "layout", "wrong", "refused")))
            continue
        first, best = one.rows[0], min(finalists, key=seconds_of)
        picked = min((row for row in finalists if row["runs"]), key=seconds_of)
        shares = [seconds_of(best) / seconds_of(row) for row in (first, picked)]
        against = [first["cublas_microseconds"] / seconds_of(row) for row in (first, picked)]
        model.append(shares[0]), eight.append(shares[1]), cublas.append(against)
        for row in timed:
            if row["tile"] == "x".join(map(str, FIXED)) and row["order"] in fixed and row["split"] == 1:
                fixed[row["order"]].append(min(x["microseconds"] for x in timed) / row["microseconds"])
        print(f"# {first['m']}x{first['n']}x{first['k']} {first['layout']}: {told(first)} {shares[0]:.3f};", end=" ")
        print(f"{shares[1]:.3f}; {against[0]:.3f} {against[1]:.3f};", end=" ")
        print(f"{told(best)} {seconds_of(best)} µs of {len(timed)}", flush=True)
    for name, found in {"the model": model, "eight runs": eight, **fixed}.items():
        if found:
            print(f"# {name}: {mean(found):.3f} of the best, worst {min(found):.3f}, {len(found)} shapes")
    for name, at in (("the model", 0), ("eight runs", 1)):
        print(f"# {name}, of cuBLAS: {mean([x[at] for x in cublas]):.3f}, worst {min(x[at] for x in cublas):.3f}")


def told(row):
    knobs = (f" in {row['split']}" if row["split"] > 1 else "") + (f" {row['buffers']}b" if row["buffers"] else "")
    return row["tile"] + knobs


def report_orders(measured):
    print("# orders: the one that was picked, as a share of the best of them")
    for one in measured:
        if one.finalists and "final_microseconds" in one.rows[0]:
            best, first = min(one.finalists, key=seconds_of), one.rows[0]
            print(
                f"# {first['m']}x{first['n']}x{first['k']}: {first['order']} {seconds_of(best) / seconds_of(first):.3f}"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--shapes", type=int, default=40)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--least", type=int, default=LEAST)
    parser.add_argument("--like", type=Path)
    parser.add_argument("--orders", action="store_true")
    parser.add_argument("--points", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=280)
    parser.add_argument("--json", type=Path, default=Path(os.environ.get("OUT", ".")) / "rows.json")
    parser.add_argument("--dry", action="store_true")
    asked = parser.parse_args()
    begin = time.monotonic()
    processes = 1 if asked.dry else max(1, (os.cpu_count() or 2) - 2)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        drawn = shapes_like(asked.like) if asked.like else shapes(asked.skip + asked.shapes, asked.seed, asked.least)
        wanted = [(*one, asked.points) for one in drawn][asked.skip :]
        every = [Shape(points) for points in pool.starmap(points_of, wanted, chunksize=1)]
        seeds = SHAPES["seeds"] if asked.orders else ()
        orders = [Shape(points) for points in pool.map(order_points, seeds, chunksize=1)]
        count = sum(len(one.points) for one in [*every, *orders])
        print(f"# {count} points of {len(every)} shapes; {time.monotonic() - begin:.0f} s", flush=True)
        if asked.dry:
            dry(every)
            return
        made = [pool.apply_async(compile_ahead, (p,)) for one in [*every, *orders] for p in one.points]

        import torch  # noqa: PLC0415  none of the processes that compile needs it

        print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
        torch.zeros(1, device="cuda")
        end = begin + asked.seconds
        [one.wait(max(0.0, begin + COMPILING * asked.seconds - time.monotonic())) for one in made]
        done = sum(one.ready() for one in made)
        print(f"# {done} of {len(made)} compiled; {time.monotonic() - begin:.0f} s", flush=True)
        pool.terminate()
    measure_all([*every, *orders], torch, begin, end, asked.json)
    report([one for one in every if one.rows])
    report_orders([one for one in orders if one.rows])
    print(f"# {time.monotonic() - begin:.0f} s")


def measure_all(every, torch, begin, end, to):
    """Shape after shape, until the time is over; rows are on the disk after each."""
    for one in every:
        at = time.monotonic()
        if at > end:
            break
        try:
            one.measure(torch, end)
        except (TilewaveError, RuntimeError) as error:
            print("# the card failed:", one.rows[-1:], str(error).splitlines()[0], flush=True)
            break
        gc.collect()
        torch.cuda.empty_cache()
        facts = *(one.rows[0][x] for x in "mnk"), one.rows[0]["layout"]
        print(*facts, f"{at - begin:.0f} s, {time.monotonic() - at:.1f} s", flush=True)
        rows = [row for shape in every for row in shape.rows]
        to.write_text("[" + ",\n".join(map(json.dumps, rows)) + "]\n")


def dry(every):
    """A few points of each shape, here."""
    draw = random.Random(0)
    for one in every:
        for point in [one.points[0], *draw.sample(one.points[1:], min(1, len(one.points) - 1))]:
            at = time.monotonic()
            why = compile_ahead(point)
            took = time.monotonic() - at
            print(*point.shape, point.layout, len(one.points), point.choice.text, f"{took:.2f} s", why, flush=True)


if __name__ == "__main__":
    main()
