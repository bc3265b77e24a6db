"""What an author promises of arrays of indices, held against the arrays of a call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from tilewave.errors import AccessError, Loc
from tilewave.ir.core import Kernel
from tilewave.ir.types import Memory

Array = Any
CHECK = "TILEWAVE_CHECK"
"""With 1, compiled kernels check contracts and `assert_` at every call."""
CHECKED = "check"
"""The keyword of a call that is checked all the same."""
_asked = ContextVar("asked", default=False)
ENDS = "ends"
"""The word of a contract for the ends of groups along a dim: each is at least 0 and at most its length."""
NO_PLACE = -1
"""The index that stands for no place: reads give 0 there, and writes store nothing."""


def checks_contracts() -> bool:
    """Return whether the environment, or the call that is being made, asks for checks."""
    return os.environ.get(CHECK, "") == "1" or _asked.get()


@contextmanager
def checking(asked: object) -> Iterator[None]:
    """Check the calls that are made inside, where `asked` is true."""
    token = _asked.set(_asked.get() or bool(asked))
    try:
        yield
    finally:
        _asked.reset(token)


def unless_checked(call: Callable[..., int]) -> Callable[..., int]:
    """Return a replayed call that asks for a full one, by returning 1, where contracts are checked."""

    def made(arrays: Sequence[Array], words: Sequence[int] = ()) -> int:
        if checks_contracts():
            return 1
        return call(arrays, words) if words else call(arrays)

    return made


def want_kept(kernel: Kernel, arrays: Sequence[Array], values: Mapping[str, Any], loc: Loc) -> None:
    """Raise where an array breaks its contract; `values` are the sizes of the call by name.

    Arrays of a device are copied to the host.
    """
    names = [v.name for v in kernel.body.args if isinstance(v.type, Memory)]
    for name, into, *flags in kernel.contracts:
        given = arrays[names.index(name)]
        found = np.asarray(on_the_host(given))
        end = int(values.get(into, into)) if into else None
        outside = _beyond(found, end) if ENDS in flags else _outside(found, end)
        for broken in (outside, _equal(found, "unique" in flags), _falling(found, "sorted" in flags)):
            if broken:
                what = f"{kernel.name}: {name}{broken}"
                rising = f"groups follow each other: let {name} rise from 0 to at most {end}"
                remedy = rising if ENDS in flags else f"mend the array, or the contract Indices(…) of {name}"
                raise AccessError(what, loc=loc, remedy=remedy)


def copied_to_host(arrays: Sequence[Array]) -> list[Array]:
    """Return copies of a call's arrays in the memory of the host."""
    found = [on_the_host(x) for x in arrays]
    return [copied(x) if x is given else x for x, given in zip(found, arrays, strict=True)]


def copied(x: Array) -> Array:
    """Return a copy of an array, on its device."""
    return x.clone() if hasattr(x, "clone") else x.copy()


def on_the_host(x: Array) -> Array:
    """Return an array of torch's or CuPy's in the memory of the host; others as they are."""
    copy = getattr(x, "cpu", None) or getattr(x, "get", None)
    return x if copy is None else copy()


def _outside(x: Array, end: int | None) -> str:
    if end is None:
        return ""
    wrong = np.argwhere((x < NO_PLACE) | (x >= end))
    return f"{_at(wrong[0])} is {x[tuple(wrong[0])]}, which is neither -1 nor below {end}" if len(wrong) else ""


def _beyond(x: Array, end: int | None) -> str:
    if end is None:
        return ""
    wrong = np.argwhere((x < 0) | (x > end))
    return f"{_at(wrong[0])} is {x[tuple(wrong[0])]}, and groups end between 0 and {end}" if len(wrong) else ""


def _equal(x: Array, is_wanted: bool) -> str:
    if not is_wanted:
        return ""
    flat = x.reshape(-1)
    order = np.argsort(flat, kind="stable")
    same = np.flatnonzero((flat[order][1:] == flat[order][:-1]) & (flat[order][1:] > NO_PLACE))
    if not len(same):
        return ""
    first, second = (np.unravel_index(order[same[0] + i], x.shape) for i in (0, 1))
    return f"{_at(first)} and {_at(second)} are both {flat[order[same[0]]]}, and they are said to be unique"


def _falling(x: Array, is_wanted: bool) -> str:
    if not is_wanted:
        return ""
    flat = x.reshape(-1)
    wrong = np.flatnonzero(flat[1:] < flat[:-1])
    return f"{_at(np.unravel_index(wrong[0] + 1, x.shape))} is less than the one before" if len(wrong) else ""


def _at(position: Any) -> str:
    return f"[{', '.join(str(int(i)) for i in position)}]"
