"""Machine code that evaluates a host program: step after step, each by its number."""

from __future__ import annotations

from collections.abc import Mapping

from tilewave.ir.host_program import FAR, LINE, STEPS
from tilewave.runtime.native.records import PROGRAM
from tilewave.runtime.native.text import copy, fields, loop

INTRINSICS = """
declare { i64, i1 } @llvm.sadd.with.overflow.i64(i64, i64)
declare { i64, i1 } @llvm.ssub.with.overflow.i64(i64, i64)
declare { i64, i1 } @llvm.smul.with.overflow.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.abs.i64(i64, i1)
declare i64 @llvm.ctlz.i64(i64, i1)
declare double @llvm.sqrt.f64(double)
"""


def _checked(intrinsic: str) -> str:
    return f"""  %pair = call {{ i64, i1 }} @llvm.{intrinsic}.with.overflow.i64(i64 %x, i64 %y)
  %value = extractvalue {{ i64, i1 }} %pair, 0
  %lost = extractvalue {{ i64, i1 }} %pair, 1"""


def _compared(predicate: str) -> str:
    return f"""  %holds = icmp {predicate} i64 %x, %y
  %value = zext i1 %holds to i64"""


_DIVIDED = f"""  %by_zero = icmp eq i64 %y, 0
  %from_least = icmp eq i64 %x, {-(1 << 63)}
  %by_minus_one = icmp eq i64 %y, -1
  %too_large = and i1 %from_least, %by_minus_one
  %cannot = or i1 %by_zero, %too_large
  %by = select i1 %cannot, i64 1, i64 %y
  %towards_zero = sdiv i64 %x, %by
  %rest = srem i64 %x, %by
  %has_rest = icmp ne i64 %rest, 0
  %signs = xor i64 %rest, %by
  %differ = icmp slt i64 %signs, 0
  %is_above = and i1 %has_rest, %differ
"""

BEYOND = 2
"""What a program's own code returns where a given number is beyond the ranges that it was compiled for."""

DOES: Mapping[str, str] = {
    "add": _checked("sadd"),
    "sub": _checked("ssub"),
    "mul": _checked("smul"),
    "quotient": f"""{_DIVIDED}  %lost = and i1 %from_least, %by_minus_one
  %below = add i64 %towards_zero, -1
  %down = select i1 %is_above, i64 %below, i64 %towards_zero
  %value = select i1 %by_zero, i64 0, i64 %down""",
    "remainder": f"""{_DIVIDED}  %with_sign = add i64 %rest, %by
  %kept = select i1 %is_above, i64 %with_sign, i64 %rest
  %value = select i1 %by_zero, i64 0, i64 %kept""",
    "rounded_up": f"""{_DIVIDED}  %lost = and i1 %from_least, %by_minus_one
  %is_below = xor i1 %has_rest, %is_above
  %one = zext i1 %is_below to i64
  %up = add i64 %towards_zero, %one
  %value = select i1 %by_zero, i64 0, i64 %up""",
    "xor": "  %value = xor i64 %x, %y",
    "and": "  %value = and i64 %x, %y",
    "or": "  %value = or i64 %x, %y",
    "less": _compared("slt"),
    "less_equal": _compared("sle"),
    "equal": _compared("eq"),
    "not_equal": _compared("ne"),
    "smaller": "  %value = call i64 @llvm.smin.i64(i64 %x, i64 %y)",
    "larger": "  %value = call i64 @llvm.smax.i64(i64 %x, i64 %y)",
    "chosen": "  %no = icmp eq i64 %x, 0\n  %value = select i1 %no, i64 %z, i64 %y",
    "power": "  %lost = icmp ugt i64 %x, 62\n  %by = and i64 %x, 63\n  %value = shl i64 1, %by",
    "bits": """  %size = call i64 @llvm.abs.i64(i64 %x, i1 false)
  %zeros = call i64 @llvm.ctlz.i64(i64 %size, i1 false)
  %value = sub i64 64, %zeros""",
    # Up to here doubles are exact, and the rounded root is off by one at most.
    "root": f"""  %lost = icmp sgt i64 %x, {1 << 52}
  %least = call i64 @llvm.smax.i64(i64 %x, i64 0)
  %double = sitofp i64 %least to double
  %real = call double @llvm.sqrt.f64(double %double)
  %near = fptosi double %real to i64
  %square = mul i64 %near, %near
  %over = icmp sgt i64 %square, %least
  %less = zext i1 %over to i64
  %value = sub i64 %near, %less""",
    "grain": f"""  %ends = or i64 %x, {LINE}
  %minus = sub i64 0, %ends
  %value = and i64 %ends, %minus""",
    "rank": f"""  %few = icmp slt i64 %x, 2
  %far = icmp sgt i64 %x, {FAR}
  %counts = or i1 %few, %far
  %value = select i1 %counts, i64 %x, i64 2""",
    "want": "  %lost = icmp eq i64 %x, 0\n  %value = add i64 %x, 0",
}


def _case(name: str) -> str:
    """Return the code of a step, with its names made unique."""
    own = DOES[name].replace("%x", "\0x").replace("%y", "\0y").replace("%z", "\0z").replace("%", f"%{name}.")
    return f"do.{name}:\n{own}\n  br label %kept".replace("\0", "%")


def evaluate() -> str:
    cases = " ".join(f"i32 {i}, label %do.{name}" for i, name in enumerate(STEPS))
    values = ", ".join(f"[ %{name}.value, %do.{name} ]" for name in STEPS)
    lost = ", ".join(f"[ {f'%{n}.lost' if '%lost' in DOES[n] else 'false'}, %do.{n} ]" for n in STEPS)
    operands = "\n".join(
        f"""  %{x}.in = getelementptr i32, ptr %step.in, i64 {i}
  %{x}.at = load i32, ptr %{x}.in
  %{x}.from = getelementptr i64, ptr %r, i32 %{x}.at
  %{x} = load i64, ptr %{x}.from"""
        for i, x in enumerate("xyz", 1)
    )
    body = f"""  %quad = shl i64 %run.i, 2
  %step.in = getelementptr i32, ptr %step_words, i64 %quad
  %does = load i32, ptr %step.in
{operands}
  switch i32 %does, label %unknown [ {cases} ]
{chr(10).join(map(_case, STEPS))}
kept:
  %value = phi i64 {values}
  %lost = phi i1 {lost}
  %place = add i64 %first, %run.i
  %result = getelementptr i64, ptr %r, i64 %place
  store i64 %value, ptr %result
  %ends = or i1 %ends.before, %lost"""
    return f"""
; Computes a program's numbers and stores them after those given; returns 1 if a check fails or a number does not fit,
; else 0. Does not stop at a failed check: nothing traps, and a test after each step takes longer. A program's own code
; stores its results alone.
define i64 @evaluate(ptr %program, ptr %r) {{
entry:
{fields("%program", PROGRAM)}
  %has_code = icmp ne ptr %code, null
  br i1 %has_code, label %compiled, label %interpreted
compiled:
  %said.compiled = call i64 %code(ptr %r)
  %is_beyond = icmp eq i64 %said.compiled, {BEYOND}
  br i1 %is_beyond, label %interpreted, label %done
done:
  ret i64 %said.compiled
interpreted:
  %constants_at = getelementptr i64, ptr %r, i64 %given
{copy("%constants_at", "%constant_words", "%constants")}
  %first = add i64 %given, %constants
{loop("run", "interpreted", "%steps", body, ("%ends.before = phi i1", "false", "%ends"))}
  %said = zext i1 %ends.before to i64
  ret i64 %said
unknown:
  unreachable
}}
"""
