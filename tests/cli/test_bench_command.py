"""`tilewave bench`: what it asks for, how rounds become ratios, what it prints; a GPU and torch are played by numpy."""

import json
import math
import random
import re
import sys
import xml.etree.ElementTree as ElementTree
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
from played_gpu import OURS, SMALL, asked, driver_of, rows_of
from rich.console import Console

from tilewave.bench import contestants as bench_contestants
from tilewave.bench import gpu as bench_gpu
from tilewave.bench import measured_on
from tilewave.bench.contestant import LeftOut
from tilewave.bench.measured_on import MeasuredOn
from tilewave.bench.result import Checked, GemmReport, Result, Settings
from tilewave.bench.rounds import SHORT, SUSTAINED, Estimate, Rounds, Sample, order_of_a_round, play
from tilewave.cli.bench_report import bars_of, caption_of, print_report
from tilewave.errors import TargetError, TilewaveError
from tilewave.ir.types import BF16, F8E4M3FN, F16, F32, I8, I32
from tilewave.view.bench_plot import Bar, Scale, bench_plot

SVG = "{http://www.w3.org/2000/svg}"


# -- what was asked -------------------------------------------------------------------------------------------------


def test_without_options_the_seeds_are_measured_in_both_modes(bench_call, monkeypatch):
    settings = asked(bench_call, monkeypatch)
    assert settings.shapes[0] == (2048, 2048, 2048) and len(settings.shapes) == 6
    assert (settings.dtype, settings.out, settings.tile) == (F16, F16, (128, 256, 64))
    assert (settings.mappings, settings.against) == (("grouped(12)",), ("cublas",))
    assert (settings.modes, settings.rounds) == ("both", 15)


def test_options_say_what_is_measured(bench_call, monkeypatch):
    words = "gemm --shapes 64x32x16,8x8x8 --dtype f8e4m3fn --out f32 --tile 64x128x32 --map grouped(4) --map hilbert()"
    settings = asked(bench_call, monkeypatch, *words.split(), "--against", " triton, cublas", "--mode", "short")
    assert settings.shapes == ((64, 32, 16), (8, 8, 8))
    assert (settings.dtype, settings.out, settings.tile) == (F8E4M3FN, F32, (64, 128, 32))
    assert (settings.mappings, settings.against) == (("grouped(4)", "hilbert()"), ("triton", "cublas"))
    assert settings.modes == "short"


def test_what_is_written_follows_what_is_read(bench_call, monkeypatch):
    assert asked(bench_call, monkeypatch, "--dtype", "bf16").out == BF16
    assert asked(bench_call, monkeypatch, "--dtype", "i8").out == I32
    assert asked(bench_call, monkeypatch, "--shapes", "unseen", "--against", "").against == ()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["conv"], "unknown kernel 'conv'\n  there is gemm; or name a Python file\n"),
        (
            ["--against", "cublas,tritn"],
            "--against: unknown baseline `tritn`\n      cublas,tritn\n             ^^^^^\n  there are cublas, triton\n",
        ),
        (
            ["--shapes", "seed"],
            "--shapes: unknown shapes `seed`\n      seed\n      ^^^^\n"
            "  there are seeds and unseen, or write 4096x4096x4096,8192x8192x8192\n",
        ),
        (
            ["--shapes", "8x8x8,16x4"],
            "a shape is three numbers, M x N x K\n      16x4\n          ^\n  write 4096x4096x4096\n",
        ),
        (["--shapes", "8x0x8"], "N of a shape is from 1 to 2147483647, not 0\n      8x0x8\n        ^\n"),
        (
            ["--dtype", "f64"],
            "--dtype takes no `f64`\n      f64\n      ^^^\n  it is one of f16, bf16, f8e4m3fn, f8e5m2, i8\n",
        ),
        (
            ["--dtype", "i8", "--out", "f16"],
            "--out takes no `f16`\n      f16\n      ^^^\n  it is one of i32, f32\n",
        ),
        (
            ["--mode", "hot"],
            "--mode: unknown mode `hot`\n      hot\n      ^^^\n  there are short, sustained, both\n",
        ),
    ],
)
def test_mistakes_are_told_with_what_to_write(bench_call, words, said):
    assert bench_call(*words) == (2, "", f"error: {said}")


# -- a machine that cannot ------------------------------------------------------------------------------------------


def no_driver():
    raise TargetError("this machine has no NVIDIA driver (libcuda.so.1 or nvcuda.dll)", remedy="elsewhere")


def test_without_a_gpu_nothing_is_measured(bench_call, monkeypatch):
    monkeypatch.setattr(measured_on, "cuda_driver", no_driver)
    assert bench_call() == (
        2,
        "",
        "error: tilewave bench measures on an NVIDIA GPU, but this machine has no NVIDIA driver "
        "(libcuda.so.1 or nvcuda.dll)\n"
        "  run it where nvidia-smi shows an H100 or H200; `tilewave sim --machine H200` needs no GPU\n",
    )


def test_an_older_gpu_is_refused(bench_call, monkeypatch):
    monkeypatch.setattr(measured_on, "cuda_driver", driver_of("NVIDIA A100", "sm_80"))
    assert bench_call() == (
        2,
        "",
        "error: tilewave bench measures kernels for sm_90a, but NVIDIA A100 is sm_80\n  run it on an H100 or H200\n",
    )


def test_torch_is_asked_for(bench_call, monkeypatch):
    monkeypatch.setattr(measured_on, "cuda_driver", driver_of("NVIDIA H200", "sm_90"))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert bench_call() == (
        2,
        "",
        "error: tilewave bench needs torch, whose tensors hold the data and which calls cuBLAS; it is not installed\n"
        "  pip install torch\n",
    )


def test_a_torch_for_the_cpu_is_refused(bench_call, monkeypatch):
    monkeypatch.setattr(measured_on, "cuda_driver", driver_of("NVIDIA H200", "sm_90"))
    blind = SimpleNamespace(__version__="2.9+cpu", cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", blind)
    assert bench_call() == (
        2,
        "",
        "error: tilewave bench needs a torch that sees the GPU; torch 2.9+cpu does not\n"
        "  install a build of torch for this machine's CUDA driver\n",
    )


def test_the_driver_s_release_is_read_where_the_system_tells_it(monkeypatch, tmp_path):
    monkeypatch.setattr(measured_on, "cuda_driver", driver_of("NVIDIA H200", "sm_90"))
    monkeypatch.setattr(measured_on, "LOADED_DRIVER", tmp_path / "version")
    assert measured_on.nvidia_gpu("sm_90a")[1] == "CUDA 13.0"
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Tue\nGCC 12.1.0\n")
    assert measured_on.nvidia_gpu("sm_90a")[1] == "580.159.03, CUDA 13.0"


# -- rounds ---------------------------------------------------------------------------------------------------------


def test_the_baseline_stands_before_and_after_each_in_a_new_order():
    draw = random.Random(3)
    orders = [order_of_a_round(("x", "cublas", "y", "z"), "cublas", draw) for _ in range(20)]
    for order in orders:
        assert order[::2] == ("cublas",) * 4 and sorted(order[1::2]) == ["x", "y", "z"]
    assert len(set(orders)) > 3
    assert sorted(order_of_a_round(("x", "y"), "cublas", draw)) == ["x", "y"]
    assert order_of_a_round(("cublas",), "cublas", draw) == ("cublas",)


def test_a_ratio_is_taken_between_neighbours_alone():
    times = iter([10.0, 9.0, 8.0, 4.0, 2.0, 20.0, 8.0, 12.0])
    rounds = Rounds(
        SHORT,
        7,
        (
            tuple(Sample(name, next(times)) for name in ("cublas", "x", "cublas", "y", "cublas")),
            tuple(Sample(name, next(times)) for name in ("cublas", "x", "cublas")),
        ),
        "cublas",
    )
    assert rounds.ratios("x") == (9 / 9, 16 / 8)
    assert rounds.ratios("y") == (5 / 4,)
    assert rounds.ratio("x") == Estimate.of([1.0, 2.0]) and rounds.ratio("y") == Estimate(1.25, 0.0)
    assert rounds.ratios("cublas") == () and rounds.ratio("cublas") is None
    assert rounds.seconds("cublas") == (10, 8, 2, 20, 12)
    assert rounds.tflops("y", 8 * 10**12) == Estimate(2.0, 0.0)
    assert rounds.contestants == ("cublas", "x", "y")


def test_the_spread_is_half_the_distance_between_the_quartiles():
    assert Estimate.of([5.0, 1.0, 3.0, 2.0, 4.0, 6.0, 7.0]) == Estimate(4.0, 2.0)
    assert Estimate.of([3.0]) == Estimate(3.0, 0.0)
    assert Estimate.of([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 100.0]) == Estimate(1.0, 0.0)


def test_rounds_drift_but_ratios_do_not():
    """A machine that gets slower all the time, by more than the contestants differ."""
    clock = [1.0]

    def take(order):
        samples = []
        for name in order:
            clock[0] += 0.01
            samples.append(clock[0] * {"cublas": 1.0, "x": 0.97}[name])
        return samples

    done = []
    rounds = Rounds(SUSTAINED, 1, play(("x", "cublas"), "cublas", 9, 0, take, lambda: done.append(1)), "cublas")
    assert len(rounds.rounds) == len(done) == 9
    assert rounds.ratios("x") == pytest.approx([1 / 0.97] * 9, rel=1e-12)
    assert rounds.tflops("x", 10**12).spread > 0.03


# -- what is printed ------------------------------------------------------------------------------------------------


def rounds_of(mode, ours, count=3):
    one = tuple(Sample(name, t) for name, t in (("cublas", 1.0), (OURS, ours), ("cublas", 1.0)))
    return Rounds(mode, 10, (one,) * count, "cublas")


def result_of(shape, short, sustained, **more):
    checks = tuple(
        Checked(name, 2.08e-4, 1e-3, bitwise_equal=True, writes=F16, is_ours=name == OURS) for name in (OURS, "cublas")
    )
    rounds = (rounds_of(SHORT, short), rounds_of(SUSTAINED, sustained))
    facts = {"checks": checks, "failed": (), "rounds": rounds, "launched_by": "CUDA graphs", **more}
    return Result(shape, **facts)


def report_of(*results):
    shapes = tuple(result.shape for result in results)
    settings = Settings(shapes, F16, F16, (128, 256, 64), ("grouped(12)",), ("cublas",), "both", 3, 0)
    return GemmReport(settings, MeasuredOn("NVIDIA H200", "580.1, CUDA 13.0", "2.11.0", {"torch": "2.11.0"}), results)


CANNED = report_of(
    result_of((10000, 10000, 5000), 0.8, 1.0, notes=("triton took groups of 8 rows",)),
    result_of((20000, 10000, 5000), 0.5, 0.5),
)


def printed(report):
    console = Console(file=StringIO(), width=120, highlight=False)
    print_report(console, report)
    return console.file.getvalue()


def test_the_table_shows_medians_spreads_errors_and_the_geometric_mean():
    text = printed(CANNED)
    lines = text.splitlines()
    assert lines[0].startswith("gemm, f16 → f16, tiles of 128x256x64, on NVIDIA H200 (driver 580.1, CUDA 13.0; torch")
    assert "short: bursts of 2 ms, 12 ms idle between them; medians of 3 rounds; launched by CUDA graphs" in lines
    rows = rows_of(text)
    assert rows[:6] == [
        ["shape", "contestant", "TFLOP/s", "ratio to cublas", "error"],
        ["10000x10000x5000", OURS, "1.2 ± 0.0", "1.250 ± 0.000", "2.08e-04"],
        ["", "cublas", "1.0 ± 0.0", "–", "2.08e-04"],
        ["20000x10000x5000", OURS, "4.0 ± 0.0", "2.000 ± 0.000", "2.08e-04"],
        ["", "cublas", "2.0 ± 0.0", "–", "2.08e-04"],
        ["geometric mean", OURS, "", f"{math.sqrt(2.5):.3f}", ""],
    ]
    assert rows[-1] == ["geometric mean", OURS, "", f"{math.sqrt(2):.3f}", ""]
    assert lines[-1] == "Note: 10000x10000x5000: triton took groups of 8 rows."


def test_who_is_wrong_or_missing_is_said_and_has_no_mean():
    bad = Checked(OURS, 0.5, 1e-3, bitwise_equal=True, writes=F16, is_ours=True)
    moving = Checked("cublas", 2e-4, 1e-3, bitwise_equal=False, writes=F16, is_ours=False)
    alone = Rounds(SHORT, 10, ((Sample("cublas", 1.0),),), "cublas")
    failed = (LeftOut("triton", "No module named 'triton'", is_ours=False),)
    report = report_of(
        CANNED.results[0],
        result_of((8, 8, 8), 1, 1, checks=(bad, moving), failed=failed, rounds=(alone,), launched_by="plain launches"),
    )
    text = printed(report)
    assert ["8x8x8", OURS, "–", "–", "✗ 5.00e-01"] in rows_of(text)
    assert ["", "triton", "–", "–", "–"] in rows_of(text)
    assert "geometric mean" not in text
    assert "launched by CUDA graphs; plain launches" in text
    assert text.splitlines()[-3:] == [
        "Note: 8x8x8: triton is left out: No module named 'triton'.",
        f"Note: 8x8x8: {OURS} is wrong and not timed.",
        "Note: 8x8x8: cublas is not deterministic from launch to launch.",
    ]
    assert not report.passed and CANNED.passed


def test_bits_that_change_are_a_fault_of_ours_and_a_baseline_s_own_affair():
    facts = {"error": 1e-4, "bound": 1e-3, "bitwise_equal": False, "writes": F16}
    assert not Checked("x", **facts, is_ours=True).passed
    assert Checked("cublas", **facts, is_ours=False).passed
    assert not Checked("cublas", **{**facts, "error": math.nan}, is_ours=False).passed


def test_json_holds_every_sample_in_order():
    found = json.loads(json.dumps(CANNED.to_json(), allow_nan=False))
    assert (found["device"], found["driver"], found["torch"]) == ("NVIDIA H200", "580.1, CUDA 13.0", "2.11.0")
    assert found["settings"]["shapes"] == [[10000, 10000, 5000], [20000, 10000, 5000]]
    short, sustained = found["results"][0]["modes"]
    assert (short["mode"], sustained["mode"], short["launches_in_a_burst"]) == ("short", "sustained", 10)
    assert short["rounds"] == [[["cublas", 1.0], [OURS, 0.8], ["cublas", 1.0]]] * 3
    ours = next(one for one in short["contestants"] if one["name"] == OURS)
    assert ours["ratio"] == {"median": 1.25, "spread": 0.0} and ours["ratios"] == [1.25] * 3
    assert found["geometric_means"]["short"] == {OURS: pytest.approx(math.sqrt(2.5))}


# -- the plot -------------------------------------------------------------------------------------------------------


def test_the_plot_has_a_bar_for_each_ratio_and_a_line_for_cublas():
    root = ElementTree.fromstring(bench_plot(bars_of(CANNED), caption_of(CANNED)))
    bars = [g for g in root.iter(f"{SVG}g") if g.get("class") == "bar"]
    titles = [bar.find(f"{SVG}title").text for bar in bars]
    assert titles == [
        f"10000x10000x5000, {OURS}, short: 1.250 ± 0.000",
        f"10000x10000x5000, {OURS}, sustained: 1.000 ± 0.000",
        f"20000x10000x5000, {OURS}, short: 2.000 ± 0.000",
        f"20000x10000x5000, {OURS}, sustained: 2.000 ± 0.000",
    ]
    tops = [float(bar.find(f"{SVG}rect").get("y")) for bar in bars]
    (line,) = [float(r.get("y")) for r in root.iter(f"{SVG}rect") if r.get("class") == "baseline"]
    assert tops[2] == tops[3] < tops[0] < tops[1] and tops[1] == pytest.approx(line + 0.5)
    words = " ".join(t.text for t in root.iter(f"{SVG}text"))
    assert "NVIDIA H200" in words and "speed, × cuBLAS" in words and "begins at 0.6, not at 0" in words


def test_bars_are_as_high_as_the_axis_says_and_stay_inside():
    bars = [Bar("s", "x", 1.06, 0.004), Bar("s", "y", 0.97, 0.03), Bar("t", "x", 1.03, 0.0)]
    scale = Scale.of(bars)
    assert scale.low < 0.94 and scale.high > 1.064 and 4 <= len(scale.ticks) <= 10
    assert scale.ticks[-1] == pytest.approx(scale.high)
    root = ElementTree.fromstring(bench_plot(bars, "caption <&>"))
    boxes = [g.find(f"{SVG}rect") for g in root.iter(f"{SVG}g") if g.get("class") == "bar"]
    heights = [float(box.get("height")) for box in boxes]
    assert heights[0] / heights[1] == pytest.approx((1.06 - scale.low) / (0.97 - scale.low), rel=1e-3)
    ends = {round(float(box.get("y")) + float(box.get("height")), 1) for box in boxes}
    assert len(ends) == 1
    assert len({box.get("fill") for box in boxes}) == 2


def test_a_plot_of_nothing_says_so():
    root = ElementTree.fromstring(bench_plot((), "On a machine."))
    assert "Nothing was compared. On a machine." in [t.text for t in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("ratios", [[1.0], [1.0, 1.0], [0.001, 40.0], [1.0000001]])
def test_every_scale_holds_its_bars(ratios):
    scale = Scale.of([Bar("s", "x", ratio, 0.0) for ratio in ratios])
    assert 0 <= scale.low < min(ratios) and max(ratios) < scale.high and len(scale.ticks) < 20


# -- the whole command, on a GPU played by numpy --------------------------------------------------------------------


def test_a_whole_benchmark(bench_call, gpu, tmp_path):
    code, out, err = bench_call(*SMALL, "--save", str(tmp_path / "all.json"), "--svg", str(tmp_path / "bars.svg"))
    assert (code, err) == (0, "")
    found = json.loads((tmp_path / "all.json").read_text())
    assert (found["device"], found["commit"]) == ("NVIDIA H200", "c0ffee")
    short, sustained = found["results"][0]["modes"]
    assert short["launches_in_a_burst"] == 3  # of 0.8 ms, for 2 ms
    assert sustained["launches_in_a_burst"] == 15 * 13  # fifteen graphs of 10 ms
    for mode in (short, sustained):
        ours = next(one for one in mode["contestants"] if one["name"] == OURS)
        assert ours["ratio"]["median"] == pytest.approx(1.25) and len(mode["rounds"]) == 4
        assert ours["tflops"]["median"] == pytest.approx(2 * 40 * 24 * 16 / 0.8e-3 / 1e12)
    assert gpu.asleep == pytest.approx(4 * 3 * 0.012)  # three samples a round, and only in the short mode
    assert rows_of(out)[1][3] == "1.250 ± 0.000"
    assert re.fullmatch(r"\d\.\d\de-04", rows_of(out)[1][4])
    assert (tmp_path / "bars.svg").read_text().count('class="bar"') == 2


def test_a_sustained_burst_is_warmed_up_and_not_timed(bench_call, gpu):
    bench_call(*SMALL, "--mode", "sustained")
    bursts = "".join({"event": "|", "ours": "o", "cublas": "c"}[entry] for entry in gpu.log).split("|")
    assert bursts[-1] == ""
    assert bursts[-7:-1] == ["c" * 104, "c" * 195, "o" * 104, "o" * 195, "c" * 104, "c" * 195]


def test_where_nothing_can_be_recorded_all_are_launched_one_by_one(bench_call, gpu):
    gpu.records = False
    code, out, _ = bench_call(*SMALL)
    assert code == 0
    why = f"plain launches, since {OURS} cannot be recorded: operation not permitted when stream is capturing"
    assert f"launched by {why}" in " ".join(out.split())
    assert rows_of(out)[1][3] == "1.250 ± 0.000"


def test_a_wrong_result_is_not_timed(bench_call, gpu):
    gpu.spoil = lambda c: c.__setitem__((-1, -1), np.nan)
    code, out, _ = bench_call(*SMALL)
    assert code == 1
    assert rows_of(out)[1] == ["40x24x16", OURS, "–", "–", "✗ nan"]
    assert f"Note: 40x24x16: {OURS} is wrong and not timed." in out
    code, out, _ = bench_call(*SMALL, "--json")
    assert code == 1 and json.loads(out)["results"][0]["correctness"][0]["relative_error"] is None


def test_a_kernel_that_writes_nothing_does_not_live_on_what_others_wrote(bench_call, gpu, monkeypatch):
    right = bench_contestants.wave_compile
    made = []

    def compile_it(options, kernel):
        made.append(right(options, kernel))
        idle = lambda a, b, c: None  # noqa: E731
        idle.code_object = b""
        return made[0] if len(made) == 1 else idle

    monkeypatch.setattr(bench_contestants, "wave_compile", compile_it)
    code, out, _ = bench_call(*SMALL, "--map", "linear()", "--map", "hilbert()")
    assert code == 1
    assert [row[1] for row in rows_of(out) if row[-1].startswith("✗")] == ["tilewave hilbert()"] * 2


def test_every_row_is_checked_however_few_at_a_time(bench_call, gpu, monkeypatch):
    monkeypatch.setattr(bench_gpu, "CHECKED_AT_ONCE", 24 * 7)
    assert bench_call(*SMALL)[0] == 0
    gpu.spoil = lambda c: c.__setitem__((-1, -1), 100)
    assert bench_call(*SMALL)[0] == 1


def test_bits_that_change_are_found(bench_call, gpu):
    gpu.spoil = lambda c: c.__setitem__((0, 0), c[0, 0] + np.float16(len(gpu.log) % 2) * np.float16(2**-10) * c[0, 0])
    code, out, _ = bench_call(*SMALL)
    assert code == 1 and f"{OURS} is not deterministic from launch to launch" in out


def test_a_kernel_that_does_not_compile_leaves_the_others_their_turn(bench_call, gpu, monkeypatch):
    def refuse(options, kernel):
        raise TilewaveError("gemm: the tile does not fit", remedy="smaller")

    monkeypatch.setattr(bench_contestants, "wave_compile", refuse)
    code, out, _ = bench_call(*SMALL)
    assert code == 1
    assert f"Note: 40x24x16: {OURS} is left out: gemm: the tile does not fit." in out
    assert rows_of(out)[1][:2] == ["40x24x16", "cublas"] and rows_of(out)[1][3] == "–"


def test_a_baseline_that_is_not_here_is_said(bench_call, gpu, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "triton", None)
    code, out, _ = bench_call(*SMALL, "--against", "cublas,triton")
    assert code == 0 and "Note: 40x24x16: triton is left out: import of triton halted" in out
    monkeypatch.setattr(bench_contestants, "TRITON_KERNEL", tmp_path / "nothing.py")
    code, out, _ = bench_call(*SMALL, "--against", "triton")
    assert code == 0 and "triton is left out: its kernel, benchmarks/triton_gemm.py, is in tilewave's repository" in out


def test_triton_takes_part_with_its_fastest_group(bench_call, gpu, monkeypatch):
    def launches(a, b, c):
        def work():
            c.array[:] = (a.array.astype("f8") @ b.array.astype("f8").T).astype(c.dtype)

        times = {1: 1.6e-3, 4: 1.0e-3, 8: 0.9e-3, 16: 1.2e-3}
        return {group: (lambda s=s: gpu.launch("triton", s, work)) for group, s in times.items()}

    monkeypatch.setattr(bench_contestants, "_load", lambda path: SimpleNamespace(launches=launches))
    code, out, _ = bench_call(*SMALL, "--against", "triton,cublas", "--mode", "short")
    assert code == 0 and "Note: 40x24x16: triton took groups of 8 rows." in out
    assert ["", "triton", "1.111 ± 0.000"] in [[row[0], row[1], row[3]] for row in rows_of(out)]


def test_a_shape_that_the_gpu_cannot_hold_is_refused(bench_call, gpu):
    gpu.sizes = (10**8, 10**10)
    gpu.randn = None  # nothing may be allocated
    assert bench_call("--shapes", "2000x2000x1000") == (
        2,
        "",
        "error: a gemm of 2000x2000x1000 and its check need about 0.2 GB, "
        "but only 0.1 GB of the GPU's memory are free\n"
        "  choose a smaller shape\n",
    )


def test_what_a_baseline_writes_is_said_where_it_differs(bench_call, gpu):
    code, out, _ = bench_call(*SMALL, "--out", "f32")
    assert code == 0 and "Note: 40x24x16: cublas writes f16, not f32." in out


# -- the bound ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "out"), [(F16, F16), (BF16, BF16), (F16, F32), (F8E4M3FN, BF16)])
@pytest.mark.parametrize("k", [64, 4096])
def test_the_bound_holds_a_right_sum_and_refuses_a_lost_step(dtype, out, k):
    """Sums in f32 that are cut off, 16 products at a time; then one of the steps is left out."""
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((24, k)).astype(dtype.numpy).astype(np.float32) for _ in range(2))
    steps = np.einsum("mks,nks->kmn", *(x.reshape(24, -1, 16).astype(np.float64) for x in (a, b)))
    want, found = steps.sum(0), np.zeros((24, 24))
    for step in steps:
        found = _cut_off(found + step)
    bound = bench_gpu.error_bound(k, dtype, out)
    right, short = ((c.astype(out.numpy).astype(np.float64) - want) for c in (found, found - steps[1]))
    assert np.linalg.norm(right) <= bound * np.linalg.norm(want) < np.linalg.norm(short)


def _cut_off(x):
    nearest = x.astype(np.float32)
    too_far = np.abs(nearest.astype(np.float64)) > np.abs(x)
    return np.where(too_far, np.nextafter(nearest, np.float32(0)), nearest).astype(np.float64)


def test_whole_numbers_may_not_err():
    assert bench_gpu.error_bound(4096, I8, I32) == 0
    assert bench_gpu.error_bound(4096, I8, F32) == 2.0**-24
