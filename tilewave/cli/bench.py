"""`tilewave bench`: our GEMM compared with cuBLAS and Triton, or a user's kernels, in turns, with medians and
spreads."""

from __future__ import annotations

import json
import re
from pathlib import Path

import typer
from rich.console import Console

from tilewave.bench.ablation import ablations, checked_ablation
from tilewave.bench.contestants import BASELINES
from tilewave.bench.epilogue import EPILOGUES
from tilewave.bench.gemm import measure_gemm
from tilewave.bench.kernel import KernelSettings
from tilewave.bench.result import Settings, Shape
from tilewave.bench.rounds import MODES
from tilewave.cli.asked import given, known_dtype, refuse_given, sizes
from tilewave.cli.bench_report import bars_of, caption_of, print_report
from tilewave.cli.kernel_file import (
    ITS_OWN,
    OF_A_FILE,
    OPTIONS_OF_FILES,
    FileRequest,
    is_file,
    measure_file,
)
from tilewave.cli.progress import progress
from tilewave.errors import TilewaveError, text_error
from tilewave.ir.types import BF16, F8E4M3FN, F8E5M2, F16, F32, I8, I32, DType
from tilewave.mapping import as_mapping
from tilewave.view.bench_plot import bench_plot
from tilewave.view.save import check_place, save

SHAPES: dict[str, tuple[Shape, ...]] = {
    "seeds": (
        (2048, 2048, 2048),
        (4096, 4096, 4096),
        (4864, 4096, 4160),
        (4864, 8192, 4160),
        (16384, 4096, 8192),
        (8192, 8192, 8192),
    ),
    "unseen": ((8200, 8200, 8200), (5120, 13824, 5120), (1024, 28672, 8192)),
}
"""`seeds` are those that the order of tiles was chosen on; `unseen` are not."""

INPUTS = (F16, BF16, F8E4M3FN, F8E5M2, I8)
OUTPUTS = {"float": (F16, BF16, F32), "int": (I32, F32)}
DEFAULT_OUT = {F16: F16, BF16: BF16, F8E4M3FN: BF16, F8E5M2: BF16, I8: I32}
"""What cuBLAS writes for such operands when torch calls it."""

BEST_MAPPING = "grouped(12)"


def bench_command(
    *,
    context: typer.Context,
    what: str,
    set_: list[str] | None,
    target: str,
    kernel: str,
    scalars: list[str] | None,
    shapes: str,
    dtype: str,
    out: str,
    tile: str,
    maps: list[str] | None,
    against: str,
    rounds: int,
    mode: str,
    epilogue: str,
    ablation: bool,
    left_out: list[str] | None,
    seed: int,
    as_json: bool,
    saved: Path | None,
    svg: Path | None,
) -> None:
    if is_file(what):
        refuse_given(context, OF_A_GEMM, "has no effect on a kernel from a file", ITS_OWN)
        beside = against if given(context, "against") else ""
        said, how = given(context, "target"), KernelSettings(rounds, seed, MODES[_mode(mode)])
        asked = FileRequest(Path(what), set_ or [], target, said, kernel, beside, scalars or (), None, how)
        if not measure_file(asked, as_json, saved):
            raise typer.Exit(1)
        return
    refuse_given(context, OPTIONS_OF_FILES, OF_A_FILE, "write --shapes MxNxK, --tile MxNxK and --map")
    read = known_dtype("--dtype", dtype, INPUTS)
    written = known_dtype("--out", out, OUTPUTS[read.kind]) if out else DEFAULT_OUT[read]
    orders = tuple(dict.fromkeys(str(as_mapping(text)) for text in maps or (BEST_MAPPING,)))
    facts = read, written, sizes("a tile", tile, (2, 2, 1), "128x256x64"), orders, _baselines(against)
    after = _epilogue(epilogue, read, written), _names_of_ablations(ablation, left_out or [], epilogue)
    _measure_gemm(Settings(_shapes(shapes), *facts, _mode(mode), rounds, seed, *after), as_json, saved, svg)


def _measure_gemm(settings: Settings, as_json: bool, saved: Path | None, svg: Path | None) -> None:
    for path in (saved, svg):
        check_place(path)
    with progress("measuring", settings.pieces) as advance:
        report = measure_gemm(settings, advance)
    passed = json.dumps(report.to_json(), indent=2, allow_nan=False)
    if saved is not None:
        save(saved, passed + "\n")
    if svg is not None:
        save(svg, bench_plot(bars_of(report), caption_of(report)))
    if as_json:
        print(passed)
    else:
        print_report(Console(highlight=False), report)
    if not report.passed:
        raise typer.Exit(1)


# -- what was asked ----------------------------------------------------------------------------------------------------


OF_A_GEMM = ("shapes", "dtype", "out", "tile", "maps", "epilogue", "ablation", "left_out", "svg")


def _shapes(text: str) -> tuple[Shape, ...]:
    if text in SHAPES:
        return SHAPES[text]
    if not re.match(r"\s*\d", text):
        remedy = f"there are {' and '.join(SHAPES)}, or write 4096x4096x4096,8192x8192x8192"
        raise TilewaveError(text_error(f"--shapes: unknown shapes `{text}`", text, 0, len(text), remedy))
    found = [sizes("a shape", one.strip(), (1, 1, 1), "4096x4096x4096") for one in text.split(",")]
    return tuple(dict.fromkeys(found))


def _baselines(text: str) -> tuple[str, ...]:
    for match in re.finditer(r"[^,\s]+", text):
        if match[0] not in BASELINES:
            what = f"--against: unknown baseline `{match[0]}`"
            raise TilewaveError(text_error(what, text, *match.span(), f"there are {', '.join(BASELINES)}"))
    return tuple(dict.fromkeys(re.findall(r"[^,\s]+", text)))


def _mode(text: str) -> str:
    if text not in MODES:
        remedy = f"there are {', '.join(MODES)}"
        raise TilewaveError(text_error(f"--mode: unknown mode `{text}`", text, 0, len(text), remedy))
    return text


def _epilogue(name: str, dtype: DType, out: DType) -> str:
    if name not in EPILOGUES:
        known = ", ".join(filter(None, EPILOGUES))
        raise TilewaveError(
            text_error(f"--epilogue: unknown epilogue `{name}`", name, 0, len(name), f"there is {known}")
        )
    if name and (dtype.bits != 16 or out != dtype):
        passed = f"--epilogue {name} is measured where A, B, bias and C are all f16 or all bf16, not {dtype} → {out}"
        raise TilewaveError(passed, remedy="leave out --out, and write --dtype f16")
    return name


def _names_of_ablations(all_of_them: bool, left_out: list[str], epilogue: str) -> tuple[str, ...]:
    wanted = [*(ablations() if all_of_them else ()), *map(checked_ablation, left_out)]
    if wanted and epilogue:
        raise TilewaveError("optimizations are left out of the gemm without an epilogue", remedy="leave out --epilogue")
    return tuple(dict.fromkeys(ablation.name for ablation in wanted))
