"""Take any one wait, barrier or nop out of the emitted code: the emulator finds it, and names the author's line."""

import pytest
from lane_runs import CHIPS, EIGHT, FOUR, SCHEDULES, compiled_seed, configurations
from machine_code import deletions, finding
from seeds import SEEDS

from tilewave import *
from tilewave.ir.ops import CopyAsyncChunks, Meet, Priority
from tilewave.ir.rewrite import walk


def turns(compiled):
    """Return how many barriers only order turns: with direct-to-shared loads, half of those of ping-pong waves."""
    ops = list(walk(compiled.build.lanes.body))
    brings = any(isinstance(op, CopyAsyncChunks) for op in ops)
    outside = 2  # half of the waves has one more barrier before the loop, the other half one more after it
    return (sum(isinstance(op, Meet) for op in ops) - outside) // 2 if brings and Priority in map(type, ops) else 0


def check_every_deletion_is_found(compiled, file, shape):
    count, unnoticed = 0, turns(compiled)
    for deleted, text in deletions(compiled.asm):
        found = finding(compiled, text, shape)
        if found is None and deleted == "s_barrier" and unnoticed:
            unnoticed -= 1
            continue
        assert found is not None, f"{deleted} can be deleted unnoticed"
        assert found.loc.file.endswith(file), f"{deleted}: {found}"
        count += 1
    assert count > 5


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
    check_every_deletion_is_found(compiled, "gemm.py", shape)


def test_every_deletion_from_ping_pong_with_brought_tiles_is_found():
    shape = (128, 128, 320)
    compiled = compiled_seed(SEEDS[0], "gfx950", (128, 128, 64), EIGHT, SchedulingType.PREFETCH, shape)
    assert turns(compiled) == 4
    check_every_deletion_is_found(compiled, "gemm.py", shape)


@pytest.mark.parametrize("seed", SEEDS, ids=repr)
@pytest.mark.parametrize("configuration", list(configurations()), ids=str)
@pytest.mark.slow
def test_every_deletion_is_found_in_every_kernel_of_the_documents(seed, configuration):
    tile = configuration[1]
    shape = (2 * tile[0], 2 * tile[1], 3 * tile[2])
    compiled = compiled_seed(seed, *configuration, shape)
    if turns(compiled):  # the last of few steps needs fewer meetings than those of a loop
        shape = (*shape[:2], 5 * tile[2])
        compiled = compiled_seed(seed, *configuration, shape)
    check_every_deletion_is_found(compiled, f"{seed!r}.py", shape)
