"""Who else takes part in `tilewave bench`: an epilogue's kernels, fast sums of f8, and ablations."""

import json
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from kernels import check_product, poisoned, random_array
from played_gpu import OURS, SMALL, Tensor, asked, rows_of

from tilewave import *
from tilewave import kernels as shipped
from tilewave.backend.nvidia.build import copying_passes
from tilewave.bench import contestants as bench_contestants
from tilewave.bench.ablation import (
    NEEDED,
    ablation_named,
    ablation_without,
    ablations,
    checked_ablation,
    compiled_ablation,
    having,
    without,
)
from tilewave.bench.epilogue import EPILOGUES
from tilewave.bench.gpu import error_bound
from tilewave.bench.result import Settings
from tilewave.errors import TilewaveError
from tilewave.ir.constraint_locations import Places
from tilewave.ir.rewrite import unnamed
from tilewave.ir.types import BF16, F16, F32
from tilewave.machine.chips import SM_90A
from tilewave.pipeline.runner import pass_name

ERF = np.vectorize(math.erf, otypes=[np.float64])


def exact_gelu(x):
    return 0.5 * x * (1.0 + ERF(x / math.sqrt(2)))


# -- an epilogue ----------------------------------------------------------------------------------------------------


class Numbers(Tensor):
    """A tensor that can be calculated with."""

    def __add__(self, other):
        return Numbers(self.array + getattr(other, "array", other))

    def __mul__(self, other):
        return Numbers(self.array * getattr(other, "array", other))

    __radd__, __rmul__ = __add__, __mul__

    def __sub__(self, other):
        return Numbers(self.array - other.array)

    def __matmul__(self, other):
        return Numbers(self.array @ other.array)

    T = property(lambda self: Numbers(self.array.T))

    def to(self, dtype):
        return Numbers(self.array.astype(dtype))

    def __getitem__(self, at):
        return Numbers(self.array[at])


@pytest.fixture
def calculating(gpu, monkeypatch):
    """The GPU, with what gelu(a @ b.T + bias) needs; each of its kernels rounds what it writes."""

    def kernel(name, seconds, compute):
        def run(*given, out):
            def work():
                out.array[:] = compute(*(x.array.astype("f8") for x in given)).astype(out.dtype)

            gpu.launch(name, seconds, work)

        return run

    gpu.randn = lambda size, **more: Numbers(gpu.rng.standard_normal(size, np.float32))
    gpu.empty = lambda size, dtype, device: Numbers(np.full(size, 7, dtype))
    gpu.empty_like = lambda other: Numbers(np.full_like(other.array, 7))
    gpu.erf = lambda x: Numbers(ERF(x.array))
    gpu.add = kernel("add", 0.2e-3, np.add)
    gpu.addmm = kernel("addmm", 1e-3, lambda bias, a, b: a @ b + bias)
    gpu.ops = SimpleNamespace(aten=SimpleNamespace(gelu=SimpleNamespace(out=kernel("gelu", 0.2e-3, exact_gelu))))
    gpu.fused = kernel("ours", 0.7e-3, lambda a, b, bias: exact_gelu(a @ b.T + bias))

    def compile_it(options, made):
        def compiled(a, b, bias, c):
            assert made.name == "gemm_bias_gelu"
            gpu.fused(a, b, bias, out=c)

        compiled.code_object = b""
        return compiled

    monkeypatch.setattr(bench_contestants, "wave_compile", compile_it)
    return gpu


def test_a_fused_epilogue_is_measured_beside_kernels_of_its_own(bench_call, calculating, tmp_path):
    words = [*SMALL, "--epilogue", "bias+gelu", "--mode", "short", "--against", "cublas,triton"]
    code, out, err = bench_call(*words, "--save", str(tmp_path / "all.json"))
    assert (code, err) == (0, "")
    ratios = {row[1]: row[3] for row in rows_of(out)[1:4]}
    assert ratios == {OURS: "2.000 ± 0.000", "cublas": "–", "cublas linear": "1.167 ± 0.000"}
    assert out.startswith("gemm with bias+gelu, f16 → f16")
    assert "triton is left out: its kernel has no epilogue" in out
    found = json.loads((tmp_path / "all.json").read_text())
    assert found["settings"]["epilogue"] == "bias+gelu"
    bounds = {one["contestant"]: one["bound"] for one in found["results"][0]["correctness"]}
    assert bounds[OURS] < bounds["cublas"] == bounds["cublas linear"], "each kernel may round once more"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda a, b, bias: exact_gelu(a @ b.T),
        lambda a, b, bias: a @ b.T + bias,
        lambda a, b, bias: np.maximum(a @ b.T + bias, 0),
    ],
    ids=["no bias", "no gelu", "relu"],
)
def test_an_epilogue_that_is_another_is_found(bench_call, calculating, wrong):
    def fused(a, b, bias, out):
        def work():
            out.array[:] = wrong(*(x.array.astype("f8") for x in (a, b, bias))).astype(out.dtype)

        calculating.launch("ours", 1e-3, work)

    calculating.fused = fused
    code, out, _ = bench_call(*SMALL, "--epilogue", "bias+gelu", "--mode", "short")
    assert code == 1 and f"{OURS} is wrong and not timed" in out


def test_the_slope_of_gelu_is_what_enlarges_an_error():
    x = np.linspace(-6, 6, 100001)
    slopes = np.diff(exact_gelu(x)) / np.diff(x)
    assert 1.12 < slopes.max() <= EPILOGUES["bias+gelu"].steepest
    assert error_bound(64, F16, F16, 1.13, 2) > error_bound(64, F16, F16, 1.13) > error_bound(64, F16, F16)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--epilogue", "relu"], "--epilogue: unknown epilogue `relu`\n      relu\n      ^^^^\n  there is bias+gelu\n"),
        (
            ["--epilogue", "bias+gelu", "--dtype", "i8"],
            "--epilogue bias+gelu is measured where A, B, bias and C are all f16 or all bf16, not i8 → i32\n"
            "  leave out --out, and write --dtype f16\n",
        ),
        (
            ["--epilogue", "bias+gelu", "--ablation"],
            "optimizations are left out of the gemm without an epilogue\n  leave out --epilogue\n",
        ),
    ],
)
def test_mistakes_are_told_with_what_to_write(bench_call, words, said):
    assert bench_call(*words) == (2, "", f"error: {said}")


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("level", ["tile", "lane"])
def test_the_kernel_with_an_epilogue_computes_it(dtype, level):
    m, n, k = 80, 136, 72
    made = shipped.gemm_bias_gelu((m, n, k), dtype, dtype, tile=(64, 128, 32), mapping="grouped(2)")
    kernel = wave_compile(WaveCompileOptions(subs=made.subs, target="sm_90a"), made.kernel)
    rng = np.random.default_rng(4)
    a, b, bias = (random_array(rng, size, dtype) for size in ((m, k), (n, k), (n,)))
    c = poisoned((m, n), dtype)
    kernel.interpret(a, b, bias, c, level=level)
    wide = [x.astype(np.float64) for x in (a, b, bias)]
    sums = wide[0] @ wide[1].T + wide[2]
    magnitude = np.abs(wide[0]) @ np.abs(wide[1]).T + np.abs(wide[2])
    want = exact_gelu(sums)
    unit = float(ml_dtypes.finfo(dtype.numpy).eps)
    bound = 1.13 * (k + 2) * 2.0**-23 * magnitude + np.abs(want) * unit / 2 + 8 * 2.0**-23 * np.abs(sums)
    bound += float(ml_dtypes.finfo(dtype.numpy).smallest_subnormal)
    assert (np.abs(c.astype(np.float64) - want) <= bound).all()


# -- sums of 8-bit floats -------------------------------------------------------------------------------------------


def test_f8_is_measured_against_both_kinds_of_sums(bench_call, gpu, monkeypatch):
    gpu.float8_e4m3fn = np.dtype(ml_dtypes.float8_e4m3fn)
    gpu.ones = lambda size, device: Tensor(np.ones(size, np.float32))

    def scaled_mm(a, b, *, scale_a, scale_b, out_dtype, out, use_fast_accum=False):
        def work():
            out.array[:] = (a.array.astype("f8") @ b.array.astype("f8")).astype(out_dtype)

        gpu.launch("fast" if use_fast_accum else "cublas", 0.8e-3 if use_fast_accum else 1e-3, work)

    gpu._scaled_mm = scaled_mm
    code, out, err = bench_call(*SMALL, "--dtype", "f8e4m3fn", "--mode", "short")
    assert (code, err) == (0, "")
    ratios = {row[1]: row[3] for row in rows_of(out)[1:4]}
    assert ratios == {OURS: "1.250 ± 0.000", "cublas": "–", "cublas, fast sums": "1.250 ± 0.000"}
    assert "fast sums leaves sums to the tensor cores, as we do" in out
    assert {"fast", "cublas"} <= {*gpu.log}


# -- ablations ----------------------------------------------------------------------------------------------------

NAMES = [pass_name(p) for p in copying_passes(SM_90A, Places())]
ABLATIONS = {ablation.name: ablation for ablation in ablations()}


def test_every_pass_can_be_left_out_or_is_needed():
    left_out = {name.removeprefix("without ") for name in ABLATIONS if name.startswith("without ")}
    assert left_out == set(NAMES) - set(NEEDED)
    assert set(NEEDED) <= set(NAMES)
    assert {"make_persistent", "alternate_k_direction", "stage_epilogue", "specialize_waves"} <= left_out


def test_an_ablation_is_the_list_without_a_pass_or_with_another_number():
    passes = copying_passes(SM_90A, Places())
    assert [pass_name(p) for p in without("stage_epilogue")(passes)] == [n for n in NAMES if n != "stage_epilogue"]
    changed = having("specialize_waves", stages=2)(passes)
    assert [pass_name(p) for p in changed] == NAMES
    assert [p.stages for p in changed if pass_name(p) == "specialize_waves"] == [2]
    for change in (without("fly"), having("fly", stages=2), lambda passes: checked_ablation("fly")):
        with pytest.raises(TilewaveError, match="no pass of sm_90a is called 'fly'"):
            change(passes)


@pytest.mark.share(6)
@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_computes_the_product(name):
    shape = (128, 136, 96)
    settings = Settings((shape,), F16, F32, (64, 128, 32), ("grouped(2)",), (), "short", 7, 0)
    kernel = compiled_ablation(ABLATIONS[name], shape, settings)
    assert kernel.target == "sm_90a"
    rng = np.random.default_rng(2)
    a, b, c = random_array(rng, (128, 96), f16), random_array(rng, (136, 96), f16), poisoned((128, 136), f32)
    kernel.interpret(a, b, c, level="lane", order="random", seed=1)
    check_product(c, a, b)


def test_ablations_are_kernels_of_their_own():
    """Each optimisation applies where a wave is partial, rows are unaligned, or there is one wave."""

    def texts(ablation):
        return tuple(unnamed(compiled_ablation(ablation, s.shapes[0], s).build.lanes) for s in settings)

    shapes = ((2048, 5120, 2048), (2048, 4096, 264), (2048, 2048, 256))
    settings = [Settings((s,), F16, F16, (128, 256, 64), ("grouped(12)",), (), "short", 7, 0) for s in shapes]
    whole = replace(ablation_without("x"), build=ABLATIONS["in order of rows"].build)
    made = {name: texts(ablation) for name, ablation in (*ABLATIONS.items(), ("whole", whole))}
    assert len(set(made.values())) == len(made)


def test_all_ablations_are_measured_in_one_run(bench_call, gpu, monkeypatch):
    built = []

    def ablation(which, shape, settings):
        built.append(which.name)
        kernel = partial(bench_contestants.wave_compile(SimpleNamespace(target="sm_90a"), None))
        kernel.code_object = b""
        return kernel

    monkeypatch.setattr(bench_contestants, "compiled_ablation", ablation)
    code, out, err = bench_call(*SMALL, "--ablation", "--without", "predicate_edges", "--mode", "short")
    assert (code, err) == (0, "")
    assert built == [*ABLATIONS, "without predicate_edges"]
    assert [row[1] for row in rows_of(out)[1 : 3 + len(built)]] == [OURS, *built, "cublas"]


def test_ablations_are_known_by_their_names(bench_call, monkeypatch):
    settings = asked(bench_call, monkeypatch, "--without", "set_occupancy", "--without", "stage_epilogue")
    assert settings.ablations == ("without set_occupancy", "without stage_epilogue")
    assert [ablation_named(name).name for name in settings.ablations] == list(settings.ablations)
    assert ablation_named("3 stages").name == "3 stages"
    assert "no pass of sm_90a is called 'fly'" in bench_call("--without", "fly")[2]
