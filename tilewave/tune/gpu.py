"""How long a launch takes on a GPU, and which tiles it can hold: for every grid, down to one tile.

    seconds = launch + (busy ** q + L2 bytes / rate ** q + HBM bytes / rate ** q) ** (1 / q)

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
from tilewave.machine.matrix import ALL, GroupInstruction, MatrixInstruction, Waves, instructions_for
from tilewave.passes.split_last_round import SplitLastRound
from tilewave.tune.fitted import LaunchTiming
from tilewave.tune.problem import CutProduct, CutWork

EACH_WAY = 2
"""Waves, or groups of them, that share rows and columns where the author does not say it."""
STAGES = 4
"""That the compiler asks for where a copy engine brings tiles."""
HELD_REGISTERS = 40
"""Of a lane, beside sums, the operands of a step, and what it loads for the next."""
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
    """The one for which a tile grows least; None where the family multiplies no such dtypes."""
    found = []
    for i in instructions_for(family, dtypes[0], dtypes[0], dtypes[1]):
        waves = i.waves(box[:2], wished, EACH_WAY)
        found.append(TakenInstruction(i, waves, i.padded(box, waves)))
    return min(found, key=lambda one: prod(one.padded), default=None)


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
                first = min((i.rows for i in ALL if self.chip.matrix in i.chips), default=16)
                return tuple(first << shift for shift in range(5) if first << shift <= 256)
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
        return max(1, min(STAGES, left // cut.step_bytes))

    def resident(self, cut: CutWork) -> int:
        """Workgroups that run on one unit at once."""
        needed = max(1, self.shared_bytes(cut, self.stages(cut)))
        if needed > self.chip.shared.bytes // 2:
            return 1
        return min(MOST_RESIDENT, self.chip.shared.bytes // needed)

    # -- how long it takes

    def predict(self, cut: CutWork) -> Prediction:
        found = self._of_products(cut) if cut.products else self._of_rows(cut)
        t = self.timing
        total = t.launch + sum(x**t.sharpness for x in found.values()) ** (1 / t.sharpness)
        return Prediction(total, t.error, max(found, key=lambda name: found[name]), t.fitted_on)

    def _bytes(self, cut: CutWork) -> dict[str, float]:
        t, distinct = self.timing, cut.distinct_bytes
        from_memory = distinct / (self.card.hbm.bytes_per_second * t.hbm_share) if distinct > t.l2_kept_bytes else 0.0
        return {"L2": cut.asked_bytes / t.l2_bytes_per_second, "memory": from_memory}

    def _of_products(self, cut: CutWork) -> dict[str, float]:
        products, alone, start = self._step(cut)
        resident, units = self.resident(cut), self.card.units
        if resident > 1 or not self.chip.copy_engine:
            rounds, rest = divmod(-(-cut.tasks // units), resident)

            def at_once(many: int) -> float:
                return start + cut.steps * max(many * products * self.timing.together, alone) if many else 0.0

            busy = rounds * at_once(resident) + at_once(rest)
        else:
            busy = self._persistent(cut, alone, start)
        name = "products" if products * self.timing.together * resident > alone else "gaps between steps"
        return {name if cut.tasks >= units else "too few tiles": busy, **self._bytes(cut)}

    def _step(self, cut: CutWork) -> tuple[float, float, float]:
        """(products of a step on a unit that has no gaps, a step of a task that is alone there, start of a task)."""
        t = self.timing
        products, sums = 0.0, 0
        for p in cut.products:
            taken = self.taken(p, cut.waves)
            padded = taken.padded if taken else (p.rows, p.cols, p.depth)
            rate = self.card.flops(p.dtype.name) or self.card.rates[0].flops / 16
            products += 2.0 * p.batch * prod(padded) * p.times / cut.steps * self.card.units / (rate * t.matrix_share)
            sums = max(sums, p.batch * p.rows * p.cols)
        gap = t.step_gaps[1 if self.groups(cut) > 1 else 0]
        slower = t.stages[min(len(t.stages), self.stages(cut)) - 1] * (1.0 if self._on_lines(cut) else t.off_lines)
        outside = cut.outside_bytes / self.chip.line_bytes * t.outside_line
        alone = max((products + gap) * slower, outside)
        return products, alone, t.start + t.start_per_sum * sums

    def _persistent(self, cut: CutWork, alone: float, start: float) -> float:
        """Rounds of whole tiles, then the last one, whose tiles the compiler may cut along their depth."""
        t = self.timing
        rounds, left = divmod(cut.tasks, self.card.units)
        goes_on = t.start_hidden if rounds + bool(left) > 1 else 1.0
        busy = rounds * (cut.steps * alone + goes_on * start)
        if not left:
            return busy
        depth = sum(p.depth * p.dtype.bytes for p in cut.products)
        split = SplitLastRound(self.card.units).best(left, cut.steps, depth) if len(cut.products) == 1 else None
        if split is None:
            return busy + cut.steps * alone + start
        return busy + split.longest * alone + (split.parts - 1) * t.hand_over + start

    def _on_lines(self, cut: CutWork) -> bool:
        read = (t for t in cut.transfers if t.is_walked and not t.is_written)
        return all(t.row_bytes % self.chip.line_bytes == 0 for t in read)

    def _of_rows(self, cut: CutWork) -> dict[str, float]:
        """A launch that multiplies nothing: memory, and how much of it is under way at once."""
        t, units = self.timing, self.card.units
        held = max(1, self._held_bytes(cut))
        resident = max(1, min(4 * MOST_RESIDENT, self.chip.register_bytes // (4 * held)))
        rounds = -(-cut.tasks // (units * resident))
        of_task = sum(x.tile_bytes * x.times for x in cut.transfers)
        rate = self.card.hbm.bytes_per_second * t.hbm_share / units
        at_once = min(resident, -(-cut.tasks // units))
        return {"rows": rounds * (t.start + at_once * of_task / rate), **self._bytes(cut)}
