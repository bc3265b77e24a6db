"""Names and numbers of the rest of tilewave that --help prints without importing it.

Each is defined elsewhere, and the commands use that definition when they run; a test compares every one with it.
"""

from __future__ import annotations

RUN_INPUTS = ("f16", "bf16", "f32", "f64", "f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "i8")
BENCH_INPUTS = ("f16", "bf16", "f8e4m3fn", "f8e5m2", "i8")
BENCH_BASELINES = ("cublas", "triton")
EPILOGUE = "bias+gelu"
BEST_MAPPING = "grouped(12)"
STRENGTHS = ("model", "measured", "exhaustive")
TUNE_RUNS = 8
TUNE_ROUNDS = 9
WARM_DTYPES = "f16,bf16"
RECORDS = "tilewave.records"
RECORD_ACTIONS = ("show", "merge", "check")
WALK = "forwards"
CYCLES_LATENCIES = "500,1000,1500"
EXPLORED_SHAPE, EXPLORED_TILE, EXPLORED_DTYPE, EXPLORED_MACHINE = "4096x4096x4096", "128x256x64", "f16", "MI300X"
