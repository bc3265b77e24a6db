"""Damaged machine code: a code object or an assembly text with some bytes or lines changed, read and run.

The emulator runs it, or refuses it with a TilewaveError; nothing else escapes.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import numpy as np

from tilewave.emulator import Emulator
from tilewave.emulator.kernel import LoadedKernel
from tilewave.emulator.metadata import read_msgpack
from tilewave.errors import TilewaveError

DATA = Path(__file__).parents[1] / "emulator" / "data"
TEXTS = ("gemm_gfx942.s", "gemm_gfx950.s", "pingpong_gfx950.s", "flip_in_place_gfx942.s")
HARD = (0, 1, 0x7F, 0x80, 0xFF)
NUMBERS = ("0", "-1", "64", "255", "65536", "4294967295", "99999999999999999999", "0x7fffffff", "1.5", "x", "")
LIMIT = 600
"""The limit on a wave's instructions: enough to pass the damaged place, few enough to be quick."""


def case(seed: int) -> str | None:
    """Damage something, read it and run its kernels."""
    rng = random.Random(seed)
    kind = rng.choice(("object", "text", "metadata"))
    try:
        if kind == "metadata":
            read_msgpack(_damaged_bytes(rng, rng.randbytes(rng.randrange(200))))
            return None
        emulator = _read_object(rng) if kind == "object" else _read_text(rng)
        for name in emulator.kernels:
            _launch(emulator, emulator.kernel(name), rng)
    except TilewaveError:
        return None
    except Exception as error:
        return f"seed {seed}, {kind}: {type(error).__name__}: {error}"
    return None


@cache
def _content(name: str) -> bytes:
    return (DATA / name).read_bytes()


def _read_object(rng: random.Random) -> Emulator:
    return Emulator.from_code_object(_damaged_bytes(rng, _content("kernels_gfx942.hsaco")))


def _damaged_bytes(rng: random.Random, content: bytes) -> bytes:
    """Some bytes changed, mostly in the head, where the numbers are that a reader follows; perhaps cut short."""
    data = bytearray(content or b"\0")
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(rng.choice((min(64, len(data)), min(1024, len(data)), len(data))))
        data[at] = rng.choice((*HARD, rng.randrange(256), data[at] ^ 1 << rng.randrange(8)))
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.1 else data)


def _read_text(rng: random.Random) -> Emulator:
    lines = _content(rng.choice(TEXTS)).decode().splitlines()
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines[at] = lines[rng.randrange(len(lines))]
            case 2:
                lines[at] = _other_number(rng, lines[at])
            case 3:
                lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
            case _:
                lines.insert(at, lines[rng.randrange(len(lines))])
    return Emulator.from_assembly("\n".join(lines))


def _other_number(rng: random.Random, line: str) -> str:
    digits = [at for at, char in enumerate(line) if char.isdigit()]
    if not digits:
        return line
    at = rng.choice(digits)
    return line[:at] + rng.choice(NUMBERS) + line[at + 1 :]


def _launch(emulator: Emulator, kernel: LoadedKernel, rng: random.Random) -> None:
    given = [np.zeros(1024, np.uint32) if a.is_pointer else 64 for a in kernel.arguments if not a.is_hidden]
    order = rng.choice(("barrier", "random"))
    block = (min(1024, max(64, kernel.resources.largest_workgroup)),)
    emulator.launch(kernel.name, (2,), block, given, order=order, seed=rng.randrange(100), check="warn", limit=LIMIT)
