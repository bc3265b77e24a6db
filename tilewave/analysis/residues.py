"""What is known at compile time about the remainder of a scalar: which stage of a software pipeline it selects.

%slot = mod(%i, %c3)                    i mod 3
%next = mod(add(%i, %c2), %c3)          i + 2 mod 3: never the same slot as %slot for one i
                                        one step later i is i - 1 + 1: the slot that %slot had the step before
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewave.analysis.ranges import ANY, ranges_of
from tilewave.ir.core import Kernel, Value
from tilewave.ir.ops import Add, Cast, Less, Mod, Mul, Sub, While, Yield
from tilewave.records import dataclass

SMALL_BITS = 32
SMALL = (-(1 << SMALL_BITS - 1), (1 << SMALL_BITS - 1) - 1)
"""Integers that casts to SMALL_BITS or more keep, so that `most_rounds` can look through casts."""


@dataclass(frozen=True)
class Residue:
    """offset + the sum of factor · value, modulo `modulus`; values by name, all factors below the modulus and not 0."""

    terms: tuple[tuple[str, int], ...]
    offset: int
    modulus: int

    @staticmethod
    def of(terms: Mapping[str, int], offset: int, modulus: int) -> Residue:
        left = ((name, factor % modulus) for name, factor in sorted(terms.items()))
        return Residue(tuple(term for term in left if term[1]), offset % modulus, modulus)

    def __add__(self, other: Residue) -> Residue:
        terms = dict(self.terms)
        for name, factor in other.terms:
            terms[name] = terms.get(name, 0) + factor
        return Residue.of(terms, self.offset + other.offset, self.modulus)

    def times(self, factor: int) -> Residue:
        return Residue.of({name: f * factor for name, f in self.terms}, self.offset * factor, self.modulus)

    def replaced(self, name: str, by: Callable[[int], Residue]) -> Residue:
        """Return the residue with another number in place of a named value; `by` gives it for a modulus."""
        for found, factor in self.terms:
            if found == name:
                rest = Residue(tuple(term for term in self.terms if term[0] != name), self.offset, self.modulus)
                return rest + by(self.modulus).times(factor)
        return self

    def differs(self, other: Residue) -> bool:
        """Return whether the two differ for all values."""
        return self.offset != other.offset and self.terms == other.terms and self.modulus == other.modulus


class Residues:
    """The residues of a kernel's indices."""

    def __init__(self, kernel: Kernel) -> None:
        self.ranges = ranges_of(kernel)
        self.defs = kernel.defs

    def of(self, v: Value, modulus: int) -> Residue:
        """Return v modulo `modulus`, in terms of values that are not sums or multiples of others."""
        op = self.defs.get(v)
        match op:
            case Add(a, b):
                return self.of(a, modulus) + self.of(b, modulus)
            case Sub(a, b):
                return self.of(a, modulus) + self.of(b, modulus).times(-1)
            case Mod(a, b) if (c := self.constant(b)) is not None and c > 0 and c % modulus == 0:
                return self.of(a, modulus)
            case Mul(a, b) if (c := self.constant(b)) is not None:
                return self.of(a, modulus).times(c)
            case Mul(a, b) if (c := self.constant(a)) is not None:
                return self.of(b, modulus).times(c)
            case _:
                known = self.constant(v)
                return Residue.of({v.name: 1}, 0, modulus) if known is None else Residue.of({}, known, modulus)

    def constant(self, v: Value) -> int | None:
        low, high = self.ranges.of(v)
        return low if low == high else None

    def most_rounds(self, op: While) -> int:
        """Return the maximum trip count of a loop that counts up to a limit in steps; a large number for others."""
        end, goes_on = op.body.ops[-1], op.condition.ops[-1].operands[0]
        match self.defs.get(goes_on):
            case Less(count, limit) if count in op.condition.args and isinstance(end, Yield):
                place = op.condition.args.index(count)
                first, below = self.ranges.of(op.init[place])[0], self.ranges.of(limit)[1]
                step = self._step(op.body.args[place], end.values[place])
                fits = step > 0 and SMALL[0] <= first and below + step <= SMALL[1]
                return max(0, -(-(below - first) // step)) if fits else ANY[1]
            case _:
                return ANY[1]

    def _step(self, before: Value, after: Value) -> int:
        """Return the constant that is added to `before` to get `after`; 0 where that is not known."""
        match self.defs.get(self._uncast(after)):
            case Add(a, b) if self._uncast(a) == before:
                return self.constant(b) or 0
            case _:
                return 0

    def _uncast(self, v: Value) -> Value:
        """Return the operand of a cast that keeps small integers, or v itself."""
        maker = self.defs.get(v)
        whole = isinstance(maker, Cast) and maker.x.type.dtype.is_int and v.type.dtype.bits >= SMALL_BITS
        return self._uncast(maker.x) if whole and isinstance(maker, Cast) else v
