"""Makes a call and holds everything that came of it against what should have."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tilewave.errors import SlowCodeWarning, TilewaveError

from .call_arrays import Buffered, HeldArrays, as_numpy, buffered, changed_outside
from .call_expected import expected
from .call_references import Result
from .call_rules import Expected
from .calls import Alias, Call, Said
from .exact import NUMPY
from .judge import Outcome, agree, described, plain
from .program import FLOATS

MOST_SAID = 90
"""The most characters of a foreign error's message that are part of its kind."""


def judge_call(call: Call, device: str = "cpu") -> Outcome:
    """What came of a call: that it agrees, that it was refused where it may be, or what was wrong."""
    way = f"{call.function} {call.library if device == 'cpu' else device}"
    arrays = buffered(call)
    if any(isinstance(a, Alias) and n not in arrays for n, a in call.arguments):
        return Outcome("agrees", way)  # an alias of what is no array any more
    want = expected(call, arrays, device)
    held = HeldArrays(arrays, {name: _library(call, name) for name in arrays}, device)
    arguments = {n: a.value if isinstance(a, Said) else held.objects[n] for n, a in call.arguments}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            returned = _function(call.function)(**arguments)
            for _ in range(call.times - 1):
                returned = _again(call, arrays, held, arguments, returned)
            error = None
        except Exception as raised:
            returned, error = None, raised
    held.bring_back()
    foreign = [w for w in warned if not issubclass(w.category, SlowCodeWarning)]
    if foreign:
        return Outcome(
            f"warned {foreign[0].category.__name__}: {_short(foreign[0].message)}", way, str(foreign[0].message)
        )
    if error is not None:
        return _of_error(error, want, arrays, way)
    if want.unfit and "shape" not in want.unfit and _is_empty(returned):
        return Outcome("agrees", way)  # nothing was computed, and not everything looked at
    if want.unfit:
        return Outcome(f"taken, though {want.unfit}", way, "")
    return _of_results(call, want, arrays, arguments, returned, way)


def _is_empty(returned: Any) -> bool:
    several = returned if isinstance(returned, tuple) else (returned,)
    return all(one is not None and 0 in one.shape for one in several)


def _again(call: Call, arrays: dict[str, Buffered], held: HeldArrays, arguments: dict[str, Any], first: Any) -> Any:
    """The call once more, where that is the same call: what was written is no input of it."""
    if any(isinstance(a, Alias) for _, a in call.arguments):
        return first
    return _function(call.function)(**arguments)


def _library(call: Call, name: str) -> str:
    other = {"numpy": "torch", "torch": "numpy"}[call.library]
    return other if name == call.other else call.library


def _function(name: str) -> Any:
    from tilewave import kernels, ops

    module, _, function = name.partition(".")
    return getattr({"ops": ops, "kernels": kernels}[module], function)


def _short(message: object) -> str:
    return plain(str(message))[:MOST_SAID]


def _of_error(error: Exception, want: Expected, arrays: dict[str, Buffered], way: str) -> Outcome:
    if isinstance(error, MemoryError) and want.unfit:
        return Outcome("refused", way, str(error))  # by numpy or torch, who allocate what is asked for
    if not isinstance(error, TilewaveError):
        return Outcome(f"raised {type(error).__name__}: {_short(error)}", way, str(error))
    touched = changed_outside(arrays, set())
    if touched:
        return Outcome("refused, and yet written", way, f"{touched}: {error}")
    if not want.unfit and not want.may_refuse:
        return Outcome(f"refused, though it fits: {_short(error)}", way, str(error))
    return Outcome("refused", way, str(error))


def _of_results(
    call: Call, want: Expected, arrays: dict[str, Buffered], arguments: dict[str, Any], returned: Any, way: str
) -> Outcome:
    written = {name for name in want.results if name in arrays}
    if touched := changed_outside(arrays, written):
        kind = "memory outside of a result changed" if touched in written else "an input changed"
        return Outcome(kind, way, touched)
    decided = undecided = 0
    for name, found in _found(call, want, arrays, arguments, returned).items():
        if isinstance(found, str):
            return Outcome(found, way, name)
        result = want.results[name]
        if (wrong := _mistake(name, found, result)) is not None:
            return Outcome(*wrong[:1], way, wrong[1])
        known = result.err != np.inf
        decided, undecided = decided + int(known.sum()), undecided + int((~known).sum())
    return Outcome("agrees", way, "", decided, undecided)


def _found(
    call: Call, want: Expected, arrays: dict[str, Buffered], arguments: dict[str, Any], returned: Any
) -> dict[str, np.ndarray | str]:
    """Each result as it was found, or what is wrong with where it is."""
    if call.function.startswith("kernels."):
        found: dict[str, np.ndarray | str] = {name: arrays[name].view for name in want.results}
        return found if returned is None else {**found, "returned": "a kernel gave something back"}
    several = returned if isinstance(returned, tuple) else (returned,)
    if len(several) != len(want.results):
        return {"returned": f"{len(several)} results, not {len(want.results)}"}
    found = {}
    for name, one in zip(want.results, several, strict=True):
        given = arguments.get(name)
        if given is not None and one is not given:
            found[name] = "the result is not the array that was given for it"
        else:
            found[name] = arrays[name].view if given is not None else as_numpy(one)
    return found


def _mistake(name: str, found: np.ndarray, want: Result) -> tuple[str, str] | None:
    if found.shape != want.x.shape:
        return f"{name} has another shape", f"{found.shape}, not {want.x.shape}"
    if found.dtype.newbyteorder("=") != np.dtype(NUMPY[want.dtype]):
        return f"{name} has another dtype", f"{found.dtype}, not {want.dtype}"
    kind = np.float64 if want.dtype in FLOATS else np.bool_ if want.dtype == "bool" else np.int64
    with np.errstate(all="ignore"):
        numbers = found.astype(kind)
        bad = ~agree(numbers, want)  # type: ignore[arg-type]
    if bad.any():
        return f"wrong numbers in {name}", described(name, numbers, want, bad)  # type: ignore[arg-type]
    return None
