"""Records that machine code reads: words with names, which Python fills by these names too."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from tilewave.ir.host_program import STEP_WORDS, HostProgram

PROGRAM = ("given", "constants", "*constant_words", "steps", "*step_words", "*code")
"""A host program, and its own machine code, if it has any. A star marks an address."""
LAUNCH = (
    *("*program", "numbers", "inputs", "fixed", "*fixed_words"),
    *("*image", "frame_bytes", "stores_at", "stores", "*stored", "pointers_at", "parameters", "*parameters_at"),
    *("config_at", "attributes_at", "attributes", "uses_pdl", "*grid", "maps", "*encodings"),
    *("*function", "*context", "*launch", "*get_current", "*push", "*pop", "*encode"),
)
"""A launch: its program, its inputs besides the scalar arguments, its frame, and the driver's functions."""
MAP = (
    *("map_at", "dtype", "rank", "pointer", "sizes_at", "strides_at", "*box", "*units"),
    *("interleave", "swizzle", "promotion", "fill", "*kept"),
)
"""How the driver encodes a tensor map, and where encoded ones are stored: each takes the driver half a microsecond."""
KEPT_BITS, MAP_WORDS = 5, 16
"""The bits that number the stored maps of each parameter, by their arrays' addresses and sizes; and the words of a
map."""
CALL = (
    *("arrays", "*ranks", "*dtypes", "words", "given", "*program", "numbers", "keys", "*key", "inputs", "*input"),
    *("*launches", "*is_capturing", "*reader"),
)
"""A kernel's calls: its arrays, the program that classifies them, and its launches by class."""
REPLAY = ("*call", "*reader", "arrays", "*places", "words", "given", "*template", "device")
"""A replayed call: the words of its first call, the positions of the arrays' addresses among them, and its device."""
PLAN = (
    *("*next", "arrays", "*heads", "*program", "numbers", "result", "axes", "*lengths_at", "*steps_at"),
    *("*allocate", "*dtype", "*place", "positional", "*names", "words", "*words_at", "*choice", "device"),
)
"""A plan for calls of any sizes: what describes its arguments, its guards, how its result is allocated, and the
positions of the kernel's words among the numbers of its program."""
CHOICE = (*("*program", "numbers", "sizes", "*sizes_at", "configs", "*left_out", "result", "*kept", "*calls"),)
"""The choice among the kernels of a plan, which are records of CALL or 0; without a program the first serves."""
CALLS = ("*reader", "*first")
"""The plans of an operation."""
READER = ("*tensor", "*parameter", "*look", "*stream", "*requires_grad", "*is_neg", "device")
"""How torch tensors are read."""

LAUNCHED, UNKNOWN = 0, -1
"""Results of a call: it is launched, or Python must take it; above 0 is an error of cuLaunchKernelEx, and below -1 one
of cuTensorMapEncodeTiled."""


class NativeRecord:
    """Words in memory that machine code reads, and the objects whose addresses they have."""

    def __init__(self, fields: Sequence[str], values: Mapping[str, Any], kept: object = None) -> None:
        """An address is passed as a number or as the object there. The record keeps these objects alive, and `kept`,
        which their memory may refer to."""
        assert {*values} == {name.lstrip("*") for name in fields}, f"these are no {fields}: {[*values]}"
        self._kept = [*values.values(), kept]
        self._words = (ctypes.c_int64 * len(fields))(*[_word(values[name.lstrip("*")]) for name in fields])
        self._names = [name.lstrip("*") for name in fields]
        self.address = ctypes.addressof(self._words)

    def get(self, name: str) -> int:
        return self._words[self._names.index(name)]

    def set(self, name: str, value: int) -> None:
        """Change a field; machine code that runs meanwhile reads the old or the new value."""
        self._words[self._names.index(name)] = value


def words(numbers: Sequence[int], room: int = 1) -> Any:
    """Return numbers as 64-bit words in memory, at least `room` of them; a struct.error where one does not fit."""
    count = max(room, len(numbers))
    found = (ctypes.c_int64 * count)()
    struct.pack_into(f"{len(numbers)}q", found, 0, *numbers)
    return found


def _word(value: Any) -> int:
    if isinstance(value, int):
        return value
    return value.address if isinstance(value, NativeRecord) else ctypes.addressof(value)


def memory_for_maps(rank: int) -> Any:
    """Return memory for encoded maps of this rank: each with its array's address, its sizes and its strides."""
    return words([], (1 + 2 * rank + MAP_WORDS) << KEPT_BITS)


def in_memory(program: HostProgram) -> NativeRecord:
    """Return a host program as machine code reads it."""
    steps = array("i", program.step_words or [0])
    return NativeRecord(
        PROGRAM,
        {
            "given": program.given,
            "constants": len(program.constants),
            "constant_words": words(program.constants),
            "steps": len(program.step_words) // STEP_WORDS,
            "step_words": (ctypes.c_int32 * len(steps)).from_buffer(steps),
            "code": 0,
        },
    )
