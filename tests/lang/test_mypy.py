"""A file of kernels as a type checker reads it, with tilewave's plugin."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RIGHT = """
import numpy as np

from tilewave import (GLOBAL_ADDRESS_SPACE, Memory, Register, TilingConstraint, WorkgroupConstraint, WorkgroupMapping,
    cast, exp, f16, f32, iterate, mma, read, sym, wave, write)

M, N, K, BLOCK_N = sym.M, sym.N, sym.K, sym.BLOCK_N
G = GLOBAL_ADDRESS_SPACE
Matrix = Memory[M, N, G, f16]

@wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, BLOCK_N, 1), TilingConstraint(K, 32),
       WorkgroupMapping("grouped(8)")])
def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32], alpha: f32) -> None:
    zero = Register[M, N, f32](0.0)

    @iterate(K, init_args=[zero])
    def total(acc: Register[M, N, f32]) -> Register[M, N, f32]:
        return mma(read(a), read(b), acc)

    write(total * alpha, c)

@wave([WorkgroupConstraint(M, 4, 0)])
def softmax(x: Matrix, y: Matrix) -> None:
    numbers = cast(read(x), f32)
    powers = exp(numbers - numbers.max(dim=N))
    write(cast(powers / powers.sum(dim=N), f16), y)

x = np.zeros((64, 64), np.float16)
gemm(x, x, np.zeros((64, 64), np.float32), alpha=0.5, subs={BLOCK_N: 64})
compiled = gemm.compile(target="gfx942", subs={M: 64, N: 64, K: 64, BLOCK_N: 64})
"""
WRONG = """
from tilewave import *
M, N = sym.M, sym.N

@wave([WorkgroupConstraint(M, 16, 0)])
def copy(a: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32], c: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]) -> None:
    write(a, c)
    write(read(a), read(c))
    read("a")
"""

UNTYPED = ("[no-untyped-def]", "[no-untyped-call]")
"""What the examples, whose functions beside kernels have no types, break of the package's strict rules."""
INSTEAD = 'has incompatible type "{}"; expected "{}"  [arg-type]'


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy says of a right file, a wrong one, and the kernels of examples, with the cache of `make check`."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(WRONG)
    files = [folder / "right.py", folder / "wrong.py", *(EXAMPLES / f"{n}.py" for n in ("softmax", "rms_norm"))]
    options = ("--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache"))
    out, err, _ = api.run([*options, "--no-error-summary", *map(str, files)])
    assert err == ""
    lines = [line for line in out.splitlines() if "error: " in line and not line.endswith(UNTYPED)]
    return [line.rpartition("/")[2] for line in lines]


def test_a_kernel_file_type_checks(complaints: list[str]) -> None:
    assert [line for line in complaints if not line.startswith("wrong.py")] == []


def test_memories_and_tiles_are_told_apart(complaints: list[str]) -> None:
    assert complaints == [
        f'wrong.py:7: error: Argument 1 to "write" {INSTEAD.format("MemoryArgument", "Traced")}',
        f'wrong.py:8: error: Argument 2 to "write" {INSTEAD.format("Traced", "MemoryArgument")}',
        f'wrong.py:9: error: Argument 1 to "read" {INSTEAD.format("str", "MemoryArgument")}',
    ]
