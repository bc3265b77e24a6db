"""The backward pass of attention on arrays in five products, beside the one with a kernel for each sum."""

import numpy as np
import pytest
from attention_gradient_cases import CASES, Exact

from tilewave import *
from tilewave.errors import CallError
from tilewave.kernels import Heads
from tilewave.kernels.attention_fused_backward import Adding, fused_backward_tile
from tilewave.kernels.attention_gradients import WantedGradients
from tilewave.kernels.attentions import AttentionAsked
from tilewave.ops.arrays import NumpyLike
from tilewave.ops.attending_backward import attention_backward


def work_of(case, exact, *adding):
    row = (1, 2 * case.sharing, case.queries)

    def by_head(x):
        return None if x is None else np.ascontiguousarray(x.reshape(row + x.shape[4:]))

    y, lse = by_head(exact.y.astype(np.float16)), by_head(exact.lse.astype(np.float32))
    given = by_head(exact.q), exact.k, exact.v, by_head(exact.bias), y, lse, by_head(exact.grad), None, None
    scores = case.scores
    asked = AttentionAsked(scores.causal, scores.window, scores.scale, scores.soft_cap)
    return attention_backward.work(NumpyLike(np), *given, asked, WantedGradients(), *adding)


@pytest.mark.parametrize("adding", Adding)
@pytest.mark.parametrize("name", CASES)
def test_gradients(name, adding):
    case, exact = CASES[name], Exact(CASES[name], f16)
    work = work_of(case, exact, adding)
    for _ in range(2):  # sums and turns are cleared in each run
        work.run()
        for result, found in work.results.items():
            exact.check(result, np.asarray(found).reshape(exact.want[result].shape))
    names = [launch.kernel.name for launch in work.launches]
    assert names == ["attention_deltas", "attention_fused_backward", "attention_query_gradients"]


def test_long_heads_have_no_tile_on_hopper():
    assert fused_backward_tile("sm_90a", Heads(256, 256), 4096, 4096) is None
    assert fused_backward_tile("sm_90a", Heads(128, 64), 4096, 4096) is None
    assert fused_backward_tile("sm_90a", Heads(128, 128), 4096, 4096).keys == 128


def test_a_target_without_a_tile_is_refused(monkeypatch):
    case = CASES["plain"]
    monkeypatch.setattr("tilewave.kernels.attention_fused_backward.fused_backward_tile", lambda *_: None)
    with pytest.raises(CallError) as caught:
        work_of(case, Exact(case, f16), Adding.IN_TURNS)
    assert caught.value.what == "attention: cpu has no tile for heads of 32 and 16 in five products"
    assert caught.value.remedy == "call attention_backward, which has a kernel for each sum"
