"""The backward pass of attention by its kernels, on every target, against float64 within a computed bound."""

import numpy as np
import pytest
from attention_gradient_cases import CASES, LONG, TILES, Exact, run
from kernels import poisoned

from tilewave import *
from tilewave.kernels import Heads
from tilewave.kernels.attention_gradients import (
    attention_deltas_kernel,
    attention_keys_backward_kernel,
    attention_queries_backward_kernel,
)

ways = pytest.mark.parametrize("way", TILES)


def gradients(way, case, exact, dtype, tile, apart=False, of_bias=False):
    heads = Heads(case.size, case.size_v, case.sharing)
    row = (1, 2 * case.sharing, case.queries)
    bias = dtype if case.biased else None

    def by_head(x):
        return None if x is None else x.reshape(row + x.shape[4:])

    def by_group(x):
        return x if case.sharing > 1 else by_head(x)

    delta, base2 = (poisoned((1, 2, case.sharing, case.queries), f32) for _ in range(2))
    y, lse = exact.y.astype(dtype.numpy), exact.lse.astype(np.float32)
    kernel = attention_deltas_kernel(case.size_v, f32, dtype, dtype)
    run(kernel, way, *map(by_head, (y, exact.grad, lse)), by_head(delta), by_head(base2))
    facts, q, grad, added = (heads, case.scores, f32, dtype), exact.q, exact.grad, exact.bias
    found = {"grad_q": poisoned(q.shape, dtype), "grad_bias": None}
    if of_bias:
        found["grad_bias"] = np.zeros(added.shape, np.float32)
    kernel = attention_queries_backward_kernel(tile, *facts, dtype, bias, f32 if of_bias else None)
    arrays = map(by_head, (q, grad, added, base2, delta, found["grad_q"], found["grad_bias"]))
    mine, its_grad, *others = arrays
    run(kernel, way, mine, exact.k, exact.v, its_grad, *others)
    for names in (("grad_k",), ("grad_v",)) if apart else (("grad_k", "grad_v"),):
        kinds = [dtype if name in names else None for name in ("grad_k", "grad_v")]
        kernel = attention_keys_backward_kernel(tile, *facts, bias, *kinds)
        found |= {name: poisoned((exact.k if name == "grad_k" else exact.v).shape, dtype) for name in names}
        values, its_delta = (exact.v, by_group(delta)) if "grad_k" in names else (None, None)
        numbers = by_group(added), by_group(base2), its_delta
        run(kernel, way, by_group(q), exact.k, values, by_group(grad), *numbers, *(found[name] for name in names))
    return {name: x for name, x in found.items() if x is not None}


@ways
@pytest.mark.share(6)
@pytest.mark.parametrize("name", CASES)
def test_gradients(way, name):
    cases, dtype = (LONG, bf16 if name == "causal" else f16) if "sm_90a" in way else (CASES, f16)
    exact = Exact(cases[name], dtype)
    for result, found in gradients(way, cases[name], exact, dtype, TILES[way]).items():
        exact.check(result, found)


@pytest.mark.parametrize("way", ["numpy", "lanes of sm_90a"])
def test_gradients_of_long_heads_and_of_a_bias(way):
    """Each of the sums of keys and of values has a kernel, as where registers hold one of them."""
    exact = Exact(CASES["both sides"], f16)
    found = gradients(way, exact.case, exact, f16, TILES[way], apart=True, of_bias=True)
    assert set(found) == {"grad_q", "grad_k", "grad_v", "grad_bias"}
    for result, x in found.items():
        exact.check(result, x)
