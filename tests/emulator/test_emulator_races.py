"""Waves that meet in global memory: every order of theirs that is not certain is found, whichever one was run."""

import re

import numpy as np
import pytest
from emulated_code import DATA, findings_of, kernel_text

from tilewave.emulator import EmulationError, Emulator

WAVES = 4
START = "\ts_load_dwordx4 s[4:7], s[0:1], 0x0\n\tv_lshlrev_b32_e32 v1, 2, v0\n\ts_waitcnt lgkmcnt(0)\n"
OTHER = "\tv_xor_b32_e32 v2, 0x100, v1\n"
"""v1 is this lane's word, v2 that of the same lane in a neighbouring wave."""
RUNS = [{"order": "barrier"}, *({"order": "random", "seed": seed} for seed in range(4))]
runs = pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run['order']}{run.get('seed', '')}")


def found(body, run, *, words=64 * WAVES, block=64 * WAVES, grid=1, shared=0, out=None, chip="gfx942"):
    """What is found in a body; `a` counts up from 0, `o` holds zeros unless given."""
    text = kernel_text(START + OTHER + body, lanes=block, shared=shared, chip=chip)
    out = np.zeros(words, np.uint32) if out is None else out
    return findings_of(text, np.arange(words, dtype=np.uint32), out, grid=(grid,), block=(block,), **run)


def kinds(body, run, **options):
    return {f.kind for f in found(body, run, **options)}


# -- programs that are right, and each of their waits and barriers -----------------------------------------------------

STORE, LOAD, WAIT, BARRIER = (
    "\tglobal_store_dword v1, v0, s[6:7]\n",
    "\tglobal_load_dword v3, v2, s[6:7]\n",
    "\ts_waitcnt vmcnt(0)\n",
    "\ts_barrier\n",
)
DESCRIPTOR = """\
	s_mov_b32 s8, s6
	s_and_b32 s9, s7, 0xffff
	s_movk_i32 s10, 0x400
	s_mov_b32 s11, 0x27000
"""
WRITE_THEN_READ = f"{STORE}{WAIT}{BARRIER}{LOAD}{WAIT}\tglobal_store_dword v1, v3, s[4:5]\n"
READ_THEN_WRITE = f"{LOAD}{WAIT}{BARRIER}\tglobal_store_dword v1, v3, s[6:7]\n"
WRITE_TWICE = f"{STORE}{WAIT}{BARRIER}\tglobal_store_dword v2, v0, s[6:7]\n"
TO_SHARED = f"""\
	v_readfirstlane_b32 s8, v0
	s_lshl_b32 m0, s8, 2
	s_nop 0
{STORE}{WAIT}{BARRIER}\tglobal_load_lds_dword v2, s[6:7]
{WAIT}{BARRIER}{STORE}"""
NUM_STAGES = DESCRIPTOR + (
    WRITE_THEN_READ.replace("global_", "buffer_")
    .replace("store_dword v1, v0, s[6:7]", "store_dword v0, v1, s[8:11], 0 offen")
    .replace("v2, s[6:7]", "v2, s[8:11], 0 offen")
    .replace("buffer_store_dword v1, v3", "global_store_dword v1, v3")
)
FLAT = """\
	v_mov_b32_e32 v11, s7
	v_add_co_u32_e32 v10, vcc, s6, v1
	s_nop 1
	v_addc_co_u32_e32 v11, vcc, 0, v11, vcc
	v_mov_b32_e32 v13, s7
	v_add_co_u32_e32 v12, vcc, s6, v2
	s_nop 1
	v_addc_co_u32_e32 v13, vcc, 0, v13, vcc
	flat_store_dword v[10:11], v0
	s_waitcnt vmcnt(0) lgkmcnt(0)
	s_barrier
	flat_load_dword v3, v[12:13]
	s_waitcnt vmcnt(0) lgkmcnt(0)
	global_store_dword v1, v3, s[4:5]
"""
TWO_ROUNDS = f"""\
	s_mov_b32 s8, 0
.L1:
{STORE}{WAIT}{BARRIER}{LOAD}{WAIT}{BARRIER}	s_add_i32 s8, s8, 1
	s_cmp_lt_u32 s8, 3
	s_cbranch_scc1 .L1
"""
RIGHT = {
    "write then read": WRITE_THEN_READ,
    "read then write": READ_THEN_WRITE,
    "write twice": WRITE_TWICE,
    "to shared": TO_SHARED,
    "buffers": NUM_STAGES,
    "flat": FLAT,
    "in a loop": TWO_ROUNDS,
}
programs = pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)


def without_each(body):
    """The body without one wait or barrier, for each of them."""
    lines = body.splitlines(keepends=True)
    for at, line in enumerate(lines):
        if re.match(r"\s+s_(waitcnt|barrier)", line):
            yield f"line {at}: {line.strip()}", "".join([*lines[:at], *lines[at + 1 :]])


@runs
@programs
def test_a_program_with_its_waits_and_barriers_is_right(body, run):
    assert not found(body, run, shared=1024)


@runs
@programs
def test_every_deletion_of_a_wait_or_a_barrier_is_found(body, run):
    tried = list(without_each(body))
    assert len(tried) > 1
    for deleted, text in tried:
        assert kinds(text, run, shared=1024) & {"global-memory race", "missing wait"}, f"{deleted} can be deleted"


# -- what is said ------------------------------------------------------------------------------------------------------


def test_reading_what_another_wave_has_written_is_told_with_wave_and_line():
    (first,) = found(f'\t.file 1 "." "author.py"\n\t.loc 1 8 1\n{STORE}{WAIT}{LOAD}', RUNS[0])
    assert str(first) == (
        "global-memory race: reads byte 256 of argument o, written by wave 1 with no barrier between them\n"
        "  author.py:8\n"
        "  wave 0 of workgroup (0, 0, 0), line 12: global_load_dword v3, v2, s[6:7]\n"
        "  s_waitcnt vmcnt(0) and s_barrier must be between them"
    )


def test_workgroups_that_write_one_byte_are_told_apart():
    (first,) = found(STORE, RUNS[0], grid=2)
    assert str(first) == (
        "global-memory race: overwrites byte 0 of argument o, written by workgroup (1, 0, 0), "
        "which runs in no order with this one\n"
        "  wave 0 of workgroup (0, 0, 0), line 8: global_store_dword v1, v0, s[6:7]\n"
        "  give each workgroup separate bytes, use atomic operations, or launch twice"
    )


# -- one wave, many waves, many workgroups -----------------------------------------------------------------------------


@runs
def test_a_wave_is_in_order_with_itself(run):
    assert not found(f"{STORE}\tglobal_load_dword v3, v1, s[6:7]\n{WAIT}{STORE}", run)


@runs
def test_waves_that_only_read_do_not_race(run):
    assert not found(f"{LOAD}{WAIT}\tglobal_load_dword v3, v1, s[6:7]\n{WAIT}", run, grid=3)


@runs
@pytest.mark.parametrize("width", [8, 16, 32])
def test_neighbouring_bytes_of_two_waves_are_no_race(run, width):
    """Wave w writes every fourth byte, half or word from w on: words are shared, bytes are not."""
    name = {8: "byte", 16: "short", 32: "dword"}[width]
    body = f"""
	v_and_b32_e32 v4, 63, v0
	v_lshrrev_b32_e32 v5, 6, v0
	v_lshl_add_u32 v4, v4, 2, v5
	v_lshlrev_b32_e32 v4, {width // 16}, v4
	global_store_{name} v4, v0, s[6:7]
	global_store_{name} v4, v0, s[6:7]"""
    assert not found(body, run)
    meets = body.replace("v_lshrrev_b32_e32 v5, 6, v0", "v_lshrrev_b32_e32 v5, 7, v0")
    assert kinds(meets, run) == {"global-memory race"}


@runs
def test_words_that_lie_across_each_other_race(run):
    """A word at byte 2 of a word shares two bytes with each of its neighbours."""
    body = "\tv_lshrrev_b32_e32 v4, 6, v0\n\tv_lshlrev_b32_e32 v4, 1, v4\n\tglobal_store_dword v4, v0, s[6:7]"
    assert kinds(body, run) == {"global-memory race"}
    apart = body.replace("v_lshlrev_b32_e32 v4, 1, v4", "v_lshlrev_b32_e32 v4, 2, v4") + " offset:2"
    assert not found(apart, run)


@runs
def test_one_workgroup_reading_what_another_writes_is_a_race(run):
    body = """
	s_lshl_b32 s8, s2, 8
	v_add_u32_e32 v4, s8, v1
	global_store_dword v4, v0, s[6:7]
	s_waitcnt vmcnt(0)
	s_barrier
	v_xor_b32_e32 v5, 0x100, v4
	global_load_dword v3, v{}, s[6:7]"""
    assert not found(body.format(4), run, words=128, block=64, grid=2)
    assert kinds(body.format(5), run, words=128, block=64, grid=2) == {"global-memory race"}


@pytest.mark.parametrize("grid", [40, 300])
def test_workgroups_that_do_not_run_together_race_too(grid):
    """The emulator runs some at a time; the last one reads what the first has written."""
    body = f"""
	s_lshl_b32 s8, s2, 10
	v_add_u32_e32 v4, s8, v1
	global_store_dword v4, v0, s[6:7]
	s_cmp_eq_u32 s2, {grid - 1}
	s_cbranch_scc0 .L1
	global_load_dword v3, v1, s[6:7]
.L1:"""
    (first,) = found(body, RUNS[0], words=grid * 256, grid=grid)
    assert (first.kind, first.workgroup, first.instruction) == (
        "global-memory race",
        (grid - 1, 0, 0),
        "global_load_dword v3, v1, s[6:7]",
    )
    assert first.what.startswith("reads byte 0 of argument o, written by workgroup (0, 0, 0)")


# -- atomic operations -------------------------------------------------------------------------------------------------

ADD = "\tglobal_atomic_add v4, v0, s[6:7]\n"
ZERO = "\tv_mov_b32_e32 v4, 0\n"


@runs
@pytest.mark.parametrize("grid", [1, 3])
def test_atomic_operations_do_not_race_with_each_other(run, grid):
    assert not found(ZERO + ADD + ADD, run, grid=grid)


@runs
@pytest.mark.parametrize("plain", ["\tglobal_load_dword v3, v4, s[6:7]\n", "\tglobal_store_dword v4, v0, s[6:7]\n"])
@pytest.mark.parametrize("first", [True, False])
def test_atomic_operations_race_with_plain_ones(run, plain, first):
    one = "\tv_readfirstlane_b32 s8, v0\n\ts_cmp_lt_u32 s8, 64\n\ts_cbranch_scc{} .L1\n"
    body = ZERO + one.format(int(first)) + ADD + "\ts_endpgm\n.L1:\n" + plain
    assert "global-memory race" in kinds(body, run)
    apart = ZERO + ADD + WAIT + BARRIER + one.format(1) + "\ts_endpgm\n.L1:\n" + plain
    assert not found(apart, run, block=128)


@runs
def test_loads_and_stores_with_a_scope_are_atomic(run):
    stores = f"{ZERO}\tglobal_store_dword v4, v0, s[6:7] sc1\n\tglobal_load_dword v3, v4, s[6:7] sc1\n"
    assert not found(stores, run, grid=2)
    assert kinds(stores.replace(" sc1", ""), run, grid=2) == {"global-memory race"}


# -- what is under way while waves meet --------------------------------------------------------------------------------


@runs
def test_a_store_that_is_never_waited_for_is_not_ordered_by_barriers(run):
    assert kinds(f"{STORE}{BARRIER}{BARRIER}{LOAD}{WAIT}", run) == {"global-memory race"}


@runs
def test_a_store_may_be_waited_for_with_others_outstanding(run):
    """vmcnt(1) leaves the newest: the store is over, or it is the one that is not."""
    more = "\tglobal_load_dword v5, v1, s[4:5]\n"
    assert not found(f"{STORE}{more}\ts_waitcnt vmcnt(1)\n{BARRIER}{LOAD}", run)
    assert kinds(f"{more}{STORE}\ts_waitcnt vmcnt(1)\n{BARRIER}{LOAD}", run) == {"global-memory race"}


@runs
def test_a_load_under_way_meets_what_is_written_behind_the_barrier(run):
    behind = "\tglobal_store_dword v1, v0, s[6:7]\n"
    assert not found(f"{LOAD}{WAIT}{BARRIER}{behind}", run)
    assert kinds(f"{LOAD}{BARRIER}{behind}{WAIT}", run) == {"global-memory race"}
    assert kinds(f"{LOAD}{BARRIER}{BARRIER}{behind}", run) == {"global-memory race"}


@runs
def test_a_scalar_load_is_a_read(run):
    body = "\ts_nop 0\n\tv_readfirstlane_b32 s12, v2\n\ts_load_dword s13, s[6:7], s12\n{}"
    behind = "\tv_mov_b32_e32 v9, 7\n\tglobal_store_dword v1, v9, s[6:7]\n"
    done = "\ts_waitcnt lgkmcnt(0)\n"
    assert not found(body.format(done + BARRIER + behind), run)
    for fewer in (done + behind, BARRIER + behind + done):
        assert "global-memory race" in kinds(body.format(fewer), run)


@runs
def test_what_does_not_fit_the_counter_is_over(run):
    """After 64 more operations a store must have completed: vmcnt counts to 63."""
    more = "\tglobal_load_dword v5, v1, s[4:5]\n"
    assert not found(f"{STORE}{63 * more}{BARRIER}{LOAD}", run)
    assert kinds(f"{STORE}{62 * more}{BARRIER}{LOAD}", run) == {"global-memory race"}


# -- code of a compiler ------------------------------------------------------------------------------------------------

FLIP = (DATA / "flip_in_place_gfx942.s").read_text()
"""`write(read(c, mapping=upside_down), c)` in four waves, with nothing between the loads and the stores."""


@runs
def test_a_tile_turned_in_place_is_a_race_of_its_waves(run):
    c = np.arange(4096, dtype=np.float32).reshape(64, 64)
    with pytest.raises(EmulationError) as error:
        Emulator.from_assembly(FLIP).launch("flip", (1,), (256,), [c, 64, 1], **run)
    first = error.value.finding
    assert (first.kind, first.loc.file, first.loc.line) == ("global-memory race", "./flip.py", 11)
    assert re.match(r"(global_load|buffer_store)", first.instruction)


@runs
def test_a_tile_turned_in_place_behind_a_barrier_is_right(run):
    c = np.arange(4096, dtype=np.float32).reshape(64, 64)
    at = FLIP.index("\tbuffer_store")
    mended = f"{FLIP[:at]}{WAIT}{BARRIER}{FLIP[at:]}"
    turned = c.copy()
    assert not Emulator.from_assembly(mended).launch("flip", (1,), (256,), [turned, 64, 1], **run).findings
    assert (turned == c[::-1]).all()
    for _, text in without_each(f"{WAIT}{BARRIER}"):
        with pytest.raises(EmulationError, match=r"global-memory race|missing wait"):
            Emulator.from_assembly(f"{FLIP[:at]}{text}{FLIP[at:]}").launch("flip", (1,), (256,), [c, 64, 1], **run)


def test_arguments_that_overlap_race_as_one():
    """`a` and `o` are one array here: what is read through the one is written through the other."""
    out = np.zeros(256, np.uint32)
    text = kernel_text(START + OTHER + "\tglobal_load_dword v3, v2, s[4:5]\n" + STORE, lanes=256)
    assert {f.kind for f in findings_of(text, out, out, block=(256,))} == {"global-memory race"}
    assert not findings_of(text, out.copy(), out, block=(256,))
