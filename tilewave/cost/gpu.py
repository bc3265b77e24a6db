"""The time of a launch on a GPU, in picoseconds: integer arithmetic on numbers that are known or open.

    launch + copies + late + join + max(busy, memory) + min(busy, memory) / 5

`busy` is the time of the unit with the most tasks: their steps, and for each workgroup the time to begin and to write
its tile. A step takes its products and loads, which overlap, at least `least_step`, and at least the time to refill its
stage of the software pipeline, divided by the number of stages. Where two workgroups fit on a unit, they fill each
other's gaps. `copies`: unaligned operands are packed; where that does not pay, lanes load them, in one stage.
`memory` is the time of the arrays' bytes, each counted once. `join` adds up the parts of split sums: those of a split-K
config, and those of stream-K, about as many as the launch itself decides for. `late`: the first loads of a launch of
so many workgroups that it cannot begin while the one before ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewave.analysis.register_pressure import workgroups_in_turns
from tilewave.cost.by_lanes import is_stored_by_tma, loads_of_blocks, stores_of_elements
from tilewave.cost.parameters import LaunchParameters
from tilewave.cost.prediction import Prediction
from tilewave.cost.splits import split_work
from tilewave.cost.thin import lanes_of_thin, loads_of_thin, waits_of_thin
from tilewave.cost.work import CutProduct, CutTransfer, CutWork
from tilewave.ir.host_program import Number, chosen, larger, quotient, remainder, root, rounded_up, smaller
from tilewave.ir.stream_k import likely_workgroups
from tilewave.machine import Machine
from tilewave.machine.chips import Chip
from tilewave.machine.matrix import ALONG_DEPTH, instructions_for
from tilewave.records import dataclass

US, NS = 1_000_000, 1_000
"""Picoseconds in a microsecond, and in a nanosecond."""
SIDE = 64
"""Rows of one matrix instruction of a group of waves, to which the longer side of a tile is padded."""
STAGED_BYTES = 16 << 10
"""Shared memory through which a group of waves writes its tile."""
MOST_GROUPS = 3
MATRIX_PERCENT = 96
"""The share of the data sheet's matrix rate, on random data."""
DRAM_PERCENT = 90
"""The share of the data sheet's bandwidth."""
KEPT_PERCENT = 80
"""The share of L2 that a launch finds as the one before left it."""
SHORT_ROW_BYTES, SHORT_ROW = 32, 4_000
"""TMA takes so long for each row of a tile across the depth that is shorter than this, whatever the bandwidth."""
SECTOR_BYTES = 32
"""What a load moves at least."""
ROOT_BITS = 16
MOST_RESIDENT = 4
"""Workgroups on a unit, of kernels whose lanes load."""
WAVE_ROWS = 16
"""Rows of a matrix instruction that each wave of a group holds."""
CHUNK_BYTES_OF_A_LANE = 36
"""Shared memory through which lanes store unaligned rows."""
EMPTY = 1_000 * US
"""The price of parts of a sum that are empty: such configs come last."""
JOINED = 3
"""Parts whose sums are moved one after the other; further ones arrive meanwhile."""


@dataclass(frozen=True)
class GpuCost:
    """A chip, the card that represents it, and the parameters fitted to it."""

    chip: Chip
    card: Machine
    parameters: LaunchParameters

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def units(self) -> int:
        return self.card.units

    @property
    def grain_bytes(self) -> int:
        """The bytes of which TMA wants strides and addresses to be multiples."""
        assert self.chip.tma is not None, "chips without TMA have a cost model of their own"
        return self.chip.tma.grain_bytes

    def predict(self, work: CutWork) -> Prediction:
        """Return the time of a launch whose sizes are known, and what it waits for."""
        parts = self._parts(work)
        limit = max(parts, key=lambda name: parts[name])
        return Prediction(self._total(parts) / (US * US), self.parameters.error, limit, self.parameters.fitted_on)

    def picoseconds(self, work: CutWork) -> Number:
        """Return the time of a launch, whose sizes may be numbers of a program."""
        return self._total(self._parts(work))

    def _total(self, parts: Mapping[str, Number]) -> Number:
        busy, memory = parts["compute"] + parts["loads"] + parts["latency"], parts["memory"]
        beside = parts["launch"] + parts["packing"] + parts["adding up parts"]
        return beside + larger(busy, memory) + quotient(smaller(busy, memory), 5)

    def _parts(self, work: CutWork) -> dict[str, Number]:
        """Return the times of a launch by their bottleneck; the share of a step is named by what it waits for."""
        p = self.parameters
        memory = self._memory(work)
        if not work.products:
            return self._named(loads=self._rows(work), memory=memory, launch=p.launch)
        if work.is_thin:
            waits, loads, join = self._thin(work)
            late = chosen(self._is_late(work), p.latency, 0)
            return self._named(latency=waits, loads=loads, memory=memory, launch=p.launch + late, join=join)
        step = self._step(work)
        busy, join = self._busy(work, step)
        late = chosen(self._is_late(work), p.latency, 0)
        steps = smaller(busy, work.split_steps * step.alone)
        products = smaller(steps, work.split_steps * step.products)
        loads = smaller(steps - products, work.split_steps * step.loads)
        named = {"compute": products, "loads": loads, "latency": busy - products - loads}
        join += chosen(work.steps < work.split, EMPTY, 0)
        return self._named(**named, memory=memory, launch=p.launch + late, packing=self._copies(work), join=join)

    def _named(self, join: Number = 0, **found: Number) -> dict[str, Number]:
        names = ("compute", "loads", "latency", "memory", "launch", "packing")
        return {**{name: found.get(name, 0) for name in names}, "adding up parts": join}

    # -- what a unit holds

    def stages(self, work: CutWork) -> int:
        """Return the stages of the software pipeline, as `specialize_waves` chooses them."""
        if self._by_lanes(work):
            return 1
        tuned = self.chip.tuning.pipeline.stages(work.step_bytes, 0)
        room = (self.chip.shared.bytes - self._staged_bytes(work)) // work.step_bytes
        return max(1, min(work.num_stages or tuned, room))

    def resident(self, work: CutWork) -> int:
        """Return how many workgroups run on one unit at once."""
        if work.is_thin:
            return min(shared.resident for shared in lanes_of_thin(self.chip, work))
        # With two consumer warpgroups `specialize_waves` gives all registers of an SM to one workgroup.
        with_tma = 2 if self._groups(work) == 1 else 1
        return self._resident(work, self.stages(work), MOST_RESIDENT if self._by_lanes(work) else with_tma)

    def _resident(self, work: CutWork, stages: int, most: int) -> int:
        taken = stages * work.step_bytes + self._staged_bytes(work)
        sums = 4 * work.sums
        return max(1, min(most, self.chip.shared.bytes // max(1, taken), self.chip.register_bytes // max(1, 2 * sums)))

    def _staged_bytes(self, work: CutWork) -> int:
        return self._groups(work) * STAGED_BYTES

    def _groups(self, work: CutWork) -> int:
        """Return the groups of waves that multiply."""
        rows = max((self._padded(p)[0] for p in work.products), default=0)
        return min(MOST_GROUPS if rows < 4 * SIDE else 2, -(-rows // SIDE))

    def _by_lanes(self, work: CutWork) -> bool:
        """Return whether lanes load the operands although the chip has TMA: no side is as long as an instruction."""
        short = any(max(p.rows, p.cols) < SIDE for p in work.products)
        return short or any(p.dtype.bytes > 2 for p in work.products)

    def loads_in_place(self, work: CutWork) -> Number:
        """Return whether lanes load the operands because some array is unaligned, and packing it does not pay."""
        if self._by_lanes(work):
            return 0
        unaligned = work.unaligned(self.grain_bytes)
        columns = any(t.is_across and p.dtype.name in ALONG_DEPTH for p in work.products for t in work.operands)
        left = sum(chosen(is_odd, t.array_bytes, 0) for is_odd, t in unaligned)
        in_place = 0 if columns or len(work.products) > 1 else left
        loaded = sum(t.swept_bytes for t in work.operands)
        written = sum(quotient(t.swept_bytes * t.elements, t.tile_bytes) for t in work.transfers if t.is_written)
        depth = sum(quotient(p.all, larger(written * work.split, 1)) for p in work.products[:1])
        pays = self.chip.tuning.packing.pays(loaded, depth, in_place)
        return chosen(left > 0, chosen(pays, 0, 1), 0)

    def refused(self, work: CutWork) -> str:
        """Return why the chip certainly cannot run a config; the compiler refuses the others that it cannot."""
        if work.is_thin and not self._replaces_instruction(work):
            return "few rows or columns"
        return refused_config(self.chip, work, 1 if self._by_lanes(work) else 2)

    def _replaces_instruction(self, work: CutWork) -> bool:
        """Return whether lanes may multiply: no instruction is asked for, its order of sums is not wanted, and one that
        larger tiles use exists."""
        (p,), matrix = work.products, self.chip.matrix
        has_instruction = any(True for _ in instructions_for(matrix, p.dtype.name, p.dtype.name, p.acc.name))
        return has_instruction and not p.wish and not work.in_fixed_order

    # -- a step

    def _padded(self, p: CutProduct) -> tuple[int, int]:
        """Return the sides of a tile in whole instructions; that with the fewer rows is computed transposed."""
        long, short = (p.rows, p.cols) if p.rows >= SIDE else (p.cols, p.rows)
        return -(-long // SIDE) * SIDE, short

    def _step(self, work: CutWork) -> StepTime:
        p, units = self.parameters, self.units
        products = sum(self._products(one) * one.times for one in work.products)
        products = quotient(products, work.steps) if len(work.products) > 1 else self._products(work.products[0])
        # Few units share more of the bandwidth: by the fourth root of all units to those.
        busy = smaller(units, work.tasks * work.split)
        share = root(root(quotient(busy * (1 << 2 * ROOT_BITS), units)))
        loads = quotient(work.step_bytes * US, p.unit_bytes_per_us)
        loads = quotient(loads * share, 1 << ROOT_BITS // 2) + sum(map(_short_rows, work.operands))
        loads = quotient(loads * chosen(self._unaligned_lines(work) > 0, p.unaligned_lines_percent, 100), 100)
        in_place = self.loads_in_place(work)
        loads = 2 * loads if self._by_lanes(work) else chosen(in_place, 2 * loads, loads)
        through = larger(products, loads) + quotient(smaller(products, loads), 5)
        filled = quotient(p.latency + loads + products, chosen(in_place, 1, self.stages(work)))
        return StepTime(products, loads, through, larger(larger(through, filled), p.least_step))

    def _unaligned_lines(self, work: CutWork) -> Number:
        return work.unaligned_lines(self.chip.line_bytes, self.grain_bytes)

    def _products(self, p: CutProduct) -> int:
        """Return the picoseconds of one product of tiles on one unit."""
        rate = self.card.flops(p.dtype.name) or (self.card.flops("f16") or self.card.rates[0].flops) / 16
        per_us = int(rate * MATRIX_PERCENT / 100 / self.units / US)
        return 2 * p.batch * prod(self._padded(p)) * p.depth * US // max(1, per_us)

    # -- rounds

    def _is_late(self, work: CutWork) -> Number:
        return 2 * work.tasks * work.split > self.units * self.resident(work)

    def _busy(self, work: CutWork, step: StepTime) -> tuple[Number, Number]:
        """Return the time of the busiest unit, and the time to join split sums."""
        p, units, resident = self.parameters, self.units, self.resident(work)
        in_place = self.loads_in_place(work)
        if work.split > 1:
            return self._split(work, step, in_place)
        tasks, steps = work.tasks, work.split_steps
        written, turns = self._written(work), rounded_up(tasks, units)
        by_lanes = self._in_place(work, turns, steps, step)
        if self._by_lanes(work):
            return chosen(in_place, by_lanes, self._in_turns(turns, resident, steps, step, written)), 0
        whole, left = quotient(tasks, units), remainder(tasks, units)
        few = resident > 1
        parts, longest = self._stream_k(work, left, steps, few)
        parts, longest = chosen(in_place, 1, parts), chosen(parts > 1, longest, steps)
        join = chosen(parts > 1, self._join(work, parts), 0)
        if few:
            return chosen(in_place, by_lanes, self._in_turns(turns, resident, longest, step, written)), join
        last = chosen(left > 0, longest, 0)
        busy = p.latency + step.loads + (whole * steps + last) * step.alone + turns * written
        return chosen(in_place, by_lanes, busy), join

    def _split(self, work: CutWork, step: StepTime, in_place: Number) -> tuple[Number, Number]:
        """Return the time of the busiest unit, and the time to join sums that a config splits.

        A workgroup that computes all parts of its tiles keeps a sum while it begins the next, and waits for its loads.
        """
        split = split_work(self.chip, work, 1 if self._by_lanes(work) else in_place)
        turns = rounded_up(split.launched, self.units)
        by_lanes = self._in_place(work, turns, split.steps, step)
        by_tma = self._in_turns(turns, self.resident(work), split.steps, step, self._written(work))
        kept = work.split * (self._written(work) + self.parameters.latency) + self.parameters.workgroup
        again = rounded_up(work.tasks, larger(split.launched, 1)) * kept
        return chosen(in_place, by_lanes, by_tma), chosen(split.is_shared, self._join(work, work.split), again)

    def _written(self, work: CutWork) -> Number:
        """Return the time in which a unit writes a tile: by TMA, or by lanes where rows are unaligned and it cannot."""
        by_tma = self.parameters.sum * work.sums
        if is_stored_by_tma(work) or len(work.products) != 1:
            return by_tma
        odd = sum(is_odd for is_odd, t in work.unaligned(self.grain_bytes) if t.is_written)
        return chosen(odd > 0, stores_of_elements(work, self.chip.lanes), by_tma)

    def _in_place(self, work: CutWork, turns: Number, steps: Number, step: StepTime) -> Number:
        """Return the time of `turns` workgroups of so many steps on a unit, whose lanes load and store rows."""
        lanes = self.chip.lanes * SIDE // WAVE_ROWS * self._groups(work)
        held = work.step_bytes + CHUNK_BYTES_OF_A_LANE * lanes
        resident = workgroups_in_turns(self.chip, lanes, work.sums, work.step_bytes, held)
        waited = self._in_turns(turns, resident, steps, step, -self.parameters.latency)
        each = steps * loads_of_blocks(work, self.chip.lanes) + stores_of_elements(work, self.chip.lanes)
        return larger(waited, turns * each)

    def _in_turns(self, turns: Number, resident: int, steps: Number, step: StepTime, written: int) -> Number:
        """Return the time of `turns` workgroups on a unit, of which `resident` run at once."""
        full, rest = quotient(turns, resident), remainder(turns, resident)
        begin, each = self.parameters.latency + steps * step.alone, self.parameters.workgroup + written
        together = larger(begin, resident * steps * step.through) + each
        alone = chosen(rest > 0, larger(begin, rest * steps * step.through) + each, 0)
        return full * together + alone - self.parameters.workgroup

    def _stream_k(self, work: CutWork, left: Number, steps: Number, few: bool) -> tuple[Number, Number]:
        """Return the parts of a tile of the last wave, and the steps of the longest; 1 where tiles stay whole."""
        if work.in_fixed_order or len(work.products) != 1:
            return 1, steps
        (product,), units = work.products, self.units
        facts = left, steps, units, product.depth * product.dtype.bytes, self.chip.tuning.splits.hand_over_bytes
        sharing = likely_workgroups(*facts)
        if few:
            sharing = chosen((self._unaligned_lines(work) < 1) & (work.tasks < units), sharing, 0)
        sharing = larger(sharing, left)
        return larger(rounded_up(sharing, left), 1), rounded_up(left * steps, sharing)

    def _join(self, work: CutWork, parts: Number) -> Number:
        p = self.parameters
        return p.join + (parts - 1) * p.part + smaller(parts - 1, JOINED) * p.sum * work.sums

    # -- memory

    def _memory(self, work: CutWork) -> Number:
        """Return the time of the arrays' bytes: from L2 where it holds all of them, else from memory."""
        found = work.distinct_bytes
        dram = int(self.card.hbm.bytes_per_second * DRAM_PERCENT / 100 / US)
        kept = self.card.l2.bytes * self.card.xcds * KEPT_PERCENT // 100
        return quotient(found * US, chosen(found <= kept, self.parameters.kept_bytes_per_us, dram))

    def _copies(self, work: CutWork) -> Number:
        """Return the time to pack unaligned operands for TMA, where that pays; else lanes load them."""
        if self._by_lanes(work):
            return 0
        dram = int(self.card.hbm.bytes_per_second / US)
        odd = work.unaligned(self.grain_bytes)
        times: Number = 0
        for back in (False, True) if is_stored_by_tma(work) else (False,):  # a result is copied back
            copied = sum(
                chosen(is_odd, t.array_bytes + self._packed(t), 0) for is_odd, t in odd if t.is_written is back
            )
            times += chosen(copied > 0, self.parameters.copy + quotient(copied * US, dram), 0)
        return chosen(self.loads_in_place(work), 0, times)

    def _packed(self, t: CutTransfer) -> Number:
        """Return the bytes of an operand's packed copy: its shortest rows are padded to what TMA loads."""
        rows = quotient(t.array_bytes, larger(t.row_bytes, 1))
        return larger(t.array_bytes, rows * self.grain_bytes)

    def _thin(self, work: CutWork) -> tuple[Number, Number, Number]:
        """Return the time that lanes wait in a product with few rows or columns, that L2 or an SM takes to load, and
        to join split sums.

        Each workgroup begins, and waits for every step; an SM holds so many lanes at once, fewer where rows are
        unaligned.
        """
        launched, steps, join = work.tasks, work.steps, 0
        if work.split > 1:
            split = split_work(self.chip, work, 1)
            launched, steps = split.launched, split.steps
            join = chosen(split.is_shared, self._join(work, work.split), 0)
        odd = sum(is_odd for is_odd, t in work.unaligned(self.grain_bytes) if not t.is_written)
        latency, each = self.parameters.latency, []
        for shared in lanes_of_thin(self.chip, work):
            alone = quotient(waits_of_thin(work, shared.waves * self.chip.lanes) * work.tasks, larger(launched, 1))
            at_once = self.units * shared.resident
            each.append(rounded_up(launched, at_once) * (latency // 2 + steps * latency + alone))
        loaded = sum(t.swept_bytes * self._sectors(t) for t in work.operands)
        from_l2 = NS * quotient(loaded * (US // NS), self.parameters.kept_bytes_per_us)  # programs have 64 bits
        own = quotient(loads_of_thin(work, self.chip.lanes) * work.tasks, larger(launched, 1))
        return chosen(odd > 0, *each), larger(from_l2, rounded_up(launched, self.units) * own), join

    def _sectors(self, t: CutTransfer) -> Number:
        """Return how many times the bytes of a tile are moved: its rows are loaded in whole sectors."""
        return chosen(t.row_bytes <= t.tile_row_bytes, 1, max(1, SECTOR_BYTES // t.tile_row_bytes))

    def _rows(self, work: CutWork) -> Number:
        """Return the time of a launch that multiplies nothing: waves of tasks, each of which loads and stores."""
        held = max(1, work.read_tile_bytes)
        resident = max(1, min(8 * MOST_RESIDENT, self.chip.register_bytes // (4 * held)))
        rate = int(self.card.hbm.bytes_per_second * DRAM_PERCENT / 100 / US / self.units)
        at_once = smaller(resident, rounded_up(work.tasks, self.units))
        each = self.parameters.workgroup + quotient(at_once * work.task_bytes * US, rate)
        return rounded_up(work.tasks, self.units * resident) * each


def refused_config(chip: Chip, work: CutWork, stages: int) -> str:
    """Return why a chip cannot run a config whose software pipeline has at least so many stages; empty if it can."""
    if not work.waves_fit:
        return "waves"
    if work.waves and prod(work.waves) > chip.most_waves:
        return "waves"
    if 4 * work.sums > 3 * chip.register_bytes // 4:
        return "registers"
    if work.products and max(stages, work.num_stages) * work.step_bytes > chip.shared.bytes:
        return "shared memory"
    if not work.products and work.read_tile_bytes > chip.register_bytes // 2:
        return "registers"
    return ""


def _short_rows(t: CutTransfer) -> int:
    """Return the additional time of a step's tile whose rows are a few bytes across the depth."""
    return SHORT_ROW * (t.tile_bytes // t.tile_row_bytes) if t.is_across and t.tile_row_bytes < SHORT_ROW_BYTES else 0


@dataclass(frozen=True)
class StepTime:
    """What a step of one task takes of its unit, in picoseconds."""

    products: Number
    loads: Number
    through: Number
    """Where other workgroups fill its gaps."""
    alone: Number
    """Where it is alone on its unit."""
