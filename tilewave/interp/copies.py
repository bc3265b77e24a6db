"""The semantics of asynchronous copies, by TMA or by lanes, for one wave."""

from __future__ import annotations

from math import prod

import numpy as np

from tilewave.interp.arithmetic import NEVER_USED, Array
from tilewave.interp.mbarrier_ops import mbarrier_at, note_late, want_not_overfull
from tilewave.interp.memory import LaneMemory
from tilewave.interp.positions import Elements, strides
from tilewave.interp.wave_state import Waiting, WaveState
from tilewave.interp.windows import Window
from tilewave.interp.workgroup import Asked, CopyUnderWay, Wait, WorkgroupState
from tilewave.ir import ops
from tilewave.ir.core import Op, Value
from tilewave.ir.ops import CopyAsyncChunks, TmaLoad, TmaLoadMulticast, TmaStore, WaitAsync, WaitTmaStores
from tilewave.ir.placements import in_its_place
from tilewave.ir.types import Memory

GRAIN_BYTES = 16
"""The alignment of a TMA box in its rows; repeated here, because the interpreter checks the passes independently."""


def copy(wave: WaveState, op: ops.Copy) -> None:
    """Copy a box; wave 0 does it for all, synchronously."""
    if wave.number:
        return
    source: LaneMemory = wave.env[op.memory]
    target: LaneMemory = wave.env[op.to]
    wave.want_waited(op, source)
    box = target.shape[len(op.to_at) :]
    flat = elements_of_box(wave, op, target, op.to_at)
    window = window_of(wave, op, op.at, op.axes, box, source)
    if window is not None and source.is_tracked:
        wave.state.note_read(source, wave.access(op, "read"), numbers(source, window))
    new = boxed(source, window, box).reshape(-1)
    wave.state.note_write(target, wave.access(op, "write"), flat, new)
    target.put(flat, new)


def tma_load(wave: WaveState, op: TmaLoad) -> None:
    target: LaneMemory = wave.env[op.to]
    box = target.shape[len(op.to_at) :]
    window = window_of(wave, op, op.at, op.axes, box, wave.env[op.memory])
    used = max(0, int(wave.uniform(op, op.rows_used[0]))) if op.rows_used else None
    load_box(wave, op, elements_of_box(wave, op, target, op.to_at), window, box, wave.state, used)


def tma_load_multicast(wave: WaveState, op: TmaLoadMulticast) -> None:
    target: LaneMemory = wave.env[op.to]
    *others, rows, row = target.shape[len(op.to_at) :]
    box, flat = (*others, rows // op.shares, row), elements_of_box(wave, op, target, op.to_at)
    at = box_begin(wave, op, op.at, wave.env[op.memory])
    together, size, rank = wave.uniform(op, op.together), len(flat) // op.shares, wave.state.rank
    want_one_box(wave, op, tuple(at) if together else None)
    members = [wave.state.cluster.members[i] for i in op.peers(rank)] if together else [wave.state]
    for part in (op.share(rank),) if together else range(op.shares):
        from_here = list(at)
        from_here[op.axes[-2]] += part * (rows // op.shares)
        window = Window.of(from_here, op.axes, box, wave.env[op.memory].shape)
        for member in members:
            load_box(wave, op, flat[part * size : (part + 1) * size], window, box, member)


def want_one_box(wave: WaveState, op: TmaLoadMulticast, box: tuple[int, ...] | None) -> None:
    """Refuse a multicast whose workgroups load different boxes."""
    asked = Asked(op, wave.name, wave.state.rank, box)
    other = wave.state.cluster.ask((*wave.path, wave.place), asked)
    if other is not None:
        wants = [f"{a.who} wants {list(a.box) if a.box else 'a separate box'}" for a in (other, asked)]
        wave.fail(op, f"{op.name}: {wants[0]}, and {wants[1]}: a multicast loads one box")


def load_box(
    wave: WaveState,
    op: TmaLoad | TmaLoadMulticast,
    flat: Array,
    window: Window | None,
    box: tuple[int, ...],
    member: WorkgroupState,
    rows_used: int | None = None,
) -> None:
    """Start the TMA load of a box to a workgroup, completing on its mbarrier; rows that are not used become others."""
    source: LaneMemory = wave.env[op.memory]
    wave.want_waited(op, source)
    target = member.allocate(op.to)
    mbarrier, name = mbarrier_at(wave, op, op.mbarriers, op.mbarrier, member)
    segment = wave.state.ledger.clocks.new_segment()
    note_late(wave, op, segment, member)
    if window is not None and source.is_tracked:
        wave.state.note_read(source, wave.access(op, "read", segment), numbers(source, window))
    wave.state.note_write(target, wave.access(op, "write", segment), flat, None)

    def land() -> None:
        tile = boxed(source, window, box)
        if rows_used is not None and rows_used < box[-2]:
            tile = np.concatenate([tile[..., :rows_used, :], np.full_like(tile[..., rows_used:, :], NEVER_USED)], -2)
        target.data[flat] = tile.reshape(-1)
        mbarrier.land(segment, tile.size * target.element_bytes)
        want_not_overfull(wave, op, mbarrier, name)

    wave.state.cluster.copies.append(CopyUnderWay(op, segment, land))


def tma_store(wave: WaveState, op: TmaStore) -> None:
    source: LaneMemory = wave.env[op.source]
    target: LaneMemory = wave.env[op.memory]
    wave.want_waited(op, target)
    box = source.shape[len(op.source_at) :]
    flat = elements_of_box(wave, op, source, op.source_at)
    window = window_of(wave, op, op.at, op.axes, box, target)
    read, written = (wave.state.ledger.clocks.new_segment() for _ in range(2))
    reading = wave.access(op, "read", read)
    source.order_machine(wave.state.ledger, reading, flat)
    wave.state.note_read(source, reading, flat)
    if window is not None:
        wave.state.note_write(target, wave.access(op, "write", written), numbers(target, window), None)

    def land() -> None:
        if window is not None:
            tile = source.data[flat].reshape(box)[window.part]
            target.data.reshape(target.shape)[window.inside] = window.to_memory(tile)

    copy = CopyUnderWay(op, read, land)
    wave.state.cluster.copies.append(copy)
    wave.joined = (*wave.joined, copy)
    if not op.more:
        wave.sent.append(wave.joined)
        wave.joined = ()


def wait_tma_stores(wave: WaveState, op: WaitTmaStores) -> Waiting:
    wave.lanes_meet()
    groups = wave.sent[: max(0, len(wave.sent) - op.pending)]
    waited = [copy for group in groups for copy in group]

    def notified() -> str:
        return f"at {op.loc} for its TMA stores"

    yield from wave.until(Wait(op, lambda: all(copy.has_landed for copy in waited), notified))
    wave.state.ledger.clocks.learn(wave.index, [copy.segment for copy in waited])
    wave.sent = wave.sent[len(groups) :]
    return ()


def want_nothing_under_way(wave: WaveState) -> None:
    """Refuse that a wave ends with copies in flight, because another workgroup may get the shared memory then."""
    sent = [copy.op for copies in (*wave.sent, wave.joined) for copy in copies]
    if sent:
        wave.fail(
            sent[0],
            f"{wave.name} ends while its TMA store may still read shared memory",
            "a wait_tma_stores must be between the store and the end",
        )
    if wave.loaded:
        wave.fail(
            wave.loaded[0][0].op,
            f"{wave.name} ends while its copy may still write shared memory",
            "a wait_async must be between the copy and the end",
        )


def bring_elements(wave: WaveState, op: CopyAsyncChunks, elements: Elements) -> None:
    """Start asynchronous copies; `elements` are those of the global memory, lanes x rounds x neighbours."""
    source: LaneMemory = wave.env[op.memory]
    target: LaneMemory = wave.env[op.to]
    flat = places(wave, op, target)
    segment = wave.state.ledger.clocks.new_segment()
    if source.is_tracked and len(elements.kept):
        wave.state.note_read(source, wave.access(op, "read", segment), elements.kept)
    wave.state.note_write(target, wave.access(op, "write", segment), flat, None)
    taken = (wave.state.lanes, *op.shape)

    def land() -> None:
        found = source.data.take(np.broadcast_to(elements.flat, taken))
        if elements.active is not None:
            found = np.where(np.broadcast_to(elements.active, taken), found, np.zeros((), found.dtype))
        target.data[flat] = found.swapaxes(0, 1).reshape(-1)

    copy = CopyUnderWay(op, segment, land)
    wave.state.cluster.copies.append(copy)
    wave.loaded.append((copy, len(flat) * target.element_bytes))


def places(wave: WaveState, op: CopyAsyncChunks, target: LaneMemory) -> Array:
    """Return the numbers of the elements that the chunks fill, contiguous from the beginning of a row."""
    *front, row = (wave.uniform(op, v) for v in op.to_at)
    kind = op.to.type
    assert isinstance(kind, Memory)
    place = np.arange(op.shape[0] * wave.state.lanes * op.shape[1])
    rows, columns = row + place // kind.shape[-1], place % kind.shape[-1]
    if not (row >= 0 and rows[-1] < kind.shape[-2] and all(map(range.__contains__, map(range, kind.shape), front))):
        where = ", ".join(map(str, (*front, row)))
        wave.fail(op, f"wave {wave.number} copies {len(place)} elements to {target.name}[{where}], outside {kind}")
    first = sum(i * s for i, s in zip(front, strides(target.shape), strict=False))
    flat: Array = first + rows * kind.shape[-1] + in_its_place(kind, rows, columns)
    return flat


def wait_async(wave: WaveState, op: WaitAsync) -> Waiting:
    waited: list[CopyUnderWay] = []
    while wave.loaded and sum(size for _, size in wave.loaded) > op.pending:
        waited.append(wave.loaded.pop(0)[0])

    def notified() -> str:
        return f"at {op.loc} for its copies"

    yield from wave.until(Wait(op, lambda: all(copy.has_landed for copy in waited), notified))
    wave.state.ledger.clocks.learn(wave.index, [copy.segment for copy in waited])
    return ()


def elements_of_box(wave: WaveState, op: Op, memory: LaneMemory, at: tuple[Value, ...]) -> Array:
    """Return the numbers of the elements at the leading indices `at`."""
    indices = [wave.uniform(op, v) for v in at]
    if not all(0 <= i < extent for i, extent in zip(indices, memory.shape, strict=False)):
        where = ", ".join(map(str, indices))
        wave.fail(op, f"wave {wave.number} copies {memory.name}[{where}], which is outside the memory")
    first = sum(i * s for i, s in zip(indices, strides(memory.shape), strict=False))
    return np.arange(first, first + prod(memory.shape[len(at) :]))


def window_of(
    wave: WaveState, op: Op, at: tuple[Value, ...], axes: tuple[int, ...], box: tuple[int, ...], memory: LaneMemory
) -> Window | None:
    return Window.of(box_begin(wave, op, at, memory), axes, box, memory.shape)


def box_begin(wave: WaveState, op: Op, at: tuple[Value, ...], memory: LaneMemory) -> list[int]:
    """Return the position of a box in a global memory."""
    found = [wave.uniform(op, v) for v in at]
    if found[-1] * memory.element_bytes % GRAIN_BYTES:
        where = ", ".join(map(str, found))
        wave.fail(
            op,
            f"wave {wave.number} copies from {memory.name}[{where}], not a multiple of {GRAIN_BYTES} bytes",
        )
    return found


def boxed(source: LaneMemory, window: Window | None, box: tuple[int, ...]) -> Array:
    """Return the elements of a box of a memory; out-of-bounds elements are 0."""
    tile = np.zeros(box, source.data.dtype)
    if window is not None:
        tile[window.part] = window.to_tile(source.data.reshape(source.shape)[window.inside])
    return tile


def numbers(memory: LaneMemory, window: Window) -> Array:
    """Return the numbers of the elements in a window."""
    along = [np.arange(w.start, w.stop) if isinstance(w, slice) else np.array([w]) for w in window.inside]
    steps = strides(memory.shape)
    return sum((p * s for p, s in zip(np.ix_(*along), steps, strict=True)), np.zeros(1, np.int64)).reshape(-1)
