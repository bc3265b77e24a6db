"""Lowering of asynchronous ops: TMA copies, mbarriers, and matrix products whose operands are in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product as combinations
from math import prod

from tilewave.analysis.barriers import Handovers
from tilewave.errors import TargetError
from tilewave.ir import ops as ir
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.placements import box_axes, offset, panels, row_elements, without_swizzle
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Mbarriers, Memory, Panels, Swizzled
from tilewave.lower.gpu.asynchronous_target import (
    AsynchronousTarget,
    Box,
    BoxParts,
    Gathering,
    SharedCopy,
    SharedProduct,
    SharedRows,
)
from tilewave.lower.gpu.memory import GlobalPlace, bounds
from tilewave.lower.gpu.numbers import numbers_of
from tilewave.lower.gpu.ranges import INT32, within
from tilewave.lower.gpu.registers import Registers
from tilewave.lower.gpu.shared import SharedPlace
from tilewave.lower.gpu.values import BITS, WORD_BITS, Held, as_word, cut, natural_width, regrouped
from tilewave.lower.launch_arguments import MapArgument

CHUNK_BYTES, ROWS_OF_CHUNKS = 16, 8
"""The chunks of the swizzle of TMA and wgmma, and the rows after which it repeats."""
MBARRIER_BYTES = 8
"""Bytes of an mbarrier."""
MOST_PARTS, PART_ROWS = 4, 16
"""The most parts of a box of which not all rows are used, and a number that the rows of a part are a multiple of."""


Allot = Callable[[str, int, int], str]
"""Allocates shared memory: a name, bytes and their alignment → its address."""


class AsynchronousOps:
    """Lowers the ops of a kernel that run asynchronously to its waves."""

    def __init__(
        self,
        target: AsynchronousTarget,
        numbers: Registers,
        kernel: Kernel,
        places: Mapping[Value, GlobalPlace | SharedPlace],
        allot: Allot,
    ) -> None:
        self.target, self.n, self.f, self.places, self.allot = target, numbers, numbers.f, places, allot
        self.waves, self.resident = prod(kernel.waves), kernel.resident
        ops = list(walk(kernel.body))
        self.handovers = Handovers(kernel)
        self.reads_later = any(isinstance(op, (ir.Wgmma, ir.TmaStore)) for op in ops)
        self.together = {op.mbarriers: op.waves for op in ops if isinstance(op, ir.Arrive)}
        self.mbarriers: dict[Value, str] = {}
        self.maps: dict[MapArgument, str] = {}
        self.first_barrier = {self.waves: 0}
        self.barriers = 1

    def op(self, op: Op, leader: int) -> None:
        """Lower one op; `leader` is the first of the waves that run it."""
        match op:
            case ir.Wgmma():
                self.n.vectors[op.result] = self.multiply(op)
            case ir.Agree():
                self.n.put(op.result, self.agree(op))
            case ir.WaitOlderMma(pending):
                self.target.wait_older_mma(self.f, pending)
            case ir.WaitMma():
                self.n.vectors[op.result] = self.wait_mma(op)
            case ir.MakeMbarriers(arrivals):
                self.make_mbarriers(op, arrivals, leader)
            case ir.Arrive(mbarriers, at, expect, waves, members, seen):
                assert waves == self.together[mbarriers], f"{op.loc}: waves arrive together in different numbers"
                mbarrier = self.target.mbarriers.after(self.f, self.mbarrier(mbarriers, at), self.words_of(seen))
                if members > 1:
                    self.target.mbarriers.arrive_everywhere(self.f, mbarrier, members)
                else:
                    self.target.mbarriers.arrive(self.f, mbarrier, expect, op.stored)
            case ir.WaitMbarrier(mbarriers, at, parity):
                self.target.mbarriers.wait(self.f, self.mbarrier(mbarriers, at), self.number(parity))
            case ir.TmaLoad(mbarriers=mbarriers, mbarrier=mbarrier):
                self.tma_load(op, self.mbarrier(mbarriers, mbarrier))
            case ir.TmaLoadMulticast():
                self.tma_load_multicast(op)
            case ir.ClusterBarrier():
                self.target.cluster_barrier(self.f)
            case ir.Copy():
                self.copy(op)
            case ir.TmaStore(source, source_at, more=more):
                *before, last = self.boxes(op, source, source_at)
                for box in before:
                    self.target.tma_store(self.f, box, True)
                self.target.tma_store(self.f, last, more)
            case ir.WaitTmaStores(pending):
                self.target.wait_tma_stores(self.f, pending)
            case ir.WaitPriorLaunch():
                self.target.wait_prior_launch(self.f)
            case ir.LaunchDependents():
                self.target.launch_dependents(self.f)
            case _:
                raise NotImplementedError(f"{op.loc}: cannot lower {op.name}")

    def number(self, v: Value) -> str:
        return self.n.sum(self.n.positions.of(v), 32)

    def coordinate(self, v: Value) -> str:
        """Return a position as TMA takes it, in 32 bits; one that does not fit, of an index from memory, is outside."""
        position = self.n.positions.of(v)
        if within(bounds(position, self.n.positions), INT32):
            return self.number(v)
        f, whole = self.f, self.n.sum(position, 64)
        short = f.value(f"trunc i64 {whole} to i32")
        fits = f.value(f"icmp eq i64 {f.value(f'sext i32 {short} to i64')}, {whole}")
        return f.value(f"select i1 {fits}, i32 {short}, i32 {INT32[0]}")

    def registers(self, role: ir.Role) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return what the waves of a role and the others emit where it begins, to give consumers more registers."""
        if role.first or not role.others_keep:
            return (lambda: None), (lambda: None)
        return self.target.share_registers(self.f, role.last, self.waves, role.others_keep, self.resident)

    # -- barriers

    def barrier(self, op: ir.Barrier) -> None:
        self.target.barrier(self.f, self.gathering(op, op.waves or self.waves))

    def agree(self, op: ir.Agree) -> str:
        held = regrouped(self.f, self.n.vector(op.x), 1).parts
        mine = held[0]
        for other in held[1:]:
            mine = self.f.value(f"and i1 {mine}, {other}")
        return self.target.agree(self.f, self.gathering(op, op.waves), mine)

    def gathering(self, op: ir.Barrier | ir.Agree, waves: int) -> Gathering:
        if waves not in self.first_barrier:
            self.first_barrier[waves] = self.barriers
            self.barriers += -(-self.waves // waves)
            if self.barriers > self.target.most_barriers:
                raise TargetError(f"{op.name}: a workgroup has {self.target.most_barriers} barriers", loc=op.loc)
        first = self.first_barrier[waves]
        number = str(first)
        if waves < self.waves:
            group = self.f.value(f"udiv i32 {self.n.target.wave(self.f)}, {waves}")
            number = self.f.value(f"add i32 {group}, {first}")
        return Gathering(number, waves, isinstance(op, ir.Barrier) and self.reads_later and op in self.handovers)

    # -- products

    def multiply(self, op: ir.Wgmma) -> Held:
        """Lower a product, batch after batch, each with separate sums."""
        *batch, _, _, _, _ = op.acc.type.shape
        rows, columns, depth = op.shape
        acc = regrouped(self.f, self.n.vector(op.acc), 1)
        per_batch = len(acc.parts) // prod(batch)
        held = self.held_operand(op)
        adds = "".join(self.f.value(f"zext i1 {self.n.truth(v)} to i32") for v in op.adds)
        used = "".join(map(self.number, op.columns_used))
        found: list[str] = []
        for i, which in enumerate(combinations(*map(range, batch))):
            sums = acc.parts[i * per_batch : (i + 1) * per_batch]
            a = held[i * len(held) // prod(batch) : (i + 1) * len(held) // prod(batch)] or self.rows(op, 0, which)
            b = self.rows(op, 1, which)
            found += self.target.multiply(
                self.f, SharedProduct(a, b, rows, columns, depth, sums, op.ignored_bits, adds, op.later, used)
            )
        whole = Held(acc.shape, acc.kind, 1, tuple(found))
        return whole if op.later else regrouped(self.f, whole, natural_width(acc.shape, acc.kind))

    def wait_mma(self, op: ir.WaitMma) -> Held:
        begun = regrouped(self.f, self.n.vector(op.sums), 1)
        meanwhile = [x for v in op.meanwhile for x in regrouped(self.f, self.n.vector(v), 1).parts]
        found = self.target.wait_mma(self.f, op.pending, begun.kind, begun.parts, meanwhile)
        whole = Held(begun.shape, begun.kind, 1, tuple(found))
        return regrouped(self.f, whole, natural_width(begun.shape, begun.kind))

    def held_operand(self, op: ir.Wgmma) -> tuple[str, ...]:
        """Return the registers of the first operand, each with two neighbours; () if it is in shared memory."""
        if not isinstance(op, ir.WgmmaRegisters):
            return ()
        pairs = regrouped(self.f, self.n.vector(op.a), 2)
        return tuple(self.f.value(f"bitcast {pairs.type} {part} to i32") for part in pairs.parts)

    def rows(self, op: ir.Wgmma, side: int, batch: tuple[int, ...]) -> SharedRows:
        """Return an operand in shared memory at a position along its batch axes."""
        shared, at = op.factor(side)
        place = self.shared(shared)
        memory, swizzle = place.memory, swizzle_bytes(op, place.memory)
        if swizzle == 0:
            raise TargetError(f"{op.name}: rows of {memory} have no swizzle", loc=op.loc)
        steps = (*(0,) * (len(at) - len(batch) - 2), *batch, 0, 0)
        # wgmma applies the swizzle itself, so the address is that of rows without a swizzle.
        where = offset(without_swizzle(memory), *numbers_of(self.n, at, steps)) * place.bytes
        base = self.target_address(place.pointer)
        address = self.f.value(f"add i32 {base}, {where.whole()}")
        return SharedRows(address, swizzle, memory.dtype.name, memory.shape[-2] * swizzle, side in op.transposed)

    def shared(self, v: Value) -> SharedPlace:
        place = self.places[v]
        assert isinstance(place, SharedPlace)
        return place

    def target_address(self, pointer: str) -> str:
        return self.f.value(f"ptrtoint {self.n.target.shared_pointer} {pointer} to i32")

    # -- mbarriers

    def make_mbarriers(self, op: ir.MakeMbarriers, arrivals: int, leader: int) -> None:
        mbarriers = op.result.type
        assert isinstance(mbarriers, Mbarriers)
        count = prod(mbarriers.shape)
        base = self.target_address(self.allot(op.result.name, MBARRIER_BYTES * count, MBARRIER_BYTES))
        self.mbarriers[op.result] = base
        each = [self.f.value(f"add i32 {base}, {MBARRIER_BYTES * i}") for i in range(count)]
        # Where several waves arrive as one in the IR, each of them arrives at the mbarrier.
        self.target.mbarriers.make(self.f, leader, each, arrivals * self.together.get(op.result, 1))

    def mbarrier(self, mbarriers: Value, at: Value) -> str:
        far = self.f.value(f"mul i32 {self.number(at)}, {MBARRIER_BYTES}")
        return self.f.value(f"add i32 {self.mbarriers[mbarriers]}, {far}")

    def words_of(self, seen: Iterable[Value]) -> list[str]:
        """Return a word of each part of these vectors: one load fills a part, so its first word suffices."""
        found: list[str] = []
        for x in map(self.n.vector, seen):
            small = max(1, WORD_BITS // BITS[x.kind])
            firsts = [cut(self.f, part, x.kind, x.width, small)[0] for part in x.parts]
            found += [as_word(self.f, first, x.kind, small) for first in firsts]
        return found

    # -- copies

    def copy(self, op: ir.Copy) -> None:
        """Copy and wait; every copy op has an mbarrier in shared memory for the whole kernel."""
        mbarrier = self.target_address(self.allot(f"{op.to.name}.arrival", MBARRIER_BYTES, MBARRIER_BYTES))
        place = self.shared(op.to)
        size = prod(place.memory.shape[len(op.to_at) :]) * place.bytes
        self.target.copy_now(self.f, self.boxes(op, op.to, op.to_at), mbarrier, size)

    def tma_load(self, op: ir.TmaLoad, mbarrier: str) -> None:
        """Load a box; where not all of its rows are used, in parts, of which those without such rows are left out."""
        place = self.shared(op.to)
        parts = parts_of(place.memory.shape[-2]) if op.rows_used else 1
        boxes = self.boxes(op, op.to, op.to_at, parts=parts)
        if parts == 1:
            for box in boxes:
                self.target.tma_load(self.f, box, mbarrier)
            return
        rows = place.memory.shape[-2] // parts
        used = self.f.value(f"add i32 {self.number(op.rows_used[0])}, {rows - 1}")
        size = rows * row_elements(place.memory) * place.bytes
        count = self.f.value(f"sdiv i32 {used}, {rows}")
        for box in boxes:
            self.target.tma_load_parts(self.f, BoxParts(box, parts, rows, size, count), mbarrier)

    def tma_load_multicast(self, op: ir.TmaLoadMulticast) -> None:
        """Multicast this workgroup's part of the box to the cluster; or load all parts for this workgroup alone."""
        place = self.shared(op.to)
        rows = place.memory.shape[-2] // op.shares
        size = rows * row_elements(place.memory) * place.bytes
        rank = self.target.cluster_rank(self.f)
        own = self.f.value(f"urem i32 {self.f.value(f'udiv i32 {rank}, {op.apart}')}, {op.shares}")
        later = (self.f.value(f"add i32 {own}, {i}") for i in range(1, op.shares))
        others = [self.f.value(f"urem i32 {which}, {op.shares}") for which in later]
        first = self.f.value(f"sub i32 {rank}, {self.f.value(f'mul i32 {own}, {op.apart}')}")
        all_parts = sum(1 << i * op.apart for i in range(op.shares))
        peers = self.f.value(f"shl i32 {all_parts}, {first}")
        mbarrier, together = self.mbarrier(op.mbarriers, op.mbarrier), self.n.truth(op.together)
        for whole in self.boxes(op, op.to, op.to_at, parts=op.shares):
            mine, *rest = (self.further(whole, which, rows, size) for which in (own, *others))
            self.target.tma_load_multicast(self.f, SharedCopy(mine, tuple(rest), mbarrier, rank, peers, together))

    def further(self, box: Box, which: str, rows: int, size: int) -> Box:
        """Return a box `which` · rows further down in global and shared memory, where rows take `size` bytes."""
        *before, row, last = box.at
        down = self.f.value(f"mul i32 {which}, {rows}")
        far = self.f.value(f"mul i32 {which}, {size}")
        at = (*before, self.f.value(f"add i32 {row}, {down}"), last)
        return Box(box.map, at, self.f.value(f"add i32 {box.address}, {far}"))

    def boxes(
        self,
        op: ir.Copy | ir.TmaLoad | ir.TmaLoadMulticast | ir.TmaStore,
        shared: Value,
        shared_at: tuple[Value, ...],
        parts: int = 1,
    ) -> list[Box]:
        """Return one box, or one per panel; with `parts`, whose boxes have fewer rows, the first part's."""
        place = self.shared(shared)
        memory = op.memory.type
        assert isinstance(memory, Memory)
        axes = box_axes(memory.rank, op.axes)
        width = row_elements(place.memory)
        extents = [*(1,) * (memory.rank - len(op.axes)), *place.memory.shape[len(shared_at) : -1], width]
        if parts > 1:
            extents[-2] //= parts
        name = self.map(MapArgument(op.memory.name, axes, tuple(extents), swizzle_bytes(op, place.memory)))
        zeros = (0,) * (len(place.memory.shape) - len(shared_at) - 1)
        where = numbers_of(self.n, shared_at, (0,) * len(shared_at))
        base = self.target_address(place.pointer)
        addresses = []
        for panel in range(panels(place.memory)):
            far = offset(without_swizzle(place.memory), *where, *zeros, panel * width) * place.bytes
            addresses.append(self.f.value(f"add i32 {base}, {far if isinstance(far, int) else far.whole()}"))
        *front, column = (self.coordinate(op.at[axis]) for axis in axes)
        columns = [column, *(self.f.value(f"add i32 {column}, {i * width}") for i in range(1, len(addresses)))]
        return [Box(name, (*front, at), address) for at, address in zip(columns, addresses, strict=True)]

    def map(self, wanted: MapArgument) -> str:
        """Return the kernel parameter that is the tensor map."""
        if wanted not in self.maps:
            name = f"%.map.{len(self.maps)}"
            self.maps[wanted] = name
            self.f.parameters.append((self.target.map_parameter, name))
            self.target.expect_map(self.f, name)
        return self.maps[wanted]


def parts_of(rows: int) -> int:
    """Return the number of boxes in which a tile of so many rows is loaded where not all of them are used."""
    return next((n for n in range(MOST_PARTS, 1, -1) if rows % (n * PART_ROWS) == 0), 1)


def swizzle_bytes(op: Op, memory: Memory) -> int:
    """Return the bytes within which the swizzle permutes the chunks of a row; 0 without a swizzle."""
    match memory.placement:
        case None:
            return 0
        case Swizzled(chunk, period, every) | Panels(_, chunk, period, every):
            row = row_elements(memory) * memory.dtype.bytes
            standard = chunk * memory.dtype.bytes == CHUNK_BYTES and period * every == ROWS_OF_CHUNKS
            if standard and period * CHUNK_BYTES == row:
                return row
    raise TargetError(f"{op.name}: no copy or MMA of this target reads {memory}", loc=op.loc)
