"""Grouped products: each group of rows times a matrix of its own, for counts of rows that only the device knows.

The experts of a mixture: tokens sorted by their expert, `ends` the end of each expert's tokens. No row is padded, no
count comes to the host. A row's result depends on its group and on the tile, which depends on the rows of a group on
average: with one tile, the same row has the same sum whatever the other groups have.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from tilewave.errors import CallError, DTypeError, here
from tilewave.ir.types import INDEX, DType
from tilewave.kernels.activations import ACTIVATIONS, activation_named
from tilewave.kernels.indexed import want_indices
from tilewave.kernels.parameters import given, kernel_of
from tilewave.kernels.products import K, M, N, accumulator
from tilewave.kernels.rows import looked_at
from tilewave.lang.accesses import read, write
from tilewave.lang.constraints import Constraint, Ragged, TilingConstraint, WorkgroupConstraint, WorkgroupMapping
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.loops import iterate
from tilewave.lang.ops import cast, first_index, maximum, minimum, scalar, select, self_index
from tilewave.lang.products import mma
from tilewave.lang.symbols import Symbol, sym
from tilewave.lang.types import GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE, MemoryType, RegisterType
from tilewave.mapping import linear
from tilewave.records import dataclass

T, G, PAIR = sym.T, sym.G, sym.PAIR
ROWS = (16, 32, 64, 128)
"""The rows of tiles: the fewest that the matrix units of all targets multiply, up to as many as pay."""
COLUMNS, NARROW_COLUMNS, DEPTH_BYTES = 256, 128, 128
"""The columns of tiles of 16-bit elements, and of wider ones, whose products matrix units compute more slowly."""
BAND = 3
"""The most tiles of rows of a group that are computed for all columns before the next ones: their rows and weights stay
in L2 meanwhile, the better the nearer their workgroups are. H200, 64 uneven groups, relative to torch with bands of 2,
3, 4 and 8: 1.17, 1.17, 1.14, 1.13 for N 2048 and K 7168, 1.21, 1.25, 1.20, 1.21 for N 7168 and K 2048."""
SHAPES = "x [T, K], w [G, N, K], ends [G], y [T, N], bias [G, N], scales [T]"


@dataclass(frozen=True)
class GroupedTile:
    """The rows and columns of a workgroup's tile, and the depth of a step."""

    rows: int
    columns: int
    depth: int

    @property
    def of_pairs(self) -> GroupedTile:
        """The tile with as many sums where a workgroup multiplies rows by two matrices."""
        return replace(self, columns=self.columns // 2)

    @property
    def constraints(self) -> list[Constraint]:
        """The constraints of products whose groups are rows."""
        return [
            WorkgroupConstraint(T, self.rows, 0, ragged=Ragged(G, "ends", BAND)),
            WorkgroupConstraint(N, self.columns, 1),
            TilingConstraint(K, self.depth),
            WorkgroupMapping(linear(along="n")),
        ]


def grouped_tile_for(rows: int, groups: int, dtype: DType) -> GroupedTile:
    """Return the tile for so many rows of so many groups: about as many rows as a group has on average.

    A group with half as many rows again takes two tiles, and its weights come from L2 for the second one.
    """
    average = -(-rows // max(1, groups))
    fitting = next((n for n in ROWS if 3 * n >= 2 * average), ROWS[-1])
    return GroupedTile(fitting, COLUMNS if dtype.bytes <= 2 else NARROW_COLUMNS, DEPTH_BYTES // dtype.bytes)


@dataclass(frozen=True)
class GroupedForm:
    """The dtypes of a grouped product, and its epilogue."""

    dtype: DType
    out: DType
    ends: DType
    bias: DType | None = None
    activation: str = ""
    scales: DType | None = None
    x_axes: tuple[Symbol, Symbol] = (T, K)
    w_axes: tuple[Symbol, Symbol] = (N, K)
    """The order of axes in memory, of w after the groups."""


def grouped_product(
    x: Any, w: Any, ends: Any, y: Any, bias: Any = None, activation: str | None = None, scales: Any = None
) -> None:
    """y[t] = activation(x[t] · w[g]ᵀ + bias[g]) · scales[t] for each row t of each group g.

    Group g has the rows from ends[g - 1], or 0, up to ends[g]. Rows after the last end are kept.
    """
    arrays = {"x": x, "w": w, "ends": ends, "y": y, "bias": bias, "scales": scales}
    seen = {name: looked_at("grouped_product", name, array) for name, array in arrays.items() if array is not None}
    for name, axes in {"x": 2, "w": 3, "ends": 1, "y": 2, "bias": 2, "scales": 1}.items():
        if name in seen and len(seen[name].shape) != axes:
            what = f"grouped_product: {name} has {len(seen[name].shape)} axes, not {axes}"
            raise CallError(what, loc=here(), remedy=f"pass {SHAPES}")
    if activation is not None:
        activation_named("grouped_product", activation)
    if seen["x"].dtype != seen["w"].dtype:
        what = f"grouped_product: x is {seen['x'].dtype}, but w is {seen['w'].dtype}"
        raise DTypeError(what, loc=here(), remedy="both have one dtype; cast one of them")
    dtype = {name: view.dtype for name, view in seen.items()}
    more = dtype.get("bias"), activation or "", dtype.get("scales")
    form = GroupedForm(dtype["x"], dtype["y"], dtype["ends"], *more)
    tile = grouped_tile_for(seen["x"].shape[0], seen["ends"].shape[0], form.dtype)
    grouped_product_kernel(tile, form)(*(array for array in arrays.values() if array is not None))


@cache
def grouped_product_kernel(tile: GroupedTile, form: GroupedForm) -> WaveKernel:
    """Return the kernel from x[T, K], w[G, N, K] and ends[G] to y[T, N]; then bias[G, N] and scales[T], if any."""
    want_indices("grouped_product", ends=form.ends)
    acc = accumulator(form.dtype)

    def multiply(to: Any) -> None:
        @iterate(K, init_args=[RegisterType((T, N), acc)(0)])
        def total(sums: Any) -> Any:
            return mma(read(to.x), read(to.w), sums)

        found = total + cast(read(to.bias), acc) if form.bias else total
        found = ACTIVATIONS[form.activation].value(found, acc) if form.activation else found
        found = found * cast(read(to.scales), acc) if form.scales else found
        write(cast(found, form.out), to.y)

    arrays = given(
        x=MemoryType(form.x_axes, SHARED_ADDRESS_SPACE, form.dtype),
        w=MemoryType((G, *form.w_axes), SHARED_ADDRESS_SPACE, form.dtype),
        ends=MemoryType((G,), GLOBAL_ADDRESS_SPACE, form.ends),
        y=MemoryType((T, N), GLOBAL_ADDRESS_SPACE, form.out),
        bias=form.bias and MemoryType((G, N), GLOBAL_ADDRESS_SPACE, form.bias),
        scales=form.scales and MemoryType((T,), GLOBAL_ADDRESS_SPACE, form.scales),
    )
    return kernel_of("grouped_product", tile.constraints, arrays, multiply)


# pairs of columns ----------------------------------------------------------------------------------------------------


@cache
def gated_product_kernel(tile: GroupedTile, form: GroupedForm) -> WaveKernel:
    """Return the kernel from x[T, K], w[G, PAIR, N, K] and ends[G] to y[T, N], for a form without bias and scales.

    y = activation(gate) · up, where gate = x · w[g, 0]ᵀ and up = x · w[g, 1]ᵀ. Both are of one tile, so that neither
    goes through memory.
    """
    want_indices("gated_product", ends=form.ends)
    acc = accumulator(form.dtype)

    def multiply(to: Any) -> None:
        @iterate(K, init_args=[RegisterType((T, N), acc)(0)] * 2)
        def both(gate: Any, up: Any) -> Any:
            x = read(to.x)
            return mma(x, read(to.w, at={PAIR: 0}), gate), mma(x, read(to.w, at={PAIR: 1}), up)

        gate, up = both
        write(cast(ACTIVATIONS[form.activation].value(gate, acc) * up, form.out), to.y)

    arrays = {
        "x": MemoryType(form.x_axes, SHARED_ADDRESS_SPACE, form.dtype),
        "w": MemoryType((G, PAIR, *form.w_axes), SHARED_ADDRESS_SPACE, form.dtype),
        "ends": MemoryType((G,), GLOBAL_ADDRESS_SPACE, form.ends),
        "y": MemoryType((T, N), GLOBAL_ADDRESS_SPACE, form.out),
    }
    return kernel_of("gated_product", tile.constraints, arrays, multiply).with_options(batch_invariant=True)


@cache
def invariant_product_kernel(tile: GroupedTile, form: GroupedForm) -> WaveKernel:
    """Return the kernel of a grouped product whose sums do not depend on where a row is."""
    return grouped_product_kernel(tile, form).with_options(batch_invariant=True)


# the gradient of the matrices ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupedSumForm:
    """The dtypes and layouts of the products of each group's rows of two matrices."""

    dtype: DType
    out: DType
    ends: DType
    a_axes: tuple[Symbol, Symbol] = (T, M)
    b_axes: tuple[Symbol, Symbol] = (T, N)


def grouped_sum_tile_for(dtype: DType) -> GroupedTile:
    """Return the tile of a group's product, and the rows of a step."""
    return GroupedTile(64, NARROW_COLUMNS, DEPTH_BYTES // dtype.bytes // 2)


@cache
def grouped_sum_kernel(tile: GroupedTile, form: GroupedSumForm) -> WaveKernel:
    """Return the kernel from a[T, M], b[T, N] and ends[G] to y[G, M, N], aᵀ · b over the rows of each group.

    Rows are added in their order, so results are deterministic.
    """
    want_indices("grouped_sum", ends=form.ends)
    acc = accumulator(form.dtype)

    def multiply(to: Any) -> None:
        group = first_index(G)
        begin = maximum(cast(read(to.ends, at={G: group - 1}), INDEX), scalar(0, INDEX))
        end = minimum(cast(read(to.ends, at={G: group}), INDEX), scalar(T, INDEX))

        @iterate(T, init_args=[RegisterType((M, N), acc)(0)], start=begin, stop=end)
        def total(sums: Any) -> Any:
            row = self_index(T, INDEX)
            is_own = (begin <= row) & (row < end)  # the first and the last step have rows of other groups
            return mma(select(is_own, read(to.a), 0), select(is_own, read(to.b), 0), sums)

        write(cast(total, form.out), to.y)

    arrays = {
        "a": MemoryType(form.a_axes, SHARED_ADDRESS_SPACE, form.dtype),
        "b": MemoryType(form.b_axes, SHARED_ADDRESS_SPACE, form.dtype),
        "ends": MemoryType((G,), GLOBAL_ADDRESS_SPACE, form.ends),
        "y": MemoryType((G, M, N), GLOBAL_ADDRESS_SPACE, form.out),
    }
    constraints = [
        WorkgroupConstraint(M, tile.rows, 0),
        WorkgroupConstraint(N, tile.columns, 1),
        WorkgroupConstraint(G, 1, 2),
        TilingConstraint(T, tile.depth),
    ]
    return kernel_of("grouped_sum", constraints, arrays, multiply)
