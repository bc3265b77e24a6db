"""Symbolic arrays: an operation described once for arrays of any sizes.

The description of a call runs on arrays whose lengths and strides are `SymbolicSize`s: numbers that also
record how they are computed. Where the description decides by one (`if a.shape[-1] != b.shape[-2]`), the decision is
recorded as a guard; where it needs a number as such, the guard is equality. So the plan that results is right for all
calls that satisfy its guards, whatever the description does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tilewave.ir.host_program import Number, Recorder, quotient, remainder
from tilewave.ir.types import DType
from tilewave.ops.arrays import Array, evenly_strided
from tilewave.ops.digits import Digits


class SymbolicSize:
    """A number of a call, and the recorded number that computes it in others."""

    __slots__ = ("number", "recorder", "value")

    def __init__(self, recorder: Recorder, value: int, number: Number) -> None:
        self.recorder, self.value, self.number = recorder, value, number

    def _with(self, other: Any, compute: Callable[[Number, Number], Number]) -> Any:
        if not isinstance(other, (int, SymbolicSize)):
            return NotImplemented
        known, recorded = (other.value, other.number) if isinstance(other, SymbolicSize) else (other, other)
        return SymbolicSize(self.recorder, int(compute(self.value, known)), compute(self.number, recorded))

    def __add__(self, other: Any) -> Any:
        return self._with(other, lambda x, y: x + y)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, lambda x, y: x * y)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, lambda x, y: x - y)

    def __floordiv__(self, other: Any) -> Any:
        return self._with(other, quotient)

    def __mod__(self, other: Any) -> Any:
        return self._with(other, remainder)

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: Any) -> Any:
        return self._with(other, lambda x, y: x < y)

    def __le__(self, other: Any) -> Any:
        return self._with(other, lambda x, y: x <= y)

    def __gt__(self, other: Any) -> Any:
        return self._with(other, lambda x, y: x > y)

    def __ge__(self, other: Any) -> Any:
        return self._with(other, lambda x, y: x >= y)

    def __eq__(self, other: object) -> Any:
        return self._with(other, lambda x, y: x == y)

    def __ne__(self, other: object) -> Any:
        return self._with(other, lambda x, y: x != y)

    def __bool__(self) -> bool:
        """Decide as in this call; a plan serves only calls that decide equally."""
        self.recorder.want((self.number != 0) if self.value else (self.number == 0))
        return bool(self.value)

    def __index__(self) -> int:
        """Return this call's number; a plan serves only calls with the same."""
        self.recorder.want(self.number == self.value)
        return self.value

    def __hash__(self) -> int:
        return hash(self.__index__())


class SymbolicArray:
    """A view of an argument or of a result, from its first element on."""

    def __init__(self, base: str, shape: Sequence[Any], steps: Sequence[Any], dtype: DType, device: str) -> None:
        self.base, self.shape, self.steps, self.dtype, self.device = base, tuple(shape), tuple(steps), dtype, device

    def _view(self, shape: Sequence[Any], steps: Sequence[Any]) -> SymbolicArray:
        return SymbolicArray(self.base, shape, steps, self.dtype, self.device)

    def swapaxes(self, one: int, other: int) -> SymbolicArray:
        order = [*range(len(self.shape))]
        order[one], order[other] = order[other], order[one]
        return self._view([self.shape[i] for i in order], [self.steps[i] for i in order])

    def reshape(self, *shape: Any) -> SymbolicArray:
        """Collapse leading axes into one, as `folded` does."""
        count = len(self.shape) - len(shape) + 1
        if count < 1 or not evenly_strided(self.shape[:count], self.steps[:count]):
            raise NotImplementedError("a copy is no view")
        assert all(mine is other for mine, other in zip(self.shape[count:], shape[1:], strict=True)), (
            "it collapses axes"
        )
        inner = [step for size, step in zip(self.shape[:count], self.steps[:count], strict=True) if size != 1]
        step = inner[-1] if inner else self.steps[count - 1]
        return self._view((prod(self.shape[:count]), *self.shape[count:]), (step, *self.steps[count:]))

    def __getitem__(self, at: Any) -> SymbolicArray:
        """Insert axes of one element, as `x[..., None]` does."""
        at = at if isinstance(at, tuple) else (at,)
        own = 0
        shape: list[Any] = []
        steps: list[Any] = []
        for one in at:
            if one is None:
                shape, steps = [*shape, 1], [*steps, 1]
                continue
            taken = len(self.shape) - sum(x is not None and x is not ... for x in at) if one is ... else 1
            if one is not ... and one != slice(None):
                raise NotImplementedError("a part of an array begins elsewhere")
            shape += self.shape[own : own + taken]
            steps += self.steps[own : own + taken]
            own += taken
        return self._view([*shape, *self.shape[own:]], [*steps, *self.steps[own:]])


class SymbolicLibrary:
    """The `ArrayLibrary` of symbolic arrays: it allocates nothing."""

    def __init__(self, digits: Digits) -> None:
        self._digits = digits
        self.made: list[SymbolicArray] = []
        """What `empty` made, by base: `new 0`, `new 1`."""

    def dtype(self, caller: str, name: str, array: SymbolicArray) -> DType:
        return array.dtype

    def steps(self, array: SymbolicArray) -> Any:
        return array.steps

    def device(self, array: SymbolicArray) -> str:
        return array.device

    def empty(self, shape: Sequence[Any], dtype: DType, like: SymbolicArray) -> SymbolicArray:
        steps: list[Any] = [1]
        for length in reversed(shape[1:]):
            steps.insert(0, steps[0] * length)
        found = SymbolicArray(f"new {len(self.made)}", shape, steps[: len(shape)], dtype, like.device)
        self.made.append(found)
        return found

    def broadcast(self, array: SymbolicArray, shape: Sequence[Any]) -> SymbolicArray:
        added = len(shape) - len(array.shape)
        ends = zip(array.shape, array.steps, shape[added:], strict=True)
        steps = [step if own == wanted else 0 for own, step, wanted in ends]
        return array._view(shape, (*[0] * added, *steps))

    def strided(self, array: SymbolicArray, shape: Any, steps: Any) -> SymbolicArray:
        return array._view(shape, steps)

    def address(self, array: SymbolicArray) -> int:
        raise NotImplementedError("a plan for any sizes knows no address")

    def layout(self, arrays: Any) -> None:
        return None

    def allocation(self, like: SymbolicArray) -> Callable[[], Array]:
        raise NotImplementedError("nothing is allocated")

    def bare(self, arrays: Any) -> Any:
        return arrays

    def dynamic_calls(self) -> None:
        return None

    def heads(self, arrays: Any) -> tuple[()]:
        return ()

    def result_allocation(self, like: SymbolicArray) -> Any:
        raise NotImplementedError("nothing is allocated")

    def digits(self) -> Digits:
        return self._digits
