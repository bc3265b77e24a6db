"""Every op and cast of every integer dtype as PTX that NVIDIA's assembler takes, without spilled registers."""

import pytest
from one_op import INTEGER_NAMES, NAMES, TRUTHS, UNARY, WORDS, M, kernel_of, words_of
from ptx_code import assembled_well, build, needs_ptxas

from tilewave import *
from tilewave.ir.types import DTYPES

pytestmark = [needs_ptxas, pytest.mark.share(8)]
ATOMIC = {"add": atomic_add, "min": atomic_min, "max": atomic_max, "and": atomic_and, "or": atomic_or}


def applied(word):
    return (lambda x, *_: WORDS[word](x)) if word in UNARY else WORDS[word]


@pytest.mark.parametrize("name", INTEGER_NAMES)
def test_every_op_and_cast_is_assembled(name):
    as_wide = [m for m in NAMES if DTYPES[m].bits == DTYPES[name].bits and m != "bool"]
    for results in (
        [(DTYPES["bool" if w in TRUTHS else name], applied(w)) for w in words_of(name)],
        [(DTYPES[m], lambda x, *_, m=m: cast(x, DTYPES[m])) for m in NAMES],
        [(DTYPES[m], lambda x, *_, m=m: bitcast(x, DTYPES[m])) for m in as_wide],
    ):
        assembled_well(build(kernel_of([DTYPES[name]] * 2, results, tile=128), {M: 1000}).asm)


@pytest.mark.parametrize("name", ["i32", "u32", "i64", "u64"])
@pytest.mark.parametrize("how", ATOMIC)
def test_atomics_are_instructions(name, how):
    dtype, op = DTYPES[name], ATOMIC[how]

    @wave([WorkgroupConstraint(M, 64, 0)])
    def combined(
        slots: Memory[M, GLOBAL_ADDRESS_SPACE, u32],
        x: Memory[M, GLOBAL_ADDRESS_SPACE, dtype],
        out: Memory[sym.V, GLOBAL_ADDRESS_SPACE, dtype],
    ):
        op(read(x), out, at={sym.V: read(slots)})

    ptx = build(combined, {M: 1000, sym.V: 50}).asm
    kind = {"add": "u", "and": "b", "or": "b"}.get(how, "s" if dtype.is_signed else "u")
    assert f".{how}.{kind}{dtype.bits} " in ptx
    assembled_well(ptx)
