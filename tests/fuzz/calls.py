"""A call of a public function as a value: which function, and what each of its arguments is.

Its text makes it again, so it can be sent to a worker, made smaller and written down.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .program import Layout

FLAWS = ("read-only", "swapped", "misaligned", "repeated", "sliding")
"""What is odd about the memory of an array: not writeable, bytes in the other order, an address between two elements,
an axis whose elements are one (stride 0), rows that begin one element after another."""
SHARED = ("repeated", "sliding")
"""Flaws by which several elements share an address."""


@dataclass(frozen=True)
class Laid:
    """An array: its shape, the kind of its numbers, and how it is laid out in a buffer."""

    shape: tuple[int, ...]
    dtype: str = "f32"
    content: str = "normal"
    layout: Layout | None = None
    flaw: str = ""


@dataclass(frozen=True)
class Alias:
    """An array in the memory of another argument, with its dtype and strides, so many elements further on."""

    of: str
    shape: tuple[int, ...]
    shift: int = 0


@dataclass(frozen=True)
class Said:
    """An argument that is no array, by the text an author would write; one of `VALUES`."""

    text: str

    @property
    def value(self) -> Any:
        return VALUES[self.text]


Argument = Laid | Alias | Said


@dataclass(frozen=True)
class Call:
    """`ops.matmul(a=…, b=…, out=…)` on arrays of numpy or torch."""

    function: str
    arguments: tuple[tuple[str, Argument], ...]
    library: str = "numpy"
    other: str = ""
    """The argument that is of the other library."""
    times: int = 1
    """How often it is called with the same arguments."""
    seed: int = 0

    def get(self, name: str) -> Argument | None:
        return dict(self.arguments).get(name)

    def having(self, **changed: Argument | None) -> Call:
        """Return the call with other arguments; None removes one."""
        every: dict[str, Argument | None] = {**dict(self.arguments), **changed}
        return replace(self, arguments=tuple((n, a) for n, a in every.items() if a is not None))


INTEGERS = ("0", "1", "-1", "2", "3", "7", "16", "100")
NUMBERS = (*INTEGERS, "0.0", "0.5", "1e-5", "1e-3", "0.125", "-0.25", "1e-12", "1e30", "1e300", "-1e30")
HUGE = {"10**400": 10**400, "-(10**400)": -(10**400), "2**63": 2**63, "2**31": 2**31, "-(2**63)": -(2**63)}
SCALARS = {
    "np.float32(0.5)": np.float32(0.5),
    "np.float64(0.25)": np.float64(0.25),
    "np.float16(0.5)": np.float16(0.5),
    "np.int64(2)": np.int64(2),
    "np.int32(1)": np.int32(1),
    "np.int64(-1)": np.int64(-1),
    "np.uint8(3)": np.uint8(3),
}
ODD = {
    "None": None,
    "True": True,
    "False": False,
    "np.True_": np.True_,
    'float("nan")': float("nan"),
    'float("inf")': float("inf"),
    '-float("inf")': -float("inf"),
    "'x'": "x",
    "''": "",
    "'1'": "1",
    "b'x'": b"x",
    "1j": 1j,
    "()": (),
    "[1]": [1],
    "['relu']": ["relu"],
    "{}": {},
    "object": object,
    "...": ...,
    "2.0": 2.0,
    "2.5": 2.5,
    "np.array(1.0)": np.array(1.0),
    "np.array([1.0, 2.0])": np.array([1.0, 2.0]),
    "[[1.0, 2.0], [3.0, 4.0]]": [[1.0, 2.0], [3.0, 4.0]],
    "np.datetime64('2020')": np.datetime64("2020"),
}
WORDS = {repr(word): word for word in ("gelu", "gelu_tanh", "relu", "silu", "RELU", "tanh", "none", "mean", "sum")}
VALUES: dict[str, Any] = {
    **{text: int(text) if text in INTEGERS else float(text) for text in NUMBERS},
    **HUGE,
    **SCALARS,
    **ODD,
    **WORDS,
}


def text_of_call(call: Call) -> str:
    return repr(call)


def call_of_text(text: str) -> Call:
    made = eval(text, {**globals()})  # our own text
    assert isinstance(made, Call)
    return made
