"""What a kernel's LLVM IR is compiled for, and what it becomes."""

from __future__ import annotations

from typing import NamedTuple


class LlvmMachine(NamedTuple):
    """LLVM's description of the machine to compile for."""

    triple: str
    cpu: str
    features: str
    gives: str = "object and text"
    """`text` where LLVM has no assembler for the target: the code is the text; `object` where no text is needed."""
    negates_choices: bool = True
    """False where LLVM negates only the last element of a vector of selects."""
    options: tuple[str, ...] = ()
    """LLVM options besides those for all code; they apply to the rest of the process."""


class ObjectCode(NamedTuple):
    code: bytes
    asm: str
