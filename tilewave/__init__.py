"""A language and compiler for GPU tile kernels, in which the order of tiles is an object of its own."""

from tilewave import mapping
from tilewave._version import __version__
from tilewave.compile import Compiled, SchedulingType, WaveCompileOptions, set_default_run_config, wave_compile
from tilewave.errors import TilewaveError
from tilewave.ir.types import BF16 as bf16
from tilewave.ir.types import BOOL as bool  # noqa: F401
from tilewave.ir.types import F8E4M3FN as f8e4m3fn
from tilewave.ir.types import F8E4M3FNUZ as f8e4m3fnuz
from tilewave.ir.types import F8E5M2 as f8e5m2
from tilewave.ir.types import F8E5M2FNUZ as f8e5m2fnuz
from tilewave.ir.types import F16 as f16
from tilewave.ir.types import F32 as f32
from tilewave.ir.types import F64 as f64
from tilewave.ir.types import I8 as i8
from tilewave.ir.types import I32 as i32
from tilewave.ir.types import I64 as i64
from tilewave.ir.types import INDEX as index
from tilewave.lang.constraints import (
    THREAD_0,
    THREAD_1,
    THREAD_2,
    WORKGROUP_0,
    WORKGROUP_1,
    WORKGROUP_2,
    GridConstraint,
    HardwareConstraint,
    MMAType,
    ReorderingConstraint,
    TilingConstraint,
    WaveConstraint,
    WorkgroupConstraint,
    WorkgroupMapping,
)
from tilewave.lang.index_mapping import IndexMapping
from tilewave.lang.kernel import wave
from tilewave.lang.loops import iterate
from tilewave.lang.ops import abs_ as abs  # noqa: F401
from tilewave.lang.ops import (
    cast,
    cos,
    erf,
    exp,
    exp2,
    log,
    log2,
    maximum,
    minimum,
    mma,
    read,
    rsqrt,
    scalar,
    select,
    self_index,
    set_symbol,
    sin,
    sqrt,
    tanh,
    write,
)
from tilewave.lang.symbols import Eq, Max, Min, Ne, ceiling, floor, sym
from tilewave.lang.types import GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE, Memory, Register
from tilewave.saved.loading import load

# `bool` and `abs` are here as tilewave.bool and tilewave.abs; a star import leaves Python's own alone.
__all__ = [
    "GLOBAL_ADDRESS_SPACE",
    "SHARED_ADDRESS_SPACE",
    "THREAD_0",
    "THREAD_1",
    "THREAD_2",
    "WORKGROUP_0",
    "WORKGROUP_1",
    "WORKGROUP_2",
    "Compiled",
    "Eq",
    "GridConstraint",
    "HardwareConstraint",
    "IndexMapping",
    "MMAType",
    "Max",
    "Memory",
    "Min",
    "Ne",
    "Register",
    "ReorderingConstraint",
    "SchedulingType",
    "TilewaveError",
    "TilingConstraint",
    "WaveCompileOptions",
    "WaveConstraint",
    "WorkgroupConstraint",
    "WorkgroupMapping",
    "__version__",
    "bf16",
    "cast",
    "ceiling",
    "cos",
    "erf",
    "exp",
    "exp2",
    "f8e4m3fn",
    "f8e4m3fnuz",
    "f8e5m2",
    "f8e5m2fnuz",
    "f16",
    "f32",
    "f64",
    "floor",
    "i8",
    "i32",
    "i64",
    "index",
    "iterate",
    "load",
    "log",
    "log2",
    "mapping",
    "maximum",
    "minimum",
    "mma",
    "read",
    "rsqrt",
    "scalar",
    "select",
    "self_index",
    "set_default_run_config",
    "set_symbol",
    "sin",
    "sqrt",
    "sym",
    "tanh",
    "wave",
    "wave_compile",
    "write",
]
