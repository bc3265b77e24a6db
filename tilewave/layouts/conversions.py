"""Conversion of a tile from one register layout to another: which lane and register has the element that each needs.

The element that register r of lane l needs is held by register R·r + S·l of lane T·r + U·l, matrices over bits that
follow from the two layouts. Three cases, the cheapest first:

    T = 0, U = 1     each lane has what it needs: registers are permuted, depending on the lane where S is not 0
    else             shuffles: a source lane gives one register per shuffle, and must know which
    (None)           another wave holds it: through shared memory

A source lane gives one register per shuffle and cannot ask each destination lane which one it needs. So destinations
agree on an order: lane l takes its registers in the order r + Y·l. If U' = U + T·Y then distinguishes all lanes that
need different registers of one source, X = (S + R·Y) / U' is what a source must give, and the conversion is:

    give      z[r] = x[(R + X·T)·r + X·l]             within each lane
    shuffle   y[r] = z[r] of lane T·r + U'·l          one shuffle per register, none twice
    take      result[r] = y[r + Y·l]                  within each lane

Where several lanes hold copies of an element, destinations may also read different copies, which Y expresses as well.

Sums of a 16x16 product become an operand with eight neighbours per lane; bits of the column by register and lane bits:

    held      r0 r1 l4 l5 r2     needed      r0 r1 r2 l4 l5      T: r2 → l4,  U: l4 → l5,  S: l5 → r2;  Y: l5 → r2
"""

from __future__ import annotations

from tilewave.layouts.bits import Columns, Span, added, after, applied, identity, stacked
from tilewave.layouts.linear import LinearLayout
from tilewave.records import dataclass


@dataclass(frozen=True)
class Rearrangement:
    """A step within each lane: register r of the result is register `of_register`·r + `of_lane`·lane."""

    of_register: Columns
    of_lane: Columns


@dataclass(frozen=True)
class LaneExchange:
    """A shuffle: register r of the result is register r of lane `of_register`·r + `of_lane`·lane."""

    of_register: Columns
    of_lane: Columns


@dataclass(frozen=True)
class Conversion:
    """The steps of a layout conversion within a wave, in order."""

    steps: tuple[Rearrangement | LaneExchange, ...]

    def exchanged(self, element_bytes: int) -> int:
        """Return the 32-bit words that each lane takes from others."""
        exchanges = [step for step in self.steps if isinstance(step, LaneExchange)]
        return sum(_moved(step) // together(step, element_bytes) for step in exchanges) * _words(element_bytes)


WORD_BYTES = 4


def _words(element_bytes: int) -> int:
    """Return the 32-bit words of an element, at least 1."""
    return max(1, element_bytes // WORD_BYTES)


def stays(step: LaneExchange, register: int) -> bool:
    """Return whether every lane takes this register from itself."""
    return step.of_lane == identity(len(step.of_lane)) and not applied(step.of_register, register)


def _moved(step: LaneExchange) -> int:
    """Return the number of registers that move between lanes."""
    return sum(not stays(step, register) for register in range(1 << len(step.of_register)))


def together(step: Rearrangement | LaneExchange, element_bytes: int) -> int:
    """Return how many neighbouring registers move as one 32-bit word."""
    most, count = max(1, WORD_BYTES // element_bytes).bit_length() - 1, 0
    inside = isinstance(step, Rearrangement)
    while count < min(most, len(step.of_register)):
        stays = step.of_register[count] == (1 << count if inside else 0)
        others = step.of_register[count + 1 :] + step.of_lane if inside else ()
        if not stays or any(column >> count & 1 for column in others):
            break
        count += 1
    return 1 << count


def conversion(held: LinearLayout, needed: LinearLayout) -> Conversion | None:
    """Return the conversion within each wave; None where another wave has elements that a wave needs."""
    assert held.shape == needed.shape and len(held.lanes) == len(needed.lanes), "these are layouts of two tiles"
    if held.waves != needed.waves:
        return None
    givers = _givers(held, needed)
    return None if givers is None else givers.conversion()


@dataclass(frozen=True)
class _Givers:
    """The matrices R, S, T and U of the module's docstring.

    `copies` are registers (below) and lanes (above) that can be added to any source: they hold the same element.
    """

    r: Columns
    s: Columns
    t: Columns
    u: Columns
    copies: tuple[tuple[int, int], ...]
    register_bits: int
    """The bits of a register's number in the source layout."""

    @property
    def lane_bits(self) -> int:
        return len(self.u)

    def conversion(self) -> Conversion | None:
        if not any(self.t) and self.u == identity(self.lane_bits):
            return Conversion(_needed([Rearrangement(self.r, self.s)], self.register_bits))
        y = self.order()
        if y is None:
            return None
        s, u = added(self.s, after(self.r_or_copy, y)), added(self.u, after(self.t_or_copy, y))
        if any(applied(s, k) for k in Span(u).kernel):
            return None
        x = _divided(s, u, self.lane_bits)
        give = added(self.r, after(x, self.t))
        both = stacked(give, self.t, self.lane_bits)
        kept = _independent(both)
        take = tuple(_solved(both, kept, i) for i in range(len(both)))
        steps: list[Rearrangement | LaneExchange] = [
            Rearrangement(tuple(give[i] for i in kept), x),
            LaneExchange(tuple(self.t[i] for i in kept), u),
            Rearrangement(take, after(take, y)),
        ]
        return Conversion(_needed(steps, self.register_bits))

    @property
    def r_or_copy(self) -> Columns:
        return self.r + tuple(register for register, _ in self.copies)

    @property
    def t_or_copy(self) -> Columns:
        return self.t + tuple(lane for _, lane in self.copies)

    def order(self) -> Columns | None:
        """Return Y: destinations that need different registers of one source take their registers in different orders.

        Or they read another source with a copy: the bits that select a copy are above those of registers.
        """
        same = Span(stacked(self.u, self.s, self.register_bits)).kernel  # these lanes need the same register
        numbered_apart, reached = Span(same), Span(self.u)
        torn = [k for k in Span(self.u).kernel if numbered_apart.add(k)]
        t, moves = self.t_or_copy, []
        last_first = range(len(t) - 1, -1, -1)  # copies cost nothing
        for k in torn:
            there = next((1 << i for i in last_first if t[i] not in reached), None)
            if there is None:
                there = Span(stacked(t, self.r_or_copy, self.register_bits)).solve(applied(self.s, k))
            if there is None:
                return None
            reached.add(applied(t, there))
            moves.append(there)
        basis = Span((*torn, *same, *identity(self.lane_bits)))
        found = (basis.solve(1 << i) for i in range(self.lane_bits))
        return tuple(applied(moves, used & (1 << len(torn)) - 1) for used in found if used is not None)


def _givers(held: LinearLayout, needed: LinearLayout) -> _Givers | None:
    """Return the source of each bit of a destination's register and lane: the destination itself where possible."""
    bits, n = len(held.registers), len(needed.registers)
    own, anybody = Span(held.registers), Span(held.registers + held.lanes)
    found = [
        1 << i if held.registers[i : i + 1] == (column,) else anybody.solve(column)
        for i, column in enumerate(needed.registers)
    ]
    for i, column in enumerate(needed.lanes):
        used = own.solve(column ^ held.lanes[i])
        found.append(anybody.solve(column) if used is None else used | 1 << bits + i)
    givers = [g for g in found if g is not None]
    if len(givers) < len(found):
        return None
    low, high = tuple(g & (1 << bits) - 1 for g in givers), tuple(g >> bits for g in givers)
    copies = tuple((k & (1 << bits) - 1, k >> bits) for k in anybody.kernel)
    return _Givers(low[:n], low[n:], high[:n], high[n:], copies, bits)


def _divided(s: Columns, u: Columns, lane_bits: int) -> Columns:
    """Return X with X·U = S, and 0 on lanes that are the source of no other."""
    basis = Span((*u, *identity(lane_bits)))
    found = (basis.solve(1 << i) for i in range(lane_bits))
    return tuple(applied(s, used & (1 << len(u)) - 1) for used in found if used is not None)


def _independent(columns: Columns) -> list[int]:
    """Return the columns that are not sums of earlier ones."""
    span = Span()
    return [i for i, column in enumerate(columns) if span.add(column)]


def _solved(columns: Columns, kept: list[int], i: int) -> int:
    """Return column i as a sum of those kept."""
    found = Span([columns[k] for k in kept]).solve(columns[i])
    assert found is not None
    return found


def _needed(steps: list[Rearrangement | LaneExchange], held_bits: int) -> tuple[Rearrangement | LaneExchange, ...]:
    """Return the steps without those that change nothing."""
    found: list[Rearrangement | LaneExchange] = []
    for step in steps:
        is_same = isinstance(step, Rearrangement) and step.of_register == identity(held_bits) and not any(step.of_lane)
        if not is_same:
            found.append(step)
        held_bits = len(step.of_register)
    return tuple(found)
