"""Ops of one lane of one wave"""

from __future__ import annotations

from math import prod

from tilewave.ir.core import Op, Value, Want
from tilewave.ir.ops.kinds import Computed, Pure
from tilewave.ir.rules import ON_LANES, SHARED, are_indices, places, want_results
from tilewave.ir.types import BOOL, F32, INDEX_SCALAR, Memory, Scalar, Vector
from tilewave.layouts.fragments import WARPGROUP
from tilewave.records import dataclass

__all__ = [
    "Below",
    "Lane",
    "Matrix",
    "OpaqueCopy",
    "Ramp",
    "Rearrange",
    "Shuffle",
    "Unset",
    "Wave",
    "Wgmma",
    "WgmmaRegisters",
    "WgmmaShared",
]

F32_MANTISSA = 23
"""Bits after the implicit leading one."""


class Lane(Pure):
    """The number of this lane in its wave."""

    levels = ON_LANES

    def check(self, want: Want) -> None:
        want_results(self, want, INDEX_SCALAR)


class Wave(Pure):
    """The number of this wave in its workgroup; the same for all its lanes."""

    levels = ON_LANES

    def check(self, want: Want) -> None:
        want_results(self, want, INDEX_SCALAR)


@dataclass(frozen=True)
class Ramp(Pure):
    """The vector whose element (i, j, …) is i · steps[0] + j · steps[1] + …, the same in every lane."""

    levels = ON_LANES

    steps: tuple[int, ...]

    def check(self, want: Want) -> None:
        made = self.result.type
        want(isinstance(made, Vector) and made.dtype.is_int, "makes a vector of integers")
        want(len(self.steps) == len(made.shape), f"{list(self.steps)} are not the steps of {made}")


@dataclass(frozen=True)
class Below(Pure):
    """Whether first + i · steps[0] + j · steps[1] + … is below a bound, for each register (i, j, …)."""

    levels = ON_LANES

    first: Value
    bound: Value
    steps: tuple[int, ...]

    def check(self, want: Want) -> None:
        made = self.result.type
        want(are_indices((self.first, self.bound)), "compares indices")
        want(isinstance(made, Vector) and made.dtype == BOOL, f"makes a vector of truth values, not {made}")
        want(len(self.steps) == len(made.shape) and min(self.steps) >= 0, f"{list(self.steps)} are no steps of {made}")


class Unset(Computed):
    """Undefined registers; no result may depend on them."""

    levels = ON_LANES

    def check(self, want: Want) -> None:
        want(isinstance(self.result.type, Vector), "makes a vector")


@dataclass(frozen=True)
class OpaqueCopy(Computed):
    """A copy of registers that CSE cannot see through: values computed from it are not merged with earlier ones.

    `turn` distinguishes several copies of one vector.
    """

    levels = ON_LANES

    x: Value
    turn: int = 0

    def check(self, want: Want) -> None:
        x = self.x.type
        want(isinstance(x, Vector) and self.result.type == x, f"takes a vector and gives it again, not {x}")


@dataclass(frozen=True)
class Rearrange(Computed):
    """Register r of the result is register `of_register`·r + `of_lane`·lane of x: matrices over bits, by their
    columns; registers are numbered in the order of the vector."""

    levels = ON_LANES

    x: Value
    of_register: tuple[int, ...]
    of_lane: tuple[int, ...]

    def check(self, want: Want) -> None:
        _want_moved_among_lanes(self, want)
        held = prod(self.x.type.shape)
        inside = all(0 <= column < held for column in (*self.of_register, *self.of_lane))
        want(inside and held & held - 1 == 0, f"{self.x.type} has no such registers")

    def check_wave(self, lanes: int, want: Want) -> None:
        _want_all_lanes(self, lanes, want)


@dataclass(frozen=True)
class Shuffle(Computed):
    """Register r of the result is register r of lane `of_register`·r + `of_lane`·lane of the same wave."""

    levels = ON_LANES

    x: Value
    of_register: tuple[int, ...]
    of_lane: tuple[int, ...]

    def check(self, want: Want) -> None:
        _want_moved_among_lanes(self, want)
        inside = all(0 <= column < 1 << len(self.of_lane) for column in (*self.of_register, *self.of_lane))
        same = prod(self.x.type.shape) == prod(self.result.type.shape)
        want(inside and same, f"{self.result.type} has other registers than {self.x.type}")

    def check_wave(self, lanes: int, want: Want) -> None:
        _want_all_lanes(self, lanes, want)


def _want_moved_among_lanes(op: Rearrange | Shuffle, want: Want) -> None:
    x, result = op.x.type, op.result.type
    vectors = isinstance(x, Vector) and isinstance(result, Vector) and x.dtype == result.dtype
    want(vectors, f"{x} cannot become {result}")
    want(prod(result.shape) == 1 << len(op.of_register), f"{result} has other registers than {list(op.of_register)}")


def _want_all_lanes(op: Rearrange | Shuffle, lanes: int, want: Want) -> None:
    want(1 << len(op.of_lane) == lanes, f"a wave has {lanes} lanes, and {list(op.of_lane)} are for others")


@dataclass(frozen=True)
class Matrix(Computed):
    """acc + a · bᵀ by all lanes of a wave, in fragments of `layouts/fragments.py`.

    a: batches… x row blocks x depth blocks x depth per lane, b likewise with column blocks, acc: batches… x row
    blocks x column blocks x groups x 4. `shape` is rows x columns x depth of one block, which takes one instruction,
    or several that share the depth. `transposed`: four neighbouring registers of acc are along columns instead of rows.
    `rows`: only the row blocks from rows[0] up to rows[1] are added to, the other sums pass through.
    """

    levels = ON_LANES

    a: Value
    b: Value
    acc: Value
    shape: tuple[int, ...]
    instruction: str
    transposed: bool = False
    rows: tuple[int, ...] = ()

    def check(self, want: Want) -> None:
        a, b, acc = self.a.type, self.b.type, self.acc.type
        vectors = all(isinstance(t, Vector) for t in (a, b, acc)) and len(a.shape) == len(b.shape) == len(acc.shape) - 1
        want(vectors and len(a.shape) >= 3, f"multiplies vectors of blocks, not {a} and {b}, added to {acc}")
        _want_block(self.shape, want)
        rows, cols, depth = self.shape
        same = a.shape[:-3] == b.shape[:-3] == acc.shape[:-4] and a.shape[-2] == b.shape[-2]
        blocks = acc.shape[-4:-2] == (a.shape[-3], b.shape[-3])
        depths = rows * depth % a.shape[-1] == cols * depth % b.shape[-1] == 0
        some = not self.rows or (len(self.rows) == 2 and 0 <= self.rows[0] < self.rows[1] <= a.shape[-3])
        want(some, f"{a} has no such rows")
        want(same and blocks and depths, f"{a} times {b} does not fit {acc} in blocks of {rows}x{cols}x{depth}")
        want_results(self, want, acc)

    def check_wave(self, lanes: int, want: Want) -> None:
        (rows, cols, depth), sums = self.shape, prod(self.acc.type.shape[-2:])
        want(rows * cols == sums * lanes, f"{lanes} lanes with {sums} sums each do not hold {rows}x{cols}")
        for held, high in ((self.a.type.shape[-1], rows), (self.b.type.shape[-1], cols)):
            copies = held * lanes % (high * depth) == 0  # several lanes may hold one element
            want(copies, f"{lanes} lanes with {held} elements each do not hold {high}x{depth}")


class Wgmma(Computed):
    """acc + a · bᵀ by a warpgroup of four waves, which read `b` from shared memory.

    `shape` is rows x columns x depth: the warpgroup multiplies `rows` rows of `a` with `columns` rows of `b` at `b_at`.
    Each wave has the sums of 16 rows of every 64, in the acc fragment of `layouts/fragments.py`: batches… x rows / 64 x
    columns / 8 x 2 x 2. Where `adds` holds a boolean that is false, acc counts as zeros.

    The depth of an operand is its memory's last axis; of those in `transposed` (0 for `a`, 1 for `b`) it is the
    last but one, and rows are the last. Of each operand, the last `ignored_bits` of the mantissa count as 0.

    `later`: asynchronous. Up to `wait_mma` its operands must not change and its sums must not be used.

    `columns_used` may hold the number of first columns whose sums are used; the sums of other columns may be anything.
    """

    group = WARPGROUP

    levels = ON_LANES
    passes_lanes_by = True

    b: Value
    b_at: tuple[Value, ...]
    acc: Value
    shape: tuple[int, ...]
    adds: tuple[Value, ...]
    ignored_bits: int
    transposed: tuple[int, ...]
    later: bool
    columns_used: tuple[Value, ...]

    @property
    def is_under_way(self) -> bool:
        return self.later

    @property
    def goes_on_with(self) -> tuple[Value, ...]:
        return (self.acc,) if self.later else ()

    def check(self, want: Want) -> None:
        acc = self.acc.type
        _want_block(self.shape, want)
        rows, cols, _ = self.shape
        want(isinstance(acc, Vector) and len(acc.shape) >= 4, f"adds to a vector, not {acc}")
        high = self.group.rows
        want(rows % high == 0 and cols % 8 == 0, f"no group of waves computes {rows}x{cols}")
        want(acc.shape[-4:] == (rows // high, cols // 8, 2, 2), f"{rows}x{cols} sums are not {acc}")
        truths = len(self.adds) <= 1 and all(v.type == Scalar(BOOL) for v in self.adds)
        want(truths, "adds where one truth value says so")
        want(len(self.columns_used) <= 1 and are_indices(self.columns_used), "uses a number of its first columns")
        want(self.transposed in ((), (0,), (1,), (0, 1)), f"has no operands {list(self.transposed)}")
        self._check_operand(1, cols, want)
        want_results(self, want, acc)

    def factor(self, side: int) -> tuple[Value, tuple[Value, ...]]:
        """Return the shared memory of an operand, and the operand's position in it."""
        return self.b, self.b_at

    def _check_operand(self, side: int, rows: int, want: Want) -> None:
        operand, at = self.factor(side)
        memory, acc, depth = operand.type, self.acc.type, self.shape[-1]
        shared = isinstance(memory, Memory) and memory.space == "shared" and len(at) == memory.rank
        want(shared and are_indices(at), f"reads shared memory at an index for each axis, not {memory}")
        want(len(at) >= 2, f"{memory} has no rows and columns")
        want(len(at) >= len(acc.shape) - 2, f"{memory} has no axes for the batches of {acc}")
        high, wide = (depth, rows) if side in self.transposed else (rows, depth)
        want(memory.shape[-2] >= high and memory.shape[-1] >= wide, f"{memory} holds no {high}x{wide}")
        fewer = self.ignored_bits == 0 or (memory.dtype == F32 and 0 < self.ignored_bits <= F32_MANTISSA)
        want(fewer, f"cannot ignore {self.ignored_bits} bits of {memory.dtype}")


@dataclass(frozen=True)
class WgmmaShared(Wgmma):
    """A warpgroup's MMA with `a` in shared memory, at `a_at`."""

    reads = places(a=SHARED, b=SHARED)

    a: Value
    a_at: tuple[Value, ...]
    b: Value
    b_at: tuple[Value, ...]
    acc: Value
    shape: tuple[int, ...]
    instruction: str
    adds: tuple[Value, ...] = ()
    ignored_bits: int = 0
    transposed: tuple[int, ...] = ()
    later: bool = False
    columns_used: tuple[Value, ...] = ()

    def check(self, want: Want) -> None:
        super().check(want)
        self._check_operand(0, self.shape[0], want)

    def factor(self, side: int) -> tuple[Value, tuple[Value, ...]]:
        return ((self.a, self.a_at), (self.b, self.b_at))[side]


@dataclass(frozen=True)
class WgmmaRegisters(Wgmma):
    """A warpgroup's MMA with `a` in registers: each wave holds its rows, in the layout of an accumulator."""

    reads = places(b=SHARED)

    a: Value
    b: Value
    b_at: tuple[Value, ...]
    acc: Value
    shape: tuple[int, ...]
    instruction: str
    adds: tuple[Value, ...] = ()
    ignored_bits: int = 0
    transposed: tuple[int, ...] = ()
    later: bool = False
    columns_used: tuple[Value, ...] = ()

    def check(self, want: Want) -> None:
        super().check(want)
        held, (rows, _, depth), batch = self.a.type, self.shape, self.acc.type.shape[:-4]
        want(isinstance(held, Vector) and held.dtype.bits == 16, f"holds an operand of 16 bits, not {held}")
        own = *batch, rows // self.group.rows, depth // 8, 2, 2
        want(held.shape == own, f"{rows}x{depth} are not held as {held}")
        want(0 not in self.transposed, "holds `a` along its depth")


def _want_block(shape: tuple[int, ...], want: Want) -> None:
    want(len(shape) == 3 and min(shape) > 0, f"a block has rows, columns and a depth, not {list(shape)}")


OPS: tuple[type[Op], ...] = (
    Lane,
    Wave,
    Ramp,
    Below,
    Unset,
    OpaqueCopy,
    Rearrange,
    Shuffle,
    Matrix,
    WgmmaShared,
    WgmmaRegisters,
)
