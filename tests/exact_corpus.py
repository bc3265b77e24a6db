"""Kernels at small ragged sizes, each compiled for a target and run after every pass with exact numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
sys.path.append(str(Path(__file__).parents[1] / "examples" / "gallery"))

import attention
import causal_attention
import numpy as np
import presented
import rms_norm
import softmax
from kernels import poisoned, random_array
from seeds import SEEDS

from tilewave import *
from tilewave import kernels as shipped
from tilewave.kernels import AttentionTile, Heads, Rows, Scores, column_sums, gradients
from tilewave.kernels.attentions import H_KV, K2, B, H
from tilewave.kernels.decode import R, U
from tilewave.kernels.linear import ProductForm, product_kernel

M, N, K = sym.M, sym.N, sym.K
TARGETS = ("cpu", "gfx942", "gfx950", "sm_90a")
GPUS = TARGETS[1:]


@dataclass(frozen=True)
class Case:
    """A kernel that is made on demand, its sizes, and the scalar arguments of its call."""

    make: Callable[[], Any]
    sizes: dict[Any, int]
    numbers: dict[str, Any] = field(default_factory=dict)
    targets: tuple[str, ...] = TARGETS
    options: dict[str, Any] = field(default_factory=dict)

    def compiled(self, target: str) -> Compiled:
        return self.make().compile(target=target, subs=self.sizes, **self.options)

    def arrays(self, compiled: Compiled, seed: int = 0) -> list[np.ndarray]:
        """Random numbers for what is read, poison for what is written; whole numbers are small."""
        rng = np.random.default_rng(seed)
        return [_array(rng, p) for p in compiled.parameters]

    def check(self, target: str) -> Any:
        compiled = self.compiled(target)
        return compiled.check_passes(*self.arrays(compiled), **self.numbers)


def _array(rng: np.random.Generator, parameter: Any) -> np.ndarray:
    if parameter.written:
        return poisoned(parameter.shape, parameter.dtype)
    if parameter.dtype.is_int:
        return rng.integers(0, 16, parameter.shape).astype(parameter.dtype.numpy)
    return random_array(rng, parameter.shape, parameter.dtype)


@dataclass(frozen=True)
class GalleryCase(Case):
    """A kernel of the gallery, which comes with its arrays."""

    def check(self, target: str) -> Any:
        case = self.make()
        return case.compiled(target).check_passes(*case.inputs, *case.outputs, **(case.numbers or {}))


def of_gallery(name: str, **sizes: int) -> GalleryCase:
    return GalleryCase(lambda: presented.made(name, **sizes), {})


GALLERY = {
    "vector_add": of_gallery("vector_add", n=1500),
    "scaled_add": of_gallery("scaled_add", n=1500),
    "gelu_tiles": of_gallery("gelu_tiles", m=20, n=300),
    "transpose": of_gallery("transpose", m=70, n=100),
    "rotary": of_gallery("rotary", tokens=40),
    "softmax_rows": of_gallery("softmax_rows", m=10, n=300),
    "layer_norm": of_gallery("layer_norm", m=10, n=300),
    "cross_entropy": of_gallery("cross_entropy", m=10, n=300),
    "argmax_rows": of_gallery("argmax_rows", m=10, n=300),
    "prefix_sums": of_gallery("prefix_sums", m=10, n=300),
    "gemm_tiles": of_gallery("gemm_tiles", m=140, n=136, k=72),
    "gemm_bias_relu": of_gallery("gemm_bias_relu", m=70, n=136, k=72),
    "batched_gemm": of_gallery("batched_gemm", count=3, m=70, n=72, k=40),
    "split_sums": of_gallery("split_sums", m=16, n=136, k=520),
    "dropout": of_gallery("dropout", m=10, n=300),
    "embedding": of_gallery("embedding", tokens=40),
    "scatter_rows": of_gallery("scatter_rows", rows=40),
    "paged_write": of_gallery("paged_write", pages=3),
    "histogram": of_gallery("histogram", n=1500),
    "gathered_product": of_gallery("gathered_product", m=70, n=136, k=72),
    "int8_gemm": of_gallery("int8_gemm", m=70, n=144, k=80),
    "int4_gemm": of_gallery("int4_gemm", m=16, n=128, k=128),
    "attention_heads": of_gallery("attention_heads", heads=2, queries=70, keys=136),
}

SEED_CASES = {
    f"{seed!r}": Case(lambda seed=seed: seed.kernel, seed.subs(130, 200, 136, block_m=64, block_n=64, block_k=32))
    for seed in SEEDS
}
PREFETCHED = {
    f"{seed!r}, prefetched": Case(
        lambda seed=seed: seed.kernel,
        seed.subs(130, 136, 200, block_m=64, block_n=64, block_k=32),
        targets=GPUS[:2],
        options={"schedule": SchedulingType.PREFETCH, "num_stages": 2},
    )
    for seed in SEEDS[:1]
}


def on_rows(make: Callable[[Rows], Any], **more: Any) -> dict[str, Case]:
    """Return two cases: rows that fit in a workgroup, and rows that it loops over."""
    held, walked = (Case(lambda rows=rows: make(rows), {M: 5, N: 37}, **more) for rows in (Rows(2), Rows(2, 16)))
    return {"held": held, "walked": walked}


ROW_KERNELS = {
    "softmax": on_rows(lambda rows: shipped.softmax_kernel(rows, f16, f32)),
    "log_softmax": on_rows(lambda rows: shipped.log_softmax_kernel(rows, f32, f32)),
    "cross_entropy": on_rows(lambda rows: shipped.cross_entropy_kernel(rows, f32, i32, f32)),
    "layer_norm": on_rows(lambda rows: shipped.layer_norm_kernel(rows, f16, f16, f16, f16), numbers={"eps": 1e-5}),
    "rms_norm": on_rows(lambda rows: shipped.rms_norm_kernel(rows, f16, f16, f16), numbers={"eps": 1e-5}),
    "sum": on_rows(lambda rows: shipped.sum_kernel(rows, f16, f32)),
    "argmax": on_rows(lambda rows: shipped.argmax_kernel(rows, f32, i32)),
    "softmax backward": on_rows(lambda rows: gradients.softmax_backward_kernel(rows, f32, f32, f32)),
    "rms_norm backward": on_rows(lambda rows: gradients.rms_norm_backward_kernel(rows, *[f32] * 5)),
    "layer_norm backward": on_rows(lambda rows: gradients.layer_norm_backward_kernel(rows, *[f32] * 5)),
}
BY_ROWS = {f"{name}, {how}": case for name, both in ROW_KERNELS.items() for how, case in both.items()}
BY_COLUMNS = {
    "cumsum": Case(lambda: shipped.cumsum_kernel(Rows(2, 16), f32, f32), {M: 5, N: 37}),
    "activation backward": Case(lambda: gradients.activation_backward_kernel("silu", f32, f32, f32), {M: 5, N: 37}),
    "column sums": Case(lambda: column_sums.column_sums_kernel(f32, f32), {M: 37, N: 20, B: 2}),
    "rms_norm weights": Case(lambda: gradients.rms_norm_weights_kernel(f32, f32, f32, f32), {M: 37, N: 20}),
    "layer_norm weights": Case(lambda: gradients.layer_norm_weights_kernel(f32, f32, f32, f32, f32), {M: 37, N: 20}),
}

ATTENDED = {B: 1, H: 4, H_KV: 2, sym.M: 70, K2: 136}
ONE_GROUP = {H: 2, H_KV: 1}


def attending(sizes: dict[Any, int] | None = None, tile: tuple[int, ...] = (64, 64, 4), **asked: Any) -> Case:
    """Attention with logsumexps, of heads of 64."""
    more = {"bias_dtype": asked.pop("bias", None), "lse_dtype": f32}

    def make() -> Any:
        return shipped.attention_kernel(
            AttentionTile(*tile), Heads(64, 64, 2), Scores(0.1, **asked), *[f16] * 4, **more
        )

    return Case(make, {**ATTENDED, **(sizes or {})})


def decoding(make: Callable[..., Any], sizes: dict[Any, int], **numbers: Any) -> Case:
    tile, scores = AttentionTile(16, 64, 1), Scores(0.1, causal=True)
    return Case(lambda: make(tile, Heads(64, 64, 2), scores), sizes, numbers)


ATTENTIONS = {
    "plain": attending(),
    "causal": attending(causal=True),
    "plain, one group of heads": attending(ONE_GROUP),
    "causal, one group of heads": attending(ONE_GROUP, causal=True),
    "window": attending(causal=True, window=40),
    "two-sided window": attending(window=30),
    "capped": attending(soft_cap=20.0),
    "biased": attending(bias=f16),
    "larger tile": attending({sym.M: 200, K2: 264}, (128, 128, 8), causal=True),
    "example": Case(lambda: attention.plain, attention.subs(140, 200, 2, block_m=64, block_k2=64)),
    "causal example": Case(lambda: attention.causal, attention.subs(200, 200, 2, block_m=128, block_k2=64)),
    "ordered example": Case(lambda: causal_attention.causal_attention, causal_attention.subs(200, 200, 2)),
    "decode": decoding(
        lambda *those: shipped.attention_rows_kernel(*those, 1, f32, *[f16] * 4, f32), {B: 2, H_KV: 2, R: 2, K2: 136}
    ),
    "decode in parts": decoding(
        lambda *those: shipped.attention_splits_kernel(*those, 1, f32, *[f16] * 3),
        {B: 1, H_KV: 2, R: 2, K2: 200, U: 3},
        length=72,
    ),
    "joined parts": Case(
        lambda: shipped.join_splits_kernel(64, f32, f16, f32), {B: 1, H: 2, sym.M: 3, sym.N: 64, U: 3}
    ),
}


def multiplying(dtype: Any, out: Any = None, shape: tuple[int, int, int] = (70, 136, 72), **more: Any) -> Case:
    """A product of ragged sizes; `targets` those that have the dtype."""
    targets = more.pop("targets", TARGETS)
    made = shipped.gemm(shape, dtype, out, **{"tile": (64, 64, 32), **more})
    return Case(lambda: made.kernel, made.subs, targets=targets)


PRODUCTS = {
    "f16": multiplying(f16, f16),
    "bf16, nn": multiplying(bf16, layout="nn"),
    "f16, tn": multiplying(f16, layout="tn", shape=(72, 136, 70)),
    "f16, tt": multiplying(f16, layout="tt"),
    "f32": multiplying(f32, targets=TARGETS[:3]),
    "tf32": multiplying(f32, mma_type=MMAType.F32_64xNx8_TF32, targets=("sm_90a",)),
    "i8": multiplying(i8, shape=(70, 144, 80)),
    "f8": multiplying(f8e4m3fn, shape=(70, 144, 80), tile=(64, 64, 64), targets=("cpu", "gfx950", "sm_90a")),
    "odd": multiplying(f16, shape=(33, 47, 29)),
    "persistent": multiplying(f16, workgroups=3, mapping="grouped(2)"),
    "deep": multiplying(f16, shape=(64, 64, 1032), tile=(64, 64, 64)),
    "wide": multiplying(f16, shape=(136, 264, 136), tile=(128, 128, 64)),
    "gelu": Case(
        lambda: shipped.gemm_bias_gelu((70, 136, 72), f16, f16, (64, 64, 32)).kernel,
        shipped.gemm_bias_gelu((70, 136, 72), f16, f16, (64, 64, 32)).subs,
    ),
    "linear": Case(
        lambda: product_kernel(ProductForm(f16, f16, bias=f16, activation="silu", residual=f16, sums=f16)),
        {M: 70, N: 136, K: 72},
    ),
    "few rows": Case(lambda: product_kernel(ProductForm(f16, f16)), {M: 3, N: 264, K: 520}),
}

SOFTMAXES = {
    "softmax example": Case(lambda: softmax.softmax, {M: 6, N: 300}),
    "long softmax example": Case(lambda: softmax.long_softmax, {M: 3, N: 300}),
    "rms_norm example": Case(lambda: rms_norm.add_rms_norm, {M: 6, N: 300}, {"eps": 1e-5}),
}

CORPUS: dict[str, dict[str, Case]] = {
    "gallery": GALLERY,
    "seeds": {**SEED_CASES, **PREFETCHED},
    "rows": {**BY_ROWS, **BY_COLUMNS, **SOFTMAXES},
    "attention": ATTENTIONS,
    "products": PRODUCTS,
}
