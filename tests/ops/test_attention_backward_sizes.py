"""The backward pass of attention for Hopper at sizes of models: each launch is checked as a call checks it, up to the
launch itself. Arrays are allocated, but not touched."""

from dataclasses import dataclass, replace
from functools import cache
from time import process_time

import numpy as np
import pytest
from attention_gradient_cases import Case, Exact

from tilewave import *
from tilewave.backend.nvidia.build import NvidiaBuild
from tilewave.backend.targets import TARGETS
from tilewave.call import KernelCalls
from tilewave.errors import CoverageError
from tilewave.ir.ops import Role, TurnOp, WaitPriorLaunch
from tilewave.ir.rewrite import walk
from tilewave.kernels import Scores
from tilewave.kernels.attention_fused_backward import Adding, TurnOrder
from tilewave.kernels.attention_gradients import WantedGradients
from tilewave.kernels.attentions import H_KV, K2, AttentionAsked, B
from tilewave.ops.arrays import NUMPY
from tilewave.ops.attending_backward import attention_backward
from tilewave.runtime.call_checks import check_host_call

FIVE = ["attention_deltas", "attention_fused_backward", "attention_query_gradients"]
A_SUM_EACH = ["attention_deltas", "attention_keys_backward", "attention_queries_backward"]
MOST_SECONDS = 2.0
"""For the checks of one launch's sizes; the proof of turns takes up to 0.6 s."""


@dataclass(frozen=True)
class Sizes:
    batch: int
    heads: int
    queries: int
    size: int = 128
    heads_kv: int = 0
    keys: int = 0
    window: int | None = None

    def work(self, causal, *adding):
        row, keys = (self.batch, self.heads, self.queries), (self.batch, self.heads_kv or self.heads)
        q, y, grad = (np.empty((*row, self.size), np.float16) for _ in range(3))
        k, v = (np.empty((*keys, self.keys or self.queries, self.size), np.float16) for _ in range(2))
        given = q, k, v, None, y, np.empty(row, np.float32), grad, None, None
        asked = AttentionAsked(causal, self.window)
        return attention_backward.work(NUMPY, *given, asked, WantedGradients(), *adding)


WHOLE = {
    "4096": Sizes(4, 16, 4096),
    "16384": Sizes(1, 16, 16384),
    "4096, heads of 64": Sizes(4, 32, 4096, 64),
    "16384, heads of 64": Sizes(1, 32, 16384, 64),
    "4096, 8 heads of keys": Sizes(4, 32, 4096, heads_kv=8),
    "16384, 8 heads of keys": Sizes(1, 32, 16384, 64, heads_kv=8),
    "a window": Sizes(4, 16, 4096, window=1024),
    "a window, 8 heads of keys": Sizes(1, 32, 16384, heads_kv=8, window=1024),
    "more keys": Sizes(2, 16, 1024, keys=4096),
    "fewer keys": Sizes(2, 16, 4096, keys=1024),
    "one block": Sizes(1, 1, 64, keys=128),
}
RAGGED = {
    "4000": Sizes(4, 16, 4000),
    "4095": Sizes(4, 16, 4095),
    "4095, heads of 64, a window": Sizes(1, 32, 4095, 64, window=1024),
    "4000, 8 heads of keys": Sizes(1, 32, 4000, heads_kv=8),
    "4095 of 4000 keys": Sizes(1, 16, 4095, keys=4000),
}
EVERY = WHOLE | RAGGED


@cache
def calls_of(kernel):
    """Return an object that serves calls here only: the kernel's own one serves arrays of this host."""
    return KernelCalls(kernel)


@pytest.fixture
def checked(monkeypatch):
    """Treat arrays of this host as those of an H200; return the names of launches that passed the checks of a call."""
    found = []

    def check(build, arrays, given, sized):
        begin = process_time()
        call = sized(arrays, given)
        check_host_call(build.tiles.name, call.parameters, arrays)
        assert process_time() - begin < MOST_SECONDS
        found.append(build.tiles.name)

    for place in ("call", "kernels.attention_fused_backward", "kernels.attention_gradients"):
        monkeypatch.setattr(f"tilewave.{place}.target_on", lambda *_: TARGETS["sm_90a"])
    monkeypatch.setattr(NvidiaBuild, "call", check)
    return found


def check(work):
    """Call each kernel for sm_90a, with dynamic sizes, up to the launch."""
    for launch in work.launches:
        calls_of(launch.kernel)(launch.arguments, {})


def want_known_addresses(work):
    """Views begin where their arrays do; a replayed call does not know other addresses."""
    begins = {name: NUMPY.address(x) for name, x in {**work.results, **work.scratch}.items()}
    views = [(name, NUMPY.address(x)) for one in work.launches for name, x in one.arrays.items() if name in begins]
    assert dict(views) == begins
    assert all(address == begins[name] for name, address in views)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("adding", Adding)
def test_five_products(checked, adding, name, causal):
    work = EVERY[name].work(causal, adding)
    check(work)
    assert checked == FIVE
    assert ("turns" in work.scratch) == (adding is Adding.IN_TURNS)
    want_known_addresses(work)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("in_any_order", [False, True])
def test_kernels_are_chosen_by_sizes(checked, in_any_order, name, causal):
    work = EVERY[name].work(causal, None, in_any_order)
    check(work)
    assert checked == (FIVE if name in WHOLE else A_SUM_EACH)
    assert ("turns" in work.scratch) == (name in WHOLE and not in_any_order)
    want_known_addresses(work)


ORDERS = [None, *(TurnOrder((H_KV, K2, B), at_once) for at_once in (4, 16, None))]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("name", ["4096", "16384", "4096, heads of 64", "16384, heads of 64", "a window"])
@pytest.mark.parametrize("order", ORDERS, ids=["heads first", "4 at a time", "16 at a time", "all at a time"])
def test_orders_of_turns(checked, monkeypatch, order, name, causal):
    monkeypatch.setattr(TurnOrder, "of", staticmethod(lambda *_: order))
    check(WHOLE[name].work(causal, Adding.IN_TURNS))
    assert checked == FIVE


def test_turns_in_the_wrong_order_are_refused(checked, monkeypatch):
    """Only the kernel that adds is refused."""
    right = TurnOrder.mapping
    monkeypatch.setattr(TurnOrder, "mapping", lambda order, descends: right(order, not descends))
    monkeypatch.setattr(TurnOrder, "of", staticmethod(lambda *_: TurnOrder((B, K2, H_KV), 3)))
    with pytest.raises(CoverageError, match="which may not have started"):
        check(WHOLE["4096"].work(True, Adding.IN_TURNS))
    assert checked == FIVE[:1]


# zero before the turns ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adding", Adding)
@pytest.mark.parametrize("name", ["4096", "4000", "4096, 8 heads of keys"])
def test_sums_and_counters_are_cleared_before_any_is_used(checked, adding, name):
    """The first launch clears all rows. The next one may start before that has ended (PDL), and each wave waits."""
    sizes = EVERY[name]
    clears, adds, _ = sizes.work(True, adding).launches
    names = {"sums_q", "turns"} if adding is Adding.IN_TURNS else {"sums_q"}
    assert names == clears.arrays.keys() & {"sums_q", "turns"} == adds.arrays.keys() & {"sums_q", "turns"}
    for array in names:
        assert clears.arrays[array].shape[:3] == (sizes.batch, sizes.heads, sizes.queries)
        assert last_address(adds.arrays[array]) <= last_address(clears.arrays[array])
    lanes = adds.kernel.compile(target="sm_90a").build.lanes
    roles = [op for op in lanes.body.ops if isinstance(op, Role)]
    assert roles
    assert all(isinstance(role.body.ops[0], WaitPriorLaunch) for role in roles)
    assert turns_of(lanes.body) == [turn for role in roles for turn in turns_of(role.body)]


def last_address(array):
    return NUMPY.address(array) + sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))


def turns_of(block):
    return [id(op) for op in walk(block) if isinstance(op, TurnOp)]


SMALL = Case(192, 256, Scores(0.1, causal=True), sharing=2, size=64, size_v=64)


@pytest.mark.share(2)
@pytest.mark.parametrize("case", [SMALL, replace(SMALL, queries=100, sharing=1)], ids=["whole", "ragged"])
def test_gradients_of_the_whole_call_twice(checked, case):
    """Sums and counters are poisoned at first, and then those of the first run."""
    exact, row = Exact(case, f16), (1, 2 * case.sharing, case.queries)

    def by_head(x):
        return np.ascontiguousarray(x.reshape(row + x.shape[4:]))

    y, lse = by_head(exact.y.astype(np.float16)), by_head(exact.lse.astype(np.float32))
    given = by_head(exact.q), exact.k, exact.v, None, y, lse, by_head(exact.grad), None, None
    asked = AttentionAsked(case.scores.causal, case.scores.window, case.scores.scale)
    work = attention_backward.work(NUMPY, *given, asked, WantedGradients(), Adding.IN_TURNS)
    for array in work.scratch.values():
        array.view(np.uint32)[:] = 0x7FC0BEEF
    for _ in range(2):
        for launch in work.launches:
            level = "lane" if launch is work.launches[1] else "tile"
            launch.kernel.compile(target="sm_90a").interpret(*launch.arguments, level=level)
        for result, found in work.results.items():
            exact.check(result, found.reshape(exact.want[result].shape))
