"""Damaged descriptions of machines: loading one gives a machine that can be simulated, or a TilewaveError."""

from __future__ import annotations

import os
import random
import tempfile

from tilewave.errors import TilewaveError
from tilewave.machine.custom import load

from .mutations import damaged_bytes, damaged_text

DESCRIPTION = """\
name = "My chip"
target = "gfx942"
xcds = 2
units_per_xcd = 4
clock_hz = 2e9
shared_bytes = 65536

[l2]
bytes = 4194304
partitions = 2
line_bytes = 128
ways = 16
holds_writes = false

[last_level]
bytes = 134217728
bytes_per_second = 1e13

[hbm]
bytes = 68719476736
bytes_per_second = 3e12

[merging]
most = 4
units = 2

[rates]
f16 = 500e12
f8e4m3fn = 1000e12

[sources]
l2 = "data sheet"

[[dispatch_order]]
units = 4
partition = 1
xcd = 0

[[dispatch_order]]
units = 4
xcd = 1
"""
WORDS = (
    *("true", "false", "nan", "inf", "-inf", "[]", "{}", "[[", "]]", '"', '"""', "'", "=", ".", "#", "1979-05-27"),
    *("9" * 5000, "9" * 4000, "[" * 3000, "{a=" * 3000, "0x7fffffffffffffff", "1e308", "1e400", "\0", "\u202e", "٣"),
    *(
        "../../x",
        "[rates]",
        "[l2]",
        "[[dispatch_order]]",
        "xcds",
        "dispatch_order",
        "l2.bytes = 1",
        "a.b.c.d = 1",
        "f17",
        '"\\u0007"',
    ),
)


def case(seed: int) -> str | None:
    """One description, damaged as text or as bytes."""
    rng = random.Random(seed)
    text = damaged_text(rng, DESCRIPTION, WORDS)
    data = text.encode(errors="replace") if rng.randrange(4) else damaged_bytes(rng, text.encode(errors="replace"))
    handle, path = tempfile.mkstemp(suffix=".toml")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        machine = load(path)
        machine.places(), machine.flops("f16"), str(machine)
    except TilewaveError as error:
        told = str(error)
        return None if len(told) < 2000 else f"{len(told):,} characters to say: {told[:200]}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        os.unlink(path)
    return None
