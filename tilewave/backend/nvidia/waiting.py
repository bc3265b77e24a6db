"""Hopper's mbarriers, and flags in global memory, by which waves and workgroups wait for each other.

Source: NVIDIA, "PTX ISA", chapters on mbarrier and mapa, and the memory consistency model.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewave.backend.nvidia.inline_ptx import asm, when
from tilewave.backend.nvidia.numbers import LANES, hidden_zero, lane, thread
from tilewave.lower.llvm import LlvmFunction, Typed

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
"""Makes stores of lanes to shared memory visible to later TMA copies and wgmma."""
WAVE_MEETS = "bar.warp.sync -1;"
# Without `.release.cluster`, which would flush all of a wave's stores in every step: only reads precede it.
ARRIVE_EVERYWHERE = """{{
.reg .pred p;
.reg .b32 there;
setp.lt.u32 p, $1, {members};
@p mapa.shared::cluster.u32 there, $0, $1;
@p mbarrier.arrive.shared::cluster.b64 _, [there];
}}"""
"""Lane i arrives in workgroup i of the cluster."""


class HopperMbarriers:
    """Mbarriers in shared memory."""

    def make(self, f: LlvmFunction, wave: int, addresses: list[str], arrivals: int) -> None:
        mine = f.value(f"icmp eq i32 {thread(f)}, {wave * LANES}")
        lines = [f"mbarrier.init.shared::cta.b64 [${i}], {arrivals};" for i in range(len(addresses))]
        lines.append("fence.mbarrier_init.release.cluster;")
        # With a predicate on each line, ptxas would make as many branches, with a fence in each.
        f.when(mine, lambda: asm(f, "\n".join(lines), [("i32", a) for a in addresses]), lambda: None)

    def after(self, f: LlvmFunction, mbarrier: str, words: Sequence[str]) -> str:
        """Return the address plus a hidden 0 computed from `words`: ptxas would move the arrival before the loads."""
        if not words:
            return mbarrier
        whole = words[0]
        for word in words[1:]:
            whole = f.value(f"or i32 {whole}, {word}")
        nothing = f.value(f"and i32 {whole}, {hidden_zero(f, 0)}")
        return f.value(f"add i32 {mbarrier}, {nothing}")

    def arrive(self, f: LlvmFunction, mbarrier: str, expect: int, stored: bool) -> None:
        word = f"arrive.expect_tx.shared::cta.b64 _, [$0], {expect}" if expect else "arrive.shared::cta.b64 _, [$0]"
        fence = FENCE + "\n" if stored else ""
        asm(f, f"{fence}{WAVE_MEETS}\n{when(1, f'mbarrier.{word};')}", [("i32", mbarrier), one_lane(f)])

    def arrive_everywhere(self, f: LlvmFunction, mbarrier: str, members: int) -> None:
        text = f"{WAVE_MEETS}\n{ARRIVE_EVERYWHERE.format(members=members)}"
        asm(f, text, [("i32", mbarrier), ("i32", lane(f))])

    def wait(self, f: LlvmFunction, mbarrier: str, parity: str) -> None:
        asm(f, PHASE_LOOP, [("i32", mbarrier), ("i32", parity)])


class HopperFlags:
    """Flags in global memory, one for each wave that hands over its part of a tile."""

    def fill(self, f: LlvmFunction, flag: str) -> None:
        self.fill_each(f, flag, one_lane(f)[1])

    def empty(self, f: LlvmFunction, flag: str) -> None:
        self.empty_each(f, flag, one_lane(f)[1])

    def fill_each(self, f: LlvmFunction, flag: str, has_one: str) -> None:
        text = f"fence.acq_rel.gpu;\n{WAVE_MEETS}\n{when(1, 'st.release.gpu.global.b32 [$0], 1;')}"
        asm(f, text, [("ptr addrspace(1)", flag), ("i32", has_one)])

    def empty_each(self, f: LlvmFunction, flag: str, has_one: str) -> None:
        lowered = when(1, "st.relaxed.gpu.global.b32 [$0], 0;")
        asm(f, f"{FLAG_LOOP}\n{WAVE_MEETS}\n{lowered}", [("ptr addrspace(1)", flag), ("i32", has_one)])


def one_lane(f: LlvmFunction) -> Typed:
    """Return 1 in the first lane of the wave, 0 in the others."""
    mine = f.value(f"icmp eq i32 {lane(f)}, 0")
    return "i32", f.value(f"zext i1 {mine} to i32")
