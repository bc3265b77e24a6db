"""A share of the damaged code objects and assembly texts, in every test run."""

import pytest

from .code_objects import case


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_damaged_machine_code_is_run_or_refused(first):
    assert [said for seed in range(first, first + 20) if (said := case(seed))] == []


@pytest.mark.parametrize("seed", [880886, 881332, 880835, 92900010])
def test_what_was_found_once_is_refused_now(seed):
    """Numbers that no packet holds, and thousands of millions of registers to fill or to load."""
    assert case(seed) is None
