"""Reads what llvm-objdump says of a code object: its instructions, their addresses and their source lines."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

from tilewave.children import ChildFailed, run_child
from tilewave.emulator.chips import ChipName
from tilewave.emulator.findings import UnsupportedCode
from tilewave.emulator.instruction import Instruction, split_text
from tilewave.errors import NOWHERE, Loc

OLDEST, NEWEST = 20, 30
LINE = re.compile(r"^\s+(\S.*?)\s*//\s*([0-9A-Fa-f]+):((?:\s+[0-9A-Fa-f]{8})+)")
SOURCE = re.compile(r"^\s*; (.+):(\d+)$")
BRANCHES = re.compile(r"s_(?:cbranch_\w+|branch|call_b64)\b")


def find_objdump() -> str:
    """The disassembler, by name; the environment variable LLVM_OBJDUMP goes first."""
    given = os.environ.get("LLVM_OBJDUMP")
    names: list[str] = [given] if given else []
    names += [*(f"llvm-objdump-{n}" for n in range(NEWEST, OLDEST - 1, -1)), "llvm-objdump"]
    for name in names:
        if shutil.which(name) and (name != "llvm-objdump" or _version(name) >= OLDEST):
            return name
    raise UnsupportedCode(
        "llvm-objdump is not here, and only it can decode a code object",
        remedy=f"install LLVM {OLDEST} or later (Debian: apt-get install llvm-22), or name the tool in LLVM_OBJDUMP;\n"
        "assembly text (tilewave's .asm, LLVM's emit_assembly) needs no tool",
    )


def _version(tool: str) -> int:
    said = _said([tool, "--version"]).stdout.decode(errors="replace")
    found = re.search(r"version (\d+)", said)
    return int(found[1]) if found else 0


def disassemble(data: bytes, chip: ChipName) -> str:
    """The text of all code sections."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kernel.hsaco"
        path.write_bytes(data)
        command = [find_objdump(), "-d", "-l", f"--mcpu={chip}", str(path)]
        done = _said(command)
    if done.returncode != 0:
        raise UnsupportedCode(
            "llvm-objdump cannot decode the code object", remedy=done.stderr.decode(errors="replace").strip()
        )
    return done.stdout.decode(errors="replace")


def _said(command: list[str]) -> CompletedProcess[bytes]:
    try:
        return run_child(command)
    except ChildFailed as failed:
        raise UnsupportedCode(f"{command[0]}: {failed}", remedy=failed.remedy) from None


def read_disassembly(text: str, base: int) -> tuple[Instruction, ...]:
    """The instructions at their addresses, `base` added; branches lead to positions."""
    found: list[tuple[Instruction, int | None]] = []
    loc = NOWHERE
    for number, line in enumerate(text.splitlines(), 1):
        if source := SOURCE.match(line):
            loc = Loc(source[1], int(source[2])) if int(source[2]) else loc
        elif code := LINE.match(line):
            said = " ".join(code[1].split())
            address = base + int(code[2], 16)
            mnemonic, operands, modifiers = split_text(said)
            leads_to = _branch_target(said, address, code[3])
            found.append((Instruction(said, mnemonic, operands, modifiers, number, loc, None, address), leads_to))
    positions = {instruction.address: at for at, (instruction, _) in enumerate(found)}
    return tuple(_linked(instruction, leads_to, positions) for instruction, leads_to in found)


def _branch_target(text: str, address: int, words: str) -> int | None:
    if not BRANCHES.match(text):
        return None
    distance = int(words.split()[0], 16) & 0xFFFF
    return address + 4 + 4 * (distance - 0x10000 if distance & 0x8000 else distance)


def _linked(instruction: Instruction, leads_to: int | None, positions: Mapping[int, int]) -> Instruction:
    i = instruction
    if leads_to is None or leads_to not in positions:
        return i
    return Instruction(i.text, i.mnemonic, i.operands, i.modifiers, i.line, i.loc, positions[leads_to], i.address)
