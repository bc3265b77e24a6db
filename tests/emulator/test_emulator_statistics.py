"""What is counted in K loops, on kernels whose figures are known."""

import pytest
from emulated_code import LARGE, SMALL, kernel_text

from tilewave.emulator import loop_statistics
from tilewave.emulator.banks import access_cycles, phases
from tilewave.emulator.findings import UnsupportedCode


def test_the_ping_pong_kernel_has_the_figures_it_was_designed_for():
    s = loop_statistics(LARGE.text, "gemm", "gfx942")
    assert (s.chip, s.waves, s.instructions, s.matrix_instructions) == ("gfx942", 8, 111, 64)
    assert round(s.instructions_per_matrix, 2) == 1.73
    assert (s.registers, s.accumulation_registers, s.spills, s.longest_gap) == (166, 0, 0, 28)
    assert (s.vector_instructions, s.accumulator_moves, s.nops) == (0, 0, 0)
    assert (s.shared_reads, s.shared_read_bytes) == (16, (16,))
    assert (s.shared_writes, s.shared_write_bytes) == (6, (16,))
    assert (s.global_loads, s.global_load_bytes, s.store_bytes) == (6, (16,), (16,))
    assert (s.waits, s.barriers, s.bank_conflict_cycles, s.waves_per_unit) == (8, 4, 0, 2)
    # 64 instructions of 4 passes; 16 reads and 6 writes of 1024 bytes; 6 loads of 1024 bytes; by 8 waves.
    assert (s.matrix_cycles, s.shared_cycles, s.global_cycles) == (64 * 16 * 2, 22 * 64, 6 * 128)
    assert round(s.matrix_over_next, 2) == 1.45


def test_rows_padded_by_16_bytes_conflict():
    """4 reads of 16 bytes in 8 phases; on gfx942 every phase finds two rows in one bank, on gfx950 in 4 phases."""
    conflicts = {s.chip: s.bank_conflict_cycles for s in (loop_statistics(g.text, "gemm") for g in SMALL[:2])}
    assert conflicts["gfx942"] > 0 and conflicts["gfx950"] > 0
    assert loop_statistics(SMALL[0].text, "gemm").store_bytes == (4,)


def test_phases_are_those_that_were_measured():
    eight = phases("gfx942", "read", 16)
    assert len(eight) == 8 and eight[0] == (0, 1, 2, 3, 20, 21, 22, 23) and eight[4] == (32, 33, 34, 35, 52, 53, 54, 55)
    four = phases("gfx950", "read", 16)
    assert len(four) == 4 and {len(p) for p in four} == {16}
    for every in (eight, four, phases("gfx942", "write", 16), phases("gfx942", "read", 4)):
        assert sorted(lane for phase in every for lane in phase) == list(range(64))


ON = [True] * 64


@pytest.mark.parametrize(
    "stride, taken",
    [(16, 8), (128, 32), (128 + 32, 8), (128 + 16, 16), (0, 8)],
    ids=["dense", "rows below each other", "padded by 32", "padded by 16", "the same address"],
)
def test_cycles_of_16_byte_reads(stride, taken):
    """Lane l reads row l % 16, piece l // 16, as matrix instructions want it; or all lanes the same."""
    addresses = [16 * lane if stride == 16 else stride * (lane % 16) + 16 * (lane // 16) for lane in range(64)]
    addresses = [0] * 64 if stride == 0 else addresses
    assert access_cycles("gfx942", "read", 16, addresses, ON) == (taken, 8)


def test_lanes_that_are_off_do_not_conflict():
    addresses = [128 * lane for lane in range(64)]
    assert access_cycles("gfx942", "write", 4, addresses, ON).taken == 64
    assert access_cycles("gfx942", "write", 4, addresses, [lane % 32 == 0 for lane in range(64)]).taken == 2


def test_a_kernel_without_a_loop_is_refused():
    with pytest.raises(UnsupportedCode, match="k has no loop with matrix instructions"):
        loop_statistics(kernel_text("\ts_nop 0"), "k")
    with pytest.raises(UnsupportedCode, match="no kernel is called 'gemm'"):
        loop_statistics(kernel_text("\ts_nop 0"), "gemm")
