"""Inconsistent machine code is refused with an error that says what is wrong, before time or memory is spent on it."""

import re
import struct
from contextlib import nullcontext

import numpy as np
import pytest
from emulated_code import DATA, kernel_text

from tilewave.emulator import EmulationError, Emulator
from tilewave.emulator.elf import MOST_LOADED
from tilewave.emulator.emulator import FEWEST_INSTRUCTIONS, MOST_PRIVATE_BYTES
from tilewave.emulator.findings import UnsupportedCode
from tilewave.emulator.metadata import DEEPEST, read_msgpack, read_yaml
from tilewave.errors import CallError

OBJECT = (DATA / "kernels_gfx942.hsaco").read_bytes()
WORDS = np.zeros(64, np.uint32)
PROGRAM_HEADERS, SECTION_HEADERS = (struct.unpack_from("<Q", OBJECT, at)[0] for at in (32, 40))


def refused(content):
    with pytest.raises(UnsupportedCode) as error:
        Emulator.from_code_object(bytes(content))
    return str(error.value)


def changed(layout, at, *values):
    data = bytearray(OBJECT)
    struct.pack_into(layout, data, at, *values)
    return data


# -- assembly ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", ["neg(", "-neg(", "abs(", "sext(", "lit(", "|", "-", "("])
def test_signs_within_signs_are_refused_however_deep(sign):
    closing = ")" if "(" in sign else sign.strip("-")
    for depth in (2, 100_000):
        operand = sign * depth + "v1" + closing * depth
        with pytest.raises(UnsupportedCode, match="the emulator does not support: v_add_f32_e64"):
            emulator = Emulator.from_assembly(kernel_text(f"\tv_add_f32_e64 v3, {operand}, v1", pointers=("a",)))
            emulator.launch("k", (1,), (64,), [WORDS])


@pytest.mark.parametrize("prefix", ["", "0x"])
@pytest.mark.parametrize(
    "line",
    ["s_nop LONG", "v_mov_b32_e32 v0, LONG", ".loc 1 LONG 3", ".amdhsa_kernarg_size LONG", ".size:           LONG"],
)
def test_a_number_that_nothing_holds_is_refused(prefix, line):
    text = kernel_text('\ts_nop 0\n\t.file 1 "k.py"\n\t.loc 1 3 3')
    places = {"s_nop": "s_nop 0", "v_mov": "s_nop 0", ".loc": ".loc 1 3 3", ".amdh": ".amdhsa_kernarg_size 16"}
    place = next((at for begins, at in places.items() if line.startswith(begins)), ".size:           8")
    assert place in text
    with pytest.raises(UnsupportedCode, match=r"a number in line \d+ has 5000 digits"):
        Emulator.from_assembly(text.replace(place, line.replace("LONG", prefix + "9" * 5000)))


# -- code objects ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [5, 19, 40, 63, 64, 200, len(OBJECT) - 1])
def test_a_code_object_that_was_cut_is_refused(size):
    assert "the code object is damaged" in refused(OBJECT[:size])


@pytest.mark.parametrize("at", [32, 40], ids=["program headers", "section headers"])
@pytest.mark.parametrize("where", [len(OBJECT), 1 << 40, (1 << 64) - 1])
def test_headers_outside_of_the_file_are_refused(at, where):
    assert "the code object is damaged: it refers to bytes" in refused(changed("<Q", at, where))


def loaded_headers():
    count = struct.unpack_from("<H", OBJECT, 56)[0]
    every = [PROGRAM_HEADERS + 56 * i for i in range(count)]
    return [at for at in every if struct.unpack_from("<I", OBJECT, at)[0] == 1]


@pytest.mark.parametrize("size", [0, MOST_LOADED + 1, (1 << 64) - 1])
def test_a_segment_that_asks_for_too_much_or_brings_more_than_it_has_is_refused(size):
    said = refused(changed("<Q", loaded_headers()[0] + 40, size))
    assert said.startswith(f"the code object asks for {size} bytes at ")


def test_segments_are_counted_together():
    data = bytearray(OBJECT)
    for at in loaded_headers():
        struct.pack_into("<Q", data, at + 40, MOST_LOADED // 2 + 1)
    assert f"the emulator loads {MOST_LOADED} bytes in all" in refused(data)


def test_a_segment_at_the_end_of_all_addresses_is_refused():
    assert "bytes at 0xffffffffffffff00" in refused(changed("<Q", loaded_headers()[0] + 16, (1 << 64) - 256))


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (b"", "it ends after byte 0"),
        (b"\xdf\xff\xff\xff\xff", "it ends after byte 5"),
        (b"\xdb\xff\xff\xff\xffabc", "it ends after byte 8"),
        (b"\x91" * (DEEPEST + 3) + b"\0", f"more than {DEEPEST} nested lists"),
        (b"\x81\x90\x00", "a key is no text"),
        (b"\xc1", "its byte 0 is 0xc1"),
    ],
)
def test_damaged_metadata_says_where(packed, said):
    with pytest.raises(UnsupportedCode, match=f"the kernel's metadata is damaged: {said}"):
        read_msgpack(packed)


def test_text_that_is_no_text_is_read_anyhow():
    assert read_msgpack(b"\xa2\xff\xfe") == "\ufffd\ufffd"


@pytest.mark.parametrize(
    ("text", "found"), [("", {}), ("---\n...", {}), ("- 1", {}), ("a:\nb: 1", {"a": None, "b": 1})]
)
def test_metadata_without_kernels_is_empty(text, found):
    assert read_yaml(text) == found


# -- what a kernel asks for --------------------------------------------------------------------------------------------


def launch(text, *arrays, **options):
    return Emulator.from_assembly(text).launch("k", (1,), (64,), list(arrays or (WORDS, WORDS)), **options)


def test_private_memory_is_what_the_hardware_can_count():
    assert not launch(kernel_text("\ts_nop 0", private=MOST_PRIVATE_BYTES)).findings
    with pytest.raises(UnsupportedCode) as error:
        launch(kernel_text("\ts_nop 0", private=MOST_PRIVATE_BYTES + 1))
    assert str(error.value) == (
        "k asks for 131057 bytes of private memory per lane\n  gfx942 has 131056; large arrays belong to memory"
    )


def test_many_waves_with_much_private_memory_run_one_after_another():
    """Sixty waves of 8 MB each do not exist at the same time."""
    body = "\tv_mov_b32_e32 v3, 0\n\tscratch_store_dword v3, v0, off\n"
    text = kernel_text(body, private=MOST_PRIVATE_BYTES)
    report = Emulator.from_assembly(text).launch("k", (60,), (64,), [WORDS, WORDS])
    assert not report.findings and report.waves == 60


def test_arguments_have_a_largest_size():
    with pytest.raises(UnsupportedCode, match="k asks for 4294967295 bytes of arguments"):
        launch(kernel_text("\ts_nop 0").replace("kernarg_size 16", "kernarg_size 4294967295"))
    with pytest.raises(UnsupportedCode, match="argument a has 8 bytes at byte 99999999"):
        launch(kernel_text("\ts_nop 0").replace(".offset:         0", ".offset:         99999999"))


def test_more_scalar_registers_than_are_filled_are_refused():
    text = kernel_text("\ts_nop 0").replace(
        "user_sgpr_count 2", "user_sgpr_count 2\n\t\t.amdhsa_user_sgpr_kernarg_preload_length 100"
    )
    with pytest.raises(UnsupportedCode, match="k asks for 102 scalar registers to be filled before it starts"):
        launch(text)


@pytest.mark.parametrize(
    ("directive", "most"),
    [
        ("group_segment_fixed_size", 2**32 - 1),
        ("private_segment_fixed_size", 2**32 - 1),
        ("kernarg_size", 2**32 - 1),
        ("user_sgpr_count", 31),
        ("user_sgpr_kernarg_preload_length", 127),
        ("user_sgpr_kernarg_preload_offset", 511),
        ("float_round_mode_32", 3),
        ("dx10_clamp", 1),
        ("uses_dynamic_stack", 1),
        ("next_free_vgpr", 2**32 - 1),
    ],
)
@pytest.mark.parametrize("said", ["-1", "MORE", "0x7fffffffffff", "99999999999999999999", "9" * 900])
def test_a_number_for_which_a_descriptor_has_no_bits_is_refused(directive, most, said):
    said = str(most + 1) if said == "MORE" else said
    text = kernel_text("\ts_nop 0").replace("\t.end_amdhsa", f"\t\t.amdhsa_{directive} {said}\n\t.end_amdhsa")
    with pytest.raises(UnsupportedCode) as error:
        Emulator.from_assembly(text)
    assert str(error.value).startswith(f"k: .amdhsa_{directive} is {said[:40]}\n")
    assert str(error.value).endswith(f" bits for it: 0 to {most}")


@pytest.mark.parametrize("said", ["0x0f", "007", "f", "kernel.num_vgpr", "max(1, 2)", "x", ""])
def test_what_is_no_number_counts_as_0(said):
    text = kernel_text("\ts_nop 0").replace("next_free_vgpr 128", f"next_free_vgpr {said}")
    kernel = Emulator.from_assembly(text).kernel("k")
    assert kernel.descriptor.allocated_registers == {"0x0f": 15}.get(said, 0)


@pytest.mark.parametrize("directive", ["private_segment_fixed_size", "group_segment_fixed_size"])
def test_the_most_that_a_descriptor_can_ask_for_is_more_than_there_is(directive):
    """With a stack that grows, it is more than 32 bits."""
    more = f".amdhsa_{directive} 4294967295\n\t\t.amdhsa_uses_dynamic_stack 1\n\t.end_amdhsa"
    text = kernel_text("\ts_nop 0").replace(".end_amdhsa", more)
    with pytest.raises(UnsupportedCode, match=r"private memory per lane|shared memory do not fit"):
        launch(text)


@pytest.mark.parametrize(
    ("grid", "block", "shared", "said"),
    [
        ((1,), (1 << 16,), 0, "a workgroup has 1 to 1024 lanes, not 65536"),
        ((1 << 30,), (64,), 0, "has 2³² lanes along an axis, or more"),
        ((1, 1, 1 << 40), (1,), 0, "has 2³² lanes along an axis, or more"),
        ((1,), (64,), -1, "dynamic_shared is -1"),
    ],
)
def test_a_launch_that_no_packet_can_say_is_refused(grid, block, shared, said):
    emulator = Emulator.from_assembly(kernel_text("\ts_nop 0"))
    with pytest.raises(CallError, match=re.escape(said)):
        emulator.launch("k", grid, block, [WORDS, WORDS], dynamic_shared=shared)


# -- instructions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("v_mov_b32_e32 v256, 0", "there is no register v256"),
        ("v_mov_b32_e32 v0, s[9999999999:0]", "there is no register"),
        ("global_load_dwordx2 v[3:2], v1, s[4:5]", "there is no register v[3:2]"),
        ("s_mov_b32 s106, 0", "there is no register s106"),
        ("v_add_u32_e32 v1", "it does not have the operands that it needs"),
        ("ds_read_b32 v1, v2 offset:x", "it does not have the operands that it needs"),
        ("v_frobnicate v1", "please report"),
        ("s_load_dwordx9999999999 s[4:5], s[0:1], 0x0", "it does not have the operands that it needs"),
        ("s_load_dwordx4 s[4:5], s[0:1], 0x0", "it does not have the operands that it needs"),
        ("v_mov_b32_dpp v1, v0 row_shl:9223372036854775808", "it does not have the operands that it needs"),
        ("v_mov_b32_dpp v1, v0 row_ror:1 row_mask:16", "it does not have the operands that it needs"),
        ("v_mov_b32_dpp v1, v0 quad_perm:[4,1,2,3]", "it does not have the operands that it needs"),
        ("v_cvt_f32_f16_sdwa v1, v0 src0_sel:WORD_4294967296", "it does not have the operands that it needs"),
        ("ds_swizzle_b32 v1, v0 offset:65536", "it does not have the operands that it needs"),
        ("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 9999999999), 1", "write the register as hwreg"),
        ("s_nop 16", "it does not have the operands that it needs"),
        ("s_nop 07", "it does not have the operands that it needs"),
        ("s_nop x", "it does not have the operands that it needs"),
        ("s_movk_i32 s4, 08", "it does not have the operands that it needs"),
        ("s_cmpk_eq_i32 s4, x", "is not known"),
        ("v_mov_b32_e32 v1, -07", "is not known"),
        ("s_load_dwordx2 s[4:5], s[0:1], 08", "is not known"),
    ],
)
def test_an_instruction_that_cannot_be_is_named(line, why):
    with pytest.raises(UnsupportedCode) as error:
        launch(kernel_text(f"\t{line}"))
    assert str(error.value).startswith(f"the emulator does not support: {line}")
    assert why in str(error.value)


def test_code_that_does_not_end_is_told():
    with pytest.raises(UnsupportedCode, match="a wave runs out of the code"):
        launch(kernel_text("\ts_nop 0").replace("\ts_endpgm\n", ""))


def test_an_endless_loop_ends_by_itself():
    body = ".L1:\n\tv_add_u32_e32 v1, 1, v0\n\ts_branch .L1"
    with pytest.raises(EmulationError, match=rf"a wave has run more than {FEWEST_INSTRUCTIONS + 40} instructions"):
        launch(kernel_text(body), WORDS, np.zeros(64, np.uint32))


def test_the_limit_follows_the_arrays():
    """A loop that goes once through its array, a word per lane, is not endless."""
    rounds = 10_000
    body = f"""
	s_mov_b32 s8, 0
.L1:
	s_add_i32 s8, s8, 1
	s_nop 0
	s_nop 0
	s_nop 0
	s_cmp_lt_u32 s8, {rounds}
	s_cbranch_scc1 .L1"""
    small, large = np.zeros(64, np.uint32), np.zeros(64 * rounds, np.uint32)
    with pytest.raises(EmulationError, match="endless run"):
        launch(kernel_text(body), small, WORDS)
    assert not launch(kernel_text(body), large, WORDS).findings
    assert not launch(kernel_text(body), small, WORDS, limit=10 * rounds).findings


def test_the_limit_follows_the_code():
    """A loop over tiles with a long body: forty iterations of it are not endless."""
    long = "\ts_nop 0\n" * 1500
    body = f"\ts_mov_b32 s8, 0\n.L1:\n\ts_add_i32 s8, s8, 1\n{long}\ts_cmp_lt_u32 s8, ROUNDS\n\ts_cbranch_scc1 .L1"
    for rounds, is_endless in ((40, False), (60, True)):
        with pytest.raises(EmulationError, match="endless run") if is_endless else nullcontext():
            launch(kernel_text(body.replace("ROUNDS", str(rounds))), np.zeros(64, np.uint32), WORDS)


@pytest.mark.slow
def test_an_array_of_more_than_two_gigabytes_is_reached():
    large = np.zeros((1 << 31) + 4096, np.uint8)
    body = """
	s_load_dwordx2 s[4:5], s[0:1], 0x0
	v_lshlrev_b32_e32 v1, 2, v0
	v_mov_b32_e32 v3, 0x80000000
	v_add_u32_e32 v3, v3, v1
	s_waitcnt lgkmcnt(0)
	global_store_dword v3, v0, s[4:5] offset:256"""
    assert not launch(kernel_text(body), large, WORDS).findings
    assert (large[(1 << 31) + 256 :][:256].view(np.uint32) == np.arange(64)).all()


def test_arrays_that_do_not_fit_into_memory_are_refused():
    """A view with a huge row stride spans more memory than there is."""
    far = np.lib.stride_tricks.as_strided(WORDS, (2,), (1 << 50,))
    with pytest.raises(CallError, match="which do not fit into memory a second time"):
        launch(kernel_text("\ts_nop 0"), far, WORDS)
