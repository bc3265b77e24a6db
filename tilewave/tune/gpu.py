"""The cost model of a launch on a GPU, for every grid down to one tile.

    seconds = launch + copies + start + hand over
              + (busy ** q + (L2 bytes / rate) ** q + (bytes of arrays / rate) ** q) ** (1 / q)

`busy` is the time of the unit with the most work: waves of tasks, each a start and its steps. A step takes its matrix
instructions and the gap before the next, but at least the time to wait, multiply and arrive; the time to load its
bytes; and the time to refill its stage in shared memory, divided by the number of stages. Where several
workgroups fit on a unit, they fill each other's gaps. With stream-K or split-K, parts of tiles are counted, with the
cost of adding them. `copies` are packed copies of operands that are unaligned for TMA.

Launches follow each other. If each workgroup of a kernel has one tile or split, the next launch starts while the last
one ends (PDL). If all of its workgroups fit on the units, its start costs nothing, q is larger, since each fills
the other's idle time, and what both read is still in L2; otherwise it is read from memory again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from math import exp, gcd, log2, prod

from tilewave.analysis.loads import AHEAD_BYTES
from tilewave.analysis.splits import splits_that_pay
from tilewave.layouts.fragments import WARPGROUP
from tilewave.machine.matrix import MANY_SUMS
from tilewave.machine.tuning import SplitTuning
from tilewave.passes.grid.stream_k import StreamK
from tilewave.tune.fitted import LaunchTiming
from tilewave.tune.gpu_room import MOST_RESIDENT, GpuRoom, Loading, TakenInstruction, computed_once
from tilewave.tune.neighbours import neighbours_in
from tilewave.tune.problem import CutProduct, CutTransfer, CutWork

HALF_DEPTH = 16
"""Elements of f16 that the matrix unit takes along the depth."""
MEASURED_BYTES = 2
"""The element size of the measured launches."""
MANY_ROUNDS = 8
"""The number of waves after which it does not matter how full the last one is."""
UNEVEN_SIDE = 2.0
"""As many loads a tile counts for whose side is no power of two, which lanes cannot share evenly."""
MOSTLY = 0.75
"""The share of a step above which matrix instructions are named as its bottleneck."""


@dataclass(frozen=True)
class Prediction:
    """How long a launch is to take, and what it waits for."""

    seconds: float
    error: float
    """One standard deviation, as a share."""
    limit: str
    """The bottleneck, in a few words."""
    fitted_on: str


@dataclass(frozen=True)
class SharedTiles:
    """The tiles of a wave split along K: how many parts, the steps of the longest, and whether slices are scattered."""

    parts: int
    longest: int
    is_scattered: bool = False


@cache
def shared_round(
    units: int,
    tiles: int,
    steps: int,
    step_bytes: int,
    sums_bytes: int,
    on_lines: bool,
    are_all: bool,
    costs: SplitTuning,
) -> SharedTiles | None:
    """Return how stream-K splits the tiles of a last wave; None if it does not."""
    rule = StreamK(units, costs)
    if not on_lines:
        cut = rule.best_cut(tiles, steps, step_bytes, ends_in_zeros=True)
        return None if cut is None else SharedTiles(cut.parts, cut.longest)
    if are_all:
        parts = splits_that_pay(tiles, steps, units, step_bytes, sums_bytes, costs)
        if costs.is_scattered(parts, sums_bytes):
            return SharedTiles(parts, -(-steps // parts), is_scattered=True)
    split = rule.best(tiles, steps, step_bytes)
    return None if split is None else SharedTiles(split.parts, split.longest)


class Beginning(Enum):
    """When a launch begins."""

    PLAIN = "after the previous launch"
    EARLY = "during the end of the previous launch (PDL)"
    CROWDED = "during the end of the previous launch (PDL), in the shared memory that it leaves"
    LATE = "after the previous launch has ended (PDL)"


@dataclass(frozen=True)
class StepTime:
    """What a step of one task takes of its unit, in seconds."""

    products: float
    """Where others fill its gaps."""
    alone: float
    """Where it is alone there."""
    served: float
    """The time of the loads of a step."""

    def of(self, tasks: int) -> float:
        """A step of so many tasks at once."""
        return max(tasks * self.products if tasks > 1 else 0.0, self.alone, tasks * self.served)


@dataclass(frozen=True)
class GpuTiles(GpuRoom):
    """A chip, the card that represents it, and the parameters fitted on it."""

    timing: LaunchTiming

    def predict(self, cut: CutWork) -> Prediction:
        return self.predict_all((cut,))[0]

    def predict_all(self, cuts: Sequence[CutWork]) -> list[Prediction]:
        found = map(self._by_formulas, cuts)
        given = zip(found, self._beyond(cuts), strict=True)
        return [replace(one, seconds=one.seconds * exp(more)) for one, more in given]

    def _by_formulas(self, cut: CutWork) -> Prediction:
        t = self.timing
        serial, found = self._of_products(cut) if cut.products else self._of_rows(cut)
        q = t.early_sharpness if self._beginning(cut) is Beginning.EARLY else t.sharpness
        total = t.launch + serial + sum(x**q for x in found.values()) ** (1 / q)
        limit = max(found, key=lambda name: found[name])
        copies = self._copies(cut)
        return Prediction(total + copies, t.error, "packing" if copies > found[limit] else limit, t.fitted_on)

    def _beyond(self, cuts: Sequence[CutWork]) -> list[float]:
        """What launches like them took beyond the formulas, where some were measured: products of 16-bit operands."""
        measured = [len(cut.products) == 1 and cut.products[0].dtype.bytes == MEASURED_BYTES for cut in cuts]
        if not self.timing.neighbours or not all(measured):  # all are of one kernel
            return [0.0] * len(cuts)
        return neighbours_in(self.timing.neighbours).beyond([self.traits(cut) for cut in cuts])

    def _bytes(self, cut: CutWork, kept_bytes_per_second: float) -> dict[str, float]:
        """What L2 and memory need; arrays that fit into L2 are still there from the launch before, and come so fast."""
        t, missed = self.timing, self._missed(cut)
        memory = missed / (self.card.hbm.bytes_per_second * t.hbm_share) + (1.0 - missed) / kept_bytes_per_second
        return {"L2": cut.asked_bytes / t.l2_bytes_per_second, "memory": cut.distinct_bytes * memory}

    def _missed(self, cut: CutWork) -> float:
        """Return the share of the arrays that the previous launch has not left in L2."""
        t = self.timing
        beyond = cut.distinct_bytes + self._copied_bytes(cut) - t.l2_kept_bytes
        return min(1.0, max(0.0, beyond / (t.l2_kept_bytes * t.l2_thrashed)))

    def _copies(self, cut: CutWork) -> float:
        """Return the time of the launch that packs unaligned operands for TMA; 0 without one."""
        copied = self._copied_bytes(cut)
        return self.timing.copy_launch + copied / self.timing.copy_bytes_per_second if copied else 0.0

    @computed_once
    def _copied_bytes(self, cut: CutWork) -> int:
        if self.loading(cut) is not Loading.REPACKED:
            return 0
        return sum({x.memory: x.array_bytes for x in self.odd(cut)}.values())

    def _layout(self, t: CutTransfer, loading: Loading) -> tuple[bool, bool]:
        """Whether its rows go across the depth, and whether they begin where the widest loads do."""
        grain = self.chip.widest_load_bytes
        if t.is_written or loading is Loading.BY_LANES:
            return t.is_across, t.row_bytes % grain == 0
        return t.is_across and not t.is_column, not t.is_off(grain)

    def traits(self, cut: CutWork) -> tuple[float, ...]:
        """Return features of a config: sides, splits, stages, uneven sides, sizes, layouts, waves, and how it loads."""
        sides = [x for p in cut.products for x in (log2(p.rows), log2(p.cols), 1.5 * log2(p.depth))]
        uneven = [1.5 * (n % WARPGROUP.rows > 0) for p in cut.products for n in (p.rows, p.cols)]
        walked = [*cut.operands, *(t for t in cut.transfers if t.is_written)]
        arrays = [0.35 * log2(max(1, t.array_bytes)) for t in walked]
        loading = self.loading(cut)
        weight = 3.0 if loading is Loading.BY_LANES else 1.0  # to them, where rows begin is most of it
        layout = [weight * x for t in walked for x in self._layout(t, loading)]
        rounds, steps = cut.tasks * cut.split / self.card.units, max(1.0, cut.steps / cut.split)
        loads = [2.0 * (loading is x) for x in Loading]
        knobs = [log2(cut.split), 2.5 * log2(self.stages(cut)), log2(self.resident(cut)), float(self.has_one_each(cut))]
        knobs.append(float(bool(cut.products) and self._shared(cut) is not None))
        knobs += [float(self._is_transposed(cut)), log2(self.groups(cut)), 2.5 * self.streams_to_neighbours(cut)]
        knobs += [0.7 * log2(self.chip.line_bytes / self._copied_row(t, cut)) for t in cut.operands]
        knobs += self._lanes_in_turns(cut, rounds) if loading is Loading.BY_LANES else [0.0, 0.0, 0.0]
        return (*sides, *uneven, *arrays, *layout, *_of_rounds(rounds), 0.5 * log2(steps), *loads, *knobs)

    def _lanes_in_turns(self, cut: CutWork, rounds: float) -> list[float]:
        """Return features of lane loads: whether lanes wait for them, and the waves of resident workgroups."""
        return [3.0 * self._waits_for_loads(cut), *_of_rounds(rounds / self.resident(cut))]

    # -- products

    def _of_products(self, cut: CutWork) -> tuple[float, dict[str, float]]:
        """(what nothing overlaps with, what does overlap and how long each takes)."""
        t, step, start, units = self.timing, self._step(cut), self._start(cut), self.card.units
        shared = self._shared(cut)
        if cut.split > 1:
            serial, busy = self._parts(cut, step, start)
        elif self.has_one_each(cut):
            serial, busy = self._in_turns(cut.tasks, cut.steps, self.resident(cut), step, start)
        else:
            serial, busy = self._persistent(cut, shared, step.of(1), start)
        busy += self._stored(cut)
        beginning = self._beginning(cut)
        serial += {Beginning.CROWDED: t.no_room, Beginning.LATE: t.not_early}.get(beginning, 0.0)
        crowded = beginning is Beginning.CROWDED and self.loading(cut) is Loading.IN_PLACE
        found = self._bytes(cut, t.crowded_bytes_per_second if crowded else t.kept_bytes_per_second)
        name = "compute" if step.products * self.resident(cut) > MOSTLY * step.of(1) else "latency"
        if step.served >= step.alone:
            name = "loads"
        return serial, {name if cut.tasks * cut.split >= units else "small grid": busy, **found}

    @computed_once
    def _beginning(self, cut: CutWork) -> Beginning:
        if not self.chip.tma or not cut.products or self.loading(cut) is Loading.BY_LANES:
            return Beginning.PLAIN
        goes_on = cut.tasks > self.card.units or self._shared(cut) is not None
        if (cut.split == 1 and not self.has_one_each(cut) and goes_on) or self.streams_to_neighbours(cut):
            return Beginning.LATE
        fits = 2 * cut.tasks * cut.split <= self.card.units * self.resident(cut)
        return Beginning.EARLY if fits else Beginning.CROWDED

    @computed_once
    def has_one_each(self, cut: CutWork) -> bool:
        """Whether each workgroup has one task and ends, because the compiler sees room for two on a unit."""
        if not self.chip.tma or self.loading(cut) is Loading.BY_LANES:
            return True
        return self.fitting(cut) > 1 and cut.tasks >= self.card.units

    def _step(self, cut: CutWork) -> StepTime:
        t, products = self.timing, 0.0
        for p in cut.products:
            taken = self.taken(p, cut)
            padded = taken.padded if taken else (p.rows, p.cols, p.depth)
            rate = self._rate(p, taken)
            products += 2.0 * p.batch * prod(padded) * p.times / cut.steps * self.card.units / (rate * t.matrix_share)
        alone = max(products + t.step_gap, products / self.groups(cut) + t.group_gap)
        if self.loading(cut) is Loading.BY_LANES:
            served = self._loaded_by_lanes(cut)
            waited = t.lane_gap + t.lane_latency * self._missed(cut) + t.not_ahead * self._waits_for_loads(cut)
            return StepTime(products, alone + waited + served, served)
        served = self._copied(cut)
        alone = max(alone, t.least_step) * self._slower(cut)
        if self.chip.tma:
            filled = (t.latency + served + products) / self.stages(cut)
            alone = (alone**t.ring_sharpness + filled**t.ring_sharpness) ** (1 / t.ring_sharpness)
        return StepTime(products * t.together, alone, served)

    def _rate(self, p: CutProduct, taken: TakenInstruction | None) -> float:
        """Products and sums in a second, of the whole chip; groups of waves take as many bytes of depth at once."""
        if found := self.card.flops(p.dtype.name):
            return found
        half = self.card.flops("f16") or self.card.rates[0].flops
        return half * taken.instruction.depth / HALF_DEPTH if taken and taken.instruction.ignored_bits else half / 16

    def _slower(self, cut: CutWork) -> float:
        """What many sums make of a step."""
        return self.timing.many_sums if self.sums_per_lane(cut) > MANY_SUMS else 1.0

    def _copied(self, cut: CutWork) -> float:
        """Return the time of TMA loads of a step, which go row by row and fill out-of-bounds rows."""
        t = self.timing
        busy = min(self.card.units, cut.tasks * cut.split)
        rate: float = t.unit_bytes_per_second * (self.card.units / busy) ** t.few_units
        inside = (cut.step_bytes - cut.outside_bytes - self.spared_step_bytes(cut)) / rate
        inside *= 1.0 if self.on_lines(cut) else t.unaligned_lines_copied
        return inside + self.outside_rows(cut) * t.outside_row + self.short_rows(cut) * t.short_row

    def _loaded_by_lanes(self, cut: CutWork) -> float:
        """Return the time of lane loads of a step, and of each cache line that they touch."""
        t, line = self.timing, self.chip.line_bytes
        lines = sum(x.tile_bytes * x.times / min(x.tile_row_bytes, line) for x in cut.operands)
        return self._lane_loads(cut) / t.lane_loads_per_second + lines * t.lane_line / cut.steps

    @computed_once
    def _waits_for_loads(self, cut: CutWork) -> float:
        """The share of the steps that lanes have not loaded while they multiplied those before."""
        after = 1.0 - cut.split / max(cut.split, cut.steps)
        return after if sum(x.tile_bytes for x in cut.operands) > AHEAD_BYTES else 0.0

    @computed_once
    def _lane_loads(self, cut: CutWork) -> float:
        """Return the lane loads of a step: as wide as the row stride allows, or one element each where a tile is padded
        to whole instructions; padding counts, though it touches no cache line."""
        widest, found = self.chip.widest_load_bytes, 0.0
        for x, more in zip(cut.operands, self.grown(cut), strict=True):
            at_once = gcd(x.row_bytes, widest) if more == 1.0 else x.tile_bytes / x.elements
            side = x.elements // cut.products[0].depth
            found += more * x.tile_bytes * x.times / at_once * (1.0 if side & (side - 1) == 0 else UNEVEN_SIDE)
        return found / cut.steps

    @computed_once
    def _sums(self, cut: CutWork) -> int:
        """Return the accumulator elements of a tile padded to whole instructions."""
        found = ((p, self.taken(p, cut)) for p in cut.products)
        return max((p.batch * prod(t.padded[:2] if t else (p.rows, p.cols)) for p, t in found), default=0)

    def _start(self, cut: CutWork) -> float:
        t = self.timing
        return t.start + t.start_per_sum * self._sums(cut) + t.start_per_byte * cut.step_bytes

    def _stored(self, cut: CutWork) -> float:
        """Return the time of lane stores, where TMA does not store: transposed results element by element, and
        unaligned rows as wide as their stride allows."""
        t, widest, results = self.timing, self.chip.widest_load_bytes, self.stored_by_lanes(cut)
        if self.chip.tma and self._is_transposed(cut):
            written = (x for x in cut.transfers if x.is_written and not self._staged_writes(cut))
            found = sum(x.elements * x.inside_bytes / x.tile_bytes for x in written) * t.transposed_store
        elif self._stores_rows(cut):
            found = sum(x.inside_bytes / gcd(x.row_bytes, widest) for x in results) * t.unaligned_store
        else:
            found = sum(x.elements * x.inside_bytes / x.tile_bytes for x in results) * t.held_store
        return -(-cut.tasks // self.card.units) * found

    # -- rounds

    def _in_turns(self, tasks: int, steps: int, resident: int, step: StepTime, start: float) -> tuple[float, float]:
        """Each workgroup has one task, and several share a unit."""
        rounds, rest = divmod(-(-tasks // self.card.units), resident)
        turns = [many for many in [*[resident] * rounds, rest] if many]
        return start, sum(steps * step.of(many) for many in turns) + (len(turns) - 1) * start

    def _parts(self, cut: CutWork, step: StepTime, start: float) -> tuple[float, float]:
        """Sums that are cut: a workgroup for each part, and one of them, or several, add up."""
        tasks, steps = cut.tasks * cut.split, -(-cut.steps // cut.split)
        serial, busy = self._in_turns(tasks, steps, self.resident(cut), step, start)
        is_scattered = self.chip.tuning.splits.is_scattered(cut.split, 4 * self._sums(cut))
        return serial + self._handed(cut, cut.split, is_scattered), busy

    def _handed(self, cut: CutWork, parts: int, scattered: bool) -> float:
        """Parts end at about the same time: they are waited for once, and added one after the other."""
        t, sums = self.timing, self._sums(cut)
        added = t.scattered if scattered else (parts - 1) ** t.added_power
        together = self.chip.tuning.splits.come_together(parts - 1, 4 * sums)
        at_once = together and cut.tasks * parts <= self.card.units
        alone = 0.0 if scattered or at_once else (parts - 2) * t.taken_alone
        return t.hand_over + t.hand_over_per_sum * sums * added + alone

    @computed_once
    def _shared(self, cut: CutWork) -> SharedTiles | None:
        rounds, left = divmod(cut.tasks, self.card.units)
        if not left or len(cut.products) != 1 or cut.split > 1 or cut.in_fixed_order or self.has_one_each(cut):
            return None
        depth = sum(p.depth * p.dtype.bytes for p in cut.products)
        facts = self.card.units, left, cut.steps, depth, 4 * self._sums(cut), self.on_lines(cut), not rounds
        return shared_round(*facts, self.chip.tuning.splits)

    def _persistent(self, cut: CutWork, shared: SharedTiles | None, alone: float, start: float) -> tuple[float, float]:
        """Return (start, busy) for waves of whole tiles, then the last one, which stream-K may split."""
        t = self.timing
        rounds, left = divmod(cut.tasks, self.card.units)
        busy = rounds * cut.steps * alone + max(0, rounds + bool(left) - 1) * t.start_hidden * start
        if not left:
            return start, busy
        if shared is None:
            return start, busy + cut.steps * alone
        return start + self._handed(cut, shared.parts, shared.is_scattered), busy + shared.longest * alone

    # -- rows

    def _of_rows(self, cut: CutWork) -> tuple[float, dict[str, float]]:
        """A launch that multiplies nothing: memory, and how much of it is under way at once."""
        t, units = self.timing, self.card.units
        held = max(1, cut.read_tile_bytes)
        resident = max(1, min(4 * MOST_RESIDENT, self.chip.register_bytes // (4 * held)))
        rounds = -(-cut.tasks // (units * resident))
        of_task = sum(x.tile_bytes * x.times for x in cut.transfers)
        rate = self.card.hbm.bytes_per_second * t.hbm_share / units
        at_once = min(resident, -(-cut.tasks // units))
        return 0.0, {
            "row loads": rounds * (t.row_start + at_once * of_task / rate),
            **self._bytes(cut, t.kept_bytes_per_second),
        }


def _of_rounds(rounds: float) -> list[float]:
    """How many, and how full the last one is."""
    return [0.7 * log2(max(rounds, 1e-3)), rounds % 1.0 if rounds < MANY_ROUNDS else 0.5]
