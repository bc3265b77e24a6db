"""The attention that comes along, against float64 within a computed bound, on every target that runs here."""

import numpy as np
import pytest
from attention_kernels import gamma
from attention_problems import Problem

from tilewave import *
from tilewave import kernels as shipped
from tilewave.backend.nvidia.code import ALIGNED
from tilewave.backend.nvidia.ptxas import assemble_ptx, ptxas
from tilewave.errors import CallError, DTypeError
from tilewave.ir.ops import Allocate, Select
from tilewave.ir.rewrite import walk
from tilewave.kernels import AttentionTile
from tilewave.kernels import decode as decodes
from tilewave.kernels.attentions import attention_tile_for
from tilewave.kernels.numbers import checked_window
from tilewave.kernels.split_kv import AttentionSizes, DecodeWay, KeySplit, part_length, rows_tile_for, split_for
from tilewave.machine.chips import CHIPS

pytestmark = pytest.mark.share(8)

WAYS = ["numpy", "cpu", "lanes of gfx942", "lanes of gfx950", "lanes of sm_90a", "gfx942", "gfx950"]
SMALL = AttentionTile(32, 16)
ASKED = {
    "all": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 9},
    "both sides": {"window": 5},
    "capped": {"causal": True, "soft_cap": 1.5},
    "scaled": {"scale": 0.7},
}
every_kind = pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
every_way = pytest.mark.parametrize("way", WAYS)


# -- every target, dtype, size and kind ------------------------------------------------------------------------------


@every_kind
@every_way
@pytest.mark.share(18)
def test_attention_everywhere(way, asked):
    Problem(1, (4, 2), 33, 50, asked=asked).run(way, AttentionTile(64, 32, 2))


@every_way
@pytest.mark.share(12)
def test_a_bias_and_other_dtypes_everywhere(way):
    Problem(2, (2, 2), 50, 33, dtype=bf16, out=f32, bias=f32, asked={"causal": True}).run(way, AttentionTile(64, 32, 2))


@pytest.mark.parametrize("way", ["numpy", "cpu", "lanes of gfx942", "gfx950"])
def test_f32(way):
    Problem(1, (2, 1), 20, 40, dtype=f32, asked={"causal": True}).run(way, AttentionTile(32, 32, 2))


@pytest.mark.share(12)
@every_kind
@pytest.mark.parametrize("queries, keys", [(1, 1), (1, 70), (70, 1), (17, 16), (16, 17), (64, 64), (5, 0), (0, 5)])
@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
def test_sizes_in_the_interpreter(queries, keys, dtype, asked):
    Problem(1, (2, 1), queries, keys, dtype=dtype, bias=dtype, asked=asked).run("numpy", SMALL)


@every_kind
@pytest.mark.parametrize("queries, keys", [(1, 1), (70, 1), (65, 130), (130, 65)])
@pytest.mark.share(12)
def test_calls_on_the_cpu(queries, keys, asked):
    Problem(2, (4, 2), queries, keys, dtype=f32, asked=asked).call()


@pytest.mark.parametrize("size, size_v", [(40, 40), (64, 128), (80, 80), (96, 96), (128, 64), (192, 128), (256, 256)])
@pytest.mark.parametrize("way", ["lanes of gfx942", "lanes of gfx950", "lanes of sm_90a"])
@pytest.mark.share(12)
def test_heads_of_any_size_as_calls_take_them(way, size, size_v):
    Problem(1, (1, 1), 20, 70, size, size_v, asked={"causal": True}).run(way)


@pytest.mark.parametrize("size, size_v", [(40, 80), (256, 192), (1, 1)])
def test_heads_of_any_size_on_the_cpu(size, size_v):
    Problem(1, (1, 1), 20, 70, size, size_v, dtype=f32).call()


@pytest.mark.parametrize("way", ["numpy", "cpu", "lanes of gfx942", "lanes of sm_90a"])
def test_queries_that_see_nothing_get_nothing(way):
    """The first queries are before the first key, and in the middle a bias hides all keys."""
    problem = Problem(1, (1, 1), 40, 20, bias=f32, asked={"causal": True})
    problem.added[:, :, 30] = -np.inf
    problem.added[:, :, 35, ::2] = -np.inf
    problem.run(way, AttentionTile(32, 16))
    assert problem.hidden()[:20].all() and not problem.y[:, :, :20].any() and not problem.y[:, :, 30].any()
    assert np.isneginf(problem.lse[:, :, :20]).all() and np.isfinite(problem.lse[:, :, 35]).all()


@pytest.mark.parametrize("way", ["numpy", "cpu", "lanes of gfx942", "lanes of sm_90a"])
@pytest.mark.parametrize("factors", [(1, 60), (60, 1), (-40, 40)], ids=["growing", "shrinking", "both"])
def test_large_scores(way, factors):
    """Every step makes little of what was summed before, or is little itself."""
    problem = Problem(1, (1, 1), 17, 70)
    problem.k[...] = problem.k * np.linspace(*factors, 70)[:, None].astype(np.float16)
    problem.run(way, SMALL)


def test_scores_near_the_ends_of_f32():
    """The largest so far begins with the least number that there is, so no score is below it."""
    problem = Problem(1, (1, 1), 3, 40, 1, 8, dtype=f32)
    problem.q[:], problem.k[:] = 1e19, -1e19
    shipped.attention(problem.q, problem.k, problem.v, problem.y, scale=1.0)
    mean = problem.v.astype(float).mean(axis=2, keepdims=True)
    assert (np.abs(problem.y - mean) <= gamma(42) * np.abs(problem.v).mean(axis=2, keepdims=True)).all()


def test_infinite_scores_give_no_numbers():
    problem = Problem(1, (1, 1), 4, 70, dtype=f32)
    problem.q[0, 0, 1] = np.inf
    problem.q[0, 0, 2, 3] = np.nan
    shipped.attention(problem.q, problem.k, problem.v, problem.y)
    assert np.isnan(problem.y[0, 0, 1:3]).all() and np.isfinite(problem.y[0, 0, [0, 3]]).all()


# -- few queries -----------------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize(
    "asked", [{}, {"causal": True, "window": 100}, {"soft_cap": 2.0}], ids=["all", "window", "cap"]
)
@pytest.mark.share(12)
def test_keys_in_parts(way, asked):
    """Where the window is, a whole part is out of sight."""
    Problem(1, (4, 2), 3, 330, asked=asked).run_in_parts(way, 128)


@pytest.mark.parametrize("queries", [1, 2, 16])
@pytest.mark.parametrize("keys", [0, 1, 700, 5000])
@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
@pytest.mark.share(16)
def test_decode_on_the_cpu(queries, keys, dtype):
    Problem(2, (4, 2), queries, keys, 32, 32, dtype=dtype, asked={"causal": True}).call(shipped.attention_decode)


@pytest.mark.parametrize("way", ["numpy", "lanes of gfx942", "lanes of sm_90a"])
@pytest.mark.parametrize(
    ("queries", "keys", "asked"), [(2, 130, {"causal": True, "window": 100}), (1, 1000, {}), (16, 1, {})]
)
def test_keys_of_a_head_in_one_part(way, queries, keys, asked):
    """As many steps as shared memory holds, more of them, and one."""
    Problem(1, (4, 2), queries, keys, 64, 64, asked=asked).run_in_rows(way)


@pytest.mark.parametrize(
    "queries, lies, joined", [(1, True, False), (1, False, False), (3, True, False), (3, False, True)]
)
def test_one_part_is_joined_with_none(monkeypatch, queries, lies, joined):
    """Unless heads that share keys cannot be rows in y's layout: there the kernel that joins parts writes y."""
    asked = []
    monkeypatch.setattr(decodes, "join_splits_kernel", lambda *a: asked.append(a) or shipped.join_splits_kernel(*a))
    problem = Problem(1, (4, 2), queries, 100, 32, 32, dtype=f32)
    if not lies:
        problem.y = np.ascontiguousarray(problem.y.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    problem.call(shipped.attention_decode)
    assert bool(asked) == joined


def test_more_queries_than_keys_in_parts():
    problem = Problem(1, (2, 1), 9, 4, dtype=f32, asked={"causal": True})
    problem.call(shipped.attention_decode)
    assert not problem.y[:, :, :5].any() and np.isneginf(problem.lse[:, :, :5]).all()


def test_heads_that_share_keys_are_rows_of_one_tile():
    """For every layout of q; the result is written in the layout of y."""
    problem = Problem(2, (8, 2), 2, 300, 32, 32, dtype=f32)
    lying = np.ascontiguousarray(problem.q.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    written = np.full((2, 2, 8, 32), np.nan, np.float32).transpose(0, 2, 1, 3)
    shipped.attention_decode(lying, problem.k, problem.v, written, lse=problem.lse)
    problem.check(written, problem.lse, 10)


def test_parts_keep_all_processors_busy_to_the_end():
    """Steps of a part, where 264 workgroups run at once: waves of workgroups are full, and few."""
    assert part_length(264, 16 * 8, 64) == 32 and part_length(264, 16 * 8, 512) == 256  # 256 workgroups, one round
    assert part_length(264, 8, 512) == 16  # 33 parts of each head
    assert part_length(264, 10_000, 512) == 512
    assert part_length(264, 140, 64) == 13  # 700 workgroups in three rounds; whole heads would need two, of 64
    assert part_length(264, 1, 64) == 4
    assert part_length(16, 1, 2) == 2 and part_length(16, 1, 0) == 1 and part_length(16, 0, 1) == 1


def test_heads_that_keep_memory_busy_are_not_cut():
    """On 132 processors, where parts would run two to a processor: half as many heads do."""

    def is_whole(batch, keys=4096):
        return KeySplit.of(few(batch, keys)).is_whole

    assert is_whole(16) and is_whole(16, 32768) and is_whole(8) and is_whole(32)
    assert is_whole(1, 256)  # which are read before parts are joined
    assert not is_whole(1) and not is_whole(4)
    assert not is_whole(8, 8192)  # half of the processors read at 0.9 of a copy's speed
    assert not is_whole(17)  # four heads of a second round


def few(batch, keys, heads=32, of_k=8, queries=1, size=128, dtype=bf16, **asked):
    """A call on Hopper."""
    scores = shipped.Scores(size**-0.5, **asked).of_queries(queries)
    shared = shipped.Heads(size, size, heads // of_k)
    return AttentionSizes("sm_90a", shared, scores, dtype, batch, of_k, queries, keys)


def test_few_queries_are_rows_of_the_heads_that_share_keys():
    """One query of a head fills little of a tile of queries, and few heads little of the machine."""
    assert split_for(few(64, 4096)).is_whole
    assert split_for(few(8, 8192)).parts == 4
    assert split_for(few(1, 65536, heads=128)).parts == 32
    for queries in (2, 4, 16):  # as speculative decoding has them
        assert split_for(few(8, 8192, queries=queries, causal=True)) is not None
    assert split_for(few(1, 65536, heads=8, queries=64)).parts > 8


def test_queries_that_fill_tiles_are_tiles():
    assert split_for(few(4, 4096, heads=32, of_k=32, queries=77, size=64)) is None
    assert split_for(few(4, 4096, queries=4096, causal=True)) is None
    assert split_for(few(512, 128, heads=12, of_k=12, queries=128, size=64)) is None
    assert split_for(few(8, 8192, queries=17, causal=True)) is None  # a kernel is made for each number of queries


@pytest.mark.parametrize("queries, rows", [(1, 128), (77, 128), (128, 128), (192, 192), (256, 128), (4096, 192)])
def test_three_groups_of_waves_take_queries_that_fill_them(queries, rows):
    heads = shipped.Heads(64, 64)
    assert attention_tile_for("sm_90a", heads, shipped.Scores(1.0), f16, None, queries, 4096).queries == rows


@pytest.mark.skipif(not ptxas(), reason="this machine has no ptxas, NVIDIA's assembler")
@pytest.mark.parametrize(
    ("size", "window"), [(64, None), (80, None), (96, None), (128, None), (128, 9), (192, None), (256, None), (256, 9)]
)
def test_a_workgroup_of_whole_heads_fills_a_processor_of_hopper(size, window):
    heads = shipped.Heads(size, size, 4)
    scores = shipped.Scores(1.0, window=window)
    way = DecodeWay.alone("sm_90a", heads, scores, f16, 4)
    kernel = shipped.attention_rows_kernel(way.tile, heads, scores, 1, f32, *[f16] * 4, None, f32)
    made = way.prepared(kernel).compile("sm_90a")
    left = CHIPS["sm_90a"].shared.bytes - made.build.program.code_for(ALIGNED).shared_bytes
    assert 0 <= left < way.tile.keys * 2 * size * 2, "there is room for another step"
    assert made.resources.assembled.spilled_bytes == 0 and made.resources.assembled.serialized == ()


@pytest.mark.parametrize("size", [64, 80, 96, 128, 192, 256])
def test_two_workgroups_of_few_queries_fit_on_a_processor_of_hopper(size):
    """Except for heads of 256, whose queries alone would fill half of it."""
    heads = shipped.Heads(size, size, 4)
    way = DecodeWay.of("sm_90a", heads, f16, 4)
    kernel = shipped.attention_splits_kernel(way.tile, heads, shipped.Scores(1.0), 1, f32, f16, f16, f16)
    made = kernel.compile(target="sm_90a", num_stages=way.steps_ahead)
    code = made.build.program.code_for(ALIGNED)
    fit = code.shared_bytes <= CHIPS["sm_90a"].shared.for_each_of(2)
    assert fit == (made.build.lanes.resident == 2) == (way.at_once == 264) == (size < 256)
    assert ".shared" in code.ptx and "bar.sync" not in code.ptx.split("wgmma.mma_async")[-1], "lanes exchange nothing"


def test_queries_that_a_workgroup_brings_once_have_one_slot():
    """A workgroup that processes several heads has two, unless as many stages are requested as fit with one."""
    heads, tile, scores = shipped.Heads(128, 128, 4), AttentionTile(64, 64, 4), shipped.Scores(1.0)
    once = shipped.attention_splits_kernel(tile, heads, scores, 1, f32, *[f16] * 3)
    again = shipped.attention_rows_kernel(tile, heads, scores, 1, f32, *[f16] * 4)
    for kernel, steps, slots in ((once, 2, 1), (again, 4, 2), (again, 6, 1)):
        memories = [
            op.result
            for op in walk(kernel.compile("sm_90a", num_stages=steps).build.lanes.body)
            if isinstance(op, Allocate)
        ]
        rings = [v.type.shape[0] for v in memories if v.type.shape[1:] == (1, 1, 64, 128)]
        assert sorted(rings) == [slots, steps, steps]


def test_few_rows_are_brought_by_the_copy_engine():
    """Tiles of 16 rows would grow to the 64 of a product, and lanes would load them."""
    heads = shipped.Heads(128, 128, 4)
    tile = rows_tile_for("sm_90a", heads, f16, 4)
    kernel = shipped.attention_splits_kernel(tile, heads, shipped.Scores(1.0), 1, f32, f16, f16, f16)
    assert "cp.async.bulk" in kernel.compile(target="sm_90a").asm
    assert rows_tile_for("gfx942", heads, f16, 4).queries == 16


# -- laws ------------------------------------------------------------------------------------------------------------


def test_a_query_s_result_depends_on_its_own_row_alone():
    whole, alone = (Problem(1, (2, 1), 70, 70, dtype=f32) for _ in range(2))
    whole.call()
    y = np.full_like(alone.y[:, :, :5], np.nan)
    shipped.attention(alone.q[:, :, 41:46].copy(), alone.k, alone.v, y)
    np.testing.assert_array_equal(y, whole.y[:, :, 41:46])


def test_arrays_however_they_lie():
    """[batch, sequence, head, element] with gaps, and a bias that all heads share."""
    problem = Problem(2, (4, 2), 30, 50, dtype=f32)
    row = np.random.default_rng(2).standard_normal((30, 50)).astype(np.float32)
    problem.added = np.broadcast_to(row, (2, 4, 30, 50))

    def lying(x):
        there = np.zeros((x.shape[0], 2 * x.shape[2], x.shape[1], x.shape[3] + 3), x.dtype)[:, ::2, :, 1:-2]
        there[...] = x.transpose(0, 2, 1, 3)
        return there.transpose(0, 2, 1, 3)

    problem.q, problem.k, problem.v, problem.y = map(lying, (problem.q, problem.k, problem.v, problem.y))
    problem.call()


def test_the_bound_tells_right_from_wrong():
    problem = Problem(1, (2, 1), 40, 40, dtype=f32, asked={"causal": True})
    problem.call()
    problem.v[:, :, 3] *= 1.001
    with pytest.raises(AssertionError, match=r"y: .* too much"):
        problem.check(problem.y, problem.lse, 1)
    problem.asked = {}
    with pytest.raises(AssertionError, match="too much"):
        problem.check(problem.y, None, 1)


def test_a_kernel_is_made_once_for_a_kind_of_call():
    arguments = SMALL, shipped.Heads(64, 64), shipped.Scores(0.125), f16, f16, f16, f16
    assert shipped.attention_kernel(*arguments) is shipped.attention_kernel(*arguments)


@pytest.mark.parametrize("target", ["gfx942", "gfx950", "sm_90a"])
def test_tiles_fit_into_shared_memory(target):
    for dtype, size in ((f16, 256), (f16, 64), (f32, 256)):
        if dtype == f16 or target != "sm_90a":
            heads, scores = shipped.Heads(size, size), shipped.Scores(1.0)
            tile = shipped.attention_tile_for(target, heads, scores, dtype)
            shipped.attention_kernel(tile, heads, scores, *[dtype] * 4).compile(target=target)


@pytest.mark.parametrize("asked", [{"causal": True}, {"causal": True, "window": 100}, {"window": 100}], ids=str)
@pytest.mark.parametrize("rows", [64, 192])
def test_blocks_that_nobody_sees_are_not_walked(asked, rows):
    """Needs positions that are known not to wrap, for every order of tiles, and past the end of the last one."""
    kernel = shipped.attention_kernel(
        AttentionTile(rows, 64, 4), shipped.Heads(64, 64), shipped.Scores(0.1, **asked), *[f16] * 4
    )
    steps = {step.name: step for step in kernel.compile(target="sm_90a").steps}
    assert steps["skip_masked_blocks"].changed and not steps["skip_masked_blocks"].remarks
    assert steps["merge_masks"].changed
    once = steps["drop_true_masks"].after
    in_loops = [
        op for op in walk(once.body) if isinstance(op, Select) and np.prod(op.result.type.shape) == 64 * 64 // 128
    ]
    assert len(in_loops) == 2, "one mask for the author's condition and the end of the keys, and one of results"


SPILLING = [(64, "whole", f16), (128, "whole", f16), (256, "causal", f16), (64, "causal", f16)]
MASKS = {
    "whole": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 1024},
    "both sides": {"window": 512},
}
EVERY_HEAD = [(size, mask, dtype) for size in (64, 80, 96, 128, 192, 256) for mask in MASKS for dtype in (f16, bf16)]


@pytest.mark.skipif(not ptxas(), reason="this machine has no ptxas, NVIDIA's assembler")
@pytest.mark.parametrize(
    "size, mask, dtype",
    [pytest.param(*one, marks=[] if one in SPILLING else pytest.mark.slow) for one in EVERY_HEAD],
)
def test_hopper_s_lanes_hold_all_that_a_tile_has(size, mask, dtype):
    """Nothing is spilled, and no product waits for registers."""
    heads, scores = shipped.Heads(size, size), shipped.Scores(size**-0.5, **MASKS[mask])
    tile = shipped.attention_tile_for("sm_90a", heads, scores, dtype)
    made = shipped.attention_kernel(tile, heads, scores, *[dtype] * 4, None, f32).compile(target="sm_90a")
    assembled = assemble_ptx(made.asm, "sm_90a")
    assert "cp.async.bulk" in made.asm
    assert assembled.spilled_bytes == 0 and assembled.serialized == (), assembled.log


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both sides"])
@pytest.mark.parametrize("window", [20, 2**30, 2**31 - 1, 2**40])
def test_a_window_may_be_wider_than_any_keys(window, causal):
    asked = {"causal": causal, "window": checked_window("attention", window)}
    Problem(1, (2, 1), 20, 33, asked=asked).run("numpy", SMALL)


def test_keys_of_a_step_leave_registers_for_results():
    def tile(size, target="sm_90a", bias=None, **mask):
        found = shipped.attention_tile_for(target, shipped.Heads(size, size), shipped.Scores(1.0, **mask), f16, bias)
        return found.queries, found.keys

    assert [tile(size) for size in (64, 128, 192, 256)] == [(192, 128), (128, 128), (128, 96), (128, 64)]
    assert tile(64, causal=True) == tile(64, window=9) == (128, 128) and tile(192, window=9) == (128, 64)
    assert tile(128, bias=f32) == tile(128, "gfx942") == (128, 64)
    assert tile(256, "gfx950") == tile(256, "gfx942") == (128, 32)


def test_eight_waves_share_the_queries_of_wide_heads_where_four_would_leave_no_registers_for_two_on_a_simd():
    def waves(target):
        heads = (shipped.Heads(size, size) for size in (64, 128, 192, 256))
        return [shipped.attention_tile_for(target, each, shipped.Scores(1.0), f16).waves for each in heads]

    assert [waves(target) for target in ("gfx942", "gfx950", "sm_90a")] == [[4, 4, 8, 8], [4, 4, 4, 8], [4] * 4]


def test_a_cpu_computes_no_more_of_a_tile_than_there_is():
    def tile(queries, keys):
        heads, scores = shipped.Heads(64, 64), shipped.Scores(1.0)
        found = shipped.attention_tile_for("cpu", heads, scores, f32, None, queries, keys)
        return found.queries, found.keys

    assert tile(1, 0) == (16, 32) and tile(17, 33) == (32, 64) and tile(1000, 1000) == (128, 64)


# -- what is refused -------------------------------------------------------------------------------------------------

Q = np.zeros((1, 4, 3, 16), np.float32)
REFUSED = [
    (lambda y: shipped.attention([1], Q, Q, y), CallError, "attention: q is a list, not an array"),
    (lambda y: shipped.attention(Q[0], Q, Q, y), CallError, "attention: q has 3 axes, but needs batch, head, position"),
    (lambda y: shipped.attention(Q, Q[:, :3], Q[:, :3], y), CallError, "4 heads of q cannot share 3 heads of k"),
    (lambda y: shipped.attention(Q, Q, Q[:, :2], y), CallError, "attention: H_KV is 4 by k, but 2 by v"),
    (lambda y: shipped.attention(Q, Q[..., :8], Q, y), CallError, "attention: K1 is 16, but k"),
    (lambda y: shipped.attention(Q.astype(int), Q, Q, y), DTypeError, "attention: q is i64, but it takes floats"),
    (lambda y: shipped.attention(Q, Q, Q, y, window=0), CallError, "attention: a window of 0 has no keys"),
    (lambda y: shipped.attention(Q, Q, Q, y, soft_cap=0.0), CallError, "within a soft cap of 0.0"),
    (lambda y: shipped.attention(Q, Q, Q, y, bias=Q), CallError, "K2 is 3 by k"),
    (lambda y: shipped.attention_decode(np.zeros((1, 1, 17, 16), np.float32), Q, Q, y), CallError, "17 queries"),
    (lambda y: shipped.attention_decode(Q, Q, Q, y[:, :, :2]), CallError, "M is 3 by means, but 2 by y"),
    (lambda y: shipped.attention_decode(Q[:, :, :0], Q, Q, y), CallError, "M is 0 by q, but 3 by y"),
    (lambda y: shipped.attention(None, Q, Q, y), CallError, "attention: q is None, not an array"),
    (lambda y: shipped.attention(Q, None, Q, y), CallError, "attention: k is None, not an array"),
    (lambda y: shipped.attention(Q, Q, None, y), CallError, "attention: v is None, not an array"),
    (lambda y: shipped.attention(Q, Q, Q, None), CallError, "attention: y is None, not an array"),
    (lambda y: shipped.attention_decode(None, Q, Q, y), CallError, "attention_decode: q is None, not an array"),
    (lambda y: shipped.attention_decode(Q, Q, Q, None), CallError, "attention_decode: y is None, not an array"),
]


def test_no_queries_are_decoded():
    y, lse = np.empty((1, 4, 0, 16), np.float32), np.empty((1, 4, 0), np.float32)
    shipped.attention_decode(Q[:, :, :0], Q, Q, y, lse=lse)


@pytest.mark.parametrize("call, error, message", REFUSED, ids=[message for *_, message in REFUSED])
def test_what_does_not_fit_is_refused_and_nothing_is_touched(call, error, message):
    y = np.full(Q.shape, 5, np.float32)
    with pytest.raises(error) as found:
        call(y)
    assert message in str(found.value)
    assert found.value.loc.file == __file__ and found.value.remedy
    assert (y == 5).all()


@pytest.mark.parametrize("size_v", [128, 136, 192, 256])
def test_parts_of_wide_values_are_joined_on_the_cpu(size_v):
    """The loop over parts gives their largest score and its sum to what is not as wide."""
    Problem(1, (4, 1), 1, 5000, 32, size_v, dtype=f32).call(shipped.attention_decode)


def test_queries_without_heads_are_none_to_decode():
    """The division by zero came before the check of the result's shape."""
    q, k, y = (np.zeros(shape, np.float32) for shape in ((1, 0, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)))
    with pytest.raises(TilewaveError):
        shipped.attention_decode(q, k, k, y)
