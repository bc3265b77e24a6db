"""Loads, stores, shared memory, atomics: which bytes go where."""

import ml_dtypes
import numpy as np
import pytest
from emulated_code import compute, findings_of, kernel_text

from tilewave.emulator import Emulator
from tilewave.errors import CallError

rng = np.random.default_rng(3)
WORDS = rng.integers(0, 2**32, (64, 4), dtype=np.uint64).astype(np.uint32)
LANE = np.arange(64)
POINTERS = "\ts_load_dwordx4 s[4:7], s[0:1], 0x0\n\ts_waitcnt lgkmcnt(0)\n"
DESCRIPTOR = """
	s_mov_b32 s8, s4
	s_and_b32 s9, s5, 0xffff
	s_movk_i32 s10, {size}
	s_mov_b32 s11, 0x27000
"""


def test_bytes_and_halves_are_widened():
    body = """
	v_lshlrev_b32_e32 v3, 4, v0
	global_load_ubyte v100, v3, s[4:5] offset:1
	global_load_sbyte v101, v3, s[4:5] offset:2
	global_load_sshort v102, v3, s[4:5] offset:6
	v_mov_b32_e32 v103, -1
	global_load_short_d16_hi v103, v3, s[4:5] offset:8
	s_waitcnt vmcnt(0)"""
    found = compute(body, WORDS, results=4)
    raw = WORDS.view(np.uint8).reshape(64, 16)
    assert (found[:, 0] == raw[:, 1]).all()
    assert (found[:, 1].view(np.int32) == raw[:, 2].view(np.int8)).all()
    assert (found[:, 2].copy().view(np.int32) == WORDS.view(np.int16)[:, 3]).all()
    assert (found[:, 3] == WORDS.view(np.uint16)[:, 4].astype(np.uint32) << 16).all()


@pytest.mark.parametrize("chip", ["gfx942", "gfx950"])
@pytest.mark.parametrize("where", ["global", "buffer", "shared", "private"])
@pytest.mark.parametrize("upper", [False, True])
def test_a_load_of_half_a_register_clears_the_other_half(chip, where, upper):
    """The chips correct errors in their memories, and write whole registers."""
    hi = "_hi" if upper else ""
    load = {
        "global": f"\tglobal_load_short_d16{hi} v100, v3, s[4:5]",
        "buffer": DESCRIPTOR.format(size="0x400") + f"\tbuffer_load_short_d16{hi} v100, v3, s[8:11], 0 offen",
        "shared": f"\tds_write_b32 v3, v10\n\tds_read_u16_d16{hi} v100, v3",
        "private": f"\tscratch_store_dword off, v10, off\n\tscratch_load_short_d16{hi} v100, off, off",
    }[where]
    body = f"\tv_lshlrev_b32_e32 v3, 2, v0\n\tv_mov_b32_e32 v100, -1\n{load}\n\ts_waitcnt vmcnt(0) lgkmcnt(0)"
    given = np.ascontiguousarray(WORDS[:, :1])
    found = compute(body, given, chip=chip, shared=256, private=4)
    assert (found == (given & 0xFFFF) << (16 if upper else 0)).all()


@pytest.mark.parametrize(
    ("lane", "offset", "scalar", "reached"),
    [(0, 0, 0, 0), (-8, 12, 0, 1), (-8, 8, 4, 1), (-8, 0, 12, None), (-8, 4, 0, None), (4, 0, -4, None)],
)
def test_the_offsets_of_a_lane_wrap_and_the_scalar_one_does_not(lane, offset, scalar, reached):
    """Buffer addressing: lane + instruction offset wrap at 32 bits; out of bounds with the scalar offset reads zero."""
    body = f"""{DESCRIPTOR.format(size="0x400")}
	v_mov_b32_e32 v3, {lane}
	s_mov_b32 s12, {scalar}
	buffer_load_dword v100, v3, s[8:11], s12 offen offset:{offset}
	s_waitcnt vmcnt(0)"""
    expected = 0 if reached is None else WORDS.reshape(-1)[reached]
    assert (compute(body, WORDS)[:, 0] == expected).all()


def test_an_atomic_operation_over_the_end_of_a_buffer_does_nothing():
    body = (
        POINTERS
        + DESCRIPTOR.format(size="0xc").replace("s4", "s6").replace("s5", "s7")
        + """
	v_mov_b32_e32 v2, 1
	v_mov_b32_e32 v3, 0
	v_lshlrev_b32_e32 v4, 3, v0
	buffer_atomic_add_x2 v[2:3], v4, s[8:11], 0 offen"""
    )
    out = np.zeros(4, np.uint32)
    Emulator.from_assembly(kernel_text(body)).launch("k", (1,), (64,), [WORDS, out])
    assert out.tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("size", [1024, 1016, 1012, 6])
def test_a_buffer_ends_where_its_descriptor_says(size):
    """Words outside read as zero, also when only a part of an access is outside."""
    body = (
        DESCRIPTOR.format(size=f"{size:#x}")
        + """
	v_lshlrev_b32_e32 v3, 4, v0
	buffer_load_dwordx4 v[100:103], v3, s[8:11], 0 offen
	s_waitcnt vmcnt(0)"""
    )
    found = compute(body, WORDS, results=4)
    kept = (np.arange(256) + 1) * 4 <= size
    assert (found.reshape(-1) == np.where(kept, WORDS.reshape(-1), 0)).all()


def test_a_buffer_store_outside_is_dropped():
    body = (
        POINTERS
        + DESCRIPTOR.format(size="0x80").replace("s4", "s6").replace("s5", "s7")
        + """
	v_lshlrev_b32_e32 v3, 2, v0
	buffer_store_dword v0, v3, s[8:11], 0 offen"""
    )
    out = np.full(64, -1, np.int32)
    Emulator.from_assembly(kernel_text(body)).launch("k", (1,), (64,), [WORDS, out])
    assert (out == np.where(LANE < 32, LANE, -1)).all()


def test_shared_memory_keeps_what_is_written():
    body = """
	v_lshlrev_b32_e32 v3, 4, v0
	ds_write_b128 v3, v[10:13]
	v_xor_b32_e32 v4, 63, v0
	v_lshlrev_b32_e32 v4, 4, v4
	ds_read2_b64 v[100:103], v4 offset1:1
	s_waitcnt lgkmcnt(0)"""
    assert (compute(body, WORDS, results=4, shared=1024) == WORDS[::-1]).all()


def test_lanes_pass_values_through_the_shared_unit():
    body = """
	v_xor_b32_e32 v3, 5, v0
	v_lshlrev_b32_e32 v3, 2, v3
	ds_bpermute_b32 v100, v3, v10
	ds_permute_b32 v101, v3, v11
	ds_swizzle_b32 v102, v12 offset:swizzle(QUAD_PERM,3,2,1,0)
	ds_swizzle_b32 v103, v13 offset:swizzle(BITMASK_PERM,"00pip")
	s_waitcnt lgkmcnt(0)"""
    found = compute(body, WORDS, results=4)
    assert (found[:, 0] == WORDS[LANE ^ 5, 0]).all() and (found[:, 1] == WORDS[LANE ^ 5, 1]).all()
    assert (found[:, 2] == WORDS[LANE ^ 3, 2]).all()
    assert (found[:, 3] == WORDS[(LANE & 32) | ((LANE & 7) ^ 2), 3]).all()


def test_gfx950_reads_shared_memory_transposed():
    body = """
	v_lshlrev_b32_e32 v3, 3, v0
	ds_write_b64 v3, v[10:11]
	ds_read_b64_tr_b16 v[100:101], v3
	s_waitcnt lgkmcnt(0)"""
    pairs = np.ascontiguousarray(WORDS[:, :2])
    found = compute(body, pairs, results=2, shared=512, chip="gfx950").view(np.uint16).reshape(4, 16, 4)
    assert (found == pairs.view(np.uint16).reshape(4, 4, 16).transpose(0, 2, 1)).all()


def test_lanes_read_transposed_from_wherever_each_of_them_says():
    """Four lanes read a row of 16 elements, in parts at any address; lane i of 16 gets element i of each row."""
    body = """
	v_lshlrev_b32_e32 v3, 3, v0
	ds_write_b64 v3, v[10:11]
	ds_write_b64 v3, v[12:13] offset:512
	v_xor_b32_e32 v4, 40, v3
	ds_read_b64_tr_b16 v[100:101], v4 offset:256
	s_waitcnt lgkmcnt(0)"""
    words = np.ascontiguousarray(WORDS[:, :4])
    stored = np.concatenate([words[:, :2], words[:, 2:]]).view(np.uint16)
    read = stored[((LANE * 8 ^ 40) + 256) // 8]
    found = compute(body, words, results=2, shared=1024, chip="gfx950").view(np.uint16)
    for lane in range(64):
        rows = read[lane // 16 * 16 : lane // 16 * 16 + 16].reshape(4, 16)
        assert (found[lane] == rows[:, lane % 16]).all()


def test_atomic_operations_see_each_other():
    body = (
        POINTERS
        + """
	v_mov_b32_e32 v3, 0
	v_mov_b32_e32 v4, 1
	global_atomic_add v5, v3, v4, s[6:7] sc0
	s_waitcnt vmcnt(0)
	v_lshlrev_b32_e32 v6, 2, v0
	s_lshl_b32 s8, s2, 8
	v_add_u32_e32 v6, s8, v6
	global_store_dword v6, v5, s[6:7] offset:8
	v_cvt_f32_u32_e32 v7, v0
	global_atomic_add_f32 v3, v7, s[6:7] offset:4"""
    )
    out = np.zeros(2 + 3 * 64, np.uint32)
    Emulator.from_assembly(kernel_text(body)).launch("k", (3,), (64,), [WORDS, out])
    assert out[0] == 192 and sorted(out[2:]) == list(range(192))
    assert out[1:2].view(np.float32)[0] == 3 * LANE.sum()


def test_atomics_on_shared_memory():
    body = """
	v_and_b32_e32 v3, 3, v0
	v_lshlrev_b32_e32 v3, 2, v3
	v_mov_b32_e32 v4, 0
	ds_write_b32 v3, v4
	ds_add_u32 v3, v0
	ds_max_rtn_u32 v101, v3, v0
	ds_read_b32 v100, v3
	s_waitcnt lgkmcnt(0)"""
    found = compute(body, results=2, shared=16)
    assert (found[:, 0] == LANE.reshape(16, 4).sum(axis=0)[LANE % 4]).all()


@pytest.mark.parametrize("chip, width, words", [("gfx942", "dword", 1), ("gfx950", "dwordx4", 4)])
def test_direct_loads_fill_shared_memory(chip, width, words):
    body = f"""
	s_mov_b32 m0, 0
	v_lshlrev_b32_e32 v3, {2 if words == 1 else 4}, v0
	global_load_lds_{width} v3, s[4:5]
	s_waitcnt vmcnt(0)
	v_lshlrev_b32_e32 v4, 2, v0
	ds_read_b32 v100, v4
	s_waitcnt lgkmcnt(0)"""
    given = np.ascontiguousarray(WORDS[:, :words])
    found = compute(body, given, results=1, shared=256 * words, chip=chip)
    assert (found[:, 0] == given.reshape(-1)[:64]).all()


BUFFER = """
	s_mov_b32 s8, s4
	s_and_b32 s9, s5, 0xffff
	s_movk_i32 s10, 0x{size:x}
	s_mov_b32 s11, 0x27000"""


@pytest.mark.parametrize(
    ("chip", "width", "words"), [("gfx942", "dword", 1), ("gfx950", "dword", 1), ("gfx950", "dwordx4", 4)]
)
def test_direct_loads_of_buffers_choose_what_they_take_and_not_where_it_goes(chip, width, words):
    """Lanes take chunks in reverse; m0 and the offset give the first chunk's destination, and out of bounds is zero."""
    chunk = 4 * words
    body = (
        BUFFER.format(size=48 * chunk)
        + f"""
	v_sub_u32_e32 v3, 63, v0
	v_mul_u32_u24_e32 v3, {chunk}, v3
	s_movk_i32 m0, 0x200
	s_mov_b32 s12, {chunk}
	buffer_load_{width} v3, s[8:11], s12 offen offset:{chunk} lds
	s_waitcnt vmcnt(0)
	v_mul_u32_u24_e32 v4, {chunk}, v0
	ds_read_b32 v100, v4 offset:{0x200 + chunk}
	s_waitcnt lgkmcnt(0)"""
    )
    given = np.ascontiguousarray(WORDS[:, :words])
    found = compute(body, given, results=1, shared=0x400 + 64 * chunk, chip=chip)
    taken = 63 - LANE + 2
    assert (found[:, 0] == np.where(taken < 48, given[np.minimum(taken, 63), 0], 0)).all()


def test_lanes_that_load_three_words_directly_leave_a_fourth_between():
    body = """
	s_mov_b32 m0, 0
	v_lshlrev_b32_e32 v3, 4, v0
	global_load_lds_dwordx3 v3, s[4:5]
	s_waitcnt vmcnt(0)
	ds_read_b32 v100, v3 offset:8
	s_waitcnt lgkmcnt(0)"""
    found = compute(body, WORDS[:, :4], results=1, shared=1024, chip="gfx950")
    assert (found[:, 0] == WORDS[:, 2]).all()


def test_private_memory_is_each_lanes_own():
    body = """
	v_lshlrev_b32_e32 v3, 2, v0
	v_and_b32_e32 v3, 12, v3
	scratch_store_dword v3, v10, off
	scratch_load_dword v100, v3, off
	s_waitcnt vmcnt(0)"""
    assert (compute(body, WORDS, private=16)[:, 0] == WORDS[:, 0]).all()


# -- arguments ---------------------------------------------------------------------------------------------------------

COPY = (
    POINTERS
    + """
	v_lshlrev_b32_e32 v3, 1, v0
	global_load_ushort v4, v3, s[4:5]
	s_waitcnt vmcnt(0)
	global_store_short v3, v4, s[6:7]"""
)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int16])
def test_arrays_of_any_dtype_are_pointers(dtype):
    a, out = rng.standard_normal(64).astype(dtype), np.zeros(64, dtype)
    Emulator.from_assembly(kernel_text(COPY)).launch("k", (1,), (64,), [a, out])
    assert (a == out).all()


def test_a_view_is_reached_where_it_lies():
    whole = np.arange(200, dtype=np.int16)
    out = np.zeros((64, 3), np.int16)
    Emulator.from_assembly(kernel_text(COPY)).launch("k", (1,), (64,), [whole[100:164], out[:, :2]])
    assert (out.reshape(-1)[:64] == np.arange(100, 164)).all() and (out.reshape(-1)[64:] == 0).all()


def test_arguments_that_overlap_are_one_buffer():
    whole = np.arange(128, dtype=np.int16)
    Emulator.from_assembly(kernel_text(COPY)).launch("k", (1,), (64,), [whole[64:], whole[32:96]])
    assert (whole == np.concatenate([np.arange(32), np.arange(64, 128), np.arange(96, 128)])).all()


def test_a_read_only_array_is_not_written():
    out = np.zeros(64, np.int16)
    out.flags.writeable = False
    (found,) = findings_of(kernel_text(COPY), np.zeros(64, np.int16), out)
    assert found.what == "writes 2 bytes of argument o, which is read-only" and (out == 0).all()


def test_arguments_must_fit_the_metadata():
    emulator = Emulator.from_assembly(kernel_text(COPY))
    with pytest.raises(CallError) as error:
        emulator.launch("k", (1,), (64,), [WORDS])
    assert str(error.value) == (
        "k takes 2 arguments, and 1 were given\n"
        "  its metadata names: a (global_buffer, 8 bytes), o (global_buffer, 8 bytes)"
    )
    with pytest.raises(CallError, match="argument a of k is a pointer"):
        emulator.launch("k", (1,), (64,), [5, WORDS])
    with pytest.raises(CallError, match="no kernel is called 'gemm'"):
        emulator.launch("gemm", (1,), (64,), [])
    with pytest.raises(CallError, match="a workgroup has 1 to 1024 lanes, not 2048"):
        emulator.launch("k", (1,), (2048,), [WORDS, WORDS])


def test_a_base_in_shared_memory_may_be_negative():
    """Base and offset are added in 32 bits; compilers fold constants into the offset."""
    body = (
        "\tv_lshlrev_b32_e32 v3, 2, v0\n\tds_write_b32 v3, v0\n\ts_waitcnt lgkmcnt(0)\n\ts_barrier\n"
        "\tv_subrev_u32_e32 v3, 0x200, v3\n\tds_read_b32 v100, v3 offset:512\n\ts_waitcnt lgkmcnt(0)"
    )
    assert (compute(body, shared=256)[:, 0] == np.arange(64)).all()
