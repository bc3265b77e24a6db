"""Inline PTX in LLVM IR: instructions that LLVM has no intrinsics for."""

from __future__ import annotations

from collections.abc import Sequence

from tilewave.lower.llvm import LlvmFunction, Typed

CONSTRAINTS = {"i16": "h", "i32": "r", "i64": "l", "float": "f", "ptr": "l", "ptr addrspace(1)": "l"}
"""The inline assembly constraint of each type."""
TOUCHES_MEMORY = "~{memory}"


def asm(f: LlvmFunction, text: str, operands: Sequence[Typed] = ()) -> None:
    """Emit instructions without a result; $0, $1, … are the operands."""
    constraints = ",".join([*(CONSTRAINTS[kind] for kind, _ in operands), TOUCHES_MEMORY])
    f.do(_call("void", text, constraints, operands))


def asm_value(f: LlvmFunction, text: str, kind: str, operands: Sequence[Typed]) -> str:
    """Emit instructions with one result, $0; the operands follow."""
    constraints = ",".join([f"={CONSTRAINTS[kind]}", *(CONSTRAINTS[of] for of, _ in operands), TOUCHES_MEMORY])
    return f.value(_call(kind, text, constraints, operands))


def asm_at_first(f: LlvmFunction, text: str, operands: Sequence[Typed]) -> None:
    """Emit instructions once, in the entry block; the operands are parameters or values of that block."""
    constraints = ",".join(CONSTRAINTS[kind] for kind, _ in operands)
    f.do_at_first(_call("void", text, constraints, operands))


def asm_on(f: LlvmFunction, text: str, registers: Sequence[Typed], operands: Sequence[Typed]) -> list[str]:
    """Emit instructions that modify registers, $0, $1, …; other operands begin at twice the number of registers."""
    kinds = [kind for kind, _ in registers]
    outputs = [f"={CONSTRAINTS[kind]}" for kind in kinds]
    ties = map(str, range(len(registers)))
    inputs = (CONSTRAINTS[kind] for kind, _ in operands)
    result = f.module.structure(kinds) if len(kinds) > 1 else kinds[0]  # inline assembly has no struct of one field
    constraints = ",".join([*outputs, *ties, *inputs, TOUCHES_MEMORY])
    whole = f.value(_call(result, text, constraints, [*registers, *operands]))
    if len(registers) == 1:
        return [whole]
    return [f.value(f"extractvalue {result} {whole}, {i}") for i in range(len(registers))]


def when(condition: int, text: str) -> str:
    """Return instructions predicated on operand `condition` being nonzero; every line is one instruction."""
    lines = "\n".join(f"@p {line}" for line in text.splitlines())
    return f"{{\n.reg .pred p;\nsetp.ne.b32 p, ${condition}, 0;\n{lines}\n}}"


def _call(result: str, text: str, constraints: str, operands: Sequence[Typed]) -> str:
    spelled = text.replace("\n", "\\0A ")
    passed = ", ".join(f"{kind} {x}" for kind, x in operands)
    return f'call {result} asm sideeffect "{spelled}", "{constraints}"({passed}) nounwind convergent'
