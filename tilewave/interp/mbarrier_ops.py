"""The semantics of mbarriers and of barriers among the workgroups of a cluster, for one wave."""

from __future__ import annotations

from tilewave.interp.mbarriers import Mbarrier, MbarrierArray
from tilewave.interp.wave_state import Waiting, WaveState
from tilewave.interp.workgroup import LateAccess, Wait, WorkgroupState
from tilewave.ir.core import Op, Value
from tilewave.ir.ops import Arrive, ClusterBarrier, MakeMbarriers, WaitMbarrier, WaitPriorLaunch


def wait_prior_launch(wave: WaveState, op: WaitPriorLaunch) -> None:
    wave.may_touch = True


def make_mbarriers(wave: WaveState, op: MakeMbarriers) -> MbarrierArray:
    return wave.state.make_mbarriers(op, op.arrivals, wave.number, wave.leader)


def mbarrier_at(
    wave: WaveState, op: Op, mbarriers: Value, at: Value, member: WorkgroupState | None = None
) -> tuple[Mbarrier, str]:
    """Return an mbarrier of this workgroup or of `member`, and its name; its initialization must be visible."""
    there = member or wave.state
    made: MbarrierArray = there.mbarriers.get(mbarriers) or wave.env[mbarriers]
    number = wave.uniform(op, at)
    name = f"{made.value.name}[{number}]" + ("" if there is wave.state else f" of workgroup {there.number}")
    if not 0 <= number < len(made.mbarriers):
        wave.fail(op, f"{wave.name} wants {name}, outside {made.value.type}")
    known = wave.state.ledger.clocks.known(wave.index)
    if mbarriers not in there.mbarriers or made.made_in is None or not known[made.made_in]:
        barrier = "barrier" if there is wave.state else "cluster_barrier"
        wave.fail(
            op,
            f"{wave.name} uses {name}, which wave {made.maker} made with no {barrier} between",
            f"it is made at {made.op.loc}; a {barrier} must be between them",
        )
    return made.mbarriers[number], name


def arrive(wave: WaveState, op: Arrive) -> None:
    wave.lanes_meet()
    wave.state.ledger.clocks.learn(wave.index, [wave.loading.pop(v) for v in op.seen if v in wave.loading])
    members = wave.state.cluster.members if op.members > 1 else [wave.state]
    clocks = wave.state.ledger.clocks
    before = clocks.current[wave.index]
    notified = clocks.release(wave.index)
    for member in members:
        mbarrier, name = mbarrier_at(wave, op, op.mbarriers, op.at, member)
        if mbarrier.arrived == mbarrier.needed:
            everyone = f"all {mbarrier.needed} arrivals"
            wave.fail(op, f"{wave.name} arrives on {name}, whose phase already has {everyone}")
        mbarrier.arrive(notified, op.expect, wave.state.first + wave.number // op.waves, op.waves)
        want_not_overfull(wave, op, mbarrier, name)
        if member is not wave.state:
            note_late(wave, op, before, member)


def note_late(wave: WaveState, op: Op, segment: int, member: WorkgroupState) -> None:
    late = LateAccess(op, wave.name, segment, member, member is not wave.state)
    wave.state.cluster.late.append(late)


def want_not_overfull(wave: WaveState, op: Op, mbarrier: Mbarrier, name: str) -> None:
    if mbarrier.is_overfull:
        wave.fail(op, f"{name} expects {mbarrier.expected} bytes, and {mbarrier.landed} came")


def wait_mbarrier(wave: WaveState, op: WaitMbarrier) -> Waiting:
    mbarrier, name = mbarrier_at(wave, op, op.mbarriers, op.at)
    parity = wave.uniform(op, op.parity)

    def notified() -> str:
        come = f"{mbarrier.arrived} of {mbarrier.needed} arrivals and {mbarrier.landed} of {mbarrier.expected} bytes"
        return f"at {op.loc} for {name} to complete phase {mbarrier.phase}, which has {come}"

    yield from wave.until(Wait(op, lambda: mbarrier.phase % 2 != parity, notified))
    wave.state.ledger.clocks.acquire(wave.index, mbarrier.notified)
    return ()


def cluster_barrier(wave: WaveState, op: ClusterBarrier) -> Waiting:
    wave.end_loads()
    cluster = wave.state.cluster
    cluster.come_to_barrier(wave.index, op)

    def is_over() -> bool:
        return wave.index not in cluster.at_barrier

    if is_over():
        yield  # let others run first, so that the last wave to arrive does not always continue first
    yield from wave.until(Wait(op, is_over, lambda: f"at the cluster's barrier of {op.loc}"))
    return ()
