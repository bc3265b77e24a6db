"""Arrays on GPUs whose elements 32 bits do not count: nearly all of each is never touched, and takes no memory."""

import ctypes
import re

import numpy as np
import pytest
from kernels import G, M, N, check_product, gemm, poisoned, random_array, with_waves
from open_kernels import blocks

from tilewave import *
from tilewave.emulator import memory as emulated_memory

AMD = ("gfx942", "gfx950")
L = sym.L
i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
LAST = {"from the end": L - 1 - i, "a window at the end": L - 3 + i}
WHOLE_BYTES = 1 << 26
"""Arrays up to this size are copied as they are."""


@pytest.fixture
def emulate(monkeypatch):
    """Return an emulation that copies only the given rows: the rest of both arrays is zeros."""

    def run(compiled, *arrays, rows):
        parts = [(int(row.ctypes.data), row.nbytes) for row in rows]
        move = ctypes.memmove

        def memmove(to, source, size):
            if size <= WHOLE_BYTES:
                return move(to, source, size)
            for at, length in parts:
                for host in (to, source):
                    if host <= at < host + size:
                        move(to + at - host, source + at - host, length)
            return to

        monkeypatch.setattr(emulated_memory.ctypes, "memmove", memmove)
        assert compiled.emulate(*arrays).findings == ()

    return run


def last_rows(place):
    @wave([WorkgroupConstraint(M, 4, 0), WorkgroupConstraint(N, 8, 1)])
    def last_rows(a: Memory[L, N, G, i8], c: Memory[M, N, G, i8]):
        write(read(a, mapping=IndexMapping(2, inputs={L: place, N: j}, outputs={M: i, N: j})), c)

    return last_rows


def long_array():
    """A row for each number that a size may be, and more elements than 32 bits count."""
    a = np.zeros((1 << 30, 5), np.int8)
    a[-3:] = np.arange(15).reshape(3, 5) + 1
    assert a.size > 1 << 32
    return a


@pytest.mark.parametrize("place", LAST)
@pytest.mark.parametrize("chip", AMD)
def test_the_last_rows_of_a_long_array_as_machine_code(place, chip, emulate):
    compiled = last_rows(LAST[place]).compile(chip)
    a, c = long_array(), poisoned((3, 5), i8)
    emulate(compiled, a, c, rows=a[-3:])
    np.testing.assert_array_equal(c, a[-3:] if place == "a window at the end" else a[:-4:-1])


@pytest.mark.parametrize("place", LAST)
@pytest.mark.parametrize("target", [*AMD, "sm_90a"])
def test_the_last_rows_of_a_long_array_lane_by_lane(place, target):
    a, c = long_array(), poisoned((3, 5), i8)
    last_rows(LAST[place]).compile(target).interpret(a, c, level="lane")
    np.testing.assert_array_equal(c, a[-3:] if place == "a window at the end" else a[:-4:-1])


def far_apart(x):
    """Return x with a row stride such that the first and last row are more than 2^32 bytes and 2^31 elements apart."""
    gap = (1 << 32) // x.itemsize // (len(x) - 1) + 8
    wide = np.zeros((len(x), gap), x.dtype)[:, : x.shape[1]]
    wide[...] = x
    return wide


@pytest.mark.parametrize("which", range(3), ids="abc")
@pytest.mark.parametrize("chip", AMD)
def test_a_product_of_rows_that_lie_far_apart_as_machine_code(chip, which, emulate):
    kernel = with_waves(gemm(out=f16, epilogue=lambda x: cast(x, f16)), (2, 2))
    compiled, rng = kernel.compile(chip, blocks(64, 64, 32)), np.random.default_rng(0)
    arrays = [random_array(rng, (70, 40), f16), random_array(rng, (66, 40), f16), poisoned((70, 66), f16)]
    arrays[which] = far_apart(arrays[which])
    emulate(compiled, *arrays, rows=arrays[which])
    check_product(arrays[2], *arrays[:2], f16)


# -- code that nothing here can run

RESULT = re.compile(r"\t(?:@!?%p\d+ )?([\w.]+) *\t(?:%p\d+\|)?(\{?[^,;]*\}?), (.*);")
REGISTER = re.compile(r"%\w+\d+")
NARROW = re.compile(r"(cvt|ld\.param|mul\.lo|mad\.lo|add|shl)\.[a-z]?\w*32\b|cvt\.[a-z](32|16)\.")
LOWEST = re.compile(r"and\.b32\s.*, \d$")


def text_of(step):
    return f"{step[1]} {step[3]}"


def of_lowest_bits(steps):
    """The registers of 32 bits that tell how an address is aligned: all that use them keep the lowest bits alone."""
    uses, found, before = {}, set(), -1
    for step in steps:
        for register in REGISTER.findall(step[3]):
            uses.setdefault(register, []).append(step)
    while before < len(found):
        before = len(found)
        for register, using in uses.items():
            if all(LOWEST.match(text_of(s)) or (s[1] == "neg.s32" and s[2] in found) for s in using):
                found.add(register)
    return {register for register in found if register.startswith("%r") and not register.startswith("%rd")}


def narrowed(ptx, strides):
    """The instructions that make 32 bits of a stride, or of what was computed from one, but of its lowest bits."""
    steps = [RESULT.match(line) for line in ptx.splitlines()]
    steps = [step for step in steps if step and not step[1].startswith(("setp", "ld.global", "ld.shared", "st."))]
    lowest = of_lowest_bits(steps)
    steps = [step for step in steps if step[2] not in lowest and not LOWEST.match(text_of(step))]
    params = [f"param_{number}]" for number in strides]
    far, before = set(), -1
    while before < len(far):
        before = len(far)
        for _, made, of in (step.groups() for step in steps):
            if any(p in of for p in params) or far & set(REGISTER.findall(of)):
                far |= set(REGISTER.findall(made))
    assert far, "it reads no stride"
    used = [s for s in steps if any(p in s[3] for p in params) or far & set(REGISTER.findall(s[3]))]
    return [s[0].strip() for s in used if NARROW.match(s[1])]


def strides_of(compiled):
    """Return the indices of the parameters that hold strides; each array's pointer precedes its strides."""
    found, number = [], 0
    for memory in compiled.build.program.memories:
        found += range(number + 1, number + 1 + memory.type.rank)
        number += 1 + memory.type.rank
    return found


FOR_HOPPER = {
    "a product": (gemm(), blocks(64, 64, 32)),
    **{f"rows, {name}": (last_rows(place), {}) for name, place in LAST.items()},
}


@pytest.mark.parametrize("name", FOR_HOPPER)
def test_strides_of_sm_90a_have_64_bits(name):
    """For unaligned and for aligned arrays, unless TMA descriptors hold their strides."""
    kernel, subs = FOR_HOPPER[name]
    compiled = kernel.compile("sm_90a", subs)
    program = compiled.build.program
    assert not narrowed(program.code_for(program.accesses.fallback).ptx, strides_of(compiled))
    if name != "a product":
        assert not narrowed(program.ptx, strides_of(compiled))


@pytest.mark.parametrize(
    "line",
    [
        "ld.param.b32 \t%r1, [k_param_1];",
        "ld.param.b64 \t%rd1, [k_param_1];\n\tcvt.u32.u64 \t%r1, %rd1;",
        "ld.param.b64 \t%rd1, [k_param_1];\n\tshl.b64 \t%rd2, %rd1, 1;\n\tcvt.s32.s64 \t%r1, %rd2;",
        "ld.param.b64 \t%rd1, [k_param_1];\n\tmov.b64 \t{%r1, %r2}, %rd1;\n\tmul.lo.s32 \t%r3, %r1, %r9;",
    ],
)
def test_a_stride_that_is_cut_is_seen(line):
    assert len(narrowed("\t" + line, [1])) == 1
    assert not narrowed("\t" + line.replace("param_1", "param_0") + "\n\tld.param.b64 \t%rd7, [k_param_1];", [1])
