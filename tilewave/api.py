"""The public names of tilewave, each with its module; `import tilewave` imports this at the first use of a name."""

import tilewave.call  # noqa: F401  gives kernels their `__call__`
from tilewave import mapping as mapping
from tilewave.compile import wave_compile as wave_compile
from tilewave.compiled import Compiled as Compiled
from tilewave.errors import TilewaveError as TilewaveError
from tilewave.ir.types import (
    BF16,
    BOOL,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    INDEX,
    U8,
    U16,
    U32,
    U64,
    DType,
)
from tilewave.lang.accesses import atomic_add as atomic_add
from tilewave.lang.accesses import atomic_and as atomic_and
from tilewave.lang.accesses import atomic_max as atomic_max
from tilewave.lang.accesses import atomic_min as atomic_min
from tilewave.lang.accesses import atomic_or as atomic_or
from tilewave.lang.accesses import read as read
from tilewave.lang.accesses import write as write
from tilewave.lang.conditions import conditional as conditional
from tilewave.lang.constraints import Assumption as Assumption
from tilewave.lang.constraints import Constraint as Constraint
from tilewave.lang.constraints import DeviceConstraint as DeviceConstraint
from tilewave.lang.constraints import GridConstraint as GridConstraint
from tilewave.lang.constraints import HardwareConstraint as HardwareConstraint
from tilewave.lang.constraints import IteratorBindings as IteratorBindings
from tilewave.lang.constraints import Ragged as Ragged
from tilewave.lang.constraints import ReorderingConstraint as ReorderingConstraint
from tilewave.lang.constraints import SplitConstraint as SplitConstraint
from tilewave.lang.constraints import SymbolicAlias as SymbolicAlias
from tilewave.lang.constraints import TilingConstraint as TilingConstraint
from tilewave.lang.constraints import WaveConstraint as WaveConstraint
from tilewave.lang.constraints import WorkgroupConstraint as WorkgroupConstraint
from tilewave.lang.constraints import WorkgroupMapping as WorkgroupMapping
from tilewave.lang.functions import ceiling as ceiling
from tilewave.lang.functions import floor as floor
from tilewave.lang.functions import reciprocal as reciprocal
from tilewave.lang.functions import round_
from tilewave.lang.functions import roundeven as roundeven
from tilewave.lang.functions import softsign as softsign
from tilewave.lang.functions import tanh_approx as tanh_approx
from tilewave.lang.index_mapping import IndexMapping as IndexMapping
from tilewave.lang.kernel import wave as wave
from tilewave.lang.loops import iterate as iterate
from tilewave.lang.mma_types import MMAType as MMAType
from tilewave.lang.narrow import F4E2M1FN, F8E8M0FNU
from tilewave.lang.narrow import bitcast as bitcast
from tilewave.lang.narrow import scaled_mma as scaled_mma
from tilewave.lang.observations import assert_ as assert_
from tilewave.lang.observations import debug_log as debug_log
from tilewave.lang.ops import *
from tilewave.lang.ops import abs_
from tilewave.lang.ordered import ordered_add as ordered_add
from tilewave.lang.products import mma as mma
from tilewave.lang.random_numbers import random as random
from tilewave.lang.random_numbers import random_bits as random_bits
from tilewave.lang.reductions import all_, any_, max_, min_, sum_
from tilewave.lang.reductions import argmax as argmax
from tilewave.lang.reductions import argmin as argmin
from tilewave.lang.reductions import cumsum as cumsum
from tilewave.lang.reductions import prod as prod
from tilewave.lang.scans import scan as scan
from tilewave.lang.shapes import apply_expr as apply_expr
from tilewave.lang.shapes import broadcast as broadcast
from tilewave.lang.shapes import permute as permute
from tilewave.lang.shapes import rename as rename
from tilewave.lang.shared import allocate as allocate
from tilewave.lang.shared import shared_memory_barrier as shared_memory_barrier
from tilewave.lang.shared import workgroup_barrier as workgroup_barrier
from tilewave.lang.sorting import argsort as argsort
from tilewave.lang.sorting import sort as sort
from tilewave.lang.sorting import topk as topk
from tilewave.lang.symbols import THREAD_0 as THREAD_0
from tilewave.lang.symbols import THREAD_1 as THREAD_1
from tilewave.lang.symbols import THREAD_2 as THREAD_2
from tilewave.lang.symbols import WORKGROUP_0 as WORKGROUP_0
from tilewave.lang.symbols import WORKGROUP_1 as WORKGROUP_1
from tilewave.lang.symbols import WORKGROUP_2 as WORKGROUP_2
from tilewave.lang.symbols import Eq as Eq
from tilewave.lang.symbols import Expression, Symbol
from tilewave.lang.symbols import Max as Max
from tilewave.lang.symbols import Min as Min
from tilewave.lang.symbols import Ne as Ne
from tilewave.lang.symbols import Piecewise as Piecewise
from tilewave.lang.symbols import sym as sym
from tilewave.lang.tags import tag as tag
from tilewave.lang.tuning import Tune as Tune
from tilewave.lang.tuning import autotune as autotune
from tilewave.lang.types import GLOBAL_ADDRESS_SPACE as GLOBAL_ADDRESS_SPACE
from tilewave.lang.types import SHARED_ADDRESS_SPACE as SHARED_ADDRESS_SPACE
from tilewave.lang.types import AddressSpace as AddressSpace
from tilewave.lang.types import Indices as Indices
from tilewave.lang.types import Memory as Memory
from tilewave.lang.types import MemoryLayout as MemoryLayout
from tilewave.lang.types import Register as Register
from tilewave.lang.types import SymbolBind as SymbolBind
from tilewave.lang.types import register as register
from tilewave.lang.wave_words import GenericDot as GenericDot
from tilewave.lang.wave_words import MMAOperand as MMAOperand
from tilewave.lang.wave_words import ScaledMMAType as ScaledMMAType
from tilewave.lang.wave_words import index_symbol as index_symbol
from tilewave.lang.wave_words import wave_schedule as wave_schedule
from tilewave.loading import load as load
from tilewave.options import SchedulingType as SchedulingType
from tilewave.options import WaveCompileOptions as WaveCompileOptions
from tilewave.options import set_default_run_config as set_default_run_config

bf16 = BF16
f4e2m1fn = F4E2M1FN
f8e8m0fnu = F8E8M0FNU
f8e4m3fn = F8E4M3FN
f8e4m3fnuz = F8E4M3FNUZ
f8e5m2 = F8E5M2
f8e5m2fnuz = F8E5M2FNUZ
f16 = F16
f32 = F32
f64 = F64
i1 = BOOL
i8 = I8
i16 = I16
i32 = I32
i64 = I64
u8 = U8
u16 = U16
u32 = U32
u64 = U64
index = INDEX

ceil = ceiling
DataType, IndexExpr, IndexSymbol = DType, Expression, Symbol
reduction = iterate
"""Wave's earlier name of `iterate`."""
bool, abs, round = BOOL, abs_, round_
sum, max, min, any, all = sum_, max_, min_, any_, all_
"""tilewave.bool, tilewave.sum, …; a star import leaves Python's alone."""
