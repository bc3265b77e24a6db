"""Host arithmetic that runs at every call of a kernel: written once, computed in Python or recorded.

The formulas of a launch work on any kind of number. On an `int` they compute. On a `Recorded` number they record what
is to be computed in a `HostProgram`: steps without branches, which the runtime executes natively. A program contains
only numbers, so no text of a file or of an author ever becomes code.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, isqrt
from typing import Any, NoReturn

from tilewave.records import dataclass

Number = Any
"""An int, or a `Recorded` number."""

STEPS = (
    *("add", "sub", "mul", "quotient", "remainder", "xor", "and", "or", "less", "less_equal", "equal", "not_equal"),
    *("smaller", "larger", "chosen", "rounded_up", "power", "bits", "root", "grain", "rank", "want"),
)
"""The operations of a program, by number."""

STEP_WORDS = 4
LINE = 1 << 7
"""Bytes of a cache line; every alignment that is checked divides it."""
FAR = 1 << 30
"""The largest extent or stride, in elements, that `rank` maps to 2, so that arrays share a layout key: TMA takes it."""


@dataclass(frozen=True)
class HostProgram:
    """A sequence of steps on numbered values: the inputs, the constants, and the result of each step.

    A program stops early where a required condition is false, and where a result does not fit 64 bits.
    """

    given: int
    constants: tuple[int, ...]
    step_words: tuple[int, ...]
    """Four words for each step, in one tuple: the garbage collector would look through thousands of small ones."""

    @property
    def steps(self) -> tuple[tuple[int, int, int, int], ...]:
        """The operation of each step, by its number in `STEPS`, and the numbers of its operands."""
        words = iter(self.step_words)
        return (*zip(words, words, words, words, strict=True),)

    @property
    def numbers(self) -> int:
        """How many values there are in all."""
        return self.given + len(self.constants) + len(self.step_words) // STEP_WORDS


class Recorder:
    """Records a program; equal steps are recorded once."""

    def __init__(self, given: int) -> None:
        self.given = [Recorded(self, ("given", i)) for i in range(given)]
        self._steps: dict[tuple[Any, ...], int] = {}
        self._constants: dict[int, int] = {}

    def record(self, does: str, *operands: Number) -> Recorded:
        named = [self._named(x) for x in operands]
        at = self._steps.setdefault((does, *named), len(self._steps))
        return Recorded(self, ("step", at))

    def want(self, *conditions: Number) -> None:
        """Record conditions; the program stops where one of them is false."""
        for condition in conditions:
            if isinstance(condition, Recorded) or not condition:
                self.record("want", condition)

    def finished(self, *results: Sequence[Number]) -> tuple[HostProgram, list[list[int]]]:
        """Return the program, and the numbers of the values of each list of results."""
        names = [[self._named(x) for x in some] for some in results]
        steps = [(STEPS.index(does), *[*map(self._number, operands), 0, 0][:3]) for does, *operands in [*self._steps]]
        program = HostProgram(len(self.given), tuple(self._constants), tuple([word for step in steps for word in step]))
        return program, [[*map(self._number, some)] for some in names]

    def _named(self, x: Number) -> tuple[str, int]:
        if isinstance(x, Recorded):
            assert x.recorder is self, "a number of another program"
            return x.name
        if not -(1 << 63) <= x < 1 << 63:
            return self.record("mul", 1 << 62, 4).name  # does not fit 64 bits: the program stops here
        return "constant", self._constants.setdefault(int(x), len(self._constants))

    def _number(self, name: tuple[str, int]) -> int:
        kind, at = name
        before = {"given": 0, "constant": len(self.given), "step": len(self.given) + len(self._constants)}
        return before[kind] + at


class Recorded:
    """A number that a program computes."""

    __slots__ = ("name", "recorder")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, recorder: Recorder, name: tuple[str, int]) -> None:
        self.recorder, self.name = recorder, name

    def __bool__(self) -> NoReturn:
        raise TypeError("a recorded number is not known yet: `chosen` chooses, and `want` ends a program")

    def __add__(self, other: Number) -> Recorded:
        return self.recorder.record("add", self, other)

    def __sub__(self, other: Number) -> Recorded:
        return self.recorder.record("sub", self, other)

    def __rsub__(self, other: Number) -> Recorded:
        return self.recorder.record("sub", other, self)

    def __mul__(self, other: Number) -> Recorded:
        return self.recorder.record("mul", self, other)

    def __neg__(self) -> Recorded:
        return self.recorder.record("sub", 0, self)

    def __xor__(self, other: Number) -> Recorded:
        return self.recorder.record("xor", self, other)

    def __and__(self, other: Number) -> Recorded:
        return self if other is True else self.recorder.record("and", self, other)

    def __or__(self, other: Number) -> Recorded:
        return self.recorder.record("or", self, other)

    __radd__, __rmul__, __rxor__, __rand__, __ror__ = __add__, __mul__, __xor__, __and__, __or__

    def __lt__(self, other: Number) -> Recorded:
        return self.recorder.record("less", self, other)

    def __le__(self, other: Number) -> Recorded:
        return self.recorder.record("less_equal", self, other)

    def __gt__(self, other: Number) -> Recorded:
        return self.recorder.record("less", other, self)

    def __ge__(self, other: Number) -> Recorded:
        return self.recorder.record("less_equal", other, self)

    def __eq__(self, other: object) -> Recorded:  # type: ignore[override]
        return self.recorder.record("equal", self, other)

    def __ne__(self, other: object) -> Recorded:  # type: ignore[override]
        return self.recorder.record("not_equal", self, other)


def _recorder(*numbers: Number) -> Recorder | None:
    return next((x.recorder for x in numbers if isinstance(x, Recorded)), None)


def chosen(condition: Number, yes: Number, no: Number) -> Number:
    recorder = _recorder(condition)
    if recorder is None:
        return yes if condition else no
    return recorder.record("chosen", condition, yes, no)


def quotient(x: Number, by: Number) -> Number:
    """Return x // by, rounded down; 0 for a divisor of 0."""
    recorder = _recorder(x, by)
    if recorder is None:
        return x // by if by else 0
    return recorder.record("quotient", x, by)


def remainder(x: Number, by: Number) -> Number:
    """Return x % by, with the divisor's sign; 0 for a divisor of 0."""
    recorder = _recorder(x, by)
    if recorder is None:
        return x % by if by else 0
    return recorder.record("remainder", x, by)


def rounded_up(x: Number, by: Number) -> Number:
    """Return the quotient rounded up; 0 for a divisor of 0."""
    recorder = _recorder(x, by)
    if recorder is None:
        return -(-x // by) if by else 0
    return recorder.record("rounded_up", x, by)


def smaller(x: Number, y: Number) -> Number:
    recorder = _recorder(x, y)
    return min(x, y) if recorder is None else recorder.record("smaller", x, y)


def larger(x: Number, y: Number) -> Number:
    recorder = _recorder(x, y)
    return max(x, y) if recorder is None else recorder.record("larger", x, y)


def power(exponent: Number) -> Number:
    """Return two to the power of `exponent`."""
    recorder = _recorder(exponent)
    return 1 << exponent if recorder is None else recorder.record("power", exponent)


def bits(x: Number) -> Number:
    """Return the bit length of a number, without its sign."""
    recorder = _recorder(x)
    return x.bit_length() if recorder is None else recorder.record("bits", x)


def root(x: Number) -> Number:
    """Return the square root, rounded down; 0 for negative numbers."""
    recorder = _recorder(x)
    return isqrt(max(0, x)) if recorder is None else recorder.record("root", x)


def grain(x: Number) -> Number:
    """Return the largest power of two that divides x, up to LINE."""
    recorder = _recorder(x)
    return gcd(x, LINE) if recorder is None else recorder.record("grain", x)


def rank(x: Number) -> Number:
    """Return x where it is below 2 or above FAR, and 2 for all others."""
    recorder = _recorder(x)
    if recorder is None:
        return x if x < 2 or x > FAR else 2
    return recorder.record("rank", x)
