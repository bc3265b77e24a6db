"""Packing of an operand into panels, one task per panel.

A panel stores group after group along the depth, and within a group the rows one after the other. Where a panel is
inside its memory and the memory is contiguous along the depth, a square of groups is loaded row by row, transposed in
registers and stored; where it is contiguous along the rows, groups of one element are copied, for neighbouring panels
together. Boundary panels are copied element by element.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewave.ir.ops import Prepack
from tilewave.ir.types import DType
from tilewave.lower.cpu.memory import (
    Place,
    add,
    inside,
    is_number,
    lanes_inside,
    less,
    load,
    load_inside,
    parts,
    store,
    times,
    zero,
)
from tilewave.lower.cpu.target import CpuTarget
from tilewave.lower.elements import in_memory, stored
from tilewave.lower.llvm import LlvmFunction, Typed, vector
from tilewave.lower.numbers import cast
from tilewave.records import dataclass

VECTOR_LANES = 16
"""The most elements that are loaded at once from the rows of a boundary panel."""
LONGEST_TRANSPOSED_BITS = 64
"""Groups up to this size are transposed in registers; longer ones are copied row by row."""
NEIGHBOURING_BYTES = 1024
"""The bytes at one depth that a task copies into neighbouring panels. A large matrix has each depth on another page of
memory, which is looked up once for all of them: a product of 14 x 4096 x 1024 takes 0.8 of the time (Xeon, avx512)."""
NEIGHBOURING_GROUPS = 8
"""The depth that is copied into one panel before the next one: panels may be a power of two apart, and a cache then
holds the lines of few of them. A product of 192 x 64 x 512 takes 0.9 of the time (Xeon, avx512)."""


def write_prepack(f: LlvmFunction, op: Prepack, source: Place, packed: Place, target: CpuTarget) -> None:
    """Fill panel `%number` (batches and panels counted together) of the packed memory."""
    panel = _Panel.of(f, op, source, packed)
    rows_left = less(f, source.extents[op.row_axis], panel.first_row)
    rows_inside = f.value(f"icmp sge i64 {rows_left}, {panel.rows}")
    along_depth = f.value(f"icmp eq i64 {source.strides[op.depth_axis]}, 1")
    along_rows = f.value(f"icmp eq i64 {source.strides[op.row_axis]}, 1")
    length = source.extents[op.depth_axis]
    whole = parts(f, length, panel.depth)
    square = largest_square(panel.rows, target.vector_bytes // 4)

    def across() -> None:
        if panel.depth * panel.dtype.bits > LONGEST_TRANSPOSED_BITS:
            f.when(rows_inside, lambda: panel.copy_groups(whole), lambda: panel.slowly("0"))
        elif square > 1:
            is_long = f.value(f"icmp sge i64 {whole}, {square}")
            f.when(is_long, lambda: panel.turn_all(whole, square, rows_left), lambda: panel.slowly("0"))
        else:
            panel.slowly("0")

    def straight() -> None:
        if panel.depth == 1:
            f.when(rows_inside, lambda: panel.copy_neighbours(length), lambda: panel.copy_inside(length))
            panel.slowly(length)
        else:
            panel.slowly("0")

    f.when(along_depth, across, lambda: f.when(along_rows, straight, lambda: panel.slowly("0")))


def largest_square(rows: int, lanes: int) -> int:
    """Return the largest power of two that divides the rows and fits in a vector."""
    return min(rows & -rows, lanes)


@dataclass(frozen=True)
class _Panel:
    """One panel while it is filled."""

    f: LlvmFunction
    source: Place
    row_axis: int
    depth_axis: int
    outer: tuple[str, ...]
    number: str
    """The number of the panel among those of its batch."""
    first_row: str
    base: str
    groups: str
    rows: int
    depth: int
    dtype: DType

    @staticmethod
    def of(f: LlvmFunction, op: Prepack, source: Place, packed: Place) -> _Panel:
        kind, (*batch, panels, groups, _, _) = packed.type, packed.extents
        rows, depth = packed.group
        panel = f.value(f"urem i64 %number, {panels}")
        rest = f.value(f"udiv i64 %number, {panels}")
        outer: list[str] = []
        for extent in reversed(batch):
            outer.insert(0, f.value(f"urem i64 {rest}, {extent}"))
            rest = f.value(f"udiv i64 {rest}, {extent}")
        first_row = f.value(f"mul i64 {panel}, {rows}")
        start = f.value(f"mul i64 %number, {times(f, groups, rows * depth)}")
        base = f.value(f"getelementptr {in_memory(kind.dtype)}, ptr {packed.pointer}, i64 {start}")
        return _Panel(
            f, source, op.row_axis, op.depth_axis, tuple(outer), panel, first_row, base, groups, rows, depth, kind.dtype
        )

    def position(self, row: str, k: str) -> list[str]:
        left = iter(self.outer)
        axes = range(self.source.type.rank)
        return [row if a == self.row_axis else k if a == self.depth_axis else next(left) for a in axes]

    def target(self, group: str, offset: int | str = 0) -> str:
        """Return the address of a group in the panel, `offset` elements in."""
        start = self.f.value(f"mul i64 {group}, {self.rows * self.depth}")
        element = in_memory(self.dtype)
        return self.f.value(f"getelementptr {element}, ptr {self.base}, i64 {add(self.f, start, str(offset))}")

    def each_group(self, count: str, step: int, body: Callable[[str], None]) -> None:
        def one(i: str, _: list[Typed]) -> list[Typed]:
            body(i if step == 1 else self.f.value(f"mul i64 {i}, {step}"))
            return []

        if count != "0":
            self.f.loop(count, [], one)

    def loaded(self, address: str, count: int) -> str:
        """Load `count` contiguous elements of the source, cast to the panel's dtype."""
        found = load(self.f, self.source.dtype, address, count)
        return cast(self.f, found, self.source.dtype, self.dtype, count)

    def turn_all(self, whole: str, square: int, rows_left: str) -> None:
        """Transpose squares of whole groups, the last of which may overlap the one before; copy the rest slowly."""
        f = self.f
        squares = parts(f, whole, square)

        def of_rows(number: str, _: list[Typed]) -> list[Typed]:
            first = times(f, number, square)
            self.each_group(squares, square, lambda group: self.turn(group, first, square, rows_left))
            self.turn(less(f, whole, str(square)), first, square, rows_left)
            return []

        f.loop(str(self.rows // square), [], of_rows)
        self.slowly(whole)

    def turn(self, group: str, first: str, square: int, rows_left: str) -> None:
        """Transpose `square` groups of rows from `first` on, where the panel has so many rows in the source."""
        f, dtype = self.f, self.source.dtype
        name = f"transpose_{square}_{dtype}_{self.dtype}_in_{self.rows}x{self.depth}"
        function = f.module.helper(name, lambda: self._write_turn(name, square))
        from_ = self.source.address(f, self.position(self.first_row, times(f, group, self.depth)))
        to = self.target(group, times(f, first, self.depth))
        stride = self.source.strides[self.row_axis]
        f.do(f"call void {function}(ptr {from_}, i64 {stride}, i64 {first}, i64 {rows_left}, ptr {to})")

    def _write_turn(self, name: str, square: int) -> str:
        """Write the function that transposes a square: loaded along the depth, stored along the rows."""
        words = [("i64", "%stride"), ("i64", "%first"), ("i64", "%rows_left")]
        f = LlvmFunction(self.f.module, name, [("ptr", "%from"), *words, ("ptr", "%to")])
        unit, count = f"i{self.depth * self.dtype.bits}", square * self.depth
        many, element = vector(square, unit), in_memory(self.source.dtype)
        kind = vector(count, stored(self.dtype))
        last = f.value("sub i64 %rows_left, 1")
        lines = []
        for i in range(square):
            row = f.value(f"add i64 %first, {i}")
            # A row outside is read as the last one inside, and is zero.
            near = f.call("i64", "llvm.smin.i64", [("i64", row), ("i64", last)])
            address = f.value(f"getelementptr {element}, ptr %from, i64 {f.value(f'mul i64 {near}, %stride')}")
            found = cast(f, load(f, self.source.dtype, address, count), self.source.dtype, self.dtype, count)
            is_inside = f.value(f"icmp slt i64 {row}, %rows_left")
            found = f.value(f"select i1 {is_inside}, {kind} {found}, {kind} zeroinitializer")
            lines.append(f.value(f"bitcast {kind} {found} to {many}"))
        for step, line in enumerate(transposed(f, lines, many)):
            where = f"getelementptr {in_memory(self.dtype)}, ptr %to, i64 {step * self.rows * self.depth}"
            f.do(f"store {many} {line}, ptr {f.value(where)}, align {self.dtype.bytes}")
        return f.finish(attributes="nounwind noinline", linkage="internal")

    def copy_groups(self, whole: str) -> None:
        self.each_group(whole, 1, self.copy_rows)
        self.slowly(whole)

    def copy_rows(self, group: str) -> None:
        """Copy a long group, each row's elements of it as they are."""
        f = self.f
        k = f.value(f"mul i64 {group}, {self.depth}")
        for row in range(self.rows):
            address = self.source.address(f, self.position(add(f, self.first_row, row), k))
            found = self.loaded(address, self.depth)
            store(f, self.dtype, found, self.target(group, row * self.depth), self.depth)

    def copy_neighbours(self, groups: str) -> None:
        """Copy groups of one element of this panel and of the panels after it, where its number is a multiple.

        The tasks of these other panels have nothing to copy.
        """
        if groups == "0":
            return
        f = self.f
        deep = NEIGHBOURING_GROUPS
        together = max(1, NEIGHBOURING_BYTES // (self.rows * self.source.dtype.bytes))
        is_first = f.value(f"icmp eq i64 {f.value(f'urem i64 {self.number}, {together}')}, 0")
        whole = less(f, parts(f, self.source.extents[self.row_axis], self.rows), self.number)
        count = f.call("i64", "llvm.smin.i64", [("i64", whole), ("i64", str(together))])

        def of_each_panel(group: str, depth: int) -> None:
            def one(i: str, _: list[Typed]) -> list[Typed]:
                for d in range(depth):
                    self.copy(add(f, group, d), i)
                return []

            f.loop(count, [], one)

        def all_groups() -> None:
            blocks = parts(f, groups, deep)
            self.each_group(blocks, deep, lambda group: of_each_panel(group, deep))
            done = times(f, blocks, deep)
            self.each_group(less(f, groups, done), 1, lambda i: of_each_panel(add(f, i, done), 1))

        f.when(is_first, all_groups, lambda: None)

    def copy(self, group: str, further: str) -> None:
        """Copy one element of every row, contiguous in the source, of the panel that is so many `further`."""
        f = self.f
        row = f.value(f"add i64 {self.first_row}, {times(f, further, self.rows)}")
        address = self.source.address(f, self.position(row, group))
        offset = f.value(f"mul i64 {further}, {times(f, self.groups, self.rows * self.depth)}")
        store(f, self.dtype, self.loaded(address, self.rows), self.target(group, offset), self.rows)

    def copy_inside(self, groups: str) -> None:
        """Copy groups of one element of the rows that are left in the source, contiguous there; others are zero."""
        f, dtype = self.f, self.source.dtype
        lanes = largest_square(self.rows, VECTOR_LANES)
        if lanes == 1:
            self.slowly("0")
            return

        def part(group: str, number: str) -> None:
            row = times(f, number, lanes)
            position = self.position(add(f, self.first_row, row), group)
            mask = lanes_inside(f, position, self.source.extents, self.row_axis, lanes)
            found = load_inside(f, dtype, self.source.address(f, position), mask, lanes)
            store(f, self.dtype, cast(f, found, dtype, self.dtype, lanes), self.target(group, row), lanes)

        def over_groups(group: str) -> None:
            def one(number: str, _: list[Typed]) -> list[Typed]:
                part(group, number)
                return []

            f.loop(str(self.rows // lanes), [], one)

        self.each_group(groups, 1, over_groups)

    def slowly(self, first_group: str) -> None:
        """Copy the groups from `first_group` on, element by element, with 0 past the end of the memory."""
        f = self.f

        def over_groups(i: str, _: list[Typed]) -> list[Typed]:
            group = add(f, i, first_group)

            def over_rows(row: str, _: list[Typed]) -> list[Typed]:
                for d in range(self.depth):
                    self.element(group, row, d)
                return []

            f.loop(str(self.rows), [], over_rows)
            return []

        left = less(f, self.groups, first_group)
        if not is_number(left) or int(left) > 0:
            f.loop(left, [], over_groups)

    def element(self, group: str, row: str, d: int) -> None:
        f, source = self.f, self.source
        k = add(f, f.value(f"mul i64 {group}, {self.depth}"), d)
        where = self.position(add(f, self.first_row, row), k)
        found = f.choose(
            inside(f, where, source.extents),
            lambda: [(stored(source.dtype), load(f, source.dtype, source.address(f, where)))],
            lambda: [(stored(source.dtype), zero(source.dtype))],
        )[0][1]
        offset = add(f, f.value(f"mul i64 {row}, {self.depth}"), d)
        store(f, self.dtype, cast(f, found, source.dtype, self.dtype, 1), self.target(group, offset))


def transposed(f: LlvmFunction, lines: list[str], kind: str) -> list[str]:
    """Return the columns of a square of vectors: step d swaps off-diagonal d-blocks of each pair of lines d apart."""
    size = len(lines)
    distance = 1
    while distance < size:
        swapped = list(lines)
        for i in range(size):
            if i & distance:
                continue
            upper, lower = lines[i], lines[i | distance]
            lanes = range(size)
            first = [size + (lane ^ distance) if lane & distance else lane for lane in lanes]
            second = [size + lane if lane & distance else lane | distance for lane in lanes]
            for at, chosen in ((i, first), (i | distance, second)):
                mask = ", ".join(f"i32 {x}" for x in chosen)
                swapped[at] = f.value(f"shufflevector {kind} {upper}, {kind} {lower}, <{size} x i32> <{mask}>")
        lines = swapped
        distance *= 2
    return lines
