"""A few chains of casts and ops, always the same ones."""

import pytest

from .arithmetic import case


@pytest.mark.parametrize("seed", range(8))
def test_a_chain_of_casts_and_ops_is_exact(seed):
    assert case(seed) is None
