"""The net of kernels with indices: a share of it in every run, what its cases are, and that it sees what is wrong."""

import runpy
from dataclasses import replace

import numpy as np
import pytest

from . import indexed_kernels
from .indexed import Indexed, Indices, generate_indexed, indexed_of_text, shrink_indexed, text_of_indexed
from .indexed_kernels import IndexedKernels, judge_indexed, reproduction_of
from .indexed_reference import arrays_of, expected, is_broken
from .judge import TARGETS, Outcome, Way

NET = IndexedKernels()
SEEDS = {
    "numpy": range(120),
    "cpu": range(24),
    "gfx942": range(100, 109),
    "gfx950": range(200, 209),
    "sm_90a": range(300, 324),
}
"""A third of them belongs to every run."""
SIZES = (("T", 5), ("D", 9), ("K", 3), ("V", 7), ("W", 4))
TILES = (("T", 8), ("D", 8), ("K", 4))
SCATTER = Indexed("scatter", SIZES, TILES, ("0", "D"), (Indices("T", "i64", "distinct", "unique"),), seed=3)
GATHER = replace(SCATTER, form="gather", indices=(Indices("T", "i64", "hostile"),))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("every", [pytest.param(3, id="a third"), pytest.param(1, marks=pytest.mark.slow, id="all")])
def test_random_kernels_with_indices_agree_with_numpy(target, every):
    found = []
    for seed in SEEDS[target][::every]:
        outcome = NET.case_on(seed, target)
        if outcome.wrong:
            command = f"python -m tests.fuzz --net indexed_kernels --target {target} --seed {seed} --count 1"
            found.append(f"{command}\n{outcome}")
    assert not found, "\n\n".join(found)


def test_cases_cover_what_indices_may_be():
    cases = [generate_indexed(seed, "numpy") for seed in range(400)]
    indices = [i for c in cases for i in c.indices]
    assert {c.form for c in cases} == {"gather", "summed", "product", "scatter", "atomic"}
    assert {c.combine for c in cases} == {"", "add", "min", "max", "and", "or"}
    assert {i.dims for i in indices} >= {"", "T", "D", "TD", "TK", "K"}
    assert {i.content for i in indices} == {"hostile", "inside", "equal", "nowhere", "distinct"}
    assert {c.by_mapping for c in cases} == {c.is_open for c in cases} == {i.broken for i in indices} == {True, False}
    given = [x.astype(np.int64) for c in cases for name, x in arrays_of(c).items() if name.startswith("i")]
    ends = {-1, 2**31 - 1, 2**31, -(2**31), 2**32 + 1, 2**63 - 1, -(2**63)}
    assert ends <= {int(v) for x in given for v in x.reshape(-1)}


def test_a_case_is_its_text():
    cases = [generate_indexed(seed, "numpy") for seed in range(50)]
    assert [indexed_of_text(text_of_indexed(c)) for c in cases] == cases


def test_a_contract_is_broken_where_a_case_says_so():
    broken = replace(SCATTER, indices=(replace(SCATTER.indices[0], broken=True),))
    assert is_broken(broken, arrays_of(broken)) and not is_broken(SCATTER, arrays_of(SCATTER))
    assert judge_indexed(broken, "numpy").kind == "agrees"


def wrong_where(monkeypatch, spoil, case=GATHER):
    """What is found where a kernel is run wrongly."""

    def run(compiled, arrays, symbols):
        spoil(compiled, arrays)

    monkeypatch.setattr(indexed_kernels, "ways", lambda target, seed: [Way("so", run)])
    return judge_indexed(case, "numpy").kind


def test_what_is_wrong_is_seen(monkeypatch):
    def clips(compiled, arrays):
        compiled.interpret(np.clip(arrays[0], 0, 6), *arrays[1:])

    def spills(compiled, arrays):
        compiled.interpret(*arrays)
        arrays[-1].base[0] = 1

    def changes_the_table(compiled, arrays):
        compiled.interpret(*arrays)
        arrays[2][0] += 1

    assert wrong_where(monkeypatch, lambda compiled, arrays: compiled.interpret(*arrays)) == "agrees"
    assert wrong_where(monkeypatch, clips) == "wrong numbers"
    assert wrong_where(monkeypatch, spills) == "memory changed around an array"
    assert wrong_where(monkeypatch, changes_the_table) == "an input changed"


def test_a_broken_contract_that_is_not_found_is_seen(monkeypatch):
    broken = replace(SCATTER, indices=(replace(SCATTER.indices[0], broken=True),))
    assert wrong_where(monkeypatch, lambda compiled, arrays: None, broken) == "a broken contract is not found"


def test_a_case_shrinks():
    large = generate_indexed(next(s for s in range(99) if generate_indexed(s, "cpu").by_mapping), "cpu")
    small = shrink_indexed(large, lambda c: c.form == large.form)
    assert not small.by_mapping and not small.is_open and max(n for _, n in small.sizes) == 1


def test_a_reproduction_runs_alone(tmp_path):
    inside = replace(GATHER, indices=(Indices("T", "i32", "inside"),))
    text = reproduction_of(inside, "cpu", Outcome("wrong numbers", "cpu", "so"))
    path = tmp_path / "alone.py"
    path.write_text(text)
    runpy.run_path(str(path))["check"]()
    wrong = tmp_path / "wrong.py"
    wrong.write_text(text.replace("read(x) + read", "read(x) - read"))
    with pytest.raises(AssertionError):
        runpy.run_path(str(wrong))["check"]()


def test_numpy_gives_what_a_gather_should():
    given = arrays_of(GATHER)
    _, want = expected(GATHER, given)
    for t, row in enumerate(given["i0"]):
        picked = given["table"][row] if 0 <= row < 7 else 0
        np.testing.assert_array_equal(want[t], given["x"][t].astype(float) + picked)
