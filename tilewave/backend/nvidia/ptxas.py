"""ptxas, where the machine has it: registers and spills of PTX without a GPU."""

from __future__ import annotations

import re
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

from tilewave.children import ChildFailed, run_child
from tilewave.errors import TargetError
from tilewave.records import dataclass

FORBIDDEN = re.compile(r"\(C75\d\d\).*")
"""Messages that wgmma are serialized, or wait for registers."""


@dataclass(frozen=True)
class Assembled:
    """Registers, spills and messages of ptxas for a kernel."""

    registers: int
    """Registers of one lane."""
    spilled_bytes: int
    serialized: tuple[str, ...]
    """The messages of ptxas on wgmma that it serialized."""
    log: str


class PtxasFailed(TargetError):
    """ptxas refused the PTX; the message is its output."""


def ptxas() -> str:
    """Return the path of ptxas; "" where there is none."""
    return shutil.which("ptxas") or ""


@lru_cache(maxsize=16)
def assemble_ptx(ptx: str, arch: str) -> Assembled:
    """Assemble PTX by ptxas, which must exist."""
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
