"""Elementwise arithmetic in LLVM IR, on scalars or vectors.

Narrow floats are held as they are stored (f16 as half, bf16 as i16, f8 as i8) and computed in f32: one f32 operation
and one rounding equals the narrow operation, since f32 has more than twice the digits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tilewave.analysis.ranges import divides_safely
from tilewave.ir import casts
from tilewave.ir import ops as ir
from tilewave.ir.core import Op
from tilewave.ir.dispatch import row_of
from tilewave.ir.types import BF16, BOOL, F32, F64, DType
from tilewave.lower.elements import Written, literal, splat_constant, stored, suffix
from tilewave.lower.exponents import exponential
from tilewave.lower.integers import Known, anything, divided, shifted
from tilewave.lower.llvm import LlvmFunction, Module, vector


def is_narrow(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits < 32


def widened(f: LlvmFunction, x: str, dtype: DType, lanes: int) -> str:
    """Return a narrow float as f32."""
    narrow, wide = vector(lanes, stored(dtype)), vector(lanes, "float")
    if dtype.name == "f16":
        return f.value(f"fpext {narrow} {x} to {wide}")
    if dtype.name == "bf16":
        ints = vector(lanes, "i32")
        bits = f.value(f"zext {narrow} {x} to {ints}")
        bits = f.value(f"shl {ints} {bits}, {splat_constant('i32', '16', lanes)}")
        return f.value(f"bitcast {ints} {bits} to {wide}")
    table = f.module.helper(f"from_{dtype.name}", lambda: _float8_table(dtype))
    return each(f, x, lanes, narrow, "float", lambda one: _look_up(f, table, one))


def narrowed(f: LlvmFunction, x: str, dtype: DType, lanes: int) -> str:
    """Return an f32 rounded to a narrow float, to nearest even."""
    narrow, wide = vector(lanes, stored(dtype)), vector(lanes, "float")
    if dtype.name == "f16":
        return f.value(f"fptrunc {wide} {x} to {narrow}")
    if dtype.name == "bf16":
        return _to_bf16(f, x, lanes)
    function = f.module.helper(f"to_{dtype.name}", lambda: _float8_rounding(f.module, dtype))
    return each(f, x, lanes, wide, "i8", lambda one: f.value(f"call i8 {function}(float {one})"))


def _to_bf16(f: LlvmFunction, x: str, lanes: int) -> str:
    wide, ints, narrow = vector(lanes, "float"), vector(lanes, "i32"), vector(lanes, "i16")

    def all_of(value: int) -> str:
        return splat_constant("i32", str(value), lanes)

    bits = f.value(f"bitcast {wide} {x} to {ints}")
    odd = f.value(f"lshr {ints} {bits}, {all_of(16)}")
    odd = f.value(f"and {ints} {odd}, {all_of(1)}")
    rounded = f.value(f"add {ints} {bits}, {all_of(0x7FFF)}")
    rounded = f.value(f"add {ints} {rounded}, {odd}")
    quiet = f.value(f"or {ints} {bits}, {all_of(0x400000)}")
    is_nan = f.value(f"fcmp uno {wide} {x}, {x}")
    kept = f.value(f"select {vector(lanes, 'i1')} {is_nan}, {ints} {quiet}, {ints} {rounded}")
    kept = f.value(f"lshr {ints} {kept}, {all_of(16)}")
    return f.value(f"trunc {ints} {kept} to {narrow}")


def each(f: LlvmFunction, x: str, lanes: int, kind: str, out: str, one: object) -> str:
    """Apply a scalar function to each lane."""
    assert callable(one)
    if lanes == 1:
        return str(one(x))
    result, whole = "poison", f"<{lanes} x {out}>"
    for lane in range(lanes):
        y = one(f.value(f"extractelement {kind} {x}, i64 {lane}"))
        result = f.value(f"insertelement {whole} {result}, {out} {y}, i64 {lane}")
    return result


def _look_up(f: LlvmFunction, table: str, x: str) -> str:
    at = f.value(f"zext i8 {x} to i64")
    where = f.value(f"getelementptr float, ptr {table}, i64 {at}")
    return f.value(f"load float, ptr {where}, align 4")


def _float8_table(dtype: DType) -> str:
    numbers = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32)
    texts = ", ".join(f"float {literal(float(x), F32)}" for x in numbers)
    return f"@from_{dtype.name} = internal constant [256 x float] [{texts}], align 64"


def _float8_rounding(module: Module, dtype: DType) -> str:
    """Return the helper that rounds to an 8-bit float, ties to even: a search among the thresholds between them."""
    codes = np.arange(128, dtype=np.uint8)
    numbers = codes.view(dtype.numpy).astype(np.float64)
    finite = codes[np.isfinite(numbers)]
    values = numbers[np.isfinite(numbers)]
    top = values[-1] + (values[-1] - values[-2])  # where the next number would be, if the format had one
    between = [*((values[1:] + values[:-1]) / 2), (values[-1] + top) / 2]
    # A tie goes to the even code: the threshold itself belongs to the upper neighbour where that is even.
    strict = [bool(code % 2) for code in [*finite[1:], finite[-1] + 1]]
    beyond = int(np.asarray(np.float32(np.inf)).astype(dtype.numpy).view(np.uint8))
    overflow = int(np.asarray(np.float32(top * 2)).astype(dtype.numpy).view(np.uint8))
    not_a_number = int(np.asarray(np.float32(np.nan)).astype(dtype.numpy).view(np.uint8))
    has_negative_zero = int(np.asarray(np.float32(-0.0)).astype(dtype.numpy).view(np.uint8)) == 0x80
    f = LlvmFunction(module, f"to_{dtype.name}", [("float", "%x")], "i8")
    size = f.call("float", "llvm.fabs.f32", [("float", "%x")])
    code = "0"
    for threshold, open_end in zip(between, strict, strict=True):
        order = "ogt" if open_end else "oge"
        passed = f.value(f"fcmp {order} float {size}, {literal(threshold, F32)}")
        one = f.value(f"zext i1 {passed} to i8")
        code = f.value(f"add i8 {code}, {one}")
    too_big = f.value(f"icmp uge i8 {code}, {len(between)}")
    bits = f.value("bitcast float %x to i32")
    negative = f.value(f"icmp slt i32 {bits}, 0")
    sign = f.value(f"select i1 {negative}, i8 -128, i8 0")
    signed = f.value(f"or i8 {code}, {sign}")
    if not has_negative_zero:
        is_zero = f.value(f"icmp eq i8 {code}, 0")
        signed = f.value(f"select i1 {is_zero}, i8 0, i8 {signed}")
    over = f.value(f"or i8 {sign}, {overflow & 0x7F}") if overflow != 0x80 else "-128"
    result = f.value(f"select i1 {too_big}, i8 {over}, i8 {signed}")
    is_infinite = f.value(f"fcmp oeq float {size}, {literal(float('inf'), F32)}")
    infinite = f.value(f"or i8 {sign}, {beyond & 0x7F}") if beyond != 0x80 else "-128"
    result = f.value(f"select i1 {is_infinite}, i8 {infinite}, i8 {result}")
    is_nan = f.value("fcmp uno float %x, %x")
    nan = f.value(f"or i8 {sign}, {not_a_number & 0x7F}") if not_a_number != 0x80 else "-128"
    result = f.value(f"select i1 {is_nan}, i8 {nan}, i8 {result}")
    return f.finish(f"i8 {result}", "nounwind readnone", "internal")


# -- ops ------------------------------------------------------------------------------------------------------------

INTEGER: dict[type[Op], str] = {
    ir.Add: "add", ir.Sub: "sub", ir.Mul: "mul", ir.And: "and", ir.Or: "or", ir.Xor: "xor",
    ir.BitAnd: "and", ir.BitOr: "or",
}  # fmt: skip
FLOAT: dict[type[Op], str] = {ir.Add: "fadd", ir.Sub: "fsub", ir.Mul: "fmul", ir.Div: "fdiv"}
COMPARE_SIGNED: dict[type[Op], str] = {ir.Less: "slt", ir.LessEqual: "sle", ir.Equal: "eq", ir.NotEqual: "ne"}
COMPARE_UNSIGNED: dict[type[Op], str] = {**COMPARE_SIGNED, ir.Less: "ult", ir.LessEqual: "ule"}
"""Booleans are compared as unsigned too: as a signed bit, true would be -1."""
COMPARE_FLOAT: dict[type[Op], str] = {ir.Less: "olt", ir.LessEqual: "ole", ir.Equal: "oeq", ir.NotEqual: "une"}


KEEPING_BITS = (ir.Select, ir.Bitcast)
"""Ops on floats that need no float of them: a narrow one stays as it is stored."""


def elementwise(f: LlvmFunction, op: Op, operands: list[str], dtype: DType, lanes: int, known: Known = anything) -> str:
    """Return an elementwise op on operands of `dtype`, in the result's register type."""
    if isinstance(op, ir.Cast):
        return cast(f, operands[0], dtype, op.result.type.dtype, lanes)
    if is_narrow(dtype) and not isinstance(op, KEEPING_BITS):
        wide = [widened(f, x, dtype, lanes) for x in operands]
        result = lowered(Written(f, op, wide, F32, lanes))
        return result if op.result.type.dtype == BOOL else narrowed(f, result, dtype, lanes)
    if isinstance(op, (ir.FloorDiv, ir.Mod)):
        return divided(Written(f, op, operands, dtype, lanes), divides_safely(op, known))
    if isinstance(op, (ir.ShiftLeft, ir.ShiftRight)):
        low, high = known(op.b)
        return shifted(Written(f, op, operands, dtype, lanes), low >= 0 and high < dtype.bits)
    return lowered(Written(f, op, operands, dtype, lanes))


def lowered(w: Written) -> str:
    """Return an op on operands that are no narrow floats, by its row."""
    return row_of(LOWERINGS, w.op, "cannot lower")(w)


def computed(w: Written, cls: type[ir.Function], x: str) -> str:
    """Return a power or the logarithm of x, a part of a function that is composed of these."""
    return w.spelled(cls.word(), x) if w.spelled else LOWERINGS[cls](replace(w, operands=(x,)))


def _arithmetic(w: Written) -> str:
    cls = type(w.op)
    return w.of_numbers(FLOAT[cls] if w.dtype.is_float else INTEGER[cls])


def _compared(w: Written) -> str:
    cls = type(w.op)
    if w.dtype.is_float:
        return w.of_numbers(f"fcmp {COMPARE_FLOAT[cls]}")
    return w.of_numbers(f"icmp {(COMPARE_SIGNED if w.dtype.is_signed else COMPARE_UNSIGNED)[cls]}")


def _extreme(end: str) -> Callable[[Written], str]:
    """Return the lowering of `min` or `max`."""
    return lambda w: w.intrinsic(f"{end}imum" if w.dtype.is_float else f"{'s' if w.dtype.is_signed else 'u'}{end}")


def _size(w: Written) -> str:
    if w.dtype.is_float:
        return w.intrinsic("fabs")
    return w.intrinsic("abs", ("i1", "false")) if w.dtype.is_signed else w.operands[0]


def _bits_inverted(w: Written) -> str:
    return w.f.value(f"xor {w.kind} {w.operands[0]}, {w.everywhere('true' if w.dtype == BOOL else '-1')}")


def _same_bits(w: Written) -> str:
    return w.f.value(f"bitcast {w.kind} {w.operands[0]} to {vector(w.lanes, stored(w.op.results[0].type.dtype))}")


def _chosen(w: Written) -> str:
    condition, a, b = w.operands
    return w.f.value(f"select {vector(w.lanes, 'i1')} {condition}, {w.kind} {a}, {w.kind} {b}")


def _negated(w: Written) -> str:
    if w.dtype.is_float:
        return w.of_numbers("fneg")
    return w.f.value(f"sub {w.kind} {w.everywhere('0')}, {w.operands[0]}")


def _inverse_root(w: Written) -> str:
    root = w.intrinsic("sqrt")
    return w.f.value(f"fdiv {w.kind} {w.everywhere(literal(1.0, w.dtype))}, {root}")


def _power(name: str) -> Callable[[Written], str]:
    return lambda w: exponential(w, name) if w.dtype == F32 else w.intrinsic(name)


def _flushed_power(w: Written) -> str:
    least, zero = (splat_constant(stored(w.dtype), literal(x, w.dtype), w.lanes) for x in (-126.0, 0.0))
    is_small = w.f.value(f"fcmp olt {w.kind} {w.operands[0]}, {least}")
    power = _power("exp2")(w)
    return w.f.value(f"select {vector(w.lanes, 'i1')} {is_small}, {w.kind} {zero}, {w.kind} {power}")


def _flushed_reciprocal(w: Written) -> str:
    most, zero, one = (splat_constant(stored(w.dtype), literal(x, w.dtype), w.lanes) for x in (2.0**126, 0.0, 1.0))
    size = w.f.call(w.kind, f"llvm.fabs.{suffix(w.kind)}", [(w.kind, w.operands[0])])
    is_large = w.f.value(f"fcmp ogt {w.kind} {size}, {most}")
    found = w.f.value(f"fdiv {w.kind} {one}, {w.operands[0]}")
    return w.f.value(f"select {vector(w.lanes, 'i1')} {is_large}, {w.kind} {zero}, {w.kind} {found}")


def _error_function(w: Written) -> str:
    name, one = "erff" if w.dtype == F32 else "erf", stored(w.dtype)
    return each(w.f, w.operands[0], w.lanes, w.kind, one, lambda x: w.f.call(one, name, [(one, x)]))


def _log_of_one_plus(w: Written) -> str:
    """Return log(1 + x) = log(u) · x / (u - 1), where u is 1 + x rounded: the last factor makes up for the rounding.

    Where u is 1, the result is x; where u - 1 is x, also if it is infinite, no factor is needed.
    """
    f, x, one = w.f, w.operands[0], w.number(1.0)

    def equal(a: str, b: str, found: str, other: str) -> str:
        condition = f.value(f"fcmp oeq {w.kind} {a}, {b}")
        return f.value(f"select {vector(w.lanes, 'i1')} {condition}, {w.kind} {found}, {w.kind} {other}")

    u = f.value(f"fadd {w.kind} {x}, {one}")
    grown = f.value(f"fsub {w.kind} {u}, {one}")
    factor = equal(grown, x, one, f.value(f"fdiv {w.kind} {x}, {grown}"))
    log = computed(w, ir.Log, u)
    return equal(u, one, x, f.value(f"fmul {w.kind} {log}, {factor}"))


LOWERINGS: dict[type[Op], Callable[[Written], str]] = {
    **dict.fromkeys((ir.Add, ir.Sub, ir.Mul, ir.Div, ir.Xor, ir.And, ir.Or, ir.BitAnd, ir.BitOr), _arithmetic),
    ir.Comparison: _compared,
    ir.Select: _chosen,
    ir.Fma: lambda w: w.intrinsic("fma"),
    ir.Min: _extreme("min"),
    ir.Max: _extreme("max"),
    ir.Not: _bits_inverted,
    ir.BitNot: _bits_inverted,
    ir.Bitcast: _same_bits,
    ir.Neg: _negated,
    ir.Abs: _size,
    ir.Rsqrt: _inverse_root,
    ir.Erf: _error_function,
    ir.Exp: _power("exp"),
    ir.Exp2: _power("exp2"),
    ir.Exp2Flushed: _flushed_power,
    ir.ReciprocalFlushed: _flushed_reciprocal,
    ir.Log: lambda w: w.intrinsic("log"),
    ir.Log1p: _log_of_one_plus,
    ir.Log2: lambda w: w.intrinsic("log2"),
    ir.Log10: lambda w: w.intrinsic("log10"),
    ir.Sqrt: lambda w: w.intrinsic("sqrt"),
    ir.Tanh: lambda w: w.intrinsic("tanh"),
    ir.Sin: lambda w: w.intrinsic("sin"),
    ir.Cos: lambda w: w.intrinsic("cos"),
    ir.Floor: lambda w: w.intrinsic("floor"),
    ir.Ceil: lambda w: w.intrinsic("ceil"),
    ir.RoundAway: lambda w: w.intrinsic("round"),
    ir.RoundEven: lambda w: w.intrinsic("roundeven"),
}
"""Elementwise ops common to all targets. NaN wins `min` and `max` of floats, and -0 is smaller than 0. Quotients and
shifts (`lower/integers.py`) and casts depend on more than the op; GPUs lower `exp` and similar functions themselves."""


# -- casts ----------------------------------------------------------------------------------------------------------


def cast(f: LlvmFunction, x: str, old: DType, new: DType, lanes: int) -> str:
    """Return x in another dtype."""
    if old == new or (old.is_int and new.is_int and stored(old) == stored(new)):
        return x
    if is_narrow(old):
        return cast(f, widened(f, x, old, lanes), F32, new, lanes)
    if is_narrow(new):
        return narrowed(f, before_narrowing(f, x, old, new, lanes), new, lanes)
    source, target = vector(lanes, stored(old)), vector(lanes, stored(new))
    if new == BOOL:
        zero = splat_constant(stored(old), literal(0, old), lanes)
        return f.value(f"{'fcmp une' if old.is_float else 'icmp ne'} {source} {x}, {zero}")
    if old.is_float and new.is_int:
        return f.call(
            target, f"llvm.fpto{'s' if new.is_signed else 'u'}i.sat.{suffix(target)}.{suffix(source)}", [(source, x)]
        )
    return f.value(f"{_cast_word(old, new)} {source} {x} to {target}")


def _cast_word(old: DType, new: DType) -> str:
    if old.is_float and new.is_float:
        return "fpext" if new.bits > old.bits else "fptrunc"
    if new.is_float:
        return "sitofp" if old.is_signed else "uitofp"
    if new.bits < old.bits:
        return "trunc"
    return "sext" if old.is_signed else "zext"


def before_narrowing(f: LlvmFunction, x: str, old: DType, new: DType, lanes: int) -> str:
    """Return an f32 that rounds to the same narrow float as x.

    Rounding to the nearest f32 and from there to the nearest narrow float would round twice. Integers of 2^24 and more
    lose digits in f32 too, but of the narrow floats only bf16 has such numbers.
    """
    if old == F64:
        return _to_odd(f, x, lanes)
    if new == BF16 and old.is_int and old.bits > 16:
        return _to_odd(f, _exactly(f, x, old, lanes), lanes)
    return cast(f, x, old, F32, lanes)


def _to_odd(f: LlvmFunction, x: str, lanes: int) -> str:
    """Return an f64 as f32 rounded to odd: rounded again to fewer digits, it is as if rounded once."""
    wide, narrow, ints, mask = (vector(lanes, kind) for kind in ("double", "float", "i32", "i1"))
    near = f.value(f"fptrunc {wide} {x} to {narrow}")
    back = f.value(f"fpext {narrow} {near} to {wide}")
    is_exact = f.value(f"fcmp ueq {wide} {back}, {x}")
    size, before = (f.call(wide, f"llvm.fabs.{suffix(wide)}", [(wide, each)]) for each in (back, x))
    above = f.value(f"fcmp ogt {wide} {size}, {before}")
    bits = f.value(f"bitcast {narrow} {near} to {ints}")
    one = f.value(f"zext {mask} {above} to {ints}")
    below = f.value(f"sub {ints} {bits}, {one}")
    odd = f.value(f"or {ints} {below}, {splat_constant('i32', '1', lanes)}")
    kept = f.value(f"select {mask} {is_exact}, {ints} {bits}, {ints} {odd}")
    return f.value(f"bitcast {ints} {kept} to {narrow}")


def _exactly(f: LlvmFunction, x: str, old: DType, lanes: int) -> str:
    """Return an integer as f64; one of 64 bits with more digits is rounded to odd."""
    if old.bits <= 32:
        return cast(f, x, old, F64, lanes)
    kind, mask = vector(lanes, "i64"), vector(lanes, "i1")
    ends, whole, lost, unit, zero = (
        splat_constant("i64", str(n), lanes)
        for n in (1 << 53, 1 << 54, (1 << casts.LOST_BITS) - 1, 1 << casts.LOST_BITS, 0)
    )
    rest = f.value(f"and {kind} {x}, {lost}")
    has_rest = f.value(f"icmp ne {kind} {rest}, {zero}")
    sticky = f.value(f"select {mask} {has_rest}, {kind} {unit}, {kind} {zero}")
    whole_units = f.value(f"sub {kind} {x}, {rest}")
    kept = f.value(f"or {kind} {whole_units}, {sticky}")
    if old.is_signed:
        moved = f.value(f"add {kind} {x}, {ends}")
        is_large = f.value(f"icmp ugt {kind} {moved}, {whole}")
    else:
        is_large = f.value(f"icmp ugt {kind} {x}, {ends}")
    return cast(f, f.value(f"select {mask} {is_large}, {kind} {kept}, {kind} {x}"), old, F64, lanes)
