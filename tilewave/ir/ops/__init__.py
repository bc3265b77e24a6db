"""The ops of the IR, one class per op and one file per topic: the place to learn what a kernel can express.

An op declares next to its fields what passes need to know: its levels, whether it is pure, which memories it reads and
writes, the constraints between its operands and results, and how their axes correspond (`core.Op` has the list). Its
semantics are defined in `interp/`. This package exports the union of its files' `__all__`.
"""

from __future__ import annotations

from tilewave.ir.core import Op
from tilewave.ir.ops import (
    arith,
    asynchronous,
    bits,
    control,
    exchange,
    indexed,
    lane,
    lane_memory,
    launch,
    mbarriers,
    memory,
    observations,
    order,
    product,
    reduction,
    shape,
    turns,
    workgroup,
)
from tilewave.ir.ops.arith import *
from tilewave.ir.ops.asynchronous import *
from tilewave.ir.ops.bits import *
from tilewave.ir.ops.control import *
from tilewave.ir.ops.exchange import *
from tilewave.ir.ops.indexed import *
from tilewave.ir.ops.kinds import *
from tilewave.ir.ops.lane import *
from tilewave.ir.ops.lane_memory import *
from tilewave.ir.ops.launch import *
from tilewave.ir.ops.mbarriers import *
from tilewave.ir.ops.memory import *
from tilewave.ir.ops.observations import *
from tilewave.ir.ops.order import *
from tilewave.ir.ops.product import *
from tilewave.ir.ops.reduction import *
from tilewave.ir.ops.shape import *
from tilewave.ir.ops.turns import *
from tilewave.ir.ops.workgroup import *

IDEAS = (
    arith,
    bits,
    shape,
    reduction,
    launch,
    workgroup,
    memory,
    indexed,
    observations,
    product,
    exchange,
    turns,
    lane,
    lane_memory,
    order,
    asynchronous,
    mbarriers,
    control,
)

VOCABULARY: dict[str, type[Op]] = {cls.word(): cls for idea in IDEAS for cls in idea.OPS}
"""Every op by its name in the text."""
LEVELS: dict[str, tuple[type[Op], ...]] = {
    level: tuple(cls for cls in VOCABULARY.values() if level in cls.levels) for level in ("tile", "lane")
}
