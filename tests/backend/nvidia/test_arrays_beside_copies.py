"""Arrays that lanes load and store in a kernel with TMA copies: each array's layout decides for that array alone."""

import numpy as np
import pytest
from attention_problems import Problem, execute
from ptx_code import needs_ptxas

from tilewave import *
from tilewave import kernels as shipped
from tilewave.backend.nvidia.code import ALIGNED, BY_LANES, Specialization
from tilewave.backend.nvidia.ptxas import assemble_ptx
from tilewave.kernels import AttentionTile, Heads, Rows, Scores
from tilewave.runtime.arrays import ArrayView

ON_LINES, UNALIGNED_LINES = ALIGNED, Specialization(16)


@pytest.fixture(scope="module")
def attention():
    """With a bias and its log-sum-exp, which lanes load and store."""
    dtypes = f16, f16, f16, f16, f32, f32
    return shipped.attention_kernel(AttentionTile(64, 64, 4), Heads(64, 64), Scores(0.125), *dtypes).compile("sm_90a")


def lying(shape, dtype, at=1 << 20):
    strides = [dtype.bytes]
    for extent in shape[:0:-1]:
        strides.insert(0, strides[0] * extent)
    return ArrayView(at, tuple(shape), tuple(strides), dtype, "cuda", False, None)


def views(queries, keys, size=64, **at):
    shapes = {"q": (2, 2, queries, size), "k": (2, 2, keys, size), "v": (2, 2, keys, size)}
    shapes |= {"bias": (2, 2, queries, keys), "y": (2, 2, queries, size), "lse": (2, 2, queries)}
    of = {"bias": f32, "lse": f32}
    return [lying(shape, of.get(name, f16), at.get(name, 1 << 20)) for name, shape in shapes.items()]


CLASSES = {
    (64, 128): ON_LINES,
    (63, 128): ON_LINES,
    (64, 127): Specialization(widths=(("bias", 0),)),
    (63, 127): Specialization(widths=(("bias", 0),)),
}


@pytest.mark.parametrize("queries, keys", CLASSES)
def test_an_odd_length_leaves_all_else_to_copies(attention, queries, keys):
    """Lanes store single numbers of the log-sum-exp, for any alignment of its rows."""
    assert attention.build.program.plans.plan_for(views(queries, keys)).key == CLASSES[queries, keys]


def test_what_copies_move_still_decides_for_all(attention):
    program = attention.build.program
    q = program.plans.plan_for(views(63, 128, q=(1 << 20) + 2)).key
    assert (q.rows, {*dict(q.widths).values()}) == (BY_LANES, {2, 4})
    assert program.plans.plan_for(views(63, 128, bias=(1 << 20) + 4)).key == Specialization(widths=(("bias", 0),))
    assert program.plans.plan_for(views(63, 128, lse=(1 << 20) + 4)).key == ON_LINES


def test_rows_off_cache_lines_have_arrays_beside_them_too():
    kernel = shipped.attention_kernel(AttentionTile(64, 64, 4), Heads(80, 80), Scores(1.0), *[f16] * 4, f32, f32)
    program = kernel.compile("sm_90a").build.program
    assert program.plans.plan_for(views(63, 127, size=80)).key == Specialization(16, (("bias", 0),))


def test_the_code_is_named_by_what_lies_anywhere(attention):
    program = attention.build.program
    code = program.code_for(Specialization(widths=(("bias", 0),)))
    assert "rows on cache lines, but bias anywhere" in attention.binaries
    assert code.maps == program.code_for(ON_LINES).maps
    told = [d.what for d in program.plans.remarks(views(63, 127))]
    assert told == [
        "the base or row stride of bias is aligned to 4 bytes, not 16, so lanes load and store single elements"
    ]


@pytest.mark.parametrize("is_open", [True, False])
def test_an_odd_number_of_rows_leaves_wide_loads_to_each_of_them(is_open):
    """Lanes store one number per row; only what they load in chunks has to be aligned."""
    kernel = shipped.sum_kernel(Rows(1), f16, f32)
    made = kernel.compile("sm_90a", **({"max_sizes": {sym.N: 256}} if is_open else {"subs": {sym.M: 7, sym.N: 256}}))
    program, y = made.build.program, lying((7,), f32)
    assert program.plans.plan_for([lying((7, 256), f16), y]).key == ALIGNED
    assert "ld.global.nc.v4" in program.code_for(ALIGNED).ptx
    assert program.plans.plan_for([lying((7, 256), f16), lying((7,), f32, (1 << 20) + 4)]).key == ALIGNED
    assert program.plans.plan_for([lying((7, 256), f16, (1 << 20) + 2), y]).key != ALIGNED
    assert program.plans.plan_for([lying((7, 256), f16), y._replace(strides=(8,))]).key != ALIGNED


def test_parts_are_joined_by_wide_loads_whatever_the_number_of_queries():
    program = shipped.join_splits_kernel(128, f32, f16).compile("sm_90a").build.program
    for queries in (1, 3):
        rows = 2, 3, queries
        given = [lying((5, *rows, 128), f32), lying((5, *rows), f32), lying((*rows, 128), f16)]
        assert program.plans.plan_for(given).key == ALIGNED


@needs_ptxas
def test_heads_of_256_and_an_odd_length_spill_nothing():
    """Lanes that loaded their tiles would have no registers left."""
    tile = AttentionTile(128, 64, 4)
    made = shipped.attention_kernel(tile, Heads(256, 256), Scores(0.0625, True), *[f16] * 4, None, f32).compile(
        "sm_90a"
    )
    given = [v for i, v in enumerate(views(4095, 4095, size=256)) if i != 3]
    variant = made.build.program.plans.plan_for(given).key
    assert variant == ON_LINES
    assert assemble_ptx(made.build.program.code_for(variant).ptx, "sm_90a").spilled_bytes == 0


@pytest.mark.parametrize("queries, keys", [(33, 70), (33, 72), (32, 71)])
def test_results_by_copies_and_by_lanes(attention, queries, keys):
    problem = Problem(2, (2, 2), queries, keys, 64, 64, bias=f32)
    assert not attention.build.program.plans.plan_for(views(queries, keys)).key.is_by_lanes
    execute("lanes of sm_90a", attention, *problem.arrays().values())
    problem.check(problem.y, problem.lse, -(-keys // 64))


def test_a_saved_kernel_brings_code_for_arrays_anywhere(attention, tmp_path):
    attention.save(tmp_path / "attention")
    program = load(tmp_path / "attention").build.program
    both = ("bias", "lse")
    assert program.plans.plan_for(views(63, 127)).key == Specialization(widths=tuple((name, 0) for name in both))
    assert program.plans.plan_for(views(64, 128)).key == ON_LINES
    assert (
        program.code_for(Specialization(widths=tuple((name, 0) for name in both))).ptx
        == attention.build.program.code_for(Specialization(widths=tuple((name, 0) for name in both))).ptx
    )
    assert np.shape(program.binaries) == (6,)
