"""How long a launch takes on a GPU: for every grid, down to one tile.

    seconds = launch + copies + start + hand over
              + (busy ** q + (L2 bytes / rate) ** q + (HBM bytes / rate) ** q) ** (1 / q)

`busy` is what the unit with the most work does: rounds of tasks, each a start and its steps; a step takes its products
and the gap before the next, or as long as its bytes take to come. Where several workgroups fit on a unit, they fill
each other's gaps. Where the last round leaves units idle and the compiler shares its tiles, or where sums are cut,
parts of tiles are counted, with what they hand over. `copies` are those of rows that the copy engine cannot take.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import gcd, prod

from tilewave.ir.last_round import SCATTERED, is_scattered, parts_that_pay
from tilewave.passes.split_last_round import SplitLastRound
from tilewave.tune.fitted import LaunchTiming
from tilewave.tune.gpu_room import MANY_SUMS, MOST_RESIDENT, GpuRoom, Loading, TakenInstruction
from tilewave.tune.problem import CutProduct, CutWork

LINE_OF_DEPTH = 128
"""Bytes of depth that the figures for stages are for."""
HALF_DEPTH = 16
"""Elements of f16 that the matrix unit takes along the depth."""
MOSTLY = 0.75
"""Of a step: where products take so much, its time goes into them."""


@dataclass(frozen=True)
class Prediction:
    """How long a launch is to take, and what it waits for."""

    seconds: float
    error: float
    """One standard deviation, as a share."""
    limit: str
    """What the time goes into, in a few words."""
    fitted_on: str


@dataclass(frozen=True)
class SharedTiles:
    """Tiles of a round in parts: how many, the steps of the longest, and how often sums are handed over in turn."""

    parts: int
    longest: int
    handed: int


@cache
def shared_round(
    units: int, tiles: int, steps: int, step_bytes: int, sums_bytes: int, on_lines: bool, are_all: bool
) -> SharedTiles | None:
    """How the compiler shares the tiles of a last round, if it does."""
    rule = SplitLastRound(units)
    if not on_lines:
        cut = rule.best_cut(tiles, steps, step_bytes, ends_in_zeros=True)
        return None if cut is None else SharedTiles(cut.parts, cut.longest, cut.parts - 1)
    if are_all:
        parts = parts_that_pay(tiles, steps, units, step_bytes, sums_bytes)
        if is_scattered(parts, sums_bytes):
            return SharedTiles(parts, -(-steps // parts), SCATTERED)
    split = rule.best(tiles, steps, step_bytes)
    return None if split is None else SharedTiles(split.parts, split.longest, split.parts - 1)


@dataclass(frozen=True)
class StepTime:
    """What a step of one task takes of its unit, in seconds."""

    products: float
    """Where others fill its gaps."""
    alone: float
    """Where it is alone there."""
    served: float
    """Of whoever brings its bytes."""

    def of(self, tasks: int) -> float:
        """A step of so many tasks at once."""
        return max(tasks * self.products if tasks > 1 else 0.0, self.alone, tasks * self.served)


@dataclass(frozen=True)
class GpuTiles(GpuRoom):
    """A chip, the card whose figures stand for it, and what was fitted there."""

    timing: LaunchTiming

    def predict(self, cut: CutWork) -> Prediction:
        t = self.timing
        serial, found = self._of_products(cut) if cut.products else self._of_rows(cut)
        total = t.launch + serial + sum(x**t.sharpness for x in found.values()) ** (1 / t.sharpness)
        limit = max(found, key=lambda name: found[name])
        copies = self._copies(cut)
        return Prediction(total + copies, t.error, "copies of rows" if copies > found[limit] else limit, t.fitted_on)

    def _bytes(self, cut: CutWork) -> dict[str, float]:
        t, distinct = self.timing, cut.distinct_bytes
        from_memory = distinct / (self.card.hbm.bytes_per_second * t.hbm_share) if distinct > t.l2_kept_bytes else 0.0
        return {"L2": cut.asked_bytes / t.l2_bytes_per_second, "memory": from_memory}

    def _copies(self, cut: CutWork) -> float:
        """Of operands into rows that the engine can take: one launch, which reads and writes them."""
        if self.loading(cut) is not Loading.REPACKED:
            return 0.0
        copied = sum({x.memory: x.array_bytes for x in self.odd(cut)}.values())
        return self.timing.copy_launch + copied / self.timing.copy_bytes_per_second

    # -- products

    def _of_products(self, cut: CutWork) -> tuple[float, dict[str, float]]:
        """(what nothing overlaps with, what does overlap and how long each takes)."""
        step, start = self._step(cut), self._start(cut)
        resident, units = self.resident(cut), self.card.units
        if cut.split > 1:
            serial, busy = self._parts(cut, step, start)
        elif (
            self.loading(cut) is Loading.BY_LANES or not self.chip.copy_engine or (resident > 1 and cut.tasks >= units)
        ):
            serial, busy = self._in_turns(cut.tasks, cut.steps, resident, step, start)
        else:
            serial, busy = self._persistent(cut, step.of(1), start)
        name = "products" if step.products * resident > MOSTLY * step.of(1) else "gaps between steps"
        if step.served >= step.alone:
            name = "loads"
        return serial, {name if cut.tasks * cut.split >= units else "too few tiles": busy, **self._bytes(cut)}

    def _step(self, cut: CutWork) -> StepTime:
        t, products = self.timing, 0.0
        for p in cut.products:
            taken = self.taken(p, cut)
            padded = taken.padded if taken else (p.rows, p.cols, p.depth)
            rate = self._rate(p, taken)
            products += 2.0 * p.batch * prod(padded) * p.times / cut.steps * self.card.units / (rate * t.matrix_share)
        alone = max(products + t.step_gap, products / self.groups(cut) + t.group_gap)
        if self.loading(cut) is Loading.BY_LANES:
            return StepTime(products, alone + t.lane_gap, self._loaded_by_lanes(cut))
        return StepTime(products * t.together, alone * self._slower(cut), self._copied(cut))

    def _rate(self, p: CutProduct, taken: TakenInstruction | None) -> float:
        """Products and sums in a second, of the whole chip; groups of waves take as many bytes of depth at once."""
        if found := self.card.flops(p.dtype.name):
            return found
        half = self.card.flops("f16") or self.card.rates[0].flops
        return half * taken.instruction.depth / HALF_DEPTH if taken and taken.instruction.ignored_bits else half / 16

    def _slower(self, cut: CutWork) -> float:
        """What few stages, rows off cache lines, rows across the depth and many sums make of a step."""
        t = self.timing
        lines = max(1, sum(p.depth * p.dtype.bytes for p in cut.products[:1]) // LINE_OF_DEPTH)
        ahead = (self.stages(cut) - 1) * lines + 1  # what is being multiplied is not yet free
        slower = t.stages[min(len(t.stages), ahead) - 1] * (1.0 if self.on_lines(cut) else t.off_lines)
        slower *= t.across_depth ** sum(x.is_across for x in cut.operands)
        return slower * (t.many_sums if self._sums_per_lane(cut) > MANY_SUMS else 1.0)

    def _copied(self, cut: CutWork) -> float:
        """By the copy engine, which fills what lies outside an array line by line."""
        t = self.timing
        inside = (cut.step_bytes - cut.outside_bytes) / t.unit_bytes_per_second
        return inside + cut.outside_bytes / self.chip.line_bytes * t.outside_line

    def _loaded_by_lanes(self, cut: CutWork) -> float:
        """As many bytes at a time as rows are multiples of; rows that go across the depth are transposed on the way."""
        t, loads = self.timing, 0.0
        for x in cut.operands:
            wide = gcd(x.row_bytes, self.chip.widest_load_bytes)
            loads += x.tile_bytes * x.times / wide * (t.lane_across if x.is_across else 1.0)
        return loads / cut.steps / t.lane_loads_per_second

    def _sums_per_lane(self, cut: CutWork) -> float:
        found = ((p, self.taken(p, cut)) for p in cut.products)
        lanes = self.chip.lanes
        return max((p.batch * prod(t.padded[:2]) / (prod(t.waves) * lanes) for p, t in found if t), default=0.0)

    def _sums(self, cut: CutWork) -> int:
        """Of a tile, as it grows to whole instructions."""
        found = ((p, self.taken(p, cut)) for p in cut.products)
        return max((p.batch * prod(t.padded[:2] if t else (p.rows, p.cols)) for p, t in found), default=0)

    def _start(self, cut: CutWork) -> float:
        t, engine = self.timing, self.chip.copy_engine
        odd = engine is not None and any(x.is_written and x.row_bytes % engine.grain_bytes for x in cut.transfers)
        per_sum = t.start_per_sum * (t.odd_write if odd else 1.0)
        return t.start + per_sum * self._sums(cut) + t.start_per_byte * cut.step_bytes

    # -- rounds

    def _in_turns(self, tasks: int, steps: int, resident: int, step: StepTime, start: float) -> tuple[float, float]:
        """Each workgroup has one task, and several share a unit."""
        rounds, rest = divmod(-(-tasks // self.card.units), resident)
        turns = [many for many in [*[resident] * rounds, rest] if many]
        return start, sum(steps * step.of(many) for many in turns) + (len(turns) - 1) * start

    def _parts(self, cut: CutWork, step: StepTime, start: float) -> tuple[float, float]:
        """Sums that are cut: a workgroup for each part, and one of them, or several, add up."""
        sums = self._sums(cut)
        joined = SCATTERED if is_scattered(cut.split, 4 * sums) else cut.split - 1
        tasks, steps = cut.tasks * cut.split, -(-cut.steps // cut.split)
        serial, busy = self._in_turns(tasks, steps, self.resident(cut), step, start)
        return serial + joined * self._handed(sums), busy

    def _handed(self, sums: int) -> float:
        return self.timing.hand_over + self.timing.hand_over_per_sum * sums

    def _persistent(self, cut: CutWork, alone: float, start: float) -> tuple[float, float]:
        """Rounds of whole tiles, then the last one, whose tiles the compiler may cut along their depth."""
        t = self.timing
        rounds, left = divmod(cut.tasks, self.card.units)
        busy = rounds * cut.steps * alone + max(0, rounds + bool(left) - 1) * t.start_hidden * start
        if not left:
            return start, busy
        depth, sums = sum(p.depth * p.dtype.bytes for p in cut.products), self._sums(cut)
        facts = self.card.units, left, cut.steps, depth, 4 * sums, self.on_lines(cut), not rounds
        split = shared_round(*facts) if len(cut.products) == 1 else None
        if split is None:
            return start, busy + cut.steps * alone
        return start + split.handed * self._handed(sums), busy + split.longest * alone

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
        return 0.0, {"rows": rounds * (t.start + at_once * of_task / rate), **self._bytes(cut)}
