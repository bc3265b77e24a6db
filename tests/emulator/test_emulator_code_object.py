"""Code objects: what another compiler made runs too, decoded by llvm-objdump."""

import shutil

import numpy as np
import pytest
from emulated_code import DATA

from tilewave.emulator import EmulationError, Emulator
from tilewave.emulator.code_object import mode_at_start
from tilewave.emulator.disassembly import find_objdump, read_disassembly
from tilewave.emulator.elf import Elf
from tilewave.emulator.findings import UnsupportedCode
from tilewave.emulator.kernel import DX10_CLAMP, FP16_OVERFLOW, IEEE_MODE
from tilewave.emulator.metadata import read_msgpack, read_yaml

OBJECT = DATA / "kernels_gfx942.hsaco"


def has_objdump():
    try:
        return bool(find_objdump())
    except UnsupportedCode:
        return False


decoded = pytest.mark.skipif(
    not has_objdump(), reason="llvm-objdump of LLVM 20 or later decodes code objects; none here"
)
orders = pytest.mark.parametrize("order", ["barrier", "random"])
rng = np.random.default_rng(2)


@decoded
@orders
def test_a_softmax_of_anothers_is_right(order):
    x, y = (3 * rng.standard_normal((8, 256))).astype(np.float32), np.full((8, 256), np.nan, np.float32)
    report = Emulator.from_code_object(OBJECT).launch("softmax", (2,), (256,), [x, y], order=order)
    exact = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    exact /= exact.sum(axis=1, keepdims=True)
    # x·log2(e) is rounded twice at up to 2^5, exp2 and the 256 sums and the quotient once more each.
    assert (np.abs(y - exact) <= exact * (2**5 + 2**8) * 2.0**-24).all()
    assert report.findings == () and report.chip == "gfx942"


@decoded
@orders
def test_a_histogram_of_anothers_is_right(order):
    x, h = rng.integers(0, 2**32, 3000, dtype=np.uint64).astype(np.uint32), np.zeros(64, np.uint32)
    Emulator.from_code_object(OBJECT.read_bytes()).launch("histogram", (2,), (256,), [x, h, 3000], order=order)
    assert (h == np.bincount((x * np.uint32(2654435761)) >> np.uint32(26), minlength=64)).all()


@decoded
def test_calls_and_private_memory_work():
    x, y = rng.integers(1, 100, 64).astype(np.int32), np.zeros((64, 2), np.int32)
    Emulator.from_code_object(str(OBJECT)).launch("calls", (1,), (64,), [x, y])
    for start, (steps, total) in zip(x.tolist(), y.tolist(), strict=True):
        seen, count = [0] * 16, 0
        while start != 1:
            seen[count & 15] = start
            start, count = (3 * start + 1 if start & 1 else start >> 1), count + 1
        assert (steps, total) == (count, sum(value * (at + 1) for at, value in enumerate(seen)))


@decoded
def test_findings_name_the_line_of_anothers_source():
    x, y = np.zeros((4, 256), np.float32), np.zeros((8, 256), np.float32)
    with pytest.raises(EmulationError) as error:
        Emulator.from_code_object(OBJECT).launch("softmax", (2,), (256,), [x, y])
    found = error.value.finding
    assert (found.kind, found.workgroup, found.place) == ("out of bounds", (1, 0, 0), "address 0x1c3c")
    assert (found.loc.file, found.loc.line) == ("./kernels.cl", 15)


@decoded
def test_kernels_are_described_by_descriptor_and_metadata():
    emulator = Emulator.from_code_object(OBJECT)
    assert emulator.kernels == ("calls", "histogram", "softmax")
    kernel = emulator.kernel("histogram")
    assert [(a.kind, a.offset, a.size) for a in kernel.arguments] == [
        ("global_buffer", 0, 8), ("global_buffer", 8, 8), ("by_value", 16, 4),
    ]  # fmt: skip
    assert (kernel.descriptor.shared_bytes, kernel.resources.largest_workgroup, kernel.resources.spills) == (
        256,
        256,
        0,
    )


def test_a_descriptor_says_the_mode_that_waves_start_in():
    elf = Elf.of(OBJECT.read_bytes())
    for name in (symbol for symbol in elf.symbols if symbol.endswith(".kd")):
        resources = int.from_bytes(elf.read(elf.symbols[name], 64)[48:52], "little")
        assert mode_at_start(resources) == 0xF0 | DX10_CLAMP | IEEE_MODE
        assert mode_at_start(resources & ~(1 << 23) | 1 << 26) == 0xF0 | DX10_CLAMP | FP16_OVERFLOW


def test_what_is_no_code_object_is_refused():
    with pytest.raises(UnsupportedCode, match="this is no AMD code object"):
        Emulator.from_code_object(b"\x7fELF" + bytes(60))


def test_a_missing_disassembler_is_named_with_its_remedy(monkeypatch):
    monkeypatch.delenv("LLVM_OBJDUMP", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UnsupportedCode) as error:
        Emulator.from_code_object(OBJECT)
    assert str(error.value) == (
        "llvm-objdump is not here, and only it can decode a code object\n"
        "  install LLVM 20 or later (Debian: apt-get install llvm-22), or name the tool in LLVM_OBJDUMP;\n"
        "  assembly text (tilewave's .asm, LLVM's emit_assembly) needs no tool"
    )


def test_a_disassemblers_text_is_read():
    text = """
0000000000001c00 <k>:
; k():
; ./gemm.py:7
	s_mov_b32 s0, 0x3                       // 000000001C00: BE8000FF 00000003
	s_sub_u32 s0, s0, 1                     // 000000001C08: 80808100
; ./gemm.py:0
	s_cbranch_scc0 65534                    // 000000001C0C: BF84FFFE <k+0x8>
	s_endpgm                                // 000000001C10: BF810000
"""
    first, second, branch, end = read_disassembly(text, 0x1000)
    assert (first.text, first.address, str(first.loc), first.target) == (
        "s_mov_b32 s0, 0x3",
        0x2C00,
        "gemm.py:7",
        None,
    )
    assert (second.line, branch.target, str(branch.loc), end.mnemonic) == (6, 1, "gemm.py:7", "s_endpgm")


def test_metadata_is_read_in_both_forms():
    packed = b"\x82\xaeamdhsa.version\x92\x01\x02\xa1k\x94\xc3\xcd\x01\x00\xff\xd9\x02ab"
    assert read_msgpack(packed) == {"amdhsa.version": [1, 2], "k": [True, 256, -1, "ab"]}
    kernels = "  - .args:\n      - .name: a\n        .size: 8\n    .name: k\n"
    text = f"---\namdhsa.kernels:\n{kernels}amdhsa.version:\n  - 1\n  - 2\n..."
    assert read_yaml(text) == {
        "amdhsa.kernels": [{".args": [{".name": "a", ".size": 8}], ".name": "k"}],
        "amdhsa.version": [1, 2],
    }
