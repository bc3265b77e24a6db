"""`make demo`: a kernel as native code compared with numpy, the order of its tiles drawn, and a wrong kernel
refused."""

import inspect
import re
import time

import numpy as np
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    Register,
    TilewaveError,
    TilingConstraint,
    WorkgroupConstraint,
    WorkgroupMapping,
    f32,
    iterate,
    mma,
    read,
    sym,
    wave,
    write,
)
from tilewave.bench.measure import measure
from tilewave.view import PicturedLaunch, Placement, parse_grid
from tilewave.view.terminal import print_placements

M, N, K = sym.M, sym.N, sym.K
G = GLOBAL_ADDRESS_SPACE
TILES = [WorkgroupConstraint(M, 128, 0), WorkgroupConstraint(N, 256, 1), TilingConstraint(K, 64)]
SIZES = {M: 1024, N: 1024, K: 1024}
ROUNDS = 9
INSTRUCTION = re.compile(r"\s+\w")  # other lines of assembly begin with a dot, or are labels
console = Console(soft_wrap=True, highlight=False)


@wave(TILES)
def gemm(a: Memory[M, K, G, f32], b: Memory[N, K, G, f32], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)


def title(text):
    console.print(f"\n[bold]{text}[/bold]\n")


def show_native_code():
    """Compile, run, hold every element against float64, and take turns with numpy."""
    title("1. A kernel says what one workgroup does with whole tiles")
    source = inspect.getsource(gemm.function)
    console.print(Syntax(source, "python", background_color="default"))
    start = time.perf_counter()
    compiled = gemm.compile(target="cpu", subs=SIZES)
    seconds = time.perf_counter() - start
    rng = np.random.default_rng(0)
    m, n, k = SIZES.values()
    a, b = (rng.standard_normal((rows, k)).astype(np.float32) for rows in (m, n))
    c, by_numpy = np.full((m, n), np.nan, np.float32), np.empty((m, n), np.float32)
    compiled(a, b, c)
    check(a, b, c)
    count = sum(bool(INSTRUCTION.match(line)) for line in compiled.asm.splitlines())
    console.print(f"Compiled in {seconds:.2f} s (or taken from the cache): {count} instructions for this CPU.\n")
    rivals = {"tilewave": lambda: compiled(a, b, c), "numpy": lambda: np.matmul(a, b.T, out=by_numpy)}
    table = Table("", f"{m} × {n} × {k}, f32: median ± spread", "GFLOP/s")
    # In turns, each after a pause, because numpy's threads spin for a while after a product and would slow the next
    # one.
    for name, times in measure(rivals, ROUNDS, seed=0, after_each=lambda: None).items():
        shown = f"{1e3 * times.median:.1f} ± {1e3 * times.spread:.1f} ms"
        table.add_row(name, shown, f"{2e-9 * m * n * k / times.median:.0f}")
    console.print(table)
    console.print(f"{ROUNDS} turns each, in random order; the spread is half the distance between the quartiles.")


def check(a, b, c):
    """Every element within what k products and sums of f32 may err, whatever their order."""
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    error = np.abs(c - wide_a @ wide_b.T)
    bound = (a.shape[1] + 1) * np.finfo(np.float32).eps / 2 * (np.abs(wide_a) @ np.abs(wide_b).T)
    wrong = int((~(error <= bound)).sum())
    console.print(f"Against float64: {wrong} of {c.size:,} elements wrong, the largest error is {error.max():.1e}.")
    assert not wrong


def show_order():
    title("2. Which workgroup computes which tile is an object: drawn, counted, proved")
    launch = PicturedLaunch(parse_grid("8x8"), xcds=8, k_blocks=8, workgroups=None, concurrent=None)
    print_placements(console, (Placement.of("xcd_contiguous(8) >> grouped(2)", launch),))


def show_refusal():
    title("3. A formula of your own that loses tiles does not compile")
    mine = WorkgroupMapping(lambda w, grid: (w % grid.cols % grid.rows, w // grid.rows % grid.cols))
    try:
        wave([*TILES, mine])(gemm.function).compile(target="cpu", subs=SIZES)
    except TilewaveError as error:
        console.print(f"error: {error}", markup=False)


def show_what_next():
    title("What to try next")
    for command, what in NEXT:
        console.print(f"  {command:73}[dim]{what}[/dim]")


NEXT = (
    (".venv/bin/tilewave explore", "shapes, tiles, orders and chips on one page in your browser"),
    (".venv/bin/tilewave map 16x16 'hilbert()' --html map.html", "the order of tiles as a page that plays"),
    (".venv/bin/tilewave sim --shape 8192x8192x8192 --machine MI300X --best", "which order reads least on that chip"),
    (".venv/bin/tilewave compile examples/gemm.py --target gfx942 --stats", "its machine code, without ROCm"),
    (".venv/bin/tilewave diff examples/gemm.py", "what every pass did to a kernel"),
    (".venv/bin/python examples/softmax.py", "rows, whole and walked; examples/gallery has more"),
    ("docs/tutorials/01-first-kernel.md", "ten tutorials; `make docs` makes a site of them"),
)


def main():
    show_native_code()
    show_order()
    show_refusal()
    show_what_next()


if __name__ == "__main__":
    main()
