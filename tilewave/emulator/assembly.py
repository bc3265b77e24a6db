"""Reads the assembly text that LLVM emits: instructions with their source lines, and kernels with what they ask for."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from tilewave.emulator.chips import CHIP_NAMES, ChipName
from tilewave.emulator.findings import UnsupportedCode
from tilewave.emulator.instruction import INTEGER, Instruction, split_text
from tilewave.emulator.kernel import USER_SCALARS, KernelDescriptor, LoadedKernel, mode_register
from tilewave.emulator.metadata import arguments_of, by_name, read_yaml, resources_of
from tilewave.errors import NOWHERE, Loc
from tilewave.records import dataclass

LABEL = re.compile(r"([\w.$@]+):\s*(.*)")
# leading blanks are stripped with the rest: a pattern for them takes quadratic time
COMMENT = re.compile(r"(?:;|//).*")
TARGET = re.compile(r'\.amdgcn_target\s+"[^"]*?(gfx\w+)')
FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?')
LOCATION = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)")
DIGITS = re.compile(r"[0-9a-fA-F]+")
MOST_DIGITS = 1000
"""Python converts 4,300 at most, and nothing that a chip holds has so many."""
BRANCH = re.compile(r"s_(?:cbranch_\w+|branch)\s+(\S+)")


@dataclass(frozen=True)
class MachineCode:
    """Everything that one file of machine code holds."""

    chip: ChipName
    instructions: tuple[Instruction, ...]
    kernels: Mapping[str, LoadedKernel]
    segments: tuple[tuple[int, bytes], ...] = ()
    """Bytes of a code object that a kernel may read, by address; assembly text has none."""

    def kernel(self, name: str | None = None) -> LoadedKernel:
        """Return a kernel by its name; without one, the only kernel."""
        if not self.kernels:
            raise UnsupportedCode("the code has no kernel", remedy="an .amdhsa_kernel directive describes each")
        known = ", ".join(self.kernels)
        if name is None and len(self.kernels) == 1:
            return next(iter(self.kernels.values()))
        if name is None:
            raise UnsupportedCode(f"the code has {len(self.kernels)} kernels", remedy=f"name one of them: {known}")
        if name not in self.kernels:
            raise UnsupportedCode(f"no kernel is called {name!r}", remedy=f"there are: {known}")
        return self.kernels[name]


def known_chip(name: str) -> ChipName:
    for chip in CHIP_NAMES:
        if chip == name:
            return chip
    raise UnsupportedCode(f"the emulator does not know {name}", remedy=f"it knows {' and '.join(CHIP_NAMES)}")


def read_assembly(text: str, chip: str | None = None) -> MachineCode:
    """The module in LLVM's assembly text; its chip is the one named there, unless another is given."""
    found = TARGET.search(text)
    name = chip or (found[1] if found else None)
    if name is None:
        named = f'.amdgcn_target "amdgcn-amd-amdhsa--{CHIP_NAMES[0]}"'
        remedy = f'begin it with {named}, or pass chip="{CHIP_NAMES[0]}" to Emulator.from_assembly'
        raise UnsupportedCode("the assembly does not say which chip it is for", remedy=remedy)
    if found and found[1] != name:
        raise UnsupportedCode(f"the assembly is for {found[1]}, not for {name}", remedy=f'pass chip="{found[1]}"')
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        reader.read(number, line)
    instructions = reader.linked()
    metadata = by_name(read_yaml("\n".join(reader.metadata)) if reader.metadata else {})
    kernels = {
        name: _kernel(name, reader.labels[name], directives, metadata.get(name, {}))
        for name, directives in reader.directives.items()
        if name in reader.labels
    }
    return MachineCode(known_chip(name), instructions, kernels)


@dataclass
class _Reader:
    """Goes through the lines and remembers where it is."""

    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    directives: dict[str, dict[str, str]] = field(default_factory=dict)
    metadata: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    loc: Loc = NOWHERE
    in_metadata: bool = False
    current: dict[str, str] | None = None

    def read(self, number: int, line: str) -> None:
        if len(line) > MOST_DIGITS and (most := max(map(len, DIGITS.findall(line)), default=0)) > MOST_DIGITS:
            raise UnsupportedCode(f"a number in line {number} has {most} digits", remedy="no register holds it")
        if self.in_metadata:
            self.in_metadata = ".end_amdgpu_metadata" not in line
            if self.in_metadata:
                self.metadata.append(line)
            return
        text = COMMENT.sub("", line) if '"' not in line else line
        if label := LABEL.fullmatch(text.strip()):
            self.labels[label[1]] = len(self.instructions)
            text = label[2]
        text = " ".join(text.split())
        if text.startswith("."):
            self._directive(text)
        elif text:
            mnemonic, operands, modifiers = split_text(text)
            self.instructions.append(Instruction(text, mnemonic, operands, modifiers, number, self.loc))

    def _directive(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        match name:
            case ".amdgpu_metadata":
                self.in_metadata = True
            case ".amdhsa_kernel":
                self.current = self.directives[rest] = {}
            case ".end_amdhsa_kernel":
                self.current = None
            case ".file":
                if found := FILE.match(text):
                    self.files[found[1]] = os.path.join(found[2], found[3]) if found[3] else found[2]
            case ".loc":
                if (found := LOCATION.match(text)) and int(found[2]):  # line 0: the compiler's own
                    self.loc = Loc(self.files.get(found[1], "?"), int(found[2]))
            case _ if self.current is not None and name.startswith(".amdhsa_"):
                self.current[name.removeprefix(".amdhsa_")] = rest

    def linked(self) -> tuple[Instruction, ...]:
        """The instructions, with the positions that branches lead to."""
        return tuple(map(self._linked, self.instructions))

    def _linked(self, instruction: Instruction) -> Instruction:
        found = BRANCH.fullmatch(instruction.text)
        if found is None:
            return instruction
        if found[1] not in self.labels:
            raise UnsupportedCode(f"no label is called {found[1]}", remedy=f"line {instruction.line}")
        i = instruction
        return Instruction(i.text, i.mnemonic, i.operands, i.modifiers, i.line, i.loc, self.labels[found[1]])


DEFAULTS = {"float_denorm_mode_16_64": "3", "dx10_clamp": "1", "ieee_mode": "1"}
"""What LLVM's assembler takes for directives that are not there; for all others it is 0."""


BITS = {
    "group_segment_fixed_size": 32,
    "private_segment_fixed_size": 32,
    "kernarg_size": 32,
    "user_sgpr_count": 5,
    "user_sgpr_kernarg_preload_length": 7,
    "user_sgpr_kernarg_preload_offset": 9,
    "float_round_mode_32": 2,
    "float_round_mode_16_64": 2,
    "float_denorm_mode_32": 2,
    "float_denorm_mode_16_64": 2,
    "next_free_vgpr": 32,
}
"""How many bits a kernel's descriptor has for a directive's number; for all others one."""


def _number(kernel: str, directives: Mapping[str, str], key: str) -> int:
    """What a directive says; 0 where it is no number: LLVM leaves sums for its linker there."""
    text, bits = directives.get(key, DEFAULTS.get(key, "0")), BITS.get(key, 1)
    value = int(text, 0) if INTEGER.fullmatch(text) else 0
    if value < 0 or value >> bits:
        what = f"{kernel}: .amdhsa_{key} is {text[:40]}"
        raise UnsupportedCode(what, remedy=f"a kernel's descriptor has {bits} bits for it: 0 to {(1 << bits) - 1}")
    return value


def _kernel(name: str, entry: int, directives: Mapping[str, str], metadata: Mapping[str, Any]) -> LoadedKernel:
    def number(key: str) -> int:
        return _number(name, directives, key)

    float_mode = (
        number("float_round_mode_32")
        | number("float_round_mode_16_64") << 2
        | number("float_denorm_mode_32") << 4
        | number("float_denorm_mode_16_64") << 6
    )
    mode = mode_register(float_mode, number("dx10_clamp"), number("ieee_mode"), number("fp16_overflow"))
    descriptor = KernelDescriptor(
        number("group_segment_fixed_size"),
        number("private_segment_fixed_size") + (16384 if number("uses_dynamic_stack") else 0),
        number("kernarg_size"),
        tuple(scalar for scalar, _ in USER_SCALARS if number(f"user_sgpr_{scalar}")),
        number("user_sgpr_count"),
        number("user_sgpr_kernarg_preload_length"),
        number("user_sgpr_kernarg_preload_offset"),
        (
            bool(number("system_sgpr_workgroup_id_x")),
            bool(number("system_sgpr_workgroup_id_y")),
            bool(number("system_sgpr_workgroup_id_z")),
        ),
        mode,
        number("next_free_vgpr"),
    )
    return LoadedKernel(name, entry, descriptor, arguments_of(metadata), resources_of(metadata))
