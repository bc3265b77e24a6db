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
    """4 reads of 16 bytes in 8 phases; on gfx942 every phase has two rows in one bank, on gfx950 in 4 phases."""
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


@pytest.mark.parametrize(("apart", "lost"), [(5, 0), (8, 2)], ids=["dense", "256 bytes apart"])
def test_reads_that_transpose_count_with_all_their_bytes(apart, lost):
    """Lane l reads 8 bytes of row l // 4; 32 lanes are served at once, from 64 banks: eight rows, or two of them."""
    s = loop_statistics(
        kernel_text(
            f"""	v_lshrrev_b32_e32 v3, 2, v0
	v_lshlrev_b32_e32 v3, {apart}, v3
	v_and_b32_e32 v4, 3, v0
	v_lshl_add_u32 v4, v4, 3, v3
	s_mov_b32 s6, 0
.L1:
	ds_read_b64_tr_b16 v[8:9], v4
	s_waitcnt lgkmcnt(0)
{PRODUCT}{ROUND.format(6)}	s_cbranch_scc1 .L1
""",
            chip="gfx950",
            shared=4096,
        ),
        "k",
    )
    assert (s.shared_reads, s.shared_read_bytes, s.shared_cycles - s.bank_conflict_cycles) == (1, (8,), 64 * 8 / 256)
    assert s.bank_conflict_cycles == 7 * lost


# -- which instructions are the loop's ---------------------------------------------------------------------------------

PRODUCT = "\tv_mfma_f32_16x16x16_f16 v[12:15], v[8:9], v[10:11], v[12:15]\n"
START = "\tv_mov_b32_e32 v4, 0\n\ts_mov_b32 s6, 0\n\ts_mov_b32 s7, 0\n"
ROUND = "\ts_add_i32 s{0}, s{0}, 1\n\ts_cmp_lt_u32 s{0}, 4\n"


def loop_of(body, **options):
    return loop_statistics(kernel_text(START + body, shared=1024, **options), "k")


def test_a_masked_block_behind_the_end_of_a_round_is_in_the_loop():
    """As LLVM lays it out: the iteration ends before its first instruction, and its last block branches back there."""
    s = loop_of(f"""	s_branch .L2
.L1:
	s_or_b64 exec, exec, s[8:9]
{ROUND.format(6)}	s_cbranch_scc0 .L3
.L2:
	ds_read_b64 v[8:9], v4
	s_waitcnt lgkmcnt(0)
	s_nop 0
{PRODUCT}	s_and_saveexec_b64 s[8:9], vcc
	s_cbranch_execz .L1
	ds_write_b64 v4, v[8:9]
	ds_write2_b32 v4, v8, v9 offset1:1
	s_branch .L1
.L3:
	global_store_dwordx4 v4, v[12:15], s[4:5]
""")
    assert (s.instructions, s.matrix_instructions, s.shared_reads, s.shared_writes) == (13, 1, 1, 2)
    assert (s.shared_write_bytes, s.store_bytes, s.nops) == ((4, 8), (16,), 1)


@pytest.mark.parametrize(
    "load", ["global_load_dword v5, v4, s[4:5]", "buffer_load_dwordx2 v[5:6], v4, s[8:11], 0 offen"]
)
def test_a_masked_load_in_the_middle_of_a_round_is_in_the_loop(load):
    s = loop_of(f""".L1:
	s_and_saveexec_b64 s[8:9], vcc
	s_cbranch_execz .L2
	{load}
.L2:
	s_or_b64 exec, exec, s[8:9]
{PRODUCT}{ROUND.format(6)}	s_cbranch_scc1 .L1
""")
    assert (s.instructions, s.global_loads, s.global_load_bytes) == (8, 1, (8,) if "x2" in load else (4,))


def test_a_masked_block_that_stands_far_from_its_loop_is_in_it_and_what_lies_between_is_not():
    s = loop_of(f""".L1:
	s_cbranch_vccnz .L4
.L2:
{PRODUCT}{ROUND.format(6)}	s_cbranch_scc1 .L1
	global_store_dword v4, v12, s[4:5]
	s_endpgm
.L4:
	ds_write_b32 v4, v8
	s_branch .L2
""")
    assert (s.instructions, s.shared_writes, s.store_bytes) == (7, 1, (4,))


def test_of_several_loops_the_one_with_the_most_products_counts():
    s = loop_of(f""".L1:
{PRODUCT}	ds_write_b32 v4, v8
{ROUND.format(6)}	s_cbranch_scc1 .L1
.L2:
{PRODUCT}{PRODUCT}{ROUND.format(7)}	s_cbranch_scc1 .L2
""")
    assert (s.instructions, s.matrix_instructions, s.shared_writes) == (5, 2, 0)


def test_of_nested_loops_the_inner_one_counts():
    s = loop_of(f""".L1:
	ds_write_b32 v4, v8
	s_mov_b32 s7, 0
.L2:
	ds_read_b32 v9, v4
{PRODUCT}{ROUND.format(7)}	s_cbranch_scc1 .L2
{ROUND.format(6)}	s_cbranch_scc1 .L1
""")
    assert (s.instructions, s.shared_reads, s.shared_writes) == (5, 1, 0)


def test_an_inner_loop_without_products_is_part_of_the_one_around_it():
    s = loop_of(f""".L1:
{PRODUCT}	s_mov_b32 s7, 0
.L2:
	ds_write_b32 v4, v8
{ROUND.format(7)}	s_cbranch_scc1 .L2
{ROUND.format(6)}	s_cbranch_scc1 .L1
""")
    assert (s.instructions, s.shared_writes) == (9, 1)


def test_a_branch_back_in_the_text_that_closes_no_loop_is_none():
    body = f"\ts_branch .L2\n.L1:\n{PRODUCT}\ts_endpgm\n.L2:\n{PRODUCT}\ts_branch .L1\n"
    with pytest.raises(UnsupportedCode, match="k has no loop with matrix instructions"):
        loop_of(body)
