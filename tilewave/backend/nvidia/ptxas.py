"""NVIDIA's assembler, where the machine has one: what it makes of PTX can be read without a GPU."""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tilewave.children import ChildFailed, run_child
from tilewave.errors import TargetError

FORBIDDEN = re.compile(r"\(C75\d\d\).*")
"""Remarks that products wait for each other, or for registers."""


@dataclass(frozen=True)
class Assembled:
    """What the assembler says of a kernel."""

    registers: int
    """Registers of one lane."""
    spilled_bytes: int
    serialized: tuple[str, ...]
    """The messages of ptxas on wgmma that it serialized."""
    log: str


class PtxasFailed(TargetError):
    """ptxas refused the PTX; the message is its output."""


def ptxas() -> str:
    """The path of the assembler, or nothing."""
    return shutil.which("ptxas") or ""


@lru_cache(maxsize=16)
def assemble_ptx(ptx: str, arch: str) -> Assembled:
    """Give a text to the assembler, which must be there."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "kernel.ptx"
        text.write_text(ptx)
        command = [ptxas(), f"-arch={arch}", "-v", str(text), "-o", str(Path(folder) / "kernel.cubin")]
        try:
            done = run_child(command)
        except ChildFailed as failed:
            raise PtxasFailed(f"ptxas: {failed}", remedy=failed.remedy) from None
    log = (done.stdout + done.stderr).decode(errors="replace")
    if done.returncode:
        raise PtxasFailed(log.strip())
    return read_log(log)


def read_log(log: str) -> Assembled:
    """Return registers, spills and messages from the log of ptxas or of a driver's assembler."""
    registers = re.search(r"Used (\d+) registers", log)
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", log)))
    stack = sum(map(int, re.findall(r"(\d+) bytes stack frame", log)))
    return Assembled(int(registers[1]) if registers else 0, spilled + stack, tuple(FORBIDDEN.findall(log)), log.strip())
