"""What a GPU can hold of a launch: matrix instructions, registers, stages in shared memory, workgroups on a unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, wraps
from math import gcd, inf, prod
from typing import Any, TypeVar

from tilewave.analysis.l2_residency import streams
from tilewave.analysis.layouts_needed import WIDEST_BYTES
from tilewave.analysis.wave_transposes import chunk_memory
from tilewave.ir.placements import size_bytes
from tilewave.ir.types import DTYPES, Memory
from tilewave.machine import Machine
from tilewave.machine.chips import CHIPS, Chip
from tilewave.machine.matrix import (
    ALONG_DEPTH,
    GROUP_INSTRUCTIONS,
    MANY_SUMS,
    WISHES,
    GroupInstruction,
    MatrixInstruction,
    Waves,
    instructions_for,
)
from tilewave.passes.memory.multicast_loads import FOUR, fits_quads
from tilewave.passes.memory.stage_epilogue import most_sums, transposed_buffers, transposed_rows
from tilewave.trace import TileWork
from tilewave.tune.problem import CutProduct, CutTransfer, CutWork
from tilewave.tune.space import NO_COVERING, UNSAID, Covering

T = TypeVar("T")
EACH_WAY = 2
"""Waves, or groups of them, that share rows and columns where the author does not say it."""
HELD_REGISTERS = 40
"""Registers of a lane, besides accumulators, the operands of a step, and loads for the next."""
MOST_REGISTERS = 255
"""The most registers that a lane can address."""
MOST_RESIDENT = 8
GROUP_LANES = 128
PLAIN_REGISTERS = 32
"""Registers of a lane besides accumulators, where wgmma reads shared memory; `ptxas -v` says 26 to 30."""
GROUPED = GROUP_INSTRUCTIONS[0]
GROUP = GROUPED.group
"""A representative: all of these have the same layouts of rows in shared memory and of accumulators in registers."""
STAGED_ROWS = 2 * GROUP.rows
"""Rows of shared memory that a warpgroup stages its epilogue through: two TMA boxes."""
MOST_ELEMENTS = 2 * GROUP_LANES * GROUPED.most_sums
"""The largest tile whose accumulators fit into the registers of two warpgroups."""
GRAIN, ACROSS_GRAIN = 8, 16
"""The granularity of columns in wgmma, and in TMA loads across the depth and TMA stores."""
MOST_ROUNDS = 8
"""The number of waves from which a partial last one costs little."""
LINE_ROWS, STEP_PRODUCTS = 4, 128
"""Rows of one instruction depth that a unit moves through shared memory per cycle, and accumulators it updates."""


@dataclass(frozen=True)
class WholeRounds:
    """Tile lengths with which all units get equally many tiles, for tiles of whole warpgroup rows."""

    units: int
    grain: int

    def lengths(self, size: int, across: int) -> list[int]:
        """Two with which all rounds together are shortest."""
        found: dict[int, float] = {}
        for beside in range(GROUP.rows, 4 * GROUP.rows + 1, GROUP.rows):
            for rounds in range(1, MOST_ROUNDS + 1):
                below = rounds * self.units // -(-across // beside)
                length = -(-size // (below * self.grain)) * self.grain if below else 0
                if GROUP.rows <= length <= GROUPED.most_columns and length * beside <= MOST_ELEMENTS:
                    found[length] = min(found.get(length, inf), rounds * _step_cycles(length, beside))
        return sorted(found, key=lambda length: found[length])[:2]


def _step_cycles(length: int, beside: int) -> float:
    """Return the cycles of a step: matrix instructions, or loads and shared memory reads if those take longer."""
    moved = length + beside + beside // GROUP.rows * (GROUP.rows + length)
    return max(length * beside / STEP_PRODUCTS, moved / LINE_ROWS)


class Loading(Enum):
    """How the operands of a launch are loaded."""

    IN_PLACE = "direct"
    """By TMA, or by lanes on chips without it."""
    REPACKED = "packed"
    """By TMA, after a launch that packs unaligned rows."""
    BY_LANES = "by lanes"
    """Element by element: the engine cannot take such rows, and to copy them does not pay."""


@dataclass(frozen=True)
class TakenInstruction:
    """The matrix instruction that a product takes, how its tile is cut among waves, and what it grows to."""

    instruction: MatrixInstruction
    waves: Waves
    padded: tuple[int, int, int]
    is_transposed: bool
    """Whether its sums are computed transposed: lanes store them then."""

    @property
    def groups(self) -> int:
        """The number of warpgroups that compute independently."""
        together = self.instruction.group.waves if isinstance(self.instruction, GroupInstruction) else 4
        return max(1, prod(self.waves) // together)


@cache
def taken_instruction(
    family: str, dtypes: tuple[str, str], box: tuple[int, int, int], wished: Waves | None, wish: str, turns: bool
) -> TakenInstruction | None:
    """The one for which a tile grows least; None where the family multiplies no such dtypes.

    Where groups of waves multiply, sums with few rows may be computed transposed if they grow less so.
    """
    found = []
    rows, cols, depth = box
    asked = WISHES.get(wish)
    named = [asked] if asked and asked.ignored_bits and family in asked.chips else []
    for i in (*named, *instructions_for(family, dtypes[0], dtypes[0], dtypes[1])):
        for is_transposed in (False, True) if turns and isinstance(i, GroupInstruction) else (False,):
            sides = (cols, rows) if is_transposed else (rows, cols)
            waves = i.waves(sides, wished, EACH_WAY)
            found.append(TakenInstruction(i, waves, i.padded((*sides, depth), waves), is_transposed))
    return min(found, key=lambda one: prod(one.padded), default=None)


@cache
def _wave_chunk_bytes(chip: str, columns: int, element_bytes: int, grain_bytes: int) -> int:
    """Return the bytes through which a warpgroup stages a result into rows that are aligned to `grain_bytes`."""
    layout = GROUP.sums((GROUP.rows, columns), (GROUP.waves, 1))
    dtype = next(d for d in DTYPES.values() if d.bytes == element_bytes)
    memory = Memory((GROUP.rows, grain_bytes // element_bytes), dtype, "global")
    room = STAGED_ROWS * max(GROUPED.row_bytes)
    found = chunk_memory(CHIPS[chip], layout, memory, GROUP.waves, room, GROUPED.row_bytes)
    return size_bytes(found) if found else 0


def computed_once(work_out: Callable[[Any, CutWork], T]) -> Callable[[Any, CutWork], T]:
    """Cache on the work a method that depends only on the launch, the chip and its card, not on fitted parameters."""
    name = work_out.__name__

    @wraps(work_out)
    def given(self: GpuRoom, cut: CutWork) -> T:
        chip, card, found = cut.given.get(name, (None, None, None))
        if chip is not self.chip or card is not self.card:
            found = work_out(self, cut)
            cut.given[name] = self.chip, self.card, found
        return found  # type: ignore[no-any-return]

    return given


@dataclass(frozen=True)
class GpuRoom:
    """A chip, and the card that represents it."""

    chip: Chip
    card: Machine

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
                return (8, 16, 32, 64, 128, 192, 256) if self.chip.tma else (16, 32, 64, 128, 256)
            case "cols":
                return (8, 16, 32, 64, 128, 160, 192, 224, 256) if self.chip.tma else (16, 32, 64, 128, 192, 256)
            case "depth":
                lines = (128, 256) if self.chip.tma else (64, 128)  # without one, 256 spill
                return tuple(n // element_bytes for n in lines)
            case "narrow depth":
                return (512 // element_bytes,) if self.chip.tma else ()
            case "grid":
                return (1, 2, 4, 8, 16, 32, 64)
            case "walk":
                return tuple(n // element_bytes for n in (2048, 4096, 8192, 16384))
            case "waves":
                return (32, 64, 128)
            case "wave rows":
                return (1, 2, 4, 8)
            case "split":
                return (1, 2, 4, 8, 16, 32) if self.chip.tma else (1,)
            case "num_stages":
                return (3, 6, 8, 12) if self.chip.tma else ()
            case "in_place":
                return ()
            case _:
                raise NotImplementedError(role)

    def grows_to(self, role: str) -> int:
        """Return the least tile side tried for short dimensions: wgmma has 64 rows, and narrow tiles may lack TMA."""
        return GROUP.rows if self.chip.tma and role in ("rows", "cols") else 1

    def covers(self, role: str, is_across: bool) -> Covering:
        """Return the tiles that cover a dimension evenly: wgmma takes any multiple of eight columns (rows if
        transposed), TMA multiples of sixteen across the depth and for stores. Up to four rows of tiles are cut so that
        there is one tile for each unit, and more so that all units have equally many."""
        if self.chip.tma is None:
            return NO_COVERING
        high = WholeRounds(self.units, ACROSS_GRAIN if is_across else GRAIN)
        rows = Covering(256, (GRAIN, ACROSS_GRAIN), parts=4, fitted=high)
        filling, wide = tuple(self.units // n for n in (1, 2, 3, 4)), WholeRounds(self.units, ACROSS_GRAIN)
        cols = Covering(256, (ACROSS_GRAIN,), parts=4, filling=filling, shortest=32, fitted=wide)
        return {"rows": rows, "cols": cols, "depth": Covering(32, (32,))}.get(role, NO_COVERING)

    # -- what it can hold

    def refused(self, cut: CutWork) -> str:
        """Return why the chip cannot run a config, such as `registers`, `shared memory` or `split-K`; else ""."""
        if not cut.waves_fit:
            return "waves"
        others = 0
        for product in cut.products:
            taken = self.taken(product, cut)
            if taken is None:
                continue  # the compiler says which dtypes there are
            if prod(taken.waves) > self.chip.most_waves:
                return "waves"
            if (why := self._sums_refused(product, taken, cut.beside, others)) != "":
                return why
            if self._sums_of_lane(product, taken) > most_sums(by_tma=False) and self._is_for_lanes(product, cut):
                return "registers"
            others += self._sums_of_lane(product, taken)
        if self.shared_bytes(cut, cut.num_stages or self.fewest_stages) > self.chip.shared.bytes:
            return "shared memory"
        if cut.split > 1 and self._splits_refused(cut):
            return "split-K"
        return "registers" if not cut.products and cut.read_tile_bytes > self.chip.register_bytes // 2 else ""

    def _splits_refused(self, cut: CutWork) -> bool:
        """Where each workgroup would add up all parts of a tile by itself, or parts would be empty."""
        shared = cut.tasks * (cut.split - 1) <= self.chip.tuning.splits.most_waves * self.units
        return not shared or cut.split > cut.steps

    def is_repeated(self, cut: CutWork) -> bool:
        """Whether its knobs say what is done without them."""
        if not cut.num_stages:
            return False
        return self.loading(cut) is Loading.BY_LANES or cut.num_stages == self.stages(replace(cut, num_stages=UNSAID))

    @property
    def stages_operands(self) -> bool:
        return self.chip.tma is not None

    def sums_in_same_order(self, work: TileWork) -> bool:
        """Return whether all matrix instructions for the dtypes have one depth: a tile is summed in steps of it.

        The out-of-bounds part of a boundary tile adds zeros, which do not change sums that start at zero.
        """
        names = {(self.chip.matrix, p.dtype.name, p.dtype.name, p.acc.name) for p in work.products}
        return len({i.depth for one in names for i in instructions_for(*one)}) == 1

    def program_of(self, cut: CutWork) -> None:
        """Each point has its own."""

    def _sums_of_lane(self, product: CutProduct, taken: TakenInstruction) -> int:
        rows, cols, _ = taken.padded
        return product.batch * rows * cols // (prod(taken.waves) * self.chip.lanes)

    def _sums_refused(self, product: CutProduct, taken: TakenInstruction, beside: int, others: int) -> str:
        """`others`: sums that a lane holds of products before this one."""
        rows, cols, depth = taken.padded
        lanes = prod(taken.waves) * self.chip.lanes
        sums = others + self._sums_of_lane(product, taken)
        if isinstance(taken.instruction, GroupInstruction):
            if cols > taken.instruction.most_columns:
                return "columns of wgmma"
            return "registers" if sums > (MANY_SUMS if beside or others else taken.instruction.most_sums) else ""
        down, across = taken.instruction.parts(taken.waves)
        step = depth * product.dtype.bytes
        fragments = (rows // down + cols // across) * step // (4 * self.chip.lanes)
        ahead = (rows + cols) * step // (4 * lanes)
        registers = self.chip.matrix_units.registers // -(-prod(taken.waves) // self.chip.matrix_units.count)
        return "registers" if sums + fragments + ahead + HELD_REGISTERS > registers else ""

    def taken(self, p: CutProduct, cut: CutWork) -> TakenInstruction | None:
        """Return the instruction of a product; a loop with a single accumulated product may be transposed."""
        facts = self.chip.matrix, (p.dtype.name, p.acc.name), (p.rows, p.cols, p.depth)
        return taken_instruction(*facts, cut.waves, p.wish, len(cut.products) == 1)

    @property
    def fewest_stages(self) -> int:
        """The least number of stages: with a single one, every step would wait for TMA."""
        return 2 if self.chip.tma else 1

    @computed_once
    def groups(self, cut: CutWork) -> int:
        found = (self.taken(p, cut) for p in cut.products)
        return max((one.groups for one in found if one), default=1)

    def shared_bytes(self, cut: CutWork, stages: int) -> int:
        staged = cut.step_bytes if cut.products else 0
        held = cut.held_bytes if len(cut.products) > 1 else 0  # what a product before the last is multiplied by
        return stages * staged + held + self._staged_writes(cut)

    @computed_once
    def _staged_writes(self, cut: CutWork) -> int:
        """Bytes of shared memory that results go through: none where they are stored as lanes hold them."""
        if self.chip.tma is None:
            return 0
        if self._is_transposed(cut):
            return self._transposed_chunk_bytes(cut)
        if stored := self.stored_by_lanes(cut):
            return self.groups(cut) * max(map(self._wave_chunk_bytes, stored)) if self._stores_rows(cut) else 0
        rows = (GROUPED.panel_bytes(t.tile_row_bytes) for t in cut.transfers if t.is_written)
        return min(2 * cut.written_bytes, self.groups(cut) * STAGED_ROWS * max(rows, default=0))

    def _transposed_chunk_bytes(self, cut: CutWork) -> int:
        """Return the bytes through which TMA stores a transposed result; 0 where lanes store it."""
        (p,), groups = cut.products, self.groups(cut)
        size = max((t.tile_bytes // t.elements for t in cut.transfers if t.is_written), default=0)
        rows = 0 if self.unaligned_results(cut) or not self.tma_takes(cut) else transposed_rows(p.rows, size)
        if not rows:
            return 0
        return groups * transposed_buffers(rows, p.rows * p.cols // groups) * rows * GROUP.rows * size

    def _wave_chunk_bytes(self, t: CutTransfer) -> int:
        size = t.tile_bytes // t.elements
        return _wave_chunk_bytes(self.chip.name, t.tile_row_bytes // size, size, gcd(t.row_bytes, WIDEST_BYTES))

    @computed_once
    def _stores_rows(self, cut: CutWork) -> bool:
        """Return whether waves stage lane stores into rows first (`passes/memory/stage_epilogue.py`)."""
        by_lanes = self.loading(cut) is Loading.BY_LANES
        if self._is_transposed(cut) or self.sums_per_lane(cut) > most_sums(by_tma=not by_lanes):
            return False
        return all(map(self._wave_chunk_bytes, self.stored_by_lanes(cut)))

    @computed_once
    def _is_transposed(self, cut: CutWork) -> bool:
        return any(taken and taken.is_transposed for taken in (self.taken(p, cut) for p in cut.products))

    @computed_once
    def unaligned_results(self, cut: CutWork) -> tuple[CutTransfer, ...]:
        """Return the results whose rows are unaligned for TMA: lanes store them."""
        engine = self.chip.tma
        written = (t for t in cut.transfers if t.is_written)
        return tuple(t for t in written if t.row_bytes % engine.grain_bytes) if engine else ()

    @computed_once
    def stored_by_lanes(self, cut: CutWork) -> tuple[CutTransfer, ...]:
        """All results, where lanes load, or else those that the engine cannot take."""
        if self.chip.tma is None or self.loading(cut) is not Loading.BY_LANES:
            return self.unaligned_results(cut)
        return tuple(t for t in cut.transfers if t.is_written)

    @computed_once
    def stages(self, cut: CutWork) -> int:
        """Steps that shared memory holds at once."""
        if not self.chip.tma or not cut.step_bytes:
            return 1
        if self.loading(cut) is Loading.BY_LANES:
            return 1
        left = self.chip.shared.bytes - self.shared_bytes(cut, 0)
        likeness_ = max(1, cut.split)  # parts of one tile, which take all of an operand together
        own = sum(t.tile_bytes for t in cut.operands if t.array_bytes > t.tile_bytes * t.times * likeness_)
        wished = cut.num_stages or self.chip.tuning.pipeline.stages(cut.step_bytes, own)
        return max(1, min(wished, left // cut.step_bytes))

    @computed_once
    def fitting(self, cut: CutWork) -> int:
        """Workgroups for which a unit has shared memory: what the compiler goes by."""
        needed = max(1, self.shared_bytes(cut, self.stages(cut)))
        return max(1, min(MOST_RESIDENT, self.chip.shared.bytes // needed))

    @computed_once
    def resident(self, cut: CutWork) -> int:
        """Workgroups that run on one unit at once: those that its registers have room for as well."""
        fitting = self.fitting(cut)
        if not self.chip.tma:
            return fitting
        if self.loading(cut) is Loading.BY_LANES:
            lanes = self.groups(cut) * GROUP_LANES
            return max(1, min(fitting, self.chip.register_bytes // (4 * lanes * self._loading_registers(cut))))
        return 1 if self.groups(cut) > 1 else max(1, min(fitting, self._lanes_held(cut) // (2 * GROUP_LANES)))

    def _loading_registers(self, cut: CutWork) -> int:
        """Return the registers of a lane that holds a step's loads; unaligned rows take both blocks they span."""
        lanes, widest = self.groups(cut) * GROUP_LANES, self.chip.widest_load_bytes
        held = sum(t.tile_bytes * (2 if t.is_off(widest) else 1) for t in cut.operands) / (4 * lanes)
        return min(MOST_REGISTERS, int(HELD_REGISTERS + self.sums_per_lane(cut) + held))

    def _lanes_held(self, cut: CutWork) -> int:
        """Return the lanes that the registers suffice for, with one consumer warpgroup and a producer.

        Several consumer warpgroups take all registers of a unit.
        """
        grain = self.chip.matrix_units.register_grain
        needed = -(-(PLAIN_REGISTERS + int(self.sums_per_lane(cut))) // grain) * grain
        return self.chip.register_bytes // (4 * needed)

    @computed_once
    def sums_per_lane(self, cut: CutWork) -> float:
        found = ((p, self.taken(p, cut)) for p in cut.products)
        lanes = self.chip.lanes
        return max((p.batch * prod(t.padded[:2]) / (prod(t.waves) * lanes) for p, t in found if t), default=0.0)

    # -- how operands come there

    @computed_once
    def grown(self, cut: CutWork) -> tuple[float, ...]:
        """How many times as large each operand's tile becomes where it grows to whole instructions."""
        taken = self.taken(cut.products[0], cut) if len(cut.products) == 1 and len(cut.operands) == 2 else None
        if taken is None:
            return (1.0,) * len(cut.operands)
        (p,) = cut.products
        rows, cols = reversed(taken.padded[:2]) if taken.is_transposed else taken.padded[:2]
        deeper = taken.padded[2] / p.depth
        return deeper * rows / p.rows, deeper * cols / p.cols

    @computed_once
    def odd(self, cut: CutWork) -> tuple[CutTransfer, ...]:
        """Return the operands that are unaligned for TMA."""
        engine = self.chip.tma
        if engine is None or not cut.products:
            return ()
        transposed = cut.products[0].dtype.name in ALONG_DEPTH
        apart = (t for t in cut.operands if not t.is_column)
        return tuple(t for t in apart if t.is_off(engine.grain_bytes) or (transposed and t.is_across))

    @computed_once
    def tma_takes(self, cut: CutWork) -> bool:
        """Return whether TMA can load the tiles: none is padded, and rows in shared memory are long enough."""
        return all(self._is_brought(p, cut) for p in cut.products)

    def _is_brought(self, p: CutProduct, cut: CutWork) -> bool:
        taken = self.taken(p, cut)
        if taken is None or not isinstance(taken.instruction, GroupInstruction):
            return False
        across = (t.tile_row_bytes for t in cut.operands if t.is_across and not t.is_column)
        whole = prod(taken.padded) == p.rows * p.cols * p.depth
        return whole and all(map(taken.instruction.panel_bytes, across))

    def _is_for_lanes(self, p: CutProduct, cut: CutWork) -> bool:
        """Return whether lanes load a wgmma tile only because TMA cannot load its width."""
        taken = self.taken(p, cut)
        return taken is not None and isinstance(taken.instruction, GroupInstruction) and not self._is_brought(p, cut)

    @computed_once
    def short_rows(self, cut: CutWork) -> float:
        """Return the rows of a step's copies beyond the cache lines that they fill: panels of an operand across its
        depth may have shorter rows."""
        line = self.chip.line_bytes
        rows = (t.tile_bytes * t.times * (1 / self._copied_row(t, cut) - 1 / line) for t in cut.operands)
        return sum(rows) / cut.steps

    @computed_once
    def spared_step_bytes(self, cut: CutWork) -> float:
        """Return the bytes of a step that multicast saves for workgroups with common columns: half, or three quarters
        (`passes/memory/multicast_loads.py`)."""
        if len(cut.products) != 1 or len(cut.operands) != 2 or cut.grid[0] == 1 or self.chip.tma is None:
            return 0.0
        if self.loading(cut) is Loading.BY_LANES or self.on_lines(cut):
            return 0.0
        columns = cut.operands[1]
        spared = 0.75 if self._shares_by_four(columns, cut) else 0.5
        return spared * columns.inside_bytes * columns.times / cut.steps

    @computed_once
    def streams_to_neighbours(self, cut: CutWork) -> bool:
        """Whether all run at once and neighbours below each other want columns that L2 cannot keep, so that it
        starts when the launch before has ended (`passes/schedule/dependent_launch.py`)."""
        if len(cut.products) != 1 or len(cut.operands) != 2 or cut.grid[0] == 1 or cut.tasks > self.card.units:
            return False
        return self.on_lines(cut) and streams(cut.operands[1].array_bytes, self.card)

    def _shares_by_four(self, columns: CutTransfer, cut: CutWork) -> bool:
        """Return whether four workgroups along M can multicast, in one wave of deep tiles."""
        engine = self.chip.tma
        if engine is None or cut.split > 1 or not fits_quads(cut.tasks, cut.steps, engine, self.chip.tuning.loads):
            return False
        rows = cut.products[0].depth if columns.is_across else cut.products[0].cols
        return cut.grid[0] % FOUR == 0 and rows * self.chip.line_bytes % (FOUR * engine.pattern_bytes) == 0

    @computed_once
    def outside_rows(self, cut: CutWork) -> float:
        """Return the out-of-bounds rows of a step's copies."""
        rows = ((t.tile_bytes - t.inside_bytes) * t.times / self._copied_row(t, cut) for t in cut.operands)
        return sum(rows) / cut.steps

    def _copied_row(self, t: CutTransfer, cut: CutWork) -> int:
        """Return the bytes of an operand that TMA loads at once: a cache line, or a shorter row of a tile or panel."""
        if t.is_column:
            return self.chip.line_bytes
        taken = self.taken(cut.products[0], cut) if t.is_across and len(cut.products) == 1 else None
        panel = taken.instruction.panel_bytes if taken and isinstance(taken.instruction, GroupInstruction) else None
        return (panel(t.tile_row_bytes) if panel else 0) or min(self.chip.line_bytes, t.tile_row_bytes)

    @computed_once
    def loading(self, cut: CutWork) -> Loading:
        if self.chip.tma and cut.products and not self.tma_takes(cut):
            return Loading.BY_LANES
        odd = self.odd(cut)
        if not odd:
            return Loading.IN_PLACE
        asked = cut.tasks * sum(t.swept_bytes for t in cut.operands)  # as `analysis/packing.py` counts it
        transposed = cut.products[0].dtype.name in ALONG_DEPTH and any(t.is_across for t in odd)
        in_place = 0.0 if transposed else sum(t.array_bytes * t.elements / t.tile_bytes for t in odd)
        pays = self.chip.tuning.packing.pays(asked, cut.products[-1].all, in_place)
        return Loading.REPACKED if pays else Loading.BY_LANES

    @computed_once
    def on_lines(self, cut: CutWork) -> bool:
        """Return whether rows are aligned to cache lines, in place or after packing."""
        in_place = (t for t in cut.operands if t not in self.odd(cut))
        return not any(t.is_off(self.chip.line_bytes) for t in in_place)
