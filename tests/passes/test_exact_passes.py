"""Every pass of every target keeps every kernel of the library and the examples, bit for bit, with exact numbers."""

import pytest
from exact_corpus import CORPUS

NAMED = [(room, name, case) for room, cases in CORPUS.items() for name, case in cases.items()]
CASES = [(room, name, target) for room, name, case in NAMED for target in case.targets]
QUICK = {
    ("attention", "causal, one group of heads", "sm_90a"),
    ("attention", "plain, one group of heads", "gfx942"),
    ("products", "f16", "sm_90a"),
    ("products", "f32", "gfx950"),
    ("products", "i8", "cpu"),
}
"""One case for each list of passes among those that take seconds; the others are slow tests."""


def is_quick(number, room, name, target):
    """Kernels on rows take little time: each is run for one target, in turn."""
    return (room, name, target) in QUICK or (room == "rows" and number % 4 == number // 4 % 4)


def marked(number, case):
    return pytest.param(*case, marks=() if is_quick(number, *case) else pytest.mark.slow, id=", ".join(case))


@pytest.mark.parametrize("room, name, target", [marked(*each) for each in enumerate(CASES)])
def test_every_pass_keeps_every_bit(room, name, target):
    found = CORPUS[room][name].check(target)
    assert found and found.passes, str(found)
    assert found.undecided == 0, "what is no number says nothing of passes"


def test_every_list_of_passes_has_a_quick_case():
    assert {case for case in QUICK if case not in CASES} == set()
    assert {target for *_, target in QUICK} == {"cpu", "gfx942", "gfx950", "sm_90a"}
