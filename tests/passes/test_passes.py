"""Passes keep what a kernel means, verify, come to rest, and keep every op's place in the author's code."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from kernels import *
from sampled import examples
from seeds import SEEDS
from strategies import kernels, outcome

import tilewave.passes
from tilewave.interp.tiles import interpret
from tilewave.ir.rewrite import walk
from tilewave.ir.verify import verify
from tilewave.passes.lanes.strength_reduce_division import StrengthReduceDivision
from tilewave.passes.tile.fold_permutes import fold_permutes
from tilewave.passes.tile.simplify import simplify
from tilewave.pipeline import cpu_lists, lists, tile_level
from tilewave.pipeline.runner import pass_name

PASSES = [StrengthReduceDivision(), fold_permutes, simplify]


@pytest.mark.parametrize("p", PASSES, ids=pass_name)
@given(kernel=kernels())
@settings(max_examples=examples(200))
def test_a_pass_keeps_the_meaning(p, kernel):
    after = verify(p(verify(kernel)))
    np.testing.assert_array_equal(outcome(after), outcome(kernel))


@pytest.mark.parametrize("p", PASSES, ids=pass_name)
@given(kernel=kernels())
@settings(max_examples=examples(100))
def test_a_pass_has_nothing_left_to_do_the_second_time(p, kernel):
    once = p(kernel)
    assert p(once) == once


@pytest.mark.parametrize("seed", SEEDS, ids=repr)
def test_every_op_keeps_a_location(seed):
    for step in seed.compile(300, 300, 300).steps:
        for op in walk(step.after.body):
            assert op.loc.line, f"{step.name}: {op} comes from nowhere"
            assert op.loc.file.endswith(".py")


@pytest.mark.parametrize("seed", SEEDS, ids=repr)
def test_every_step_computes_the_same(seed):
    rng = np.random.default_rng(0)
    a, b = random_array(rng, (100, 70), f16), random_array(rng, (90, 70), f16)
    steps = seed.compile(100, 90, 70, block_m=32, block_n=32, block_k=32).steps
    results = []
    for kernel in [steps[0].before, *(s.after for s in steps)]:
        c = poisoned((100, 90), f32)
        interpret(kernel, [a, b, c], {})
        results.append(c)
    for c in results[1:]:
        np.testing.assert_array_equal(c, results[0])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 tells no columns: values lose the author's names")
def test_every_step_of_the_reordered_gemm(golden):
    (seed,) = (s for s in SEEDS if repr(s) == "reordered_gemm")
    compiled = seed.compile(512, 1024, 128)
    texts = [f"// {s.name}: {s.decision}\n{s.diff()}\n" for s in compiled.steps]
    golden(f"// trace\n{compiled.ir('trace')}\n" + "\n".join(texts))


def test_every_pass_stands_in_a_pipeline():
    import ast
    import inspect
    from pathlib import Path

    listed = "".join(map(inspect.getsource, (cpu_lists, lists, tile_level)))
    for file in Path(tilewave.passes.__file__).parent.glob("*.py"):
        if file.name != "__init__.py":
            assert f"tilewave.passes.{file.stem} import" in listed, f"{file.name} is in no pipeline"
            assert ast.get_docstring(ast.parse(file.read_text())), f"{file.name} does not say what it does"


def test_a_step_says_what_it_changed_or_that_it_did_not():
    steps = compiled(gemm(), subs=sizes(128, 128, 64)).steps
    assert [s.name for s in steps] == [
        "map_workgroups",
        "fold_permutes",
        "simplify",
        "skip_masked_blocks",
        "hoist_to_launch",
    ]
    assert steps[0].decision == "MapWorkgroups(linear())"
    assert steps[1].diff() == "(unchanged)"
    assert not steps[1].changed and not steps[4].changed
    assert "-  %tile_b, %tile_m, %tile_n = tile_of(%workgroup)" in steps[0].diff()
