"""Judges barriers by running a kernel's index arithmetic and listing what touches shared memory, in order."""

from tilewave.interp.arithmetic import elementwise
from tilewave.ir import ops
from tilewave.ir.rewrite import rewrite
from tilewave.ir.types import Scalar


class Recorder:
    """`events`: (memory, first element touched or None, whether written) for each access, and None for a barrier."""

    def __init__(self, kernel, numbers):
        self.env = {v: numbers[v.name] for v in kernel.body.args if isinstance(v.type, Scalar)}
        self.events = []
        self.block(kernel.body)

    def block(self, block, *args):
        self.env.update(zip(block.args, args, strict=False))
        for op in block.ops:
            if isinstance(op, ops.Yield):
                return [self.env.get(v) for v in op.values]
            self.env.update(zip(op.results, self.op(op), strict=False))
        return []

    def op(self, op):
        get = self.env.get
        match op:
            case ops.Barrier():
                self.events.append(None)
            case ops.Read(memory, at, axes) | ops.Write(_, memory, at, axes) if memory.type.space == "shared":
                slot = None if 0 in axes else get(at[0])
                self.events.append((memory.name, slot, isinstance(op, ops.Write)))
            case ops.Loop(trips, init, body):
                carried = [get(v) for v in init]
                for i in range(get(trips)):
                    carried = self.block(body, i, *carried)
                return carried
            case ops.While(init, condition, body):
                carried = [get(v) for v in init]
                while self.block(condition, *carried)[0]:
                    carried = self.block(body, *carried)
                return carried
            case ops.Workgroup():
                return [0]
            case ops.Const(value) if isinstance(op.result.type, Scalar):
                return [value]
            case ops.Binary() | ops.Unary() | ops.Select() if isinstance(op.result.type, Scalar):
                return [elementwise(op, [get(v) for v in op.operands])]
        return []


def races(events):
    """Whether two waves may touch the same element, one of them writing, with no barrier between."""
    since = []
    for event in events:
        if event is None:
            since = []
            continue
        memory, slot, written = event
        if any(m == memory and s == slot and (w or written) for m, s, w in since):
            return True
        since.append(event)
    return False


def barriers(kernel):
    """Return the number of barriers in the text."""
    count = 0

    def look(op):
        nonlocal count
        count += isinstance(op, ops.Barrier)

    rewrite(kernel, look)
    return count


def without_barrier(kernel, number):
    seen = -1

    def drop(op):
        nonlocal seen
        seen += isinstance(op, ops.Barrier)
        return [] if isinstance(op, ops.Barrier) and seen == number else None

    return rewrite(kernel, drop)


def check(kernel, cases):
    """No case races; and each barrier is needed: without it some case does."""
    for numbers in cases:
        assert not races(Recorder(kernel, numbers).events), f"{numbers} race in\n{kernel}"
    for number in range(barriers(kernel)):
        bare = without_barrier(kernel, number)
        needed = any(races(Recorder(bare, numbers).events) for numbers in cases)
        assert needed, f"barrier {number} is not needed in\n{kernel}"


def passed(kernel, **numbers):
    """How many barriers a wave passes."""
    return Recorder(kernel, numbers).events.count(None)
