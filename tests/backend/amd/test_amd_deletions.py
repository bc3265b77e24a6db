"""Take any one wait, barrier or nop out of the emitted code: the emulator finds it, and names the author's line."""

import pytest
from lane_runs import CHIPS, EIGHT, FOUR, SCHEDULES, compiled_seed, configurations
from machine_code import deletions, finding
from sampled import ALL, some_of
from seeds import SEEDS

from tilewave import *
from tilewave.ir.ops import CopyAsyncChunks, Meet
from tilewave.ir.rewrite import walk

IN_TURNS = {
    8: {2, 3},  # registers hold half of the operands: one step is written, and stores are far from its first two turns
    14: {2, 3, 8, 9, 12, 13},  # the last step too, whose stores two barriers follow besides its own
}
"""Which barriers only keep turns, by the number of meetings, in a loop that loads to registers."""


def keep_turns(compiled):
    """Return which barriers only keep turns, and can each be deleted.

    The barriers of a loop in turns: one before the first step, one of half of the waves, those that end turns, and one
    of the other half. With tiles that are copied past the registers a step has four turns, and waves hand tiles over
    at the end of the last two; a step of half the depth has two turns, and all but those of the last step are needed.
    """
    ops = list(walk(compiled.build.lanes.body))
    meetings = sum(isinstance(op, Meet) for op in ops)
    if not meetings:
        return set()
    if any(step.name == "halve_steps" and step.changed for step in compiled.steps):
        return {meetings - 2, meetings - 1}
    if any(isinstance(op, CopyAsyncChunks) for op in ops):
        return {number for number in range(2, meetings) if (number - 2) % 4 < 2}
    return IN_TURNS[meetings]


def check_every_deletion_is_found(compiled, file, shape):
    """Every barrier is deleted, and half of the waits and nops; all of them in the slow tests."""
    count, barriers, unnoticed = 0, 0, set()
    cases = list(deletions(compiled.asm))
    waits = [case for case in cases if case[0] != "s_barrier"]
    sample = some_of(waits, -(-len(waits) // 2))
    for deleted, text in (case for case in cases if case in sample or case not in waits):
        found = finding(compiled, text, shape)
        barriers += deleted == "s_barrier"
        if found is None and deleted == "s_barrier":
            unnoticed.add(barriers - 1)
            continue
        assert found is not None, f"{deleted} can be deleted unnoticed"
        assert found.loc.file.endswith(file), f"{deleted}: {found}"
        count += 1
    assert unnoticed == keep_turns(compiled)
    assert count > 5 if ALL else len(cases) > 5 and count


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_every_deletion_is_found(chip, schedule):
    shape = (64, 64, 96)
    check_every_deletion_is_found(compiled_seed(SEEDS[0], chip, (64, 64, 32), FOUR, schedule, shape), "gemm.py", shape)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("waves", [FOUR, EIGHT], ids=str)
def test_no_wait_is_written_where_one_for_scalars_covers_it(chip, waves):
    """After the loop the strides of C are loaded, and the wait for them covers the stores of the last iteration."""
    shape = (128, 128, 96)
    compiled = compiled_seed(SEEDS[0], chip, (64, 64, 32), waves, SchedulingType.PREFETCH, shape)
    check_every_deletion_is_found(compiled, "gemm.py", shape)


@pytest.mark.parametrize("chip", CHIPS)
def test_stores_that_come_around_a_loop_are_waited_for(chip):
    """Nothing is outstanding when LLVM first reaches the loop's head, so that it inserts no wait."""
    shape = (64, 64, 48)
    compiled = compiled_seed(SEEDS[0], chip, (32, 32, 16), (1, 2), SchedulingType.PREFETCH, shape)
    assert finding(compiled, compiled.asm, shape) is None
    check_every_deletion_is_found(compiled, "gemm.py", shape)


def test_every_deletion_from_ping_pong_is_found():
    shape = (128, 128, 192)
    compiled = compiled_seed(SEEDS[0], "gfx942", (128, 128, 64), EIGHT, SchedulingType.PREFETCH, shape)
    assert any(step.name == "interleave_mma" and step.changed for step in compiled.steps)
    assert keep_turns(compiled) == {2, 3, 8, 9, 12, 13}
    check_every_deletion_is_found(compiled, "gemm.py", shape)


@pytest.mark.parametrize(("num_stages", "turns"), [(1, {14, 15}), (2, {2, 3, 6, 7})], ids=str)
@pytest.mark.slow
def test_every_deletion_from_ping_pong_with_brought_tiles_is_found(num_stages, turns):
    """Lane by lane, `test_amd_direct_to_shared.py` deletes the barriers of the first in every run."""
    shape = (256, 256, 320)
    compiled = compiled_seed(SEEDS[0], "gfx950", (256, 256, 64), EIGHT, SchedulingType.PREFETCH, shape, num_stages)
    assert keep_turns(compiled) == turns
    check_every_deletion_is_found(compiled, "gemm.py", shape)


@pytest.mark.parametrize(("tile", "waves", "steps"), [(64, FOUR, 9), (128, EIGHT, 5)], ids=str)
def test_every_deletion_from_a_loop_that_reads_and_copies_between_products_is_found(tile, waves, steps):
    """Nine steps of three stages have a loop of three; five of four have none."""
    shape = (tile, tile, steps * 64)
    compiled = compiled_seed(SEEDS[0], "gfx950", (tile, tile, 64), waves, SchedulingType.PREFETCH, shape)
    assert not keep_turns(compiled)
    check_every_deletion_is_found(compiled, "gemm.py", shape)


@pytest.mark.parametrize("seed", SEEDS, ids=repr)
@pytest.mark.parametrize("configuration", list(configurations()), ids=str)
@pytest.mark.slow
def test_every_deletion_is_found_in_every_kernel_of_the_documents(seed, configuration):
    tile = configuration[1]
    shape = (2 * tile[0], 2 * tile[1], 3 * tile[2])
    compiled = compiled_seed(seed, *configuration, shape)
    if any(isinstance(op, CopyAsyncChunks) for op in walk(compiled.build.lanes.body)):
        shape = (*shape[:2], 5 * tile[2])  # the last of few steps needs fewer meetings than those of a loop
        compiled = compiled_seed(seed, *configuration, shape)
    check_every_deletion_is_found(compiled, f"{seed!r}.py", shape)
