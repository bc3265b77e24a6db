"""The vocabulary, one class per op: read this file to learn what a kernel can say, `interp.py` for what it means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
    """The quotient of integers, rounded down, as in Python; by zero 0, and what does not fit wraps."""


class Mod(Binary):
    """What FloorDiv leaves; it has the sign of b, as in Python; by zero 0."""


class Xor(Binary):
    """The bits in which two integers differ, neither of them negative."""


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
    """The same number in the result's dtype: the nearest float; integers towards zero, saturating, from floats."""


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
class Overlay(Op):
    """Another memory in the first bytes of a shared one; what is written to either is lost to the other."""

    memory: Value


@dataclass(frozen=True)
class Read(Op):
    """The tile whose first element is at `at`; result axis i runs along memory axis `axes[i]`; 0 outside the memory."""

    memory: Value
    at: tuple[Value, ...]
    axes: tuple[int, ...]
    through: str = ""
    per_lane: int = 0
    spread: str = ""
    """How lanes share the tile: as its use wants (nothing); "rows" or "columns": as the matrix instruction takes its
    left or right operand, `per_lane` neighbours each; "linear": neighbouring lanes take chunks of `per_lane`."""
    guard: tuple[int, ...] = ()
    """The memory axes along which the tile may hang over, or lie behind the memory; guard_edges finds them all."""


@dataclass(frozen=True)
class Write(Op):
    """Store a tile, its first element at `at`, its axis i along memory axis `axes[i]`; nothing outside the memory."""

    tile: Value
    memory: Value
    at: tuple[Value, ...]
    axes: tuple[int, ...]
    per_lane: int = 0
    guard: tuple[int, ...] = ()


@dataclass(frozen=True)
class WriteThrough(Op):
    """As `write`, by way of a shared memory that holds parts of the tile on their way; it holds nothing afterwards.

    Where the machine copies them out, `shared` is groups x buffers x rows x columns: each group of four waves fills its
    buffers, row block by row block and column by column, and lets them go. Where lanes do, it is waves x rows x
    columns: each wave writes a part of its own, and reads it back along rows.
    """

    tile: Value
    memory: Value
    at: tuple[Value, ...]
    shared: Value
    axes: tuple[int, ...]
    guard: tuple[int, ...] = ()


@dataclass(frozen=True)
class Gather(Op):
    """The tile whose element (i, j, …) sits where `where(i, j, …)` says; 0 outside the memory."""

    memory: Value
    where: Block
    through: str = ""
    part: bool = False
    """Of a tile that was cut, so that all of it may lie outside."""


@dataclass(frozen=True)
class Scatter(Op):
    """Store element (i, j, …) of a tile where `where(i, j, …)` says; nothing outside the memory."""

    tile: Value
    memory: Value
    where: Block
    part: bool = False
    """Of a tile that was cut, so that all of it may lie outside."""


@dataclass(frozen=True)
class Mma(Op):
    """acc + a · bᵀ over the last two axes, in the accumulator's dtype; leading axes are batches."""

    a: Value
    b: Value
    acc: Value
    instruction: str = ""
    """The matrix instruction that the machine has for it; chosen by choose_instructions."""
    depth: int = 0
    """How deep a block is that each wave multiplies at once: one instruction, or several behind each other."""


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


@dataclass(frozen=True)
class Copy(Op):
    """A box of a global memory goes to shared memory, 0 where it lies outside; `at`, `to_at` and `axes` as in copy_async_signal.

    On the lane level wave 0 of the workgroup makes it, and goes on when it is made.
    """

    memory: Value
    at: tuple[Value, ...]
    to: Value
    to_at: tuple[Value, ...]
    axes: tuple[int, ...]


@dataclass(frozen=True)
class CopyAsync(Op):
    """A box of a global memory is on its way to shared memory, 0 where it lies outside; see `await_async`.

    The box has the shape of `to`'s last axes, as many as `axes`, whose entry i names the memory axis that box axis i
    runs along; `at` is its first element in `memory`, `to_at` the indices in front of those axes.
    """

    memory: Value
    at: tuple[Value, ...]
    to: Value
    to_at: tuple[Value, ...]
    axes: tuple[int, ...]
    guard: tuple[int, ...] = ()
    """The memory axes along which the box may hang over; decided by guard_edges."""


@dataclass(frozen=True)
class AwaitAsync(Op):
    """Go on when no more than the last `pending` bytes are still on their way that this workgroup, or wave, brings."""

    pending: int


@dataclass(frozen=True)
class Barrier(Op):
    """No wave goes on before all have come here."""

    waves: int = 0
    """0: all waves of the workgroup; else so many neighbours, counted from wave 0 on: 4 are waves 0 to 3, 4 to 7, …"""
    over: str = "shared"
    """What it hands over: what waves did to shared memory in front of it, or, `global`, to global memory too."""


# -- between workgroups: tiles that one computed a part of, and another ends -------------------------------------------


@dataclass(frozen=True)
class MakeExchange(Op):
    """The launch's slots for tiles that workgroups hand to each other."""


@dataclass(frozen=True)
class HandOver(Op):
    """Put a tile into an empty slot, for whichever workgroup takes it over.

    On the lane level each wave puts its own registers there, for the wave of its number.
    """

    tile: Value
    exchange: Value
    slot: Value


@dataclass(frozen=True)
class TakeOver(Op):
    """tile + the one in a slot, which is empty afterwards; waits until somebody has handed it over.

    Only workgroups of lower numbers may do so: these begin earlier, so that nobody waits for one that cannot begin.
    """

    tile: Value
    exchange: Value
    slot: Value


# -- what one lane of one wave does ---------------------------------------------------------------------------------


class Lane(Op):
    """The number of this lane in its wave."""


class Wave(Op):
    """The number of this wave in its workgroup; the same for all its lanes."""


@dataclass(frozen=True)
class Ramp(Op):
    """The vector whose element (i, j, …) is i · steps[0] + j · steps[1] + …, the same in every lane."""

    steps: tuple[int, ...]


class Unset(Op):
    """Registers that may hold anything, and that nothing may depend on."""


@dataclass(frozen=True)
class Part(Op):
    """The registers of x from `first` on along one of its axes, as many as the result has."""

    x: Value
    axis: int
    first: int


@dataclass(frozen=True)
class Load(Op):
    """What this lane takes from a memory.

    Register (i, j, …) of the result holds the element at `at[a] + i · steps[0][a] + j · steps[1][a] + …` along each
    memory axis a. Outside the memory it is 0 along the axes in `guard`; along others it must not be outside. Where
    `mask` holds a truth value, lanes that say no take nothing and hold 0.
    """

    memory: Value
    at: tuple[Value, ...]
    mask: tuple[Value, ...]
    steps: tuple[tuple[int, ...], ...]
    guard: tuple[int, ...] = ()


@dataclass(frozen=True)
class Store(Op):
    """Where this lane's registers go; positions as in `load`, and nothing is stored outside along `guard`."""

    x: Value
    memory: Value
    at: tuple[Value, ...]
    mask: tuple[Value, ...]
    steps: tuple[tuple[int, ...], ...]
    guard: tuple[int, ...] = ()


@dataclass(frozen=True)
class LoadEach(Op):
    """Each register from a position of its own: `at[a]` is a vector of positions along memory axis a; 0 outside."""

    memory: Value
    at: tuple[Value, ...]
    mask: tuple[Value, ...]


@dataclass(frozen=True)
class StoreEach(Op):
    """Each register to a position of its own; nothing outside the memory."""

    x: Value
    memory: Value
    at: tuple[Value, ...]
    mask: tuple[Value, ...]


@dataclass(frozen=True)
class CopyAsyncChunks(Op):
    """Chunks of a global memory are on their way to shared memory; `await_async` tells when they are there.

    `shape` is rounds x neighbours. In each round every lane takes one chunk, at positions as in `load`, and what lies
    outside along `guard` is 0. Lane l's chunk goes right behind that of lane l - 1, and a round behind the one before,
    as rows stand in `to` from the beginning of row `to_at` on: lanes choose what they take, not where it goes.
    """

    memory: Value
    at: tuple[Value, ...]
    to: Value
    to_at: tuple[Value, ...]
    shape: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    guard: tuple[int, ...] = ()

    mask: ClassVar[tuple[Value, ...]] = ()
    """Every lane takes part."""


@dataclass(frozen=True)
class Matrix(Op):
    """acc + a · bᵀ by all lanes of a wave, in fragments as `ir/fragments.py` lays them.

    a: batches… x row blocks x depth blocks x depth per lane, b likewise with column blocks, acc: batches… x row
    blocks x column blocks x groups x 4. `shape` is rows x columns x depth of one block, which takes one instruction,
    or several that share the depth. `turned`: the four neighbours of acc lie along columns instead of rows. `rows`:
    only the row blocks from rows[0] up to rows[1] are added to, the other sums pass through.
    """

    a: Value
    b: Value
    acc: Value
    shape: tuple[int, ...]
    instruction: str
    turned: bool = False
    rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class MatrixShared(Op):
    """acc + a · bᵀ by a group of four waves together, which read both operands from shared memory.

    `shape` is rows x columns x depth: the group multiplies `rows` rows of `a` that begin at `a_at` with `columns` rows
    of `b` at `b_at`. Each wave has the sums of 16 rows of every 64, as `ir/fragments.py` lays them in acc: batches… x
    rows / 64 x columns / 8 x 2 x 2. Where `adds` holds a truth value that says no, acc counts as zeros.
    """

    a: Value
    a_at: tuple[Value, ...]
    b: Value
    b_at: tuple[Value, ...]
    acc: Value
    shape: tuple[int, ...]
    instruction: str
    adds: tuple[Value, ...] = ()
    ignored_bits: int = 0
    """The last bits of each operand's mantissa, which count as 0."""


@dataclass(frozen=True)
class Role(Op):
    """Only waves `first` to `last` - 1 run this block; the others go on behind it.

    Lanes of the others may be left `others_keep` registers, so that these have more; 0 leaves them what they have.
    """

    first: int
    last: int
    body: Block
    others_keep: int = 0


class Meet(Barrier):
    """No wave of the workgroup goes on before all have come to a `meet`, each to whichever it comes to."""


@dataclass(frozen=True)
class Priority(Op):
    """How urgent this wave is from here on, 0 to 3, among those that share its units; no result depends on it."""

    level: int


class KeepOrder(Op):
    """What stands in front stays in front, what stands behind stays behind; no result depends on it."""


@dataclass(frozen=True)
class Together(Op):
    """The next `count` instructions of a kind come here in a row: matrix, load, shared_load or shared_store.

    A list of these lays out the stretch that it ends; no result depends on it.
    """

    kind: str
    count: int


class AwaitLoads(Op):
    """Go on when everything has come that this wave loads from global memory; no result depends on it."""


# -- what arrives later: copies that a machine makes by itself, and barriers with phases ------------------------------


@dataclass(frozen=True)
class MakeSignals(Op):
    """Barriers that each turn when `arrivals` arrivals, and all bytes they were told to expect, have come.

    A fresh one is in phase 0. The wave that makes them does so for the workgroup; others see them behind a barrier.
    """

    arrivals: int


@dataclass(frozen=True)
class Arrive(Op):
    """This wave has come to signal `at`; what it did before is seen by whoever waits for the phase that this ends.

    `expect` bytes more must be copied in before that phase can end. `waves`: so many neighbours, counted from wave 0,
    arrive once together, when all of them have come. `members`: at the same signal of each of the cluster's workgroups.
    """

    signals: Value
    at: Value
    expect: int = 0
    waves: int = 1
    members: int = 1


@dataclass(frozen=True)
class Await(Op):
    """Go on when signal `at` is no longer in the phase whose parity is `parity` (0 or 1)."""

    signals: Value
    at: Value
    parity: Value


@dataclass(frozen=True)
class CopyAsyncSignal(Op):
    """One lane asks for a box of a global memory; it arrives in shared memory at some later time, and tells a signal.

    The box has the shape of `to`'s last axes, as many as `axes`, whose entry i names the memory axis that box axis i
    runs along; `at` is its first element in `memory`, `to_at` the indices in front of those axes. 0 outside the memory.
    """

    memory: Value
    at: tuple[Value, ...]
    to: Value
    to_at: tuple[Value, ...]
    signals: Value
    signal: Value
    axes: tuple[int, ...]


@dataclass(frozen=True)
class CopyAsyncCluster(Op):
    """As `copy_async_signal`, for the two workgroups of a cluster: where `together` holds, both ask, and each brings half.

    Halves are of the rows, the last axis but one: the first member of the cluster brings the first half to both, to the
    same place in each one's shared memory, and tells the same signal of each; the second brings the second. Where it
    does not hold, a workgroup gets the whole box for itself. `full` signals expect the same bytes either way.
    """

    memory: Value
    at: tuple[Value, ...]
    to: Value
    to_at: tuple[Value, ...]
    signals: Value
    signal: Value
    together: Value
    axes: tuple[int, ...]


class ClusterBarrier(Op):
    """No wave goes on before all waves of all workgroups of the cluster have come here."""


@dataclass(frozen=True)
class CopyAsyncOut(Op):
    """A box of shared memory goes to a global memory at some later time; nothing is stored outside the memory.

    `more`: the next one of this wave goes with it, and both are awaited as one.
    """

    source: Value
    source_at: tuple[Value, ...]
    memory: Value
    at: tuple[Value, ...]
    axes: tuple[int, ...]
    more: bool = False


@dataclass(frozen=True)
class AwaitAsyncOut(Op):
    """Go on when at most `pending` of this wave's copies out, joined ones as one, still read shared memory."""

    pending: int


class AwaitEarlier(Op):
    """Go on when all kernels launched before have ended, and what they wrote is there.

    A kernel that has this may start while they still run, so no wave touches global memory in front of it.
    """


class LetNextStart(Op):
    """The kernel launched next may start once all workgroups have come here, or ended; no result depends on it."""


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


ARITHMETIC: tuple[type[Binary], ...] = (Add, Sub, Mul, Div, FloorDiv, Mod, Xor, Min, Max)
LOGIC: tuple[type[Binary], ...] = (And, Or)
COMPARISONS: tuple[type[Binary], ...] = (Less, LessEqual, Equal, NotEqual)
FUNCTIONS: tuple[type[Unary], ...] = (Exp, Exp2, Log, Log2, Sqrt, Rsqrt, Tanh, Erf, Sin, Cos)
ELEMENTWISE: tuple[type[Op], ...] = (*ARITHMETIC, *LOGIC, *COMPARISONS, Neg, Not, Abs, *FUNCTIONS, Cast, Select)
LATER: tuple[type[Op], ...] = (
    *(MakeSignals, Arrive, Await, CopyAsyncSignal, CopyAsyncCluster, ClusterBarrier, CopyAsyncOut, AwaitAsyncOut),
    *(AwaitEarlier, LetNextStart),
)
EXCHANGING: tuple[type[Op], ...] = (MakeExchange, HandOver, TakeOver)
SCHEDULING: tuple[type[Op], ...] = (Priority, KeepOrder, Together, AwaitLoads)
WITH_EFFECT: tuple[type[Op], ...] = (
    *(Write, WriteThrough, Scatter, Copy, CopyAsync, AwaitAsync, CopyAsyncChunks, Barrier, Meet, Yield, Allocate, Store),
    *(StoreEach, Role, HandOver, TakeOver),
    *LATER,
    *SCHEDULING,
)

MATRIX_UNIT: tuple[type[Op], ...] = (ZeroAccumulator, LoadAccumulator, Accumulate, ReadAccumulator)

LANE_OPS: tuple[type[Op], ...] = (
    *(Lane, Wave, Ramp, Unset, Part, Load, Store, LoadEach, StoreEach, CopyAsyncChunks, Matrix, MatrixShared, Role, Meet),
    *LATER,
    *SCHEDULING,
)

NUMBERS: tuple[type[Op], ...] = (
    Const,
    *ELEMENTWISE,
    *(Workgroup, Allocate, Overlay, Copy, AwaitAsync, Barrier, Loop, While, Yield),
    *EXCHANGING,
)
LEVELS: dict[str, tuple[type[Op], ...]] = {
    "tile": (
        *NUMBERS,
        TileOf,
        Broadcast,
        Permute,
        Iota,
        Read,
        Write,
        WriteThrough,
        CopyAsync,
        Gather,
        Scatter,
        Mma,
        Prepack,
        ReadPanel,
        *MATRIX_UNIT,
    ),
    "lane": (*NUMBERS, Broadcast, Permute, *LANE_OPS),
}
VOCABULARY: dict[str, type[Op]] = {cls.word(): cls for level in LEVELS.values() for cls in level}
