"""Layouts as matrices over bits: which element register r of lane l of wave w holds.

Where all numbers are powers of two, each bit of r, l and w says by itself how far the element moves, and the moves are
added without carrying, by XOR. A tile of 4x4, two waves of four lanes, two registers each; elements are numbered row
by row:

    registers  (1,)          bit 0 moves one column                            column  0     1     2     3
    lanes      (2, 4)        bit 0 two columns, bit 1 one row          row 0         w0l0r0 l0r1  l1r0  l1r1
    waves      (8,)          bit 0 two rows                            row 1         w0l2r0 l2r1  l3r0  l3r1
                                                                       row 2         w1l0r0 l0r1  l1r0  l1r1
                                                                       row 3         w1l2r0 l2r1  l3r0  l3r1

Everything that one asks of a layout is then linear algebra:

    copies       a column that is 0, or columns that add up to 0: those lanes, registers or waves hold the same element
    division     a reduction along an axis forgets its bits: `along` of the others; columns become 0, lanes hold copies
    inverse      who holds an element: solve for it
    conversion   inverse of one layout after another: who holds what I need (`conversions.py`)
    the memory   rows that are swizzled are a matrix too: `then` gives the places that lanes touch, and their banks
                 are some of their bits

Tiles of other sizes have layouts (`formulas.py`) that are no matrices; they are converted through shared memory, which
asks for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tilewave.layouts.bits import Columns, Span, after, applied
from tilewave.records import dataclass


@dataclass(frozen=True)
class Holder:
    """One register of one lane of one wave, or the difference between two of them."""

    register: int = 0
    lane: int = 0
    wave: int = 0


@dataclass(frozen=True)
class LinearLayout:
    """For each bit of the numbers of registers, lanes and waves, how far it moves the element that is held."""

    shape: tuple[int, ...]
    registers: Columns
    lanes: Columns
    waves: Columns = ()

    def __post_init__(self) -> None:
        assert all(n > 0 and n & (n - 1) == 0 for n in self.shape), f"{self.shape} are no powers of two"
        assert all(0 <= column < prod(self.shape) for column in self.columns), f"a column leaves {self.shape}"

    @property
    def columns(self) -> Columns:
        """The columns of a holder's number: the bits of its register, above these its lane, above these its wave."""
        return self.registers + self.lanes + self.waves

    def at(self, register: Any, lane: Any, wave: Any = 0) -> Any:
        """Return the number of the element in that register; of ints or arrays."""
        return applied(self.registers, register) ^ applied(self.lanes, lane) ^ applied(self.waves, wave)

    def holder(self, number: int) -> Holder:
        register_bits, lane_bits = len(self.registers), len(self.lanes)
        upper = number >> register_bits
        return Holder(number % (1 << register_bits), upper % (1 << lane_bits), upper >> lane_bits)

    # -- the algebra

    @property
    def covers(self) -> bool:
        """Whether every element has a holder."""
        return 1 << len(Span(self.columns)) == prod(self.shape)

    def inverse(self) -> tuple[Holder, ...]:
        """Return the holder of each bit of an element's number: of several, the one with the lowest bits."""
        assert self.covers, "some elements have no holder"
        span, bits = Span(self.columns), prod(self.shape).bit_length() - 1
        found = (span.solve(1 << i) for i in range(bits))
        return tuple(self.holder(number) for number in found if number is not None)

    def copies(self) -> tuple[Holder, ...]:
        """Return a basis of the distances between holders of the same element."""
        return tuple(self.holder(number) for number in Span(self.columns).kernel)

    def then(self, shape: tuple[int, ...], columns: Sequence[int]) -> LinearLayout:
        """Return the layout after a matrix on the elements: other axes, or positions in a memory."""
        registers, lanes, waves = (after(columns, part) for part in (self.registers, self.lanes, self.waves))
        return LinearLayout(shape, registers, lanes, waves)

    def along(self, kept: Sequence[int]) -> LinearLayout:
        """Return the layout divided by the other axes: lanes that differ in those alone hold copies."""
        shape = tuple(self.shape[axis] for axis in kept)
        return self.then(shape, _moved(self.shape, {axis: i for i, axis in enumerate(kept)}, shape))

    def permuted(self, order: Sequence[int]) -> LinearLayout:
        """Return the layout of a tile whose axis i is axis `order[i]` of this one."""
        assert sorted(order) == list(range(len(self.shape))), f"{order} is no order of axes"
        return self.along(order)


def _moved(shape: tuple[int, ...], places: dict[int, int], new: tuple[int, ...]) -> Columns:
    """Return the new column of each bit of an element's number if axis a becomes `places[a]`, or is dropped."""
    found: list[int] = []
    for axis in reversed(range(len(shape))):
        for i in range(shape[axis].bit_length() - 1):
            found.append(prod(new[places[axis] + 1 :]) << i if axis in places else 0)
    return tuple(found)
