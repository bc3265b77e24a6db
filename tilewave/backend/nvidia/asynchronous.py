"""Hopper's TMA, mbarriers and wgmma, in PTX.

Source: NVIDIA, "PTX ISA", chapters on mbarrier, cp.async.bulk.tensor, stmatrix, wgmma, mapa, barrier.cluster and
griddepcontrol, and the memory consistency model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewave.backend.nvidia.inline_ptx import asm, asm_at_first, asm_value, when
from tilewave.backend.nvidia.numbers import LANES, cluster_rank, lane, thread
from tilewave.backend.nvidia.waiting import FENCE, WAVE_MEETS, HopperFlags, HopperMbarriers, one_lane
from tilewave.backend.nvidia.wgmma import WAIT, multiply, wait_mma
from tilewave.layouts.fragments import WARPGROUP
from tilewave.lower.gpu.asynchronous_target import Box, BoxParts, Gathering, SharedCopy, SharedProduct
from tilewave.lower.llvm import LlvmFunction, Typed
from tilewave.machine.chips import TENSOR_MAPS, Chip
from tilewave.records import dataclass

AGREE = """{{
.reg .pred p;
setp.ne.b32 p, $1, 0;
barrier.cta.red.and.aligned.pred p, $2, {lanes}, p;
selp.b32 $0, 1, 0, p;
}}"""
MOST_REGISTERS = 240
"""The most registers that a lane is given (setmaxnreg)."""


@dataclass(frozen=True)
class Hopper:
    """Asynchronous operations of Hopper; one lane of a wave issues them."""

    chip: Chip

    map_parameter = 'ptr byval([128 x i8]) align 64 "nvvm.grid_constant"'

    @property
    def tile_alignment(self) -> int:
        return TENSOR_MAPS.pattern_bytes

    @property
    def most_barriers(self) -> int:
        return self.chip.barriers

    @property
    def mbarriers(self) -> HopperMbarriers:
        return HopperMbarriers()

    @property
    def flags(self) -> HopperFlags:
        return HopperFlags()

    def barrier(self, f: LlvmFunction, gathering: Gathering) -> None:
        fence = FENCE + "\n" if gathering.is_read_later else ""
        if gathering.number.isdigit():  # a literal reserves only that hardware barrier, a register all of them
            asm(f, f"{fence}bar.sync {gathering.number}, {gathering.waves * LANES};")
        else:
            asm(f, f"{fence}bar.sync $0, {gathering.waves * LANES};", [("i32", gathering.number)])

    def agree(self, f: LlvmFunction, gathering: Gathering, mine: str) -> str:
        word = f.value(f"zext i1 {mine} to i32")
        text = AGREE.format(lanes=gathering.waves * LANES)
        agreed = asm_value(f, text, "i32", [("i32", word), ("i32", gathering.number)])
        return f.value(f"icmp ne i32 {agreed}, 0")

    def share_registers(
        self, f: LlvmFunction, waves: int, of: int, fewest: int, resident: int
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        units = self.chip.matrix_units
        all_of_a_lane, grain = units.count * units.registers, units.register_grain
        at_first = min(MOST_REGISTERS, all_of_a_lane // (of * resident) // grain * grain)
        given = (at_first - fewest) * (of - waves) // waves // grain * grain
        more = min(MOST_REGISTERS, at_first + given)
        # setmaxnreg needs whole warpgroups that execute it together.
        if more <= at_first or waves % WARPGROUP.waves or of % WARPGROUP.waves:
            return (lambda: None), (lambda: None)
        return (
            lambda: asm(f, f"setmaxnreg.inc.sync.aligned.u32 {more};"),
            lambda: asm(f, f"setmaxnreg.dec.sync.aligned.u32 {fewest};"),
        )

    def multiply(self, f: LlvmFunction, product: SharedProduct) -> list[str]:
        return multiply(f, product)

    def wait_older_mma(self, f: LlvmFunction, pending: int) -> None:
        asm(f, WAIT.format(pending))

    def wait_mma(
        self, f: LlvmFunction, pending: int, kind: str, sums: Sequence[str], meanwhile: Sequence[str]
    ) -> list[str]:
        return wait_mma(f, pending, kind, sums, meanwhile)

    def store_fragments(self, f: LlvmFunction, address: str, words: list[str], is_transposed: bool) -> None:
        registers = ", ".join(f"${i + 1}" for i in range(len(words)))
        transposed = ".trans" if is_transposed else ""
        text = f"stmatrix.sync.aligned.m8n8.x{len(words)}{transposed}.shared.b16 [$0], {{{registers}}};"
        asm(f, text, [("i32", address), *(("i32", word) for word in words)])

    # -- clusters

    def cluster_rank(self, f: LlvmFunction) -> str:
        return cluster_rank(f)

    def cluster_barrier(self, f: LlvmFunction) -> None:
        asm(f, f"{WAVE_MEETS}\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;")

    # -- copies

    def expect_map(self, f: LlvmFunction, map_: str) -> None:
        chosen = f.at_first("%first.thread", f"icmp eq i32 {thread(f)}, 0")
        chosen = f.at_first("%first.thread.alone", f"zext i1 {chosen} to i32")
        asm_at_first(f, when(0, "prefetch.tensormap [$1];"), [("i32", chosen), ("ptr", map_)])

    def tma_load(self, f: LlvmFunction, box: Box, mbarrier: str) -> None:
        text, operands = copy_in_text(box, 2)
        asm(f, when(0, text), [one_lane(f), ("i32", mbarrier), *operands])

    def tma_load_parts(self, f: LlvmFunction, parts: BoxParts, mbarrier: str) -> None:
        """Lane i loads part i."""
        own = lane(f)
        *before, row, last = parts.first.at
        mine = f.value(f"add i32 {row}, {f.value(f'mul i32 {own}, {parts.rows}')}")
        address = f.value(f"add i32 {parts.first.address}, {f.value(f'mul i32 {own}, {parts.bytes}')}")
        loads = f.value(f"zext i1 {f.value(f'icmp slt i32 {own}, {parts.used}')} to i32")
        text, operands = copy_in_text(Box(parts.first.map, (*before, mine, last), address), 2)
        asm(f, when(0, text), [("i32", loads), ("i32", mbarrier), *operands])
        left = f.value(f"mul i32 {f.value(f'sub i32 {parts.count}, {parts.used}')}, {parts.bytes}")
        is_less = f.value(f"icmp sgt i32 {left}, 0")
        completes = f.value(f"select i1 {is_less}, i32 {one_lane(f)[1]}, i32 0")
        text = "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [$1], $2;"
        asm(f, when(0, text), [("i32", completes), ("i32", mbarrier), ("i32", left)])

    def tma_load_multicast(self, f: LlvmFunction, copy: SharedCopy) -> None:
        """Multicast `mine`; a workgroup that loads for itself has only its bit in the mask, and loads `others` too."""
        itself = f.value(f"shl i32 1, {copy.rank}")
        those = f.value(f"trunc i32 {f.value(f'select i1 {copy.together}, i32 {copy.peers}, i32 {itself}')} to i16")
        text, operands = copy_in_text(copy.mine, 3, "$2")
        asm(f, when(0, text), [one_lane(f), ("i32", copy.mbarrier), ("i16", those), *operands])
        alone = f.value(f"select i1 {copy.together}, i32 0, i32 {one_lane(f)[1]}")
        for other in copy.others:
            text, operands = copy_in_text(other, 2)
            asm(f, when(0, text), [("i32", alone), ("i32", copy.mbarrier), *operands])

    def copy_now(self, f: LlvmFunction, boxes: Sequence[Box], mbarrier: str, bytes_: int) -> None:
        first = f.value(f"icmp eq i32 {thread(f)}, 0")
        chosen = f.value(f"zext i1 {first} to i32")
        texts: list[str] = []
        operands: list[Typed] = []
        for box in boxes:
            text, own = copy_in_text(box, 2 + len(operands))
            texts.append(text)
            operands += own
        lines = [
            "mbarrier.init.shared::cta.b64 [$1], 1;",
            "fence.mbarrier_init.release.cluster;",
            f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], {bytes_};",
            *texts,
        ]
        wait = "again_${:uid}:\nmbarrier.try_wait.parity.shared::cta.b64 q, [$1], 0;\n@q bra over_${:uid};\n"
        body = "\n".join(lines) + f"\n{wait}bra again_${{:uid}};\nover_${{:uid}}:\nmbarrier.inval.shared::cta.b64 [$1];"
        skip = "{\n.reg .pred p, q;\nsetp.eq.b32 p, $0, 0;\n@p bra rest_${:uid};\n"
        asm(f, f"{skip}{body}\nrest_${{:uid}}:\n{WAVE_MEETS}\n}}", [("i32", chosen), ("i32", mbarrier), *operands])

    def tma_store(self, f: LlvmFunction, box: Box, more: bool) -> None:
        place, operands = _place(box, 2)
        text = f"cp.async.bulk.tensor.{len(box.at)}d.global.shared::cta.bulk_group {place}, [$1];"
        all_of_it = text if more else f"{text}\ncp.async.bulk.commit_group;"
        asm(f, when(0, all_of_it), [one_lane(f), ("i32", box.address), *operands])

    def wait_tma_stores(self, f: LlvmFunction, pending: int) -> None:
        # `.read`: shared memory may be reused, though the stores need not be complete.
        asm(f, f"cp.async.bulk.wait_group.read {pending};\n{WAVE_MEETS}")

    def wait_prior_launch(self, f: LlvmFunction) -> None:
        asm(f, "griddepcontrol.wait;")

    def launch_dependents(self, f: LlvmFunction) -> None:
        asm(f, "griddepcontrol.launch_dependents;")


def copy_in_text(box: Box, first: int, members: str = "") -> tuple[str, list[Typed]]:
    """Return a TMA load that completes on the mbarrier in operand 1, and its operands, numbered from `first`.

    `members`: the operand with the multicast mask, a bit for each receiving workgroup, whose mbarrier completes too.
    """
    place, operands = _place(box, first)
    word = f"cp.async.bulk.tensor.{len(box.at)}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    everywhere, mask = (".multicast::cluster", f", {members}") if members else ("", "")
    address = first + len(operands)
    return f"{word}{everywhere} [${address}], {place}, [$1]{mask};", [*operands, ("i32", box.address)]


def _place(box: Box, first: int) -> tuple[str, list[Typed]]:
    """Return the map and coordinates of a box; PTX lists axes from the fastest."""
    at = [("i32", x) for x in reversed(box.at)]
    numbers = ", ".join(f"${first + 1 + i}" for i in range(len(at)))
    return f"[${first}, {{{numbers}}}]", [("ptr", box.map), *at]
