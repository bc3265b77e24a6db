"""Scalar instructions: one value per wave, in uint64, and the condition bit they leave."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tilewave.emulator.access import load_scalar
from tilewave.emulator.instruction import EXEC, VCC
from tilewave.emulator.kernel import MODE_OF_RESULTS
from tilewave.emulator.machine import Convoy
from tilewave.emulator.numbers import I64, MASK32, MASK64, U64, Array, signed
from tilewave.emulator.scalar_table import BRANCHES, COMPARISONS, LOGIC, ONE_OPERAND, TWO_OPERANDS
from tilewave.emulator.step import SCALAR_ROWS, Draft, Execute, Traffic, nothing, unsupported
from tilewave.emulator.waits import allowed_outstanding

NOTHING = (
    "sleep", "setprio", "sethalt", "icache_inv", "dcache_inv", "dcache_wb", "dcache_inv_vol", "dcache_wb_vol",
    "sendmsg", "inst_prefetch", "set_gpr_idx_off", "incperflevel", "decperflevel", "ttracedata", "code_end",
    "endpgm", "barrier", "nop", "waitcnt", "branch",
)  # fmt: skip
LOADED_WORDS = {"": 1, "x2": 2, "x4": 4, "x8": 8, "x16": 16}
MOST_WAIT_STATES = 16
"""The most wait states of one s_nop, which has four bits for them."""
HARDWARE_REGISTER = re.compile(r"hwreg\((\w+)(?:, *(\d{1,2}), *(\d{1,2}))?\)")


def build_scalar(draft: Draft) -> Execute | None:
    """The meaning of a scalar instruction; None where there is none."""
    name = draft.instruction.mnemonic[2:]
    if name in NOTHING:
        return _nothing(draft, name)
    if name in BRANCHES:
        draft.condition = BRANCHES[name]
        draft.scalar_reads += [VCC, VCC + 1] if "vcc" in name else []
        return nothing
    if name.startswith(("load_dword", "buffer_load_dword")):
        return _load(draft, name)
    if name in TWO_OPERANDS:
        execute = _two_operands(draft, *TWO_OPERANDS[name])
        if name == "andn2_b64" and draft.operands[2].row == EXEC:
            _keep_of_others(draft)
        return execute
    for pattern, build in FAMILIES:
        if found := pattern.fullmatch(name):
            return build(draft, found)
    return _others(draft, name)


def _nothing(draft: Draft, name: str) -> Execute:
    if name == "nop":
        draft.wait_states = draft.operands[0].whole + 1
        assert draft.wait_states <= MOST_WAIT_STATES
    if name == "waitcnt":
        draft.waits = allowed_outstanding(draft.instruction)
        return _wait(draft.waits)
    return nothing


def _wait(outstanding: tuple[int | None, int | None]) -> Execute:
    if outstanding[0] is None and outstanding[1] != 0:
        return nothing
    return lambda c: c.machine.flight.wait(c, outstanding)


def _load(draft: Draft, name: str) -> Execute:
    """Scalar loads, plain or through a buffer descriptor; they deliver in no particular order."""
    count = LOADED_WORDS[name.split("dword")[1]]
    assert draft.operands[0].count == count
    is_buffer = name.startswith("buffer")
    target, base, offset = draft.operands[0].row, draft.operands[1].row, draft.operands[2]
    draft.scalar_reads += range(base, base + (4 if is_buffer else 2))
    draft.scalar_writes += range(target, target + count)
    draft.unit, draft.traffic = "scalar", Traffic(("lg",), "scalar")
    extra, instruction = draft.instruction.integer("offset"), draft.instruction
    if offset.kind == "integer":
        fixed = int(offset.number)
        read_offset: Callable[[Convoy], Array] = lambda c: np.full(c.count, fixed + extra, I64)  # noqa: E731
    else:
        read = draft.scalar_source(offset, 32)
        read_offset = lambda c: read(c).astype(I64) + extra  # noqa: E731

    def execute(c: Convoy) -> None:
        start = (c.scalar64(base) & U64((1 << 48) - 1 if is_buffer else MASK64)).view(I64)
        at = read_offset(c)
        addresses = start + at
        if c.machine.checking and (addresses & 3).any():
            index = int(c.indices[int(np.argmax((addresses & 3) != 0))])
            what = f"a scalar load at byte {int((addresses & 3).max())} of a 4-byte word; the hardware drops these bits"
            c.report("misaligned access", instruction, index, what, "scalar loads need addresses that 4 divides")
        limit = c.scalar32(base + 2).astype(I64) if is_buffer else None
        for word in range(count):
            inside = None if limit is None else at + 4 * word + 4 <= limit
            c.put_scalar32(target + word, load_scalar(c, instruction, (addresses & ~3) + 4 * word, inside))

    return execute


def _two_operands(draft: Draft, bits: int, formula: Callable[..., tuple[Array, Array | None]]) -> Execute:
    a, b = (draft.scalar_source(o, bits) for o in draft.operands[1:3])
    write, mask = draft.scalar_target(draft.operands[0], bits), U64(MASK32 if bits == 32 else MASK64)

    def execute(c: Convoy) -> None:
        result, condition = formula(a(c), b(c), c.scc.astype(U64))
        write(c, result & mask)
        if condition is not None:
            c.put_scc(condition)

    return execute


def _keep_of_others(draft: Draft) -> None:
    """What a mask says of lanes that are off: paths know registers, not lanes, and LLVM keeps unwritten masks so."""
    draft.flows.update({SCALAR_ROWS + row: () for row in draft.scalar_writes})


def _shift(draft: Draft, found: re.Match[str]) -> Execute:
    bits, kind = int(found[3]), found[1]
    a, b = draft.scalar_source(draft.operands[1], bits), draft.scalar_source(draft.operands[2], 32)
    write, mask = draft.scalar_target(draft.operands[0], bits), U64(MASK32 if bits == 32 else MASK64)
    if bits == 64 and draft.operands[2].kind == "integer":
        by = (draft.operands[2].whole & 63) * (-1 if kind == "lshl" else 1)
        for half, row in enumerate(draft.operands[0].rows):
            first = 32 * half + by
            _flow_of_bits(draft, row, range(min(first, 63) if kind == "ashr" else first, first + 32))

    def execute(c: Convoy) -> None:
        value, by = a(c), b(c) & U64(bits - 1)
        match kind:
            case "lshl":
                result = value << by
            case "lshr":
                result = value >> by
            case _:
                result = (signed(value, bits) >> by.astype(I64)).view(U64)
        write(c, result & mask)
        c.put_scc((result & mask) != 0)

    return execute


def _flow_of_bits(draft: Draft, target: int, bits: range) -> None:
    """Record that the target depends on the half of the register pair that contains these bits."""
    halves = sorted({at // 32 for at in bits if 0 <= at < 64})
    draft.flows[SCALAR_ROWS + target] = tuple(SCALAR_ROWS + draft.operands[1].row + half for half in halves)


def _extract(draft: Draft, found: re.Match[str]) -> Execute:
    bits, is_signed = int(found[2]), found[1] == "i"
    a, b = draft.scalar_source(draft.operands[1], bits), draft.scalar_source(draft.operands[2], 32)
    write, mask = draft.scalar_target(draft.operands[0], bits), U64(MASK32 if bits == 32 else MASK64)
    if bits == 64 and draft.operands[2].kind == "integer":
        first, width = draft.operands[2].whole & 63, draft.operands[2].whole >> 16 & 127
        for row in draft.operands[0].rows:
            _flow_of_bits(draft, row, range(first, first + width))

    def execute(c: Convoy) -> None:
        control = b(c)
        offset, width = control & U64(bits - 1), np.minimum((control >> U64(16)) & U64(127), U64(bits))
        keep = np.where(width >= 64, U64(MASK64), (U64(1) << np.minimum(width, U64(63))) - U64(1))
        field = (a(c) >> offset) & keep
        if is_signed:
            top = np.where(width > 0, (field >> (np.maximum(width, U64(1)) - U64(1))) & U64(1), U64(0))
            field = np.where(top.astype(bool), field | ~keep, field) & mask
        write(c, field)
        c.put_scc(field != 0)

    return execute


def _exec_logic(draft: Draft, found: re.Match[str]) -> Execute:
    a, write = draft.scalar_source(draft.operands[1], 64), draft.scalar_target(draft.operands[0], 64)
    formula, saves = LOGIC[found[1]], found[2] == "saveexec"
    draft.scalar_writes += [EXEC, EXEC + 1]

    def execute(c: Convoy) -> None:
        before = c.scalar64(EXEC)
        after = formula(a(c), before)
        c.put_scalar64(EXEC, after)
        write(c, before if saves else after)
        c.put_scc(after != 0)

    return execute


def _compare(draft: Draft, found: re.Match[str]) -> Execute:
    test, is_signed, bits = COMPARISONS[found[2]], found[3] == "i", int(found[4])
    a, b = (draft.scalar_source(o, bits) for o in draft.operands[:2])
    if found[1]:  # a 16-bit constant
        short = np.array([draft.operands[1].whole & 0xFFFF], U64)
        value = signed(short, 16).view(U64) if is_signed else short
        b = lambda c: value  # noqa: E731

    def execute(c: Convoy) -> None:
        x, y = a(c), b(c)
        c.put_scc(test(signed(x, bits), signed(y, bits)) if is_signed else test(x, y))

    return execute


def _test_bit(draft: Draft, found: re.Match[str]) -> Execute:
    wanted, bits = U64(int(found[1])), int(found[2])
    a, b = draft.scalar_source(draft.operands[0], bits), draft.scalar_source(draft.operands[1], 32)
    return lambda c: c.put_scc((a(c) >> (b(c) & U64(bits - 1))) & U64(1) == wanted)


def _set_bit(draft: Draft, found: re.Match[str]) -> Execute:
    sets, bits = found[1] == "1", int(found[2])
    a, b = draft.scalar_source(draft.operands[0], bits), draft.scalar_source(draft.operands[1], 32)
    write = draft.scalar_target(draft.operands[0], bits)

    def execute(c: Convoy) -> None:
        bit = U64(1) << (b(c) & U64(bits - 1))
        write(c, a(c) | bit if sets else a(c) & ~bit)

    return execute


def _choose(draft: Draft, found: re.Match[str]) -> Execute:
    bits = int(found[1])
    a, b = (draft.scalar_source(o, bits) for o in draft.operands[1:3])
    write = draft.scalar_target(draft.operands[0], bits)
    return lambda c: write(c, np.where(c.scc, a(c), b(c)))


def _conditional_move(draft: Draft, found: re.Match[str]) -> Execute:
    bits = int(found[2])
    old, new = draft.scalar_source(draft.operands[0], bits), draft.scalar_source(draft.operands[1], bits)
    write = draft.scalar_target(draft.operands[0], bits)
    return lambda c: write(c, np.where(c.scc, new(c), old(c)))


def _short_constant(draft: Draft, found: re.Match[str]) -> Execute:
    write = draft.scalar_target(draft.operands[0], 32)
    value = signed(np.array([draft.operands[1].whole & 0xFFFF], U64), 16)
    if found[1] == "movk":
        return lambda c: write(c, np.broadcast_to(value.view(U64), c.count))
    old = draft.scalar_source(draft.operands[0], 32)

    def execute(c: Convoy) -> None:
        before = signed(old(c), 32)
        if found[1] == "cmovk":
            write(c, np.where(c.scc, value, before).view(U64))
            return
        if found[1] == "mulk":
            write(c, (before * value).view(U64))
            return
        total = before + value
        c.put_scc((total < -(2**31)) | (total >= 2**31))
        write(c, total.view(U64))

    return execute


def _one_operand(draft: Draft, name: str) -> Execute:
    bits, result_bits, formula, sets_condition = ONE_OPERAND[name]
    a, write = draft.scalar_source(draft.operands[1], bits), draft.scalar_target(draft.operands[0], result_bits)

    def execute(c: Convoy) -> None:
        result = formula(a(c))
        write(c, result)
        if sets_condition:
            c.put_scc(result != 0)

    return execute


def _others(draft: Draft, name: str) -> Execute | None:
    operands = draft.operands
    if name in ONE_OPERAND:
        return _one_operand(draft, name)
    match name:
        case "memtime" | "memrealtime":
            write = draft.scalar_target(operands[0], 64)
            return lambda c: write(c, np.full(c.count, c.machine.clock, U64))
        case "getreg_b32":
            write = draft.scalar_target(operands[0], 32)
            is_mode = "MODE" in draft.instruction.text
            return lambda c: write(c, np.full(c.count, c.machine.mode if is_mode else 0, U64))
        case "setreg_b32" | "setreg_imm32_b32":
            return _set_register(draft)
        case "trap":
            raise unsupported(draft.instruction, "the kernel asks for the trap handler")
        case "getpc_b64" | "setpc_b64" | "swappc_b64" | "call_b64":
            return _calls(draft, name)
        case _:
            return None


def _set_register(draft: Draft) -> Execute:
    """Decode s_setreg: only the mode register changes results, and it must keep its value."""
    found = HARDWARE_REGISTER.search(draft.instruction.text)
    if found is None:
        raise unsupported(draft.instruction, "write the register as hwreg(name, first bit, bits)")
    value = draft.scalar_source(draft.operands[1], 32)
    if found[1] not in ("HW_REG_MODE", "1"):
        return nothing
    shift, width = int(found[2] or 0), int(found[3] or 32)
    mask = ((1 << width) - 1) << shift & MODE_OF_RESULTS

    def execute(c: Convoy) -> None:
        if any((c.machine.mode ^ int(given) << shift) & mask for given in np.unique(value(c))):
            raise unsupported(draft.instruction, "a wave keeps the mode that it starts in")

    return execute


def _calls(draft: Draft, name: str) -> Execute:
    """Calls know addresses, so they need a code object."""
    instruction = draft.instruction
    if instruction.address < 0:
        raise unsupported(instruction, "calls are followed in code objects, not in assembly text")
    after = instruction.address + 4
    if name in ("setpc_b64", "swappc_b64"):
        draft.jump = draft.scalar_source(draft.operands[-1], 64)
    if name == "setpc_b64":
        return nothing
    write = draft.scalar_target(draft.operands[0], 64)
    return lambda c: write(c, np.full(c.count, after, U64))


FAMILIES: tuple[tuple[re.Pattern[str], Callable[[Draft, re.Match[str]], Execute]], ...] = (
    (re.compile(r"(lshl|lshr|ashr)_([bi])(32|64)"), _shift),
    (re.compile(r"bfe_([ui])(32|64)"), _extract),
    (re.compile(r"(and|or|xor|andn1|andn2|orn1|orn2|nand|nor|xnor)_(saveexec|wrexec)_b64"), _exec_logic),
    (re.compile(r"cmp(k?)_(eq|lg|gt|ge|lt|le)_([iu])(32|64)"), _compare),
    (re.compile(r"bitcmp([01])_b(32|64)"), _test_bit),
    (re.compile(r"bitset([01])_b(32|64)"), _set_bit),
    (re.compile(r"cselect_b(32|64)"), _choose),
    (re.compile(r"(cmov)_b(32|64)"), _conditional_move),
    (re.compile(r"(movk|addk|mulk|cmovk)_i32"), _short_constant),
)
