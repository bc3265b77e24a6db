"""Each mistake of machine code is found, and said in these words."""

import numpy as np
import pytest
from emulated_code import findings_of, kernel_text

from tilewave.emulator import EmulationError, Emulator

WORDS = np.arange(256, dtype=np.uint32)
START = "\ts_load_dwordx4 s[4:7], s[0:1], 0x0\n\tv_lshlrev_b32_e32 v1, 2, v0\n\ts_waitcnt lgkmcnt(0)\n"
orders = pytest.mark.parametrize("order", ["barrier", "random"])


def only(text, *arrays, **options):
    (finding,) = findings_of(text, *(arrays or (WORDS, np.zeros(256, np.uint32))), **options)
    return finding


def test_a_missing_wait_for_a_load_is_found():
    found = only(kernel_text(START + "\tglobal_load_dword v2, v1, s[4:5]\n\tv_add_u32_e32 v3, 1, v2\n"))
    assert str(found) == (
        "missing wait: reads v2 before `global_load_dword v2, v1, s[4:5]` has delivered it\n"
        "  wave 0 of workgroup (0, 0, 0), line 8: v_add_u32_e32 v3, 1, v2\n"
        "  s_waitcnt vmcnt(0) must be between them"
    )


def test_a_wait_for_too_little_is_found():
    body = """
	ds_write_b32 v1, v0
	ds_read_b32 v2, v1
	ds_read_b32 v3, v1
	ds_read_b32 v4, v1
	s_waitcnt lgkmcnt({})
	v_add_u32_e32 v5, v3, v2"""
    assert not findings_of(kernel_text(START + body.format(1), shared=256), WORDS, WORDS)
    found = only(kernel_text(START + body.format(2), shared=256))
    assert found.what == "reads v3 before `ds_read_b32 v3, v1` has delivered it"
    assert found.remedy == "s_waitcnt lgkmcnt(1) must be between them"


@pytest.mark.parametrize(
    ("load", "most"),
    [("ds_read_b32 v{}, v1", 15), ("global_load_dword v{}, v1, s[4:5]", 63), ("scratch_load_dword v{}, off, off", 63)],
)
def test_no_more_operations_are_under_way_than_a_counter_counts(load, most):
    """The first operation has completed when as many others could be issued after it without a wait."""

    def found(count):
        loads = "\n\t".join(load.format(10 + i) for i in range(1 + count))
        body = f"\tds_write_b32 v1, v0\n\ts_waitcnt lgkmcnt(0)\n\t{loads}\n\tv_add_u32_e32 v5, 1, v10"
        return findings_of(kernel_text(START + body, shared=256, private=4), WORDS, WORDS)

    assert not found(most)
    assert [f.kind for f in found(most - 1)] == ["missing wait"]


def test_scalar_loads_come_in_any_order():
    body = (
        "\ts_load_dword s8, s[4:5], 0x0\n\ts_load_dword s9, s[4:5], 0x4\n\ts_waitcnt lgkmcnt({})\n\ts_add_u32 s8, s8, 1"
    )
    assert not findings_of(kernel_text(START + body.format(0)), WORDS, WORDS)
    found = only(kernel_text(START + body.format(1)))
    assert found.what == "reads s8 before `s_load_dword s8, s[4:5], 0x0` has delivered it"
    assert found.remedy == "s_waitcnt lgkmcnt(0) must be between them"


def test_overwriting_what_a_load_will_write_is_found():
    found = only(kernel_text(START + "\tglobal_load_dword v2, v1, s[4:5]\n\tv_mov_b32_e32 v2, 0"))
    assert found.what == "overwrites v2 before `global_load_dword v2, v1, s[4:5]` has delivered it"


def test_a_load_outstanding_around_a_loop_is_found():
    """The second round reads what the first has loaded."""
    body = """
	s_mov_b32 s8, 0
	v_mov_b32_e32 v2, 0
.L1:
	v_add_u32_e32 v3, 1, v2
	global_load_dword v2, v1, s[4:5]
	s_add_i32 s8, s8, 1
	s_cmp_lt_u32 s8, 3
	s_cbranch_scc1 .L1"""
    found = only(kernel_text(START + body))
    assert found.what == "reads v2 before `global_load_dword v2, v1, s[4:5]` has delivered it"


# -- shared memory -----------------------------------------------------------------------------------------------------

EXCHANGE = """
	ds_write_b32 v1, v0
	{wait}
	{barrier}
	v_xor_b32_e32 v2, 64, v0
	v_lshlrev_b32_e32 v2, 2, v2
	ds_read_b32 v3, v2
	s_waitcnt lgkmcnt(0)
	global_store_dword v1, v3, s[6:7]"""
WAIT, BARRIER = "s_waitcnt lgkmcnt(0)", "s_barrier"


def exchange(wait, barrier):
    return kernel_text(START + EXCHANGE.format(wait=wait, barrier=barrier), shared=512, lanes=128)


@orders
def test_waves_exchange_values_over_a_barrier(order):
    out = np.zeros(128, np.uint32)
    assert not findings_of(exchange(WAIT, BARRIER), WORDS, out, block=(128,), order=order)
    assert (out == np.arange(128) ^ 64).all()


def test_a_missing_barrier_is_a_race():
    found = only(exchange(WAIT, ""), block=(128,))
    assert str(found) == (
        "shared-memory race: reads byte 256 of shared memory, written by wave 1 since the last barrier\n"
        "  wave 0 of workgroup (0, 0, 0), line 13: ds_read_b32 v3, v2\n"
        "  s_waitcnt lgkmcnt(0) and s_barrier must be between them"
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_missing_barrier_is_found_in_every_order(seed):
    """As a race, by whichever wave comes second, or as a read of what is not there yet."""
    found = findings_of(exchange(WAIT, ""), WORDS, np.zeros(128, np.uint32), block=(128,), order="random", seed=seed)
    assert {f.kind for f in found} <= {"shared-memory race", "unwritten shared memory"} and found
    assert any(f.kind == "shared-memory race" for f in found)


@orders
def test_a_barrier_before_the_write_has_arrived_is_a_race(order):
    """A barrier orders what was waited for, and nothing else."""
    found = only(exchange("", BARRIER), block=(128,), order=order)
    assert (found.kind, found.instruction) == ("shared-memory race", "ds_read_b32 v3, v2")


@orders
def test_overwriting_what_another_wave_reads_is_a_race(order):
    body = EXCHANGE.format(wait=WAIT, barrier=BARRIER) + "\n\tds_write_b32 v1, v3"
    text = kernel_text(START + body, shared=512, lanes=128)
    found = findings_of(text, WORDS, np.zeros(128, np.uint32), block=(128,), order=order)
    assert {f.kind for f in found} == {"shared-memory race"}
    assert {f.instruction for f in found} <= {"ds_write_b32 v1, v3", "ds_read_b32 v3, v2"}  # whichever comes second
    fixed = body.replace("\n\tglobal_store", "\n\ts_barrier\n\tglobal_store")
    assert not findings_of(kernel_text(START + fixed, shared=512, lanes=128), WORDS, WORDS, block=(128,), order=order)


def test_two_waves_that_write_one_byte_race():
    body = "\tv_and_b32_e32 v2, 63, v0\n\tds_write_b8 v2, v0"
    found = only(kernel_text(START + body, shared=512, lanes=128), block=(128,))
    assert found.what == "overwrites byte 0 of shared memory, written by wave 1 since the last barrier"


@orders
@pytest.mark.parametrize("plain", ["ds_read_b32 v3, v2", "ds_write_b32 v2, v0"])
def test_atomic_operations_on_shared_memory_race_with_plain_ones(plain, order):
    body = f"""
	ds_write_b32 v1, v0
	s_waitcnt lgkmcnt(0)
	s_barrier
	v_xor_b32_e32 v2, 0x100, v1
	ds_add_u32 v1, v0
{{wait}}{{barrier}}	{plain}
	s_waitcnt lgkmcnt(0)"""
    wait, barrier = "\ts_waitcnt lgkmcnt(0)\n", "\ts_barrier\n"

    def found(wait, barrier):
        text = kernel_text(START + body.format(wait=wait, barrier=barrier), shared=512, lanes=128)
        return {f.kind for f in findings_of(text, WORDS, WORDS, block=(128,), order=order)}

    assert not found(wait, barrier)
    for fewer in (("", barrier), (wait, ""), ("", "")):
        assert found(*fewer) == {"shared-memory race"}


@orders
def test_flat_accesses_of_shared_memory_are_looked_at_too(order):
    body = """
	s_mov_b64 s[8:9], src_shared_base
	v_mov_b32_e32 v5, s9
	v_mov_b32_e32 v4, v1
	flat_store_dword v[4:5], v0
{wait}{barrier}	v_xor_b32_e32 v4, 0x100, v1
	flat_load_dword v3, v[4:5]
	s_waitcnt vmcnt(0) lgkmcnt(0)
	global_store_dword v1, v3, s[6:7]"""
    wait, barrier = "\ts_waitcnt vmcnt(0) lgkmcnt(0)\n", "\ts_barrier\n"
    out = np.zeros(128, np.uint32)

    def found(wait, barrier, shared=512):
        text = kernel_text(START + body.format(wait=wait, barrier=barrier), shared=shared, lanes=128)
        return {f.kind for f in findings_of(text, WORDS, out, block=(128,), order=order)}

    assert not found(wait, barrier)
    assert (out == np.arange(128) ^ 64).all()
    for fewer in (("", barrier), (wait, "")):
        assert "shared-memory race" in found(*fewer)
    assert "out of bounds" in found(wait, barrier, shared=256)


def test_workgroups_do_not_share():
    body = EXCHANGE.replace("global_store", "s_lshl_b32 s8, s2, 9\n\tv_add_u32_e32 v1, s8, v1\n\tglobal_store")
    text = kernel_text(START + body.format(wait=WAIT, barrier=BARRIER), shared=512, lanes=128)
    assert not findings_of(text, WORDS, np.zeros(5 * 128, np.uint32), grid=(5,), block=(128,))


def test_reading_what_nobody_wrote_is_found():
    found = only(kernel_text(START + "\tds_read_b32 v2, v1 offset:16", shared=512))
    assert str(found) == (
        "unwritten shared memory: reads byte 16 of shared memory, which was never written\n"
        "  wave 0 of workgroup (0, 0, 0), line 7: ds_read_b32 v2, v1 offset:16\n"
        "  write it first"
    )


def test_reading_before_a_direct_load_has_arrived_is_found():
    body = """
	s_mov_b32 m0, 0
	s_nop 0
	global_load_lds_dword v1, s[4:5]
	global_load_dword v5, v1, s[4:5]
	s_waitcnt vmcnt({})
	ds_read_b32 v2, v1"""
    assert not findings_of(kernel_text(START + body.format(1), shared=256), WORDS, WORDS)
    found = only(kernel_text(START + body.format(2), shared=256))
    assert found.kind == "missing wait"
    assert found.what == "reads byte 0 of shared memory before the direct load that writes it has arrived"


def test_another_wave_reading_what_a_direct_load_brings_needs_the_wait_and_the_barrier():
    body = """
	v_and_b32_e32 v3, 0x7f, v0
	v_lshlrev_b32_e32 v3, 4, v3
	v_readfirstlane_b32 s8, v0
	s_lshl_b32 m0, s8, 4
	s_nop 0
	global_load_lds_dwordx4 v3, s[4:5]
{wait}{barrier}	v_xor_b32_e32 v4, 0x400, v3
	ds_read_b128 v[8:11], v4
	s_waitcnt lgkmcnt(0)
	global_store_dwordx4 v3, v[8:11], s[6:7]"""
    words, out = np.arange(1024, dtype=np.uint32), np.zeros(1024, np.uint32)
    wait, barrier = "\ts_waitcnt vmcnt(0)\n", "\ts_barrier\n"

    def found(wait, barrier):
        text = kernel_text(START + body.format(wait=wait, barrier=barrier), shared=2048, lanes=128, chip="gfx950")
        return findings_of(text, words, out, block=(128,))

    assert not found(wait, barrier)
    assert (out[:512] == words[:512].reshape(2, 256)[::-1].reshape(-1)).all()
    for fewer in (("", barrier), (wait, ""), (barrier, wait)):
        assert [f.kind for f in found(*fewer)][:1] == ["shared-memory race"]


# -- registers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("operands", "count"), [("v1, v7", 0), ("v7, v1", 1)])
def test_of_a_packed_pair_the_low_half_is_followed(operands, count):
    """LLVM packs one number with whatever register is at hand, and stores half of it."""
    body = f"\tv_cvt_pk_bf16_f32 v3, {operands}\n\tglobal_store_short v1, v3, s[6:7]"
    found = findings_of(kernel_text(START + body, chip="gfx950"), *(np.zeros(64, np.uint32) for _ in range(2)))
    assert [f.kind for f in found] == ["unwritten register"] * count


def test_scalars_that_lanes_keep_may_have_unwritten_neighbours():
    keep = "\tv_writelane_b32 v9, s6, 0\n\tv_writelane_b32 v9, s7, 1\n\tv_writelane_b32 v9, s20, 2\n\ts_nop 4\n"
    back = "\tv_readlane_b32 s10, v9, 0\n\tv_readlane_b32 s11, v9, 1\n\ts_nop 4\n\tglobal_store_dword v1, v1, s[10:11]"
    assert not findings_of(kernel_text(START + keep + back), *(np.zeros(64, np.uint32) for _ in range(2)))


@pytest.mark.parametrize(
    ("kept", "count"),
    [
        ("s_andn2_b64 s[8:9], s[20:21], exec", 0),
        ("s_andn2_b64 s[8:9], s[20:21], vcc", 1),
        ("s_and_b64 s[8:9], s[20:21], exec", 1),
    ],
)
def test_what_a_mask_says_of_lanes_that_are_off_may_be_unwritten(kept, count):
    """LLVM joins a mask of two paths: what lanes that are off had stays, those that are on get what is new."""
    new = "\tv_cmp_gt_u32_e64 vcc, 7, v0\n\ts_and_b64 s[10:11], vcc, exec\n"
    joined = f"\t{kept}\n\ts_or_b64 s[20:21], s[8:9], s[10:11]\n\tv_cndmask_b32_e64 v3, 0, 1, s[20:21]\n"
    body = new + joined + "\tglobal_store_dword v1, v3, s[6:7]"
    found = findings_of(kernel_text(START + body), *(np.zeros(64, np.uint32) for _ in range(2)))
    assert [f.what for f in found] == ["uses v3, computed from s20, which was never written"] * count


@pytest.mark.parametrize(
    ("field", "missing"),
    [("s[20:21], 0x200000", ""), ("s[20:21], 0x80010", ""), ("s[20:21], 0x100018", "s21"),
     ("s[18:19], 0x200000", "s18"), ("s[18:19], 0x80020", ""), ("s[20:21], s7", "s21")],
)  # fmt: skip
@pytest.mark.parametrize("sign", "iu")
def test_a_field_of_a_pair_needs_the_half_that_it_lies_in(sign, field, missing):
    """LLVM extends the sign of a number so, and leaves its upper half open."""
    written = "\ts_mov_b32 s20, 5\n\ts_mov_b32 s19, 5\n"
    body = f"{written}\ts_bfe_{sign}64 s[8:9], {field}\n\tv_mov_b32_e32 v3, s9\n\tglobal_store_dword v1, v3, s[6:7]"
    found = findings_of(kernel_text(START + body), *(np.zeros(64, np.uint32) for _ in range(2)))
    assert [f.what for f in found] == [f"uses v3, computed from {missing}, which was never written"] * bool(missing)


@pytest.mark.parametrize(
    ("shift", "needed"),
    [("lshl_b64 {}, 0", "0 1"), ("lshl_b64 {}, 1", "0 01"), ("lshl_b64 {}, 32", "- 0"), ("lshl_b64 {}, 40", "- 0"),
     ("lshr_b64 {}, 0", "0 1"), ("lshr_b64 {}, 1", "01 1"), ("lshr_b64 {}, 32", "1 -"), ("lshr_b64 {}, 40", "1 -"),
     ("ashr_i64 {}, 1", "01 1"), ("ashr_i64 {}, 32", "1 1"), ("ashr_i64 {}, 40", "1 1"), ("ashr_i64 {}, s7", "01 01")],
)  # fmt: skip
def test_of_a_pair_that_is_shifted_the_halves_that_matter_are_followed(shift, needed):
    for half, sources in enumerate(needed.split()):
        for open_half in (0, 1):
            body = f"\ts_mov_b32 s{21 - open_half}, 5\n\ts_{shift.replace('{}', 's[8:9], s[20:21]')}\n"
            body += f"\tv_mov_b32_e32 v3, s{8 + half}\n\tglobal_store_dword v1, v3, s[6:7]"
            found = findings_of(kernel_text(START + body), *(np.zeros(64, np.uint32) for _ in range(2)))
            assert len(found) == (str(open_half) in sources), (half, open_half)


def test_storing_what_was_computed_from_nothing_is_found():
    found = only(kernel_text(START + "\tv_add_u32_e32 v3, v1, v7\n\tglobal_store_dword v1, v3, s[6:7]"))
    assert str(found) == (
        "unwritten register: uses v3, computed from v7, which was never written\n"
        "  wave 0 of workgroup (0, 0, 0), line 8: global_store_dword v1, v3, s[6:7]\n"
        "  write it first"
    )


def test_an_unwritten_upper_half_that_does_not_matter_is_none():
    """LLVM leaves upper halves open where only the lower half of a sum is used."""
    body = (
        "\tv_mov_b32_e32 v10, 0\n\tv_mad_u64_u32 v[2:3], s[8:9], v0, 4, v[10:11]\n\tglobal_store_dword v1, v{}, s[6:7]"
    )
    assert not findings_of(kernel_text(START + body.format(2)), WORDS, np.zeros(256, np.uint32))
    assert only(kernel_text(START + body.format(3))).what == "uses v3, computed from v11, which was never written"


SHIFTED = "\tv_mov_b32_e32 v10, v0\n\tv_lshrrev_b64 v[2:3], {by}, v[10:11]\n{between}\t{use}"
"""v11 was never written; LLVM takes the bytes of v10 apart so."""


def shifted(by, use, between=""):
    text = kernel_text(START + SHIFTED.format(by=by, use=use, between=between), shared=1024)
    return [f.what for f in findings_of(text, WORDS, np.zeros(256, np.uint32))]


@pytest.mark.parametrize("use", ["global_store_{} v1, v2, s[6:7]", "ds_write_{} v1, v2"], ids=["global", "shared"])
@pytest.mark.parametrize(("by", "bits"), [(8, 16), (16, 16), (17, 8), (24, 8), (25, 0), (31, 0), (32, 0), (40, 0)])
def test_what_is_shifted_into_a_part_that_is_not_stored_may_be_unwritten(use, by, bits):
    for size, names in {8: ("byte", "b8"), 16: ("short", "b16"), 32: ("dword", "b32")}.items():
        found = shifted(by, use.format(names["ds" in use]))
        assert found == ([] if size <= bits else ["uses v2, computed from v11, which was never written"])


def test_bits_are_known_from_block_to_block_until_they_are_computed_with():
    store = "global_store_byte v1, v2, s[6:7]"
    loop = "\ts_mov_b32 s9, 0\n.L7:\n\ts_add_u32 s9, s9, 1\n\ts_cmp_lt_u32 s9, 3\n\ts_cbranch_scc1 .L7\n"
    assert not shifted(8, store, loop)
    assert not shifted(8, store, "\tv_lshrrev_b64 v[2:3], 8, v[2:3]\n")
    assert shifted(8, store, "\tv_lshrrev_b64 v[2:3], 9, v[2:3]\n\tv_lshrrev_b64 v[2:3], 8, v[2:3]\n")
    assert shifted(8, store, "\tv_lshrrev_b32_e32 v2, 17, v2\n")
    assert shifted(8, "global_store_byte v2, v2, s[6:7]")  # it is an address as well
    assert shifted(8, "global_store_short_d16_hi v1, v2, s[6:7]")


SPILLED = """	v_mov_b32_e32 v10, v0
{before}
	scratch_store_dwordx2 off, v[10:11], {base} offset:8
{between}
	scratch_load_dwordx2 v[20:21], off, {base} offset:8
	s_waitcnt vmcnt(0)
	global_store_dword v1, v{used}, s[6:7]"""
"""v11 was never written; LLVM spills such pairs."""


def spilled(used, before="", between="", base="off"):
    body = SPILLED.format(used=used, before=before, between=between, base=base)
    text = kernel_text(START + body, private=8192)
    return [f.what for f in findings_of(text, *(np.zeros(256, np.uint32) for _ in range(2)))]


FAR = "\ts_movk_i32 s8, 0x1000"


@pytest.mark.parametrize(("before", "base"), [("", "off"), (FAR, "s8"), ("\ts_mov_b32 s8, 0x1000", "s8")])
def test_half_of_a_pair_that_is_spilled_may_be_open(before, base):
    assert not spilled(20, before, base=base)
    assert spilled(21, before, base=base) == ["uses v21, computed from v11, which was never written"]


def test_what_is_stored_over_an_open_half_closes_it():
    assert not spilled(21, between="\tscratch_store_dword off, v0, off offset:12")
    assert spilled(21, between="\tscratch_store_dword off, v0, off offset:8")
    assert spilled(21, between="\tscratch_store_dword off, v0, off offset:16")
    assert spilled(21, between="\tscratch_store_short off, v0, off offset:12")
    assert spilled(21, between="\tscratch_store_dword off, v0, off offset:12", before=FAR, base="s8")


def test_a_reload_of_two_open_halves_names_the_first():
    halves = [f"\tscratch_store_short off, v{register}, off offset:{at}" for register, at in ((12, 8), (13, 10))]
    for between in ("\n".join(halves), "\n".join(reversed(halves))):
        assert spilled(20, between=between) == ["uses v20, computed from v12, which was never written"]


def test_an_open_half_stays_open_from_block_to_block():
    loop = "\ts_mov_b32 s9, 0\n.L7:\n\ts_add_u32 s9, s9, 1\n\ts_cmp_lt_u32 s9, 3\n\ts_cbranch_scc1 .L7"
    assert not spilled(20, between=loop)
    assert spilled(21, between=loop)


def test_an_open_half_spilled_to_a_place_that_the_path_does_not_know_is_used():
    assert spilled(20, before="\ts_movk_i32 s9, 16\n\ts_add_u32 s8, s9, 0", base="s8") == [
        "uses v11, which was never written"
    ]


def test_an_access_without_lanes_uses_nothing():
    body = "\ts_mov_b64 exec, 0\n\tglobal_store_dword v1, v7, s[6:7]"
    assert not findings_of(kernel_text(START + body), WORDS, np.zeros(256, np.uint32))


# -- bounds and alignment ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body, verb",
    [
        ("\tglobal_load_dword v2, v1, s[4:5] offset:1024", "reads"),
        ("\tglobal_store_dword v1, v0, s[4:5] offset:1024", "writes"),
    ],
)
def test_an_access_behind_an_array_is_found(body, verb):
    found = only(kernel_text(START + body))
    assert str(found) == (
        f"out of bounds: {verb} 4 bytes that begin 0 bytes after the end of argument a, which has 1024\n"
        f"  wave 0 of workgroup (0, 0, 0), line 7: {body.strip()}\n"
        "  predicate the access, or pass the whole array"
    )


def test_an_access_over_the_end_of_an_array_is_found():
    found = only(kernel_text(START + "\tv_mov_b32_e32 v2, 0\n\tglobal_load_dwordx2 v[4:5], v2, s[4:5] offset:1020"))
    assert found.what == "reads 8 bytes that extend past the end of argument a, of which 4 bytes are left"
    found = only(kernel_text(START + "\tv_mov_b32_e32 v2, 0\n\tglobal_load_dword v4, v2, s[4:5] offset:-16"))
    assert found.what == "reads 4 bytes that begin 16 bytes before argument a"


def test_no_array_is_changed_when_a_check_raises():
    out = np.zeros(256, np.uint32)
    body = "\tglobal_store_dword v1, v0, s[6:7]\n\tglobal_load_dword v2, v1, s[4:5] offset:1024"
    with pytest.raises(EmulationError, match="out of bounds"):
        Emulator.from_assembly(kernel_text(START + body)).launch("k", (1,), (64,), [WORDS, out])
    assert (out == 0).all()


def test_shared_memory_ends():
    found = only(kernel_text(START + "\tds_write_b32 v1, v0", shared=128))
    assert str(found) == (
        "out of bounds: 4 bytes at byte 128 of 128 bytes of shared memory\n"
        "  wave 0 of workgroup (0, 0, 0), line 7: ds_write_b32 v1, v0\n"
        "  the kernel asks for too little of it, or the address is wrong"
    )


def test_a_word_of_shared_memory_begins_at_a_multiple_of_four():
    found = only(kernel_text(START + "\tds_write_b64 v1, v[0:1] offset:2", shared=512))
    assert str(found).splitlines()[0] == "misaligned access: 8 bytes at byte 2 of shared memory"
    assert found.remedy == "its address must be divisible by 4"


def test_an_atomic_operation_is_aligned():
    found = findings_of(
        kernel_text(START + "\tglobal_atomic_add v1, v0, s[6:7] offset:2"), WORDS, np.zeros(256, np.uint32)
    )
    assert [f.kind for f in found] == ["misaligned access"]


@pytest.mark.parametrize(("bits", "kinds"), [("0x1", []), ("0x20000", ["out of bounds"])])
def test_an_atomic_operation_keeps_the_bytes_after_an_array_in_its_last_word(bits, kinds):
    body = f"""\tv_mov_b32_e32 v2, 4
\tv_mov_b32_e32 v3, {bits}
\tv_cmp_eq_u32_e32 vcc, 0, v0
\ts_and_saveexec_b64 s[8:9], vcc
\tglobal_atomic_or v2, v3, s[6:7]"""
    out = np.zeros(3, np.uint16)
    found = findings_of(kernel_text(START + body), WORDS, out)
    assert [f.kind for f in found] == kinds
    assert out[2] == (bits == "0x1")


# -- barriers and loops ------------------------------------------------------------------------------------------------


@orders
def test_a_wave_that_ends_early_leaves_others_waiting(order):
    body = "\tv_readfirstlane_b32 s8, v0\n\ts_cmp_lt_u32 s8, 64\n\ts_cbranch_scc1 .L1\n\ts_barrier\n.L1:"
    found = only(kernel_text(START + body, lanes=128), block=(128,), order=order)
    assert str(found) == (
        "barrier mismatch: waits for wave 0, which has ended and passed fewer barriers\n"
        "  wave 1 of workgroup (0, 0, 0), line 10: s_barrier\n"
        "  every wave of a workgroup must pass the same number of barriers"
    )


def test_waves_may_meet_at_different_barriers():
    body = "\tv_readfirstlane_b32 s8, v0\n\ts_cmp_lt_u32 s8, 64\n\ts_cbranch_scc1 .L1\n"
    body += "\ts_barrier\n\ts_endpgm\n.L1:\n\ts_barrier"
    assert not findings_of(kernel_text(START + body, lanes=128), WORDS, WORDS, block=(128,))


@pytest.mark.parametrize("check", ["strict", "warn", "off"])
def test_an_endless_loop_ends(check):
    text = kernel_text(START + ".L1:\n\ts_nop 0\n\ts_branch .L1")
    with pytest.raises(EmulationError) as error:
        Emulator.from_assembly(text).launch("k", (1,), (64,), [WORDS, WORDS], check=check, limit=1000)
    assert str(error.value) == (
        "endless run: a wave has run more than 1000 instructions\n"
        "  wave 0 of workgroup (0, 0, 0), line 9: s_branch .L1\n"
        "  does the loop end? If it does, pass a higher limit: limit=10000"
    )


@orders
def test_a_wave_may_wait_for_what_another_stores(order):
    """Wave 1 comes first in the text and spins until wave 0 has stored; both orders let wave 0 run."""
    body = """
	v_mov_b32_e32 v2, 0
	v_readfirstlane_b32 s8, v0
	s_cmp_lt_u32 s8, 64
	s_cbranch_scc1 .L2
.L1:
	global_load_dword v3, v2, s[6:7] sc0
	s_waitcnt vmcnt(0)
	v_readfirstlane_b32 s9, v3
	s_cmp_eq_u32 s9, 0
	s_cbranch_scc1 .L1
	s_endpgm
.L2:
	v_mov_b32_e32 v4, 1
	global_store_dword v2, v4, s[6:7] sc0"""
    out = np.zeros(4, np.uint32)
    text = kernel_text(START + body, lanes=128)
    assert not findings_of(text, WORDS, out, block=(128,), order=order, limit=50_000)
    assert out[0] == 1
    plain = findings_of(text.replace(" sc0", ""), WORDS, out, block=(128,), order=order, limit=50_000)
    assert [f.kind for f in plain] == ["global-memory race"]


def test_nothing_is_checked_when_checks_are_off():
    text = kernel_text(START + "\tglobal_load_dword v2, v1, s[4:5] offset:1024\n\tv_add_u32_e32 v3, 1, v2")
    report = Emulator.from_assembly(text).launch("k", (1,), (64,), [WORDS, WORDS], check="off")
    assert report.findings == ()
