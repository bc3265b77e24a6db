"""The options of commands, each with values that are right, odd (they may be refused) or wrong (they must be)."""

from __future__ import annotations

MACHINES = {"H200": "sm_90a", "MI300X": "gfx942", "MI355X": "gfx950"}
Values = list[tuple[str, str]]
Options = dict[str, Values]
MARKS = {"!": "bad", "?": "odd"}


def values(*texts: str) -> Values:
    """Each text and its kind: `!` marks one that must be refused, `?` one that may be, and others are good."""
    return [(t[1:], MARKS[t[0]]) if t[:1] in MARKS else (t, "good") for t in texts]


COUNTS = values("1", "2", "!0", "!-1", "!x", "!1.5", "!", "!1e3")
BROKEN_MAPS = ("!nothing()", "!grouped(", "!grouped(0)", "!grouped(-1)", "!grouped(1.5)", "!__import__('os')", "!>>")
MAPS = [
    *values("linear()", "grouped(2)", "?hilbert()", "?xcd_contiguous(8) >> grouped(2)", *BROKEN_MAPS),
    *values("!grouped(2) >>", f"?grouped({'9' * 60})"),
]
SHAPES = [
    *values("64x64x64", "100x33x7", "!64x64", "?0x64x64", "!-1x64x64", "!axbxc", "!1e3x1x1", "!"),
    *values("?99999999999999999999x1x1", "!64x64x64x64"),
]
TILES = values("32x32x32", "?64x16x32", "!0x1x1", "!x", "?1x1x1", "?3x5x7")
DTYPES = values("f16", "bf16", "?f32", "?i8", "?f8e4m3fn", "!f99", "?")
CHIPS = values(*MACHINES, "?h200", "!foo", "!nowhere.toml", "?sm_90a", "!.")
KERNELS = values("", "!nosuch", "!Kernel", "!*")
SEEDS = values("0", "7", "!-1", "!x", "?99999999999999999999999")
GEMM: Options = {"--shape": SHAPES, "--tile": TILES, "--dtype": DTYPES}
OF_FILES: dict[str, Options] = {
    "compile": {"--schedule": values("none", "prefetch", "!foo", "!"), "--kernel": KERNELS},
    "diff": {
        "--only": values("?simplify", "!nosuch", "?map_workgroups"),
        "--kernel": KERNELS,
        "--context": values("0", "1", "!-1", "!x"),
    },
    "run": {
        "--repeats": COUNTS,
        "--threads": COUNTS,
        "--seed": SEEDS,
        "--kernel": KERNELS,
        "--against": values("", "!nowhere.py"),
        "--shape": values("!1x1x1"),
    },
    "bench": {"--rounds": COUNTS, "--mode": values("short", "!long", "!"), "--seed": SEEDS, "--kernel": KERNELS},
    "tune": {
        "--strength": values("model", "!foo", "!"),
        "--kernel": KERNELS,
        "--rounds": COUNTS,
        "--runs": COUNTS,
        "--map": MAPS,
        "--try": values("?BLOCK_M=64:128", "!BLOCK_M", "!=3", "!BLOCK_M=x", "!BLOCK_M=-1", "?BLOCK_M=0"),
    },
    "sim": {
        "--machine": CHIPS,
        "--map": MAPS,
        "--compare": MAPS,
        "--engine": values("closed", "!foo"),
        "--occupancy": COUNTS,
        "--skew": values("0", "?0.5", "!-1", "?nan", "?inf", "!x"),
    },
    "explore": {"--machine": CHIPS, "--map": MAPS, "--compare": MAPS, "--kernel": KERNELS},
}
WITHOUT_FILES: dict[str, tuple[list[str], Options]] = {
    "map": (
        [],
        {
            **dict.fromkeys(("--xcds", "--k-blocks", "--workgroups", "--concurrent"), COUNTS),
            "--xcd": values("?0", "?1", "!x", "!-1"),
            "--compare": MAPS,
            "--causal": values("?128x64", "!x"),
        },
    ),
    "sim": (
        [],
        {
            **GEMM,
            **OF_FILES["sim"],
            "--workgroups": COUNTS,
            "--walk": values("forwards", "!foo"),
            "--out": DTYPES,
            "--top": COUNTS,
        },
    ),
    "explore": (
        [],
        {**GEMM, "--machine": CHIPS, "--map": MAPS, "--compare": MAPS, "--workgroups": COUNTS},
    ),
    "run": (
        ["gemm", "--repeats", "1"],
        {
            **GEMM,
            "--map": MAPS,
            "--out": DTYPES,
            "--threads": COUNTS,
            "--workgroups": COUNTS,
            "--seed": SEEDS,
            "--against": values("", "numpy", "!foo"),
            "--instruction-set": values("?avx2", "!foo"),
        },
    ),
    "bench": (["gemm"], {"--shapes": values("?64x64x64", "!x"), "--mode": values("!foo")}),
    "machines": ([], {}),
    "doctor": ([], {}),
    "records": ([], {}),
    "emulate": (
        [],
        {
            "--grid": values("?1", "!x", "?0", "!1,1,1,1"),
            "--check": values("!foo", "?warn"),
            "--order": values("!foo", "?random"),
            "--arg": values("!in:nowhere.npy", "!x", "!i32:x", "?f32:1"),
        },
    ),
    "cycles": (
        [],
        {
            "--latency": values("?500", "!fast", "!1000000000", "?0"),
            "--workgroups": COUNTS,
            "--kernel": values("!nosuch"),
        },
    ),
}
GRIDS = values("8x8", "3x5", "?0x8", "!8", "!axb", "!-1x2", "?99999999x99999999")
ACTIONS = values("show", "check", "merge", "!foo", "!")
