"""Hopper's copy engine, its barriers with phases, and products from shared memory, in PTX.

Source: NVIDIA, "PTX ISA", chapters on mbarrier, cp.async.bulk.tensor, stmatrix, wgmma and the memory consistency model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewave.lower.lane_later_target import Box, Gathering, SharedProduct
from tilewave.lower.llvm import Function, Typed
from tilewave.targets.nvptx_asm import asm, when
from tilewave.targets.nvptx_numbers import LANES, lane, thread
from tilewave.targets.nvptx_wgmma import multiply

PHASE_LOOP = """{
.reg .pred p;
again_${:uid}:
mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1;
@p bra over_${:uid};
bra again_${:uid};
over_${:uid}:
}"""
FLAG_LOOP = """{
.reg .pred p;
.reg .b32 x;
again_${:uid}:
ld.acquire.gpu.global.b32 x, [$0];
setp.eq.b32 p, x, 0;
@p bra again_${:uid};
}"""
FENCE = "fence.proxy.async.shared::cta;"
"""What lanes stored in shared memory is seen by copies and products behind it."""
ALL_REGISTERS, REGISTER_UNIT, GROUP = 65536, 8, 4
MOST_REGISTERS, FEWEST_REGISTERS = 240, 40
"""Of a lane: the most that it can be given, and enough to ask for copies."""
WAVE_MEETS = "bar.warp.sync -1;"


@dataclass(frozen=True)
class Hopper:
    """What runs beside the waves; one lane of a wave asks for it."""

    map_parameter = 'ptr byval([128 x i8]) align 64 "nvvm.grid_constant"'
    tile_alignment = 1024
    most_barriers = 16

    def barrier(self, f: Function, gathering: Gathering) -> None:
        fence = FENCE + "\n" if gathering.is_read_later else ""
        if gathering.number.isdigit():  # said as a number, it takes that barrier alone from the chip
            asm(f, f"{fence}bar.sync {gathering.number}, {gathering.waves * LANES};")
        else:
            asm(f, f"{fence}bar.sync $0, {gathering.waves * LANES};", [("i32", gathering.number)])

    def share_registers(self, f: Function, waves: int, of: int) -> tuple[Callable[[], None], Callable[[], None]]:
        at_first = min(MOST_REGISTERS, ALL_REGISTERS // (of * LANES) // REGISTER_UNIT * REGISTER_UNIT)
        given = (at_first - FEWEST_REGISTERS) * (of - waves) // waves // REGISTER_UNIT * REGISTER_UNIT
        more = min(MOST_REGISTERS, at_first + given)
        if more <= at_first or waves % GROUP or of % GROUP:
            return (lambda: None), (lambda: None)
        return (
            lambda: asm(f, f"setmaxnreg.inc.sync.aligned.u32 {more};"),
            lambda: asm(f, f"setmaxnreg.dec.sync.aligned.u32 {FEWEST_REGISTERS};"),
        )

    def multiply(self, f: Function, product: SharedProduct) -> list[str]:
        return multiply(f, product)

    def store_fragments(self, f: Function, address: str, words: list[str]) -> None:
        registers = ", ".join(f"${i + 1}" for i in range(len(words)))
        text = f"stmatrix.sync.aligned.m8n8.x{len(words)}.shared.b16 [$0], {{{registers}}};"
        asm(f, text, [("i32", address), *(("i32", word) for word in words)])

    # -- signals

    def make_signals(self, f: Function, wave: int, addresses: list[str], arrivals: int) -> None:
        mine = f.value(f"icmp eq i32 {thread(f)}, {wave * LANES}")
        chosen = f.value(f"zext i1 {mine} to i32")
        lines = [f"mbarrier.init.shared::cta.b64 [${i + 1}], {arrivals};" for i in range(len(addresses))]
        lines.append("fence.mbarrier_init.release.cluster;")
        asm(f, when(0, "\n".join(lines)), [("i32", chosen), *(("i32", a) for a in addresses)])

    def arrive(self, f: Function, signal: str, expect: int) -> None:
        word = f"arrive.expect_tx.shared::cta.b64 _, [$0], {expect}" if expect else "arrive.shared::cta.b64 _, [$0]"
        asm(f, f"{WAVE_MEETS}\n{when(1, f'mbarrier.{word};')}", [("i32", signal), one_lane(f)])

    def await_phase(self, f: Function, signal: str, parity: str) -> None:
        asm(f, PHASE_LOOP, [("i32", signal), ("i32", parity)])

    # -- copies

    def copy_in(self, f: Function, box: Box, signal: str) -> None:
        text, operands = copy_in_text(box, 2)
        asm(f, when(0, text), [one_lane(f), ("i32", signal), *operands])

    def copy_now(self, f: Function, box: Box, signal: str, bytes_: int) -> None:
        first = f.value(f"icmp eq i32 {thread(f)}, 0")
        chosen = f.value(f"zext i1 {first} to i32")
        text, operands = copy_in_text(box, 2)
        lines = [
            "mbarrier.init.shared::cta.b64 [$1], 1;",
            "fence.mbarrier_init.release.cluster;",
            f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], {bytes_};",
            text,
        ]
        wait = "again_${:uid}:\nmbarrier.try_wait.parity.shared::cta.b64 q, [$1], 0;\n@q bra over_${:uid};\n"
        body = "\n".join(lines) + f"\n{wait}bra again_${{:uid}};\nover_${{:uid}}:\nmbarrier.inval.shared::cta.b64 [$1];"
        skip = "{\n.reg .pred p, q;\nsetp.eq.b32 p, $0, 0;\n@p bra rest_${:uid};\n"
        asm(f, f"{skip}{body}\nrest_${{:uid}}:\n{WAVE_MEETS}\n}}", [("i32", chosen), ("i32", signal), *operands])

    def copy_out(self, f: Function, box: Box) -> None:
        place, operands = _place(box, 2)
        text = f"cp.async.bulk.tensor.{len(box.at)}d.global.shared::cta.bulk_group {place}, [$1];"
        together = when(0, f"{text}\ncp.async.bulk.commit_group;")
        asm(f, together, [one_lane(f), ("i32", box.address), *operands])

    def await_copies(self, f: Function, pending: int) -> None:
        asm(f, f"cp.async.bulk.wait_group.read {pending};\n{WAVE_MEETS}")

    # -- other workgroups

    def fill(self, f: Function, flag: str) -> None:
        text = f"fence.acq_rel.gpu;\n{WAVE_MEETS}\n{when(1, 'st.release.gpu.global.b32 [$0], 1;')}"
        asm(f, text, [("ptr addrspace(1)", flag), one_lane(f)])

    def empty(self, f: Function, flag: str) -> None:
        lowered = when(1, "st.relaxed.gpu.global.b32 [$0], 0;")
        asm(f, f"{FLAG_LOOP}\n{WAVE_MEETS}\n{lowered}", [("ptr addrspace(1)", flag), one_lane(f)])

    def finish(self, f: Function) -> None:
        asm(f, "cp.async.bulk.wait_group 0;")


def one_lane(f: Function) -> Typed:
    """1 in the first lane of the wave, 0 in the others."""
    mine = f.value(f"icmp eq i32 {lane(f)}, 0")
    return "i32", f.value(f"zext i1 {mine} to i32")


def copy_in_text(box: Box, first: int) -> tuple[str, list[Typed]]:
    """A copy that tells the signal in operand 1; its own operands are numbered from `first` on."""
    place, operands = _place(box, first)
    word = f"cp.async.bulk.tensor.{len(box.at)}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    address = first + len(operands)
    return f"{word} [${address}], {place}, [$1];", [*operands, ("i32", box.address)]


def _place(box: Box, first: int) -> tuple[str, list[Typed]]:
    """A part of an array; PTX counts axes from the fastest."""
    at = [("i32", x) for x in reversed(box.at)]
    numbers = ", ".join(f"${first + 1 + i}" for i in range(len(at)))
    return f"[${first}, {{{numbers}}}]", [("ptr", box.map), *at]
