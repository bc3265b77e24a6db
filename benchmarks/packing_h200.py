"""Unaligned products on an NVIDIA GPU: packed copies against loads by lanes, each with several configs.

    python benchmarks/packing_h200.py [--json FILE.jsonl] [--seconds 170]

28 odd shapes, twelve of them log-uniform and the others with few rows and columns, in all layouts, f16. Printed are,
for each shape, cuBLAS's microseconds, the best of either way, and the three best configs. The file has a line for each
launch; `PackingTuning` (machine/tuning.py) is the rule that these decide.
"""

import argparse
import json
import math
import multiprocessing
import random
import time
from pathlib import Path

import kernel_set_h200 as kernel_set

from tilewave.errors import TilewaveError
from tilewave.machine.tuning import PackingTuning

MODES = {"lanes": lambda *_: False, "packed": lambda *_: True}
TEXT = """
64x64x128/6 64x64x128/6:4 64x64x128/6:16 64x16x64/8 64x16x64/8:16 16x64x128/8 16x64x128/8:4 16x64x128/8:16
64x8x128/8:4 64x8x128/8:16 8x64x128/8:4 8x64x128/8:16 32x64x128/4 32x64x128/4:16 128x128x64/6 128x128x64/6:4
64x128x64/8 64x32x64/8
"""
MOST_TILES, WORKERS = 6000, 15


def configs():
    for word in TEXT.split():
        tile, _, split = word.partition(":")
        tile, _, stages = tile.partition("/")
        yield tuple(map(int, tile.split("x"))), int(stages), int(split or 1)


made = {}


def compiled(mode, layout, config):
    """Return a kernel of its own for each mode: which code a call takes is remembered with the kernel."""
    if (mode, layout, config) not in made:
        kernel_set.compiled.cache_clear()
        made[mode, layout, config] = kernel_set.compiled(layout, config)
    return made[mode, layout, config]


def warm(cell):
    import torch  # noqa: PLC0415  each worker has its own

    mode, layout, config = cell
    PackingTuning.pays = MODES[mode]
    try:
        compiled(mode, layout, config)(*kernel_set.operands(torch, (515, 517, 4099), layout))
        torch.cuda.synchronize()
    except (TilewaveError, RuntimeError) as error:
        return f"{cell}: {str(error).splitlines()[0][:120]}"
    return ""


def shapes():
    draw = random.Random(31415)

    def size(least, most):
        return round(math.exp(draw.uniform(math.log(least), math.log(most)))) | 1

    for number in range(28):
        m, n, k = (size(1, 16384) for _ in range(3)) if number < 12 else (size(1, 700), size(1, 700), size(500, 16384))
        if m * n > 3e6:
            m, n = m % 600 | 1, n % 2000 | 1
        yield (m, n, k), kernel_set.LAYOUTS[number % 4]


def worth_timing(shape):
    m, n, k = shape
    for config in configs():
        (rows, cols, _), _, split = config
        if k >= 64 * split * (split > 1) and -(-m // rows) * -(-n // cols) * split <= MOST_TILES:
            yield config


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=170)
    asked = parser.parse_args()
    begin = time.monotonic()
    cells = [(mode, layout, config) for config in configs() for layout in kernel_set.LAYOUTS for mode in MODES]
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
        refused = [line for line in pool.map(warm, cells, chunksize=2) if line]
    print(f"# {len(cells)} kernels: {time.monotonic() - begin:.0f} s", *refused[:5], sep="\n", flush=True)

    import torch  # noqa: PLC0415  the processes that compile have their own

    lines = []
    for shape, layout in shapes():
        if time.monotonic() - begin > asked.seconds:
            print(f"# the time is over at {shape}")
            break
        card = kernel_set.Card(torch, shape, layout)
        facts, times = {"shape": shape, "layout": layout, "cublas": 1e6 * card.time(card.cublas)}, {}
        for mode, pays in MODES.items():
            PackingTuning.pays = pays
            for config in worth_timing(shape):
                found = card.measure(compiled(mode, layout, config), 1e-5)
                lines.append(json.dumps({**facts, "mode": mode, "config": config, **found}))
                times |= {found["microseconds"]: (mode, config)} if "microseconds" in found else {}
        best = {mode: min((t for t, at in times.items() if at[0] == mode), default=None) for mode in MODES}
        print(shape, layout, round(facts["cublas"], 2), best, [(t, times[t]) for t in sorted(times)[:3]], flush=True)
    if asked.json:
        asked.json.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
