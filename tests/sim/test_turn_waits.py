"""How long workgroups wait for their turns, against times that are counted by hand."""

from math import inf

import pytest

from tilewave import *
from tilewave.sim.turns import turn_waits

G = GLOBAL_ADDRESS_SPACE
M, N, K, H = sym.M, sym.N, sym.K, sym.H
TILES = {K: 32, H: 1}


def kernel(*order, start=None):
    """A workgroup for each block of K and each head, which adds to every tile of that head."""
    axes = [WorkgroupConstraint(dim, TILES[dim], i) for i, dim in enumerate(order)]

    @wave([*axes, TilingConstraint(M, 64)], subs={N: 16})
    def added(
        x: Memory[H, M, N, G, f32], k: Memory[K, G, f32], y: Memory[H, M, N, G, f32], turns: Memory[H, M, G, i32]
    ):
        @iterate(M, start=start() if start else None)
        def step():
            ordered_add(read(x), y, turns=turns, turn=first_index(K) // 32)

    return added.compile(target="numpy")


def test_workgroups_at_once_are_a_hand_over_apart():
    """Three tiles: workgroup 0 adds at 1, 2, 3; workgroup 1 at 3, 4, 5; workgroup 2 at 5, 6, 7."""
    found = turn_waits(kernel(K, H), 3, hand_over=2, H=1, M=192, K=96)
    assert (found.steps, found.without_waits, found.share) == (7, 3, pytest.approx(3 / 7))


def test_one_workgroup_at_a_time_never_waits():
    found = turn_waits(kernel(K, H), 1, hand_over=1, H=1, M=192, K=96)
    assert (found.steps, found.without_waits) == (9, 9)


def test_a_workgroup_starts_where_another_has_ended():
    """Two at once: the third starts at 3, after workgroup 0, and adds after workgroup 1 did: at 5, 6 and 7."""
    assert turn_waits(kernel(K, H), 2, hand_over=2, H=1, M=192, K=96).steps == 7
    assert turn_waits(kernel(K, H), 2, hand_over=-inf, H=1, M=192, K=96).steps == 6


def test_heads_first_wait_less():
    """Of four workgroups at once all have one head, and the fourth adds last at 10; or two do, and end at 6.

    The second four then start at 4, 6, 8 and 10, or at 4 and 6, and wait no more.
    """
    sizes = {"H": 2, "M": 256, "K": 128}
    by_keys, by_heads = (turn_waits(kernel(*order), 4, hand_over=2, **sizes) for order in ((K, H), (H, K)))
    assert (by_keys.without_waits, by_heads.without_waits) == (8, 8)
    assert (by_keys.steps, by_heads.steps) == (14, 10)


def test_steps_that_are_left_out_are_no_turns():
    """Under a diagonal of tiles workgroup 2 begins with the second tile."""
    found = turn_waits(kernel(K, H, start=lambda: first_index(K)), 3, hand_over=0, H=1, M=128, K=96)
    assert (found.steps, found.without_waits) == (2, 2)
