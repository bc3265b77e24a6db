"""What `tilewave bench` is asked; what it does is in cli/bench.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewave.backend.names import DEFAULT_TARGET
from tilewave.cli.declared import known
from tilewave.cli.declared.of_files import KernelOfFile, Scalars, Sizes, Target

KernelName = Annotated[
    str, typer.Argument(metavar="KERNEL", help="What to measure: gemm, or a Python file that defines kernels.")
]
ShapesText = Annotated[str, typer.Option("--shapes", metavar="SHAPES", help="seeds, unseen, or MxNxK,MxNxK,…")]
DTypeText = Annotated[
    str, typer.Option("--dtype", metavar="DTYPE", help=f"Dtype of A and B: {', '.join(known.BENCH_INPUTS)}.")
]
OutText = Annotated[str, typer.Option(metavar="DTYPE", help="Dtype of C; default: what cuBLAS writes.")]
TileText = Annotated[str, typer.Option(metavar="MxNxK", help="Tile of a workgroup.")]
Maps = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="MAPPING", help=f"Order of tiles; repeatable. Default: {known.BEST_MAPPING}."),
]
Against = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help=f'For gemm: {",".join(known.BENCH_BASELINES)}, none with ""; for a file: other files.',
    ),
]
RoundCount = Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="Rounds of timing per mode.")]
ModeName = Annotated[
    str, typer.Option("--mode", metavar="MODE", help="short (2 ms bursts), sustained (150 ms), or both.")
]
EpilogueName = Annotated[str, typer.Option("--epilogue", metavar="NAME", help=f"Fused epilogue: {known.EPILOGUE}.")]
AblationStudy = Annotated[bool, typer.Option("--ablation", help="Also tilewave without one optimization at a time.")]
Without = Annotated[
    list[str] | None, typer.Option("--without", metavar="PASS", help="Also tilewave without this pass; repeatable.")
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the inputs and of the order of measurements.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, with every sample.")]
JsonFile = Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Write the JSON to a file.")]
SvgFile = Annotated[
    Path | None, typer.Option("--svg", metavar="FILE", help="Write a bar chart of the ratios to cuBLAS.")
]


def bench_command(
    context: typer.Context,
    what: KernelName = "gemm",
    set_: Sizes = None,
    target: Target = DEFAULT_TARGET,
    kernel: KernelOfFile = "",
    scalars: Scalars = None,
    shapes: ShapesText = "seeds",
    dtype: DTypeText = "f16",
    out: OutText = "",
    tile: TileText = "128x256x64",
    maps: Maps = None,
    against: Against = "cublas",
    rounds: RoundCount = 15,
    mode: ModeName = "both",
    epilogue: EpilogueName = "",
    ablation: AblationStudy = False,
    left_out: Without = None,
    seed: Seed = 0,
    as_json: Json = False,
    saved: JsonFile = None,
    svg: SvgFile = None,
) -> None:
    """Benchmark a GEMM or your own kernels.

    Compare a GEMM on this machine's NVIDIA GPU with cuBLAS and Triton, or benchmark the kernels of a file.

    A file's kernels run on the CPU, or on the GPU with --target; those that take
    the same arguments are compared with each other. Sizes come from --sizes or
    from the file itself. The GPU's clocks are not changed.

    Every result is first compared with float64; a tilewave result that is wrong is
    not timed, and the exit code is 1.

    Then come rounds, each in a new random order, with cuBLAS, or a file's first
    kernel, before and after each of the others. A ratio is the mean time of those
    two over the other's; medians are printed with half the distance between the
    quartiles.

    Examples:

      tilewave bench kernel.py --sizes M=512,N=512,K=512 --save record.json

      tilewave bench mine.py --sizes M=512,N=512,K=512 --against other.py

      tilewave bench gemm --shapes seeds --against cublas,triton

      tilewave bench gemm --shapes unseen --dtype bf16 --svg ratios.svg

      tilewave bench gemm --shapes 4096x4096x4096,8192x8192x8192 --mode short

      tilewave bench gemm --shapes unseen --map "grouped(8)" --map "hilbert()"

      tilewave bench gemm --epilogue bias+gelu --shapes 8192x8192x8192

      tilewave bench gemm --ablation --against cublas,triton --rounds 7

      tilewave bench gemm --json
    """
