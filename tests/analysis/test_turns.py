"""The proof that sums in turns have one order and end, against launches that are played with any number at once."""

from collections import Counter

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tilewave.analysis.schedule import NO_CORRECTION
from tilewave.analysis.turns import TakenTurns
from tilewave.errors import NOWHERE, CoverageError
from tilewave.ir.core import Value
from tilewave.ir.ops import WaitTurn
from tilewave.ir.types import I32, INDEX_SCALAR, Memory

PLACES = 3
OP = WaitTurn(
    Value("y", Memory((PLACES,), I32, "global")),
    Value("turns", Memory((PLACES,), I32, "global")),
    (Value("at", INDEX_SCALAR),),
    Value("turn", INDEX_SCALAR),
    loc=NOWHERE,
)
Launch = list[list[tuple[int, int]]]
"""For each workgroup the places and turns that it takes, in program order."""


def is_proved(launch: Launch) -> bool:
    rows = [(w, place, turn) for w, taken in enumerate(launch) for place, turn in taken]
    workgroup, place, turn = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    try:
        TakenTurns(workgroup, place[:, None], turn, (PLACES,)).check(OP, NO_CORRECTION)
    except CoverageError:
        return False
    return True


def is_each_once(launch: Launch) -> bool:
    places = Counter(place for taken in launch for place, _ in taken)
    every = Counter(one for taken in launch for one in taken)
    return every == Counter((place, turn) for place, count in places.items() for turn in range(count))


def ends(launch: Launch, at_once: int) -> bool:
    """Play a launch: workgroups start in order, each where one has ended, and take a turn when it has come."""
    counters, left = Counter(), [list(taken) for taken in launch]
    running, waiting = [], list(range(len(launch)))
    while running or waiting:
        while waiting and len(running) < at_once:
            running.append(waiting.pop(0))
        able = [w for w in running if not left[w] or counters[left[w][0][0]] == left[w][0][1]]
        if not able:
            return False
        for w in able:
            if not left[w]:
                running.remove(w)
            elif counters[left[w][0][0]] == left[w][0][1]:
                counters[left[w].pop(0)[0]] += 1
    return True


@st.composite
def launches(draw) -> Launch:
    """Turns as a kernel would number them, by workgroup or by step, with two of them exchanged, or one changed."""
    count = draw(st.integers(1, 4))
    places = [draw(st.lists(st.integers(0, PLACES - 1), max_size=4)) for _ in range(count)]
    if not any(places):
        places[0] = [0]
    by_step = draw(st.booleans())
    order = [(i, w) if by_step else (w, i) for w, mine in enumerate(places) for i in range(len(mine))]
    counters: Counter[int] = Counter()
    found: Launch = [[(place, 0) for place in mine] for mine in places]
    for a, b in sorted(order):
        w, i = (b, a) if by_step else (a, b)
        found[w][i] = places[w][i], counters[places[w][i]]
        counters[places[w][i]] += 1
    how = draw(st.sampled_from(("", "exchanged", "changed")))
    every = [(w, i) for w, mine in enumerate(found) for i in range(len(mine))]
    if how == "exchanged":
        w, i = draw(st.sampled_from(every))
        v, j = draw(st.sampled_from([(v, j) for v, j in every if found[v][j][0] == found[w][i][0]]))
        found[w][i], found[v][j] = found[v][j], found[w][i]
    if how == "changed":
        w = draw(st.sampled_from([w for w, mine in enumerate(found) if mine]))
        i = draw(st.integers(0, len(found[w]) - 1))
        found[w][i] = found[w][i][0], draw(st.integers(-1, 4))
    return found


@given(launches())
def test_a_proved_launch_ends_with_any_number_of_workgroups_on_the_chip(launch):
    proved = is_proved(launch)
    assert not proved or is_each_once(launch)
    assert not proved or all(ends(launch, at_once) for at_once in range(1, len(launch) + 1))


@given(launches())
@example([[(0, 1), (0, 0)]])
@example([[(0, 0)], [(0, 2), (0, 1)]])
def test_a_launch_that_ends_one_workgroup_at_a_time_is_proved(launch):
    """So nothing is refused that a chip with room for one workgroup would run to its end."""
    assert is_proved(launch) == (is_each_once(launch) and ends(launch, 1))
