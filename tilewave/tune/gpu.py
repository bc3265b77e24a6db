"""How long a launch takes on a GPU, and which tiles it can hold: for every grid, down to one tile.

    seconds = launch + start + hand over + (busy ** q + (L2 bytes / rate) ** q + (HBM bytes / rate) ** q) ** (1 / q)

`busy` is what the unit with the most work does: rounds of tasks, each a start and its steps; a step takes its products
and the gap before the next. Where several workgroups fit on a unit, they fill each other's gaps. Where the last round
leaves units idle and the compiler shares its tiles, parts of them are counted, with what they hand over.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

from tilewave.machine import Machine
from tilewave.machine.chips import Chip
from tilewave.machine.matrix import GroupInstruction, MatrixInstruction, Waves, instructions_for
from tilewave.passes.specialize_waves import IN_FLIGHT_BYTES, LEAST_STAGES
from tilewave.passes.split_last_round import SplitLastRound
from tilewave.tune.fitted import LaunchTiming
from tilewave.tune.problem import CutProduct, CutWork

EACH_WAY = 2
"""Waves, or groups of them, that share rows and columns where the author does not say it."""
LINE_OF_DEPTH = 128
"""Bytes of depth that the figures for stages are for."""
HELD_REGISTERS = 40
"""Of a lane, beside sums, the operands of a step, and what it loads for the next."""
MOSTLY = 0.75
"""Of a step: where products take so much, its time goes into them."""
MANY_SUMS = 128
"""Of a lane; more leave few registers for the rest."""
MOST_RESIDENT = 8
STAGED_WRITE_BYTES = 2 * 64 * 128
"""Of shared memory, that a group of waves writes its sums through: two boxes of 64 rows."""


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
class TakenInstruction:
    """The matrix instruction that a product takes, how its tile is cut among waves, and what it grows to."""

    instruction: MatrixInstruction
    waves: Waves
    padded: tuple[int, int, int]

    @property
    def groups(self) -> int:
        """Of waves that compute apart from each other."""
        together = self.instruction.waves_together if isinstance(self.instruction, GroupInstruction) else 4
        return max(1, prod(self.waves) // together)


@cache
def taken_instruction(
    family: str, dtypes: tuple[str, str], box: tuple[int, int, int], wished: Waves | None
) -> TakenInstruction | None:
    """The one for which a tile grows least; None where the family multiplies no such dtypes.

    Where groups of waves multiply, sums with few rows are computed transposed if they grow less so.
    """
    found = []
    rows, cols, depth = box
    for i in instructions_for(family, dtypes[0], dtypes[0], dtypes[1]):
        for sides in ((rows, cols), (cols, rows)) if isinstance(i, GroupInstruction) else ((rows, cols),):
            waves = i.waves(sides, wished, EACH_WAY)
            found.append(TakenInstruction(i, waves, i.padded((*sides, depth), waves)))
    return min(found, key=lambda one: prod(one.padded), default=None)


@cache
def shared_round(units: int, tiles: int, steps: int, step_bytes: int) -> tuple[int, int] | None:
    """(parts of a tile, steps of the longest range) where the compiler shares the tiles of a last round."""
    found = SplitLastRound(units).best(tiles, steps, step_bytes)
    return None if found is None else (found.parts, found.longest)


@dataclass(frozen=True)
class StepTime:
    """What a step of one task takes of its unit, in seconds."""

    products: float
    """Where others fill its gaps."""
    alone: float
    """Where it is alone there."""
    outside: float
    """Of the copy engine, for what lies outside an array."""

    def of(self, tasks: int) -> float:
        """A step of so many tasks at once."""
        return (
            max(tasks * self.products, self.alone, tasks * self.outside) if tasks > 1 else max(self.alone, self.outside)
        )


@dataclass(frozen=True)
class GpuTiles:
    """A chip, the card whose figures stand for it, and what was fitted there."""

    chip: Chip
    card: Machine
    timing: LaunchTiming

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def units(self) -> int:
        return self.card.units

    # -- what is worth a try

    def values(self, role: str, element_bytes: int) -> tuple[int, ...]:
        match role:
            case "rows":
                return (16, 32, 64, 128, 256)
            case "cols":
                return (16, 32, 64, 128, 192, 256)
            case "depth":
                lines = (128, 256) if self.chip.copy_engine else (64, 128)  # without one, 256 spill
                return tuple(n // element_bytes for n in lines)
            case "grid":
                return (1, 2, 4, 8, 16, 32, 64)
            case "walk":
                return tuple(n // element_bytes for n in (2048, 4096, 8192, 16384))
            case "waves":
                return (32, 64, 128)
            case _:
                raise NotImplementedError(role)

    # -- what it can hold

    def refused(self, cut: CutWork) -> str:
        """Why a launch cannot be: `registers`, `shared memory`, `columns of the instruction`; nothing where it can."""
        if not cut.waves_fit:
            return "waves"
        for product in cut.products:
            taken = self.taken(product, cut.waves)
            if taken is None:
                continue  # the compiler says which dtypes there are
            if prod(taken.waves) > self.chip.most_waves:
                return "waves"
            if (why := self._sums_refused(product, taken)) != "":
                return why
        if self.shared_bytes(cut, self.fewest_stages) > self.chip.shared.bytes:
            return "shared memory"
        return "registers" if not cut.products and self._held_bytes(cut) > self.chip.register_bytes // 2 else ""

    def _sums_refused(self, product: CutProduct, taken: TakenInstruction) -> str:
        rows, cols, depth = taken.padded
        lanes = prod(taken.waves) * self.chip.lanes
        sums = product.batch * rows * cols // lanes
        if isinstance(taken.instruction, GroupInstruction):
            if cols > taken.instruction.most_columns:
                return "columns of the instruction"
            return "registers" if sums > taken.instruction.most_sums else ""
        down, across = taken.instruction.parts(taken.waves)
        step = depth * product.dtype.bytes
        fragments = (rows // down + cols // across) * step // (4 * self.chip.lanes)
        ahead = (rows + cols) * step // (4 * lanes)
        registers = self.chip.matrix_units.registers // -(-prod(taken.waves) // self.chip.matrix_units.count)
        return "registers" if sums + fragments + ahead + HELD_REGISTERS > registers else ""

    def taken(self, p: CutProduct, waves: Waves | None) -> TakenInstruction | None:
        return taken_instruction(self.chip.matrix, (p.dtype.name, p.acc.name), (p.rows, p.cols, p.depth), waves)

    @property
    def fewest_stages(self) -> int:
        """With a single one, a copy engine would wait for every step."""
        return 2 if self.chip.copy_engine else 1

    def groups(self, cut: CutWork) -> int:
        found = (self.taken(p, cut.waves) for p in cut.products)
        return max((one.groups for one in found if one), default=1)

    def shared_bytes(self, cut: CutWork, stages: int) -> int:
        staged = cut.step_bytes if cut.products else 0
        written = min(2 * cut.written_bytes, self.groups(cut) * STAGED_WRITE_BYTES) if self.chip.copy_engine else 0
        return stages * staged + written

    def _held_bytes(self, cut: CutWork) -> int:
        """What lanes hold of a task that multiplies nothing."""
        return sum(t.tile_bytes for t in cut.transfers if not t.is_written)

    def stages(self, cut: CutWork) -> int:
        """Steps that shared memory holds at once."""
        if not self.chip.copy_engine or not cut.step_bytes:
            return 1
        left = self.chip.shared.bytes - self.shared_bytes(cut, 0)
        return max(1, min(max(LEAST_STAGES, IN_FLIGHT_BYTES // cut.step_bytes), left // cut.step_bytes))

    def resident(self, cut: CutWork) -> int:
        """Workgroups that run on one unit at once."""
        needed = max(1, self.shared_bytes(cut, self.stages(cut)))
        if needed > self.chip.shared.bytes // 2:
            return 1
        return min(MOST_RESIDENT, self.chip.shared.bytes // needed)

    # -- how long it takes

    def predict(self, cut: CutWork) -> Prediction:
        t = self.timing
        serial, found = self._of_products(cut) if cut.products else self._of_rows(cut)
        total = t.launch + serial + sum(x**t.sharpness for x in found.values()) ** (1 / t.sharpness)
        return Prediction(total, t.error, max(found, key=lambda name: found[name]), t.fitted_on)

    def _bytes(self, cut: CutWork) -> dict[str, float]:
        t, distinct = self.timing, cut.distinct_bytes
        from_memory = distinct / (self.card.hbm.bytes_per_second * t.hbm_share) if distinct > t.l2_kept_bytes else 0.0
        return {"L2": cut.asked_bytes / t.l2_bytes_per_second, "memory": from_memory}

    def _of_products(self, cut: CutWork) -> tuple[float, dict[str, float]]:
        """(what nothing overlaps with, what does overlap and how long each takes)."""
        step, start = self._step(cut), self._start(cut)
        resident, units = self.resident(cut), self.card.units
        if not self.chip.copy_engine or (resident > 1 and cut.tasks >= units):
            rounds, rest = divmod(-(-cut.tasks // units), resident)
            turns = [many for many in [*[resident] * rounds, rest] if many]
            serial, busy = start, sum(cut.steps * step.of(many) for many in turns) + (len(turns) - 1) * start
        else:
            serial, busy = self._persistent(cut, step.of(1), start)
        name = "products" if step.products * resident > MOSTLY * step.of(1) else "gaps between steps"
        return serial, {name if cut.tasks >= units else "too few tiles": busy, **self._bytes(cut)}

    def _step(self, cut: CutWork) -> StepTime:
        t, products = self.timing, 0.0
        for p in cut.products:
            taken = self.taken(p, cut.waves)
            padded = taken.padded if taken else (p.rows, p.cols, p.depth)
            rate = self.card.flops(p.dtype.name) or self.card.rates[0].flops / 16
            products += 2.0 * p.batch * prod(padded) * p.times / cut.steps * self.card.units / (rate * t.matrix_share)
        depth = sum(p.depth * p.dtype.bytes for p in cut.products[:1])
        lines = max(1, depth // LINE_OF_DEPTH)
        ahead = (self.stages(cut) - 1) * lines + 1  # what is being multiplied is not yet free
        slower = t.stages[min(len(t.stages), ahead) - 1] * (1.0 if self._on_lines(cut) else t.off_lines)
        outside = cut.outside_bytes / self.chip.line_bytes * t.outside_line
        alone = max(products + t.step_gap, products / self.groups(cut) + t.group_gap)
        slower *= t.many_sums if self._sums_per_lane(cut) > MANY_SUMS else 1.0
        return StepTime(products * t.together, alone * slower, outside)

    def _sums_per_lane(self, cut: CutWork) -> float:
        found = ((p, self.taken(p, cut.waves)) for p in cut.products)
        lanes = self.chip.lanes
        return max((p.batch * prod(t.padded[:2]) / (prod(t.waves) * lanes) for p, t in found if t), default=0.0)

    def _sums(self, cut: CutWork) -> int:
        return max((p.batch * p.rows * p.cols for p in cut.products), default=0)

    def _start(self, cut: CutWork) -> float:
        t = self.timing
        return t.start + t.start_per_sum * self._sums(cut) + t.start_per_byte * cut.step_bytes

    def _persistent(self, cut: CutWork, alone: float, start: float) -> tuple[float, float]:
        """Rounds of whole tiles, then the last one, whose tiles the compiler may cut along their depth."""
        t = self.timing
        rounds, left = divmod(cut.tasks, self.card.units)
        busy = rounds * cut.steps * alone + max(0, rounds + bool(left) - 1) * t.start_hidden * start
        if not left:
            return start, busy
        depth = sum(p.depth * p.dtype.bytes for p in cut.products)
        split = shared_round(self.card.units, left, cut.steps, depth) if len(cut.products) == 1 else None
        if split is None:
            return start, busy + cut.steps * alone
        parts, longest = split
        handed = t.hand_over + t.hand_over_per_sum * self._sums(cut)
        return start + (parts - 1) * handed, busy + longest * alone

    def _on_lines(self, cut: CutWork) -> bool:
        read = (t for t in cut.transfers if t.is_walked and not t.is_written)
        return all(t.row_bytes % self.chip.line_bytes == 0 for t in read)

    def _of_rows(self, cut: CutWork) -> tuple[float, dict[str, float]]:
        """A launch that multiplies nothing: memory, and how much of it is under way at once."""
        t, units = self.timing, self.card.units
        held = max(1, self._held_bytes(cut))
        resident = max(1, min(4 * MOST_RESIDENT, self.chip.register_bytes // (4 * held)))
        rounds = -(-cut.tasks // (units * resident))
        of_task = sum(x.tile_bytes * x.times for x in cut.transfers)
        rate = self.card.hbm.bytes_per_second * t.hbm_share / units
        at_once = min(resident, -(-cut.tasks // units))
        return 0.0, {"rows": rounds * (t.start + at_once * of_task / rate), **self._bytes(cut)}
