"""TMA multicast: neighbouring workgroups load a tile that they all need together, a part each, for all of them.

    tma_load(%b, [%n, %k], …)   →   tma_load_multicast(%b, [%n, %k], …, %same)

`transform/multicast.py` has the rest of the kernel.

Multicast halves the requests for one operand, and costs some waiting between workgroups. It pays where rows do not
begin on cache lines, so that each row of a load touches two of them: TMA takes a fixed time for each line that its own
workgroup requests. Elsewhere the kernel is unchanged, as neighbours' requests for one line are merged on their
way to L2 (`analysis/l2_residency.py`). Where all tiles run in one wave and have many steps, clusters have four
workgroups: they load one operand in quarters, or, as two rows of two, both operands in halves.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import prod

from tilewave.analysis.multicast import Agreement, MulticastPeers
from tilewave.analysis.producer_roles import CopyProgram
from tilewave.analysis.ranges import workgroup_range
from tilewave.ir.core import Kernel, Value
from tilewave.ir.effects import touched
from tilewave.ir.launch import bind, is_open, open_sizes
from tilewave.ir.ops import Const, Loop, Role, TmaLoad
from tilewave.ir.placements import is_line_aligned, row_elements
from tilewave.ir.remarks import Left, Remark, RemarkKind, want
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory, dims
from tilewave.machine.chips import Chip, Tma
from tilewave.machine.tuning import LoadTuning
from tilewave.records import dataclass
from tilewave.transform.multicast import Clusters, Multicast

FOUR = 4
SAMPLE, SAMPLE_BATCHES = 4104, 2
"""Assumed dynamic sizes, for which the operand that neighbours share is determined: some waves of tiles."""

NO_HALVES = RemarkKind(
    "a tile of {memory}, {box}, cannot be halved into multiples of {bytes:,} bytes, so its loads are not multicast",
    "use larger tiles",
)
ODD = RemarkKind(
    "{workgroups} persistent workgroups do not form whole clusters, so loads are not multicast",
    "let their number be even",
)
FEW = RemarkKind(
    "neighbouring workgroups need the same tile of {memory} {agree} times in {both}, so its loads are not multicast",
    "give neighbours tiles of the same row or column: WorkgroupMapping(grouped(…))",
)
UNEVEN = RemarkKind(
    "one workgroup of a cluster has a tile more than the other, and it cannot be computed twice, so loads are not "
    "multicast",
    "let the number of tiles be even",
)


@dataclass(frozen=True)
class MulticastLoads:
    """`machine` gives the size of a cache line; at least `least_part` of the neighbours must need the same tile."""

    machine: Chip
    tuning: LoadTuning
    least_part: float = 0.5
    open_on_lines: bool = True
    """Whether the code is for arrays of dynamic row length whose rows begin on cache lines."""

    def __repr__(self) -> str:
        return f"MulticastLoads({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        engine = self.machine.tma
        if engine is None or not self.pays(kernel):
            return kernel
        remarks: list[Remark] = []
        try:
            program = _Program.of(kernel)
            sample = _Program.of(bind(kernel, sample_sizes(kernel)))
            best = self.best(sample, remarks, 2 if is_open(kernel) else FOUR)
            if not best:
                return kernel.with_remarks(*remarks)
            shared = [program.of_any_size(one) for one in best] if is_open(kernel) else best
        except Left as why:
            return kernel.with_remarks(why.remarks)
        return Clusters(program, shared).kernel()

    def pays(self, kernel: Kernel) -> bool:
        """Whether rows of some operand cross cache lines."""
        copied = [op.memory for op in walk(kernel.body) if isinstance(op, TmaLoad)]
        on_lines = all(is_line_aligned(memory, self.machine.line_bytes, self.open_on_lines) for memory in copied)
        return not on_lines and any(isinstance(op, Role) for op in kernel.body.ops)

    def best(self, program: _Program, remarks: list[Remark], most: int) -> list[Multicast]:
        """Return the multicasts that save most requests, in clusters of up to `most`; none where none is possible."""
        pairs = ([self.shared(program, memory, MulticastPeers(2, 2), remarks)] for memory in program.memories)
        quads = self.quads(program, program.memories) if most >= FOUR else []
        ways = [[one for one in way if one] for way in (*pairs, *quads) if all(way)]
        return max(ways, key=lambda way: sum(shared.spared for shared in way), default=[])

    def quads(self, program: _Program, memories: list[Value]) -> list[list[Multicast | None]]:
        """Return choices for clusters of four: one operand in quarters, or two in halves; None: not possible."""
        engine = self.machine.tma
        if engine is None or not program.fits_quads(engine, self.tuning):
            return []

        def of(memory: Value, *cut: int) -> Multicast | None:
            shared = self.shared(program, memory, MulticastPeers(FOUR, *cut), [])
            return shared if shared and shared.always else None

        quarters = [[of(memory, FOUR)] for memory in memories]
        return quarters + [[of(one, 2, 1), of(other, 2, 2)] for one, other in permutations(memories, 2)]

    def shared(
        self, program: _Program, memory: Value, peers: MulticastPeers, remarks: list[Remark]
    ) -> Multicast | None:
        engine = self.machine.tma
        assert engine is not None
        try:
            return program.shared(memory, peers, self.least_part, engine.pattern_bytes)
        except Left as left:
            remarks.append(left.remarks)
            return None


def fits_quads(tiles: int, steps: int, engine: Tma, tuning: LoadTuning) -> bool:
    """Whether tiles have enough steps for clusters of four, and all of these clusters run at once."""
    return steps >= tuning.quad_steps and tiles <= FOUR * engine.clusters_of_four


def sample_sizes(kernel: Kernel) -> dict[str, int]:
    """Return assumed sizes for dynamic ones, small along batches: all batches have the same tiles."""
    found: dict[str, int] = {}
    for op in walk(kernel.body):
        if isinstance(op, TmaLoad):
            box = dict(zip(op.axes, op.box, strict=True))
            for axis, size in enumerate(op.memory.type.extents):
                if isinstance(size, str):
                    here = SAMPLE if box.get(axis, 1) > 1 else SAMPLE_BATCHES
                    found[size] = max(here, found.get(size, 0))
    return {size: found.get(size, SAMPLE) for size in open_sizes(kernel)}


@dataclass(frozen=True)
class _Program(CopyProgram):
    """A `CopyProgram` with the checks whether its loads can be multicast."""

    def fits_quads(self, engine: Tma, tuning: LoadTuning) -> bool:
        steps = self.made.get(self.steps.trips)
        if self.turns is not None or not isinstance(steps, Const):
            return False
        return fits_quads(self.kernel.workgroup_count, int(steps.value), engine, tuning)

    def shared(self, memory: Value, peers: MulticastPeers, least_part: float, pattern_bytes: int) -> Multicast:
        """Return the multicast of an operand; raise `Left` where it is not possible, or too few workgroups agree."""
        copies, positions = self.wanted(memory.name)
        facts = {"memory": memory.name, "box": dims(copies[0].box), "bytes": pattern_bytes}
        cut = all(_has_parts(op, peers.shares, pattern_bytes) for op in copies)
        want(cut, NO_HALVES, copies[0].loc, **facts)
        agreement = self.compared(positions, peers)
        self.check(agreement, copies[0], peers, least_part)
        return Multicast(copies, positions, peers, agreement)

    def of_any_size(self, sample: Multicast) -> Multicast:
        """Return a multicast found for sample sizes as one for dynamic shapes, where pairs may always be uneven."""
        copies, positions = self.wanted(sample.copies[0].memory.name)
        want(_is_repeatable(self), UNEVEN, copies[0].loc)
        want(
            self.turns is None or workgroup_range(self.kernel)[1] % sample.peers.members,
            ODD,
            copies[0].loc,
            workgroups="an odd number of",
        )
        return replace(sample, copies=copies, positions=positions, agreement=replace(sample.agreement, uneven=True))

    def check(self, found: Agreement, copy: TmaLoad, peers: MulticastPeers, least_part: float) -> None:
        workgroups, loc = self.kernel.workgroup_count, copy.loc
        want(workgroups % peers.members == 0 or self.turns is None, ODD, loc, workgroups=workgroups)
        enough = found.whole and found.agree >= least_part * found.whole
        want(enough, FEW, loc, memory=copy.memory.name, agree=found.agree, both=found.whole)
        want(not found.backwards and (not found.uneven or _is_repeatable(self)), UNEVEN, loc)


def _is_repeatable(p: _Program) -> bool:
    """Whether a turn can be run for another workgroup's number: it uses no other outside value that depends on it.

    A kernel that reads what it writes is not repeatable.
    """
    written, read = touched(p.kernel)
    if written & read:
        return False
    if p.turns is None:
        return True
    twin = [op for op in p.consumer.body.ops if isinstance(op, Loop) and op.trips == p.turns.trips]
    around = {v for op in (*p.tops, *p.consumer.body.ops, *p.producer.body.ops) for v in op.results}
    given = p.differs & around - {p.own.result, p.turns.trips}
    bodies = [op for role in (p.consumer, p.producer) for op in walk(role.body)]
    return len(twin) == 1 and not any(v in given for op in bodies for v in op.operands)


def _has_parts(op: TmaLoad, parts: int, pattern_bytes: int) -> bool:
    """Whether each part is a whole number of swizzle patterns."""
    box, memory = op.box, op.to.type
    assert isinstance(memory, Memory)
    if len(box) < 2 or prod(box[:-2]) != 1 or box[-2] % parts:
        return False
    return box[-2] // parts * row_elements(memory) * memory.dtype.bytes % pattern_bytes == 0
