"""Records that machine code reads: words, which have names, for it and for whoever fills them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from tilewave.ir.host_program import HostProgram

PROGRAM = ("given", "constants", "*constant_words", "steps", "*step_words")
"""A host program. A star marks an address."""
LAUNCH = (
    *("*program", "numbers", "inputs", "fixed", "*fixed_words"),
    *("*image", "frame_bytes", "stores_at", "stores", "*stored", "pointers_at", "parameters", "*parameters_at"),
    *("config_at", "attributes_at", "attributes", "uses_pdl", "*grid", "maps", "*encodings"),
    *("*function", "*context", "*launch", "*get_current", "*push", "*pop", "*encode"),
)
"""A launch: its program, what it is filled with beside the numbers of a call, its frame, and the driver's functions."""
MAP = (
    *("map_at", "dtype", "rank", "pointer", "sizes_at", "strides_at", "*box", "*units"),
    *("interleave", "swizzle", "promotion", "fill", "*kept"),
)
"""How the driver encodes a tensor map, and where some are kept: the driver takes half a microsecond for each."""
KEPT_BITS, MAP_WORDS = 5, 16
"""How many bits number the maps that are kept of each parameter, by their arrays' addresses and sizes; and how long a
map is."""
CALL = (
    *("arrays", "*ranks", "*dtypes", "words", "given", "*program", "numbers", "keys", "*key", "inputs", "*input"),
    *("*launches", "*is_capturing", "*reader"),
)
"""A kernel's calls: its arrays, the program that looks at them, and its launches by what that finds."""
REPLAY = ("*call", "*reader", "arrays", "*places", "words", "given", "*template", "device")
"""A call of arrays that lie as others did: where their addresses go among the words of that, and on which device."""
READER = ("*tensor", "*parameter", "*look", "*stream", "*requires_grad", "*is_neg", "device")
"""How torch's tensors are read."""

LAUNCHED, UNKNOWN = 0, -1
"""What a call says: that it is done, or that Python must look; above, what cuLaunchKernelEx failed with, and below, one
more than what cuTensorMapEncodeTiled did."""


class NativeRecord:
    """Words in memory that machine code reads, and all that they name by its address."""

    def __init__(self, fields: Sequence[str], values: Mapping[str, Any], kept: object = None) -> None:
        """An address is given as a number, or as what is there. That stays there as long as the record, as `kept` does,
        which other memory of it may name."""
        assert {*values} == {name.lstrip("*") for name in fields}, f"these are no {fields}: {[*values]}"
        self._kept = [*values.values(), kept]
        self._words = (ctypes.c_int64 * len(fields))(*[_word(values[name.lstrip("*")]) for name in fields])
        self.address = ctypes.addressof(self._words)


def words(numbers: Sequence[int], room: int = 1) -> Any:
    """These as words in memory, with room for at least so many; a struct.error where one is no number of 64 bits."""
    count = max(room, len(numbers))
    found = (ctypes.c_int64 * count)()
    struct.pack_into(f"{len(numbers)}q", found, 0, *numbers)
    return found


def _word(value: Any) -> int:
    if isinstance(value, int):
        return value
    return value.address if isinstance(value, NativeRecord) else ctypes.addressof(value)


def memory_for_maps(rank: int) -> Any:
    """Where maps of so many axes are kept: each with its array's address, its sizes and its strides."""
    return words([], (1 + 2 * rank + MAP_WORDS) << KEPT_BITS)


def in_memory(program: HostProgram) -> NativeRecord:
    """A program as machine code reads it."""
    steps = [number for step in program.steps for number in step]
    return NativeRecord(
        PROGRAM,
        {
            "given": program.given,
            "constants": len(program.constants),
            "constant_words": words(program.constants),
            "steps": len(program.steps),
            "step_words": (ctypes.c_int32 * max(1, len(steps)))(*steps),
        },
    )
