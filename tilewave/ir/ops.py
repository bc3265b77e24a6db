"""The vocabulary, one class per op: read this file to learn what a kernel can say, `interp.py` for what it means."""

from __future__ import annotations

from dataclasses import dataclass

from tilewave.ir.core import Block, Op, Value

# -- numbers and tiles of numbers: elementwise, all operands of one shape --------------------------------------------


@dataclass(frozen=True)
class Const(Op):
    """A number, or a tile that holds it everywhere."""

    value: int | float | bool


@dataclass(frozen=True)
class Unary(Op):
    x: Value


@dataclass(frozen=True)
class Binary(Op):
    a: Value
    b: Value


class Add(Binary):
    pass


class Sub(Binary):
    pass


class Mul(Binary):
    pass


class Div(Binary):
    """The quotient of floats."""


class FloorDiv(Binary):
    """The quotient of integers, rounded down, as in Python."""


class Mod(Binary):
    """What FloorDiv leaves; it has the sign of b, as in Python."""


class Min(Binary):
    pass


class Max(Binary):
    pass


class And(Binary):
    pass


class Or(Binary):
    pass


class Less(Binary):
    pass


class LessEqual(Binary):
    pass


class Equal(Binary):
    pass


class NotEqual(Binary):
    pass


class Neg(Unary):
    pass


class Not(Unary):
    pass


class Abs(Unary):
    pass


class Exp(Unary):
    pass


class Exp2(Unary):
    pass


class Log(Unary):
    pass


class Log2(Unary):
    pass


class Sqrt(Unary):
    pass


class Rsqrt(Unary):
    pass


class Tanh(Unary):
    pass


class Erf(Unary):
    pass


class Sin(Unary):
    pass


class Cos(Unary):
    pass


class Cast(Unary):
    """The same number in the result's dtype, rounded to nearest even; floats become integers towards zero."""


@dataclass(frozen=True)
class Select(Op):
    """a where the condition holds, else b."""

    condition: Value
    a: Value
    b: Value


# -- the shape of tiles ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broadcast(Op):
    """Repeat x along the result's other axes; axis i of x becomes axis `axes[i]`."""

    x: Value
    axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Permute(Op):
    """Axis i of the result is axis `axes[i]` of x."""

    x: Value
    axes: tuple[int, ...]


class Iota(Op):
    """0, 1, 2, … along a tile of one axis."""


# -- which workgroup, which tile ------------------------------------------------------------------------------------


class Workgroup(Op):
    """The number of this workgroup, in launch order."""


@dataclass(frozen=True)
class TileOf(Op):
    """The (batch, row, column) of the number-th tile of a grid dealt to `workgroups`; MapWorkgroups decides it."""

    number: Value
    rows: int
    cols: int
    batches: int
    workgroups: int


# -- memory: whole tiles --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Allocate(Op):
    """A memory of this workgroup's own; nobody has written it yet."""


@dataclass(frozen=True)
class Read(Op):
    """The tile whose first element is at `at`; result axis i runs along memory axis `axes[i]`; 0 outside the memory."""

    memory: Value
    at: tuple[Value, ...]
    axes: tuple[int, ...]
    through: str = ""
    per_lane: int = 0


@dataclass(frozen=True)
class Write(Op):
    """Store a tile, its first element at `at`, its axis i along memory axis `axes[i]`; nothing outside the memory."""

    tile: Value
    memory: Value
    at: tuple[Value, ...]
    axes: tuple[int, ...]
    per_lane: int = 0


@dataclass(frozen=True)
class Gather(Op):
    """The tile whose element (i, j, …) sits where `where(i, j, …)` says; 0 outside the memory."""

    memory: Value
    where: Block
    through: str = ""


@dataclass(frozen=True)
class Scatter(Op):
    """Store element (i, j, …) of a tile where `where(i, j, …)` says; nothing outside the memory."""

    tile: Value
    memory: Value
    where: Block


@dataclass(frozen=True)
class Mma(Op):
    """acc + a · bᵀ over the last two axes, in the accumulator's dtype; leading axes are batches."""

    a: Value
    b: Value
    acc: Value


@dataclass(frozen=True)
class Prepack(Op):
    """A copy of `memory` made once per launch, before any workgroup: panels of rows, their depth in groups.

    The result has the shape (batches…, panels, groups, rows, depth of a group), one dtype of its own, and 0 wherever a
    panel hangs over the memory: result[b, p, g, r, d] = memory[b, p · rows + r, g · depth + d], where `row_axis` and
    `depth_axis` name the axes of `memory` that rows and depth run along.
    """

    memory: Value
    row_axis: int
    depth_axis: int


@dataclass(frozen=True)
class ReadPanel(Op):
    """Part of a panel: result[…, r, k] is row r of panel `at[-2]` at depth `at[-1]` + k; batches come first in `at`."""

    memory: Value
    at: tuple[Value, ...]


@dataclass(frozen=True)
class ZeroAccumulator(Op):
    """Sums of nothing, in the matrix unit's registers."""


@dataclass(frozen=True)
class LoadAccumulator(Op):
    """A tile taken into the matrix unit's registers."""

    x: Value


@dataclass(frozen=True)
class Accumulate(Op):
    """acc + a · bᵀ for two panels, in the matrix unit's registers."""

    a: Value
    b: Value
    acc: Value


@dataclass(frozen=True)
class ReadAccumulator(Op):
    """The sums as a tile again."""

    acc: Value


class Barrier(Op):
    """No wave of the workgroup goes on before all have come here."""


# -- control --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loop(Op):
    """body(i, *carried) for i in range(trips) yields the next carried values; the results are the last ones."""

    trips: Value
    init: tuple[Value, ...]
    body: Block


@dataclass(frozen=True)
class While(Op):
    """As long as condition(*carried) yields true, carried = body(*carried)."""

    init: tuple[Value, ...]
    condition: Block
    body: Block


@dataclass(frozen=True)
class Yield(Op):
    """Ends a block: these are its values."""

    values: tuple[Value, ...]


ARITHMETIC: tuple[type[Binary], ...] = (Add, Sub, Mul, Div, FloorDiv, Mod, Min, Max)
LOGIC: tuple[type[Binary], ...] = (And, Or)
COMPARISONS: tuple[type[Binary], ...] = (Less, LessEqual, Equal, NotEqual)
FUNCTIONS: tuple[type[Unary], ...] = (Exp, Exp2, Log, Log2, Sqrt, Rsqrt, Tanh, Erf, Sin, Cos)
ELEMENTWISE: tuple[type[Op], ...] = (*ARITHMETIC, *LOGIC, *COMPARISONS, Neg, Not, Abs, *FUNCTIONS, Cast, Select)
WITH_EFFECT: tuple[type[Op], ...] = (Write, Scatter, Barrier, Yield, Allocate)

MATRIX_UNIT: tuple[type[Op], ...] = (ZeroAccumulator, LoadAccumulator, Accumulate, ReadAccumulator)

NUMBERS: tuple[type[Op], ...] = (Const, *ELEMENTWISE, Workgroup, Allocate, Barrier, Loop, While, Yield)
LEVELS: dict[str, tuple[type[Op], ...]] = {
    "tile": (
        *NUMBERS,
        TileOf,
        Broadcast,
        Permute,
        Iota,
        Read,
        Write,
        Gather,
        Scatter,
        Mma,
        Prepack,
        ReadPanel,
        *MATRIX_UNIT,
    ),
    # What one lane of one wave does. Its loads, stores, fragments and asynchronous copies join this list as the
    # passes that produce them do; whatever is not in a level's list does not verify there.
    "lane": NUMBERS,
}
VOCABULARY: dict[str, type[Op]] = {cls.word(): cls for level in LEVELS.values() for cls in level}
