"""What every launch on an NVIDIA GPU runs on the host, as machine code: made once in a process, by LLVM.

It computes host programs, fills what the driver reads of a launch, and has the driver launch it. `call` does all that a
call needs whose arrays are torch's: it asks each tensor where it lies (by DLPack's table of C functions, which takes a
tenth of the time of asking its attributes), runs the kernel's program, finds the launch in the kernel's own dictionary,
and makes it. What it does not know, it leaves to Python.

Records are lists of words: what stands where is told by the names below, here and to whoever fills them.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from tilewave.forks import IMPORTING
from tilewave.ir.host_program import FAR, LINE, STEPS, HostProgram

PROGRAM = ("given", "constants", "*constant_words", "steps", "*step_words")
"""A host program. A star marks an address."""
LAUNCH = (
    *("*program", "numbers", "inputs", "fixed", "*fixed_words"),
    *("*image", "frame_bytes", "stores_at", "stores", "*stored", "pointers_at", "parameters", "*parameters_at"),
    *("config_at", "attributes_at", "attributes", "starts_early", "*grid", "maps", "*encodings"),
    *("*function", "*context", "*launch", "*get_current", "*push", "*pop", "*encode"),
)
"""A launch: its program, what it is filled with beside the numbers of a call, its frame, and the driver's functions."""
MAP = (
    *("map_at", "dtype", "rank", "pointer", "sizes_at", "strides_at", "*box", "*units"),
    *("interleave", "swizzle", "promotion", "fill"),
)
"""How the driver encodes a tensor map."""
CALL = (
    *("arrays", "*ranks", "*dtypes", "words", "given", "*program", "numbers", "keys", "*key", "inputs", "*input"),
    *("*launches", "*is_capturing", "*reader"),
)
"""A kernel's calls: its arrays, the program that looks at them, and its launches by what that finds."""
READER = ("*tensor", "*parameter", "*look", "*stream", "*requires_grad", "*is_neg", "device")
"""How torch's tensors are read."""

LAUNCHED, UNKNOWN = 0, -1
"""What a call says: that it is done, or that Python must look; above, what cuLaunchKernelEx failed with, and below, one
more than what cuTensorMapEncodeTiled did."""
_CUDA = 2
"""As DLPack numbers devices."""
_CONFIG_STREAM, _CONFIG_ATTRIBUTES, _CONFIG_COUNT = 32, 40, 48
_LEGACY_STREAMS = 2
"""Streams of a number below it are no streams of anybody's, and are not captured."""
_TENSOR_BYTES = 48
_FAST_CALL = 0x80


# text ---------------------------------------------------------------------------------------------------------------


def _fields(record: str, names: Sequence[str]) -> str:
    lines = []
    for i, name in enumerate(names):
        kind = "ptr" if name.startswith("*") else "i64"
        word = name.lstrip("*")
        lines.append(f"  %{word}.field = getelementptr i64, ptr {record}, i64 {i}")
        lines.append(f"  %{word} = load {kind}, ptr %{word}.field")
    return "\n".join(lines)


def _loop(name: str, before: str, count: str, body: str) -> str:
    """Comes from the block `before` and goes on in `name.done`; its counter is `%name.i`."""
    return f"""  br label %{name}
{name}:
  %{name}.i = phi i64 [ 0, %{before} ], [ %{name}.next, %{name}.end ]
  %{name}.more = icmp ult i64 %{name}.i, {count}
  br i1 %{name}.more, label %{name}.body, label %{name}.done
{name}.body:
{body}
  br label %{name}.end
{name}.end:
  %{name}.next = add i64 %{name}.i, 1
  br label %{name}
{name}.done:"""


def _copy(to: str, source: str, words: str) -> str:
    name = to.lstrip("%")
    return f"""  %{name}.bytes = shl i64 {words}, 3
  call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {source}, i64 %{name}.bytes, i1 false)"""


_INTRINSICS = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
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

_DOES: Mapping[str, str] = {
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
    # Up to here doubles are exact, and their root is off by one at most, where it is rounded.
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
    """A step, with names that are its own."""
    own = _DOES[name].replace("%x", "\0x").replace("%y", "\0y").replace("%z", "\0z").replace("%", f"%{name}.")
    return f"do.{name}:\n{own}\n  br label %kept".replace("\0", "%")


def _evaluate() -> str:
    cases = " ".join(f"i32 {i}, label %do.{name}" for i, name in enumerate(STEPS))
    values = ", ".join(f"[ %{name}.value, %do.{name} ]" for name in STEPS)
    lost = ", ".join(f"[ {f'%{n}.lost' if '%lost' in _DOES[n] else 'false'}, %do.{n} ]" for n in STEPS)
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
  switch i32 %does, label %refused [ {cases} ]
{chr(10).join(map(_case, STEPS))}
kept:
  %value = phi i64 {values}
  %lost = phi i1 {lost}
  %place = add i64 %first, %run.i
  %result = getelementptr i64, ptr %r, i64 %place
  store i64 %value, ptr %result
  br i1 %lost, label %refused, label %going_on
going_on:"""
    return f"""
; Computes a program's numbers, behind those given; 0, or not 0 where it ends early.
define i64 @evaluate(ptr %program, ptr %r) {{
entry:
{_fields("%program", PROGRAM)}
  %constants_at = getelementptr i64, ptr %r, i64 %given
{_copy("%constants_at", "%constant_words", "%constants")}
  %first = add i64 %given, %constants
{_loop("run", "entry", "%steps", body)}
  ret i64 0
refused:
  ret i64 1
}}
"""


def _launch() -> str:
    store = """  %stored.in = getelementptr i64, ptr %stored, i64 %store.i
  %stored.at = load i64, ptr %stored.in
  %stored.from = getelementptr i64, ptr %r, i64 %stored.at
  %stored.word = load i64, ptr %stored.from
  %stored.to = getelementptr i64, ptr %words_at, i64 %store.i
  store i64 %stored.word, ptr %stored.to"""
    point = """  %parameter.in = getelementptr i64, ptr %parameters_at, i64 %point.i
  %parameter.at = load i64, ptr %parameter.in
  %parameter = getelementptr i8, ptr %frame, i64 %parameter.at
  %parameter.to = getelementptr ptr, ptr %pointers, i64 %point.i
  store ptr %parameter, ptr %parameter.to"""
    size = "\n".join(
        f"""  %grid{i}.in = getelementptr i64, ptr %grid, i64 {i}
  %grid{i}.at = load i64, ptr %grid{i}.in
  %grid{i}.from = getelementptr i64, ptr %r, i64 %grid{i}.at
  %grid{i} = load i64, ptr %grid{i}.from
  %side{i} = trunc i64 %grid{i} to i32
  %side{i}.to = getelementptr i32, ptr %config, i64 {i}"""
        for i in range(4)
    )
    narrow = [name for name in MAP if name in ("dtype", "rank", "interleave", "swizzle", "promotion", "fill")]
    encode = f"""  %map.first = mul i64 %encode_one.i, {len(MAP)}
  %map.in = getelementptr i64, ptr %encodings, i64 %map.first
{_fields("%map.in", MAP)}
  %map = getelementptr i8, ptr %frame, i64 %map_at
  %array.from = getelementptr i64, ptr %r, i64 %pointer
  %array = load ptr, ptr %array.from
  %sizes = getelementptr i8, ptr %frame, i64 %sizes_at
  %strides = getelementptr i8, ptr %frame, i64 %strides_at
{chr(10).join(f"  %{name}.32 = trunc i64 %{name} to i32" for name in narrow)}
  %encoded = call i32 %encode(ptr %map, i32 %dtype.32, i32 %rank.32, ptr %array, ptr %sizes, ptr %strides,
    ptr %box, ptr %units, i32 %interleave.32, i32 %swizzle.32, i32 %promotion.32, i32 %fill.32)
  %is_encoded = icmp eq i32 %encoded, 0
  br i1 %is_encoded, label %next_map, label %not_encoded
next_map:"""
    return f"""
; Launches with the numbers of a call: 0, or as UNKNOWN and its neighbours say.
define i64 @make_launch(ptr %record, ptr %numbers_at, i64 %stream) {{
entry:
{_fields("%record", LAUNCH)}
  %current.in = alloca ptr
  %r = alloca i64, i64 %numbers, align 16
{_copy("%r", "%numbers_at", "%inputs")}
  %fixed_at = getelementptr i64, ptr %r, i64 %inputs
{_copy("%fixed_at", "%fixed_words", "%fixed")}
  %refused = call i64 @evaluate(ptr %program, ptr %r)
  %is_refused = icmp ne i64 %refused, 0
  br i1 %is_refused, label %turned_down, label %filled
turned_down:
  ret i64 {UNKNOWN}
filled:
  %frame = alloca i8, i64 %frame_bytes, align 64
  call void @llvm.memcpy.p0.p0.i64(ptr %frame, ptr %image, i64 %frame_bytes, i1 false)
  %words_at = getelementptr i8, ptr %frame, i64 %stores_at
{_loop("store", "filled", "%stores", store)}
  %pointers = getelementptr i8, ptr %frame, i64 %pointers_at
{_loop("point", "store.done", "%parameters", point)}
  %config = getelementptr i8, ptr %frame, i64 %config_at
{size}
  store i32 %side0, ptr %side0.to
  store i32 %side1, ptr %side1.to
  store i32 %side2, ptr %side2.to
  %late = icmp eq i64 %grid3, 0
  %fewer = select i1 %late, i64 %starts_early, i64 0
  %count = sub i64 %attributes, %fewer
  %count.32 = trunc i64 %count to i32
  %stream.to = getelementptr i8, ptr %config, i64 {_CONFIG_STREAM}
  store i64 %stream, ptr %stream.to
  %attribute = getelementptr i8, ptr %frame, i64 %attributes_at
  %attribute.to = getelementptr i8, ptr %config, i64 {_CONFIG_ATTRIBUTES}
  store ptr %attribute, ptr %attribute.to
  %count.to = getelementptr i8, ptr %config, i64 {_CONFIG_COUNT}
  store i32 %count.32, ptr %count.to
{_loop("encode_one", "point.done", "%maps", encode)}
  %asked = call i32 %get_current(ptr %current.in)
  %current = load ptr, ptr %current.in
  %is_current = icmp eq ptr %current, %context
  br i1 %is_current, label %made, label %entered
entered:
  %pushed = call i32 %push(ptr %context)
  %is_pushed = icmp eq i32 %pushed, 0
  br i1 %is_pushed, label %made, label %failed
made:
  %code = call i32 %launch(ptr %config, ptr %function, ptr %pointers, ptr null)
  br i1 %is_current, label %failed, label %left
left:
  %popped = call i32 %pop(ptr %current.in)
  br label %failed
failed:
  %said.32 = phi i32 [ %pushed, %entered ], [ %code, %made ], [ %code, %left ]
  %said = zext i32 %said.32 to i64
  ret i64 %said
not_encoded:
  %encoded.64 = zext i32 %encoded to i64
  %below = sub i64 {UNKNOWN}, %encoded.64
  ret i64 %below
}}
"""


def _api(name: str) -> str:
    """A function of Python's own, by its address."""
    return f"inttoptr (i64 {ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value} to ptr)"


def _object(value: object) -> str:
    """One that never goes away."""
    return f"inttoptr (i64 {id(value)} to ptr)"


def _read() -> str:
    """As DLPack lays a DLTensor out."""
    asked = [("requires_grad", f"call ptr {_api('PyObject_GetAttr')}(ptr %array, ptr %requires_grad)")]
    asked += [("is_neg", f"call ptr {_api('PyObject_Vectorcall')}(ptr %is_neg, ptr %self.in, i64 1, ptr null)")]
    false = "\n".join(
        f"""  %{name}.said = {call}
  %{name}.failed = icmp eq ptr %{name}.said, null
  br i1 %{name}.failed, label %unknown, label %{name}.known
{name}.known:
  call void {_api("Py_DecRef")}(ptr %{name}.said)
  %{name}.no = icmp eq ptr %{name}.said, {_object(False)}
  br i1 %{name}.no, label %{name}.fine, label %unknown
{name}.fine:"""
        for name, call in asked
    )
    return f"""
; The address, lengths and steps of a tensor, and its device; below 0 where Python must look.
define i64 @read_tensor(ptr %record, ptr %array, i64 %rank, i64 %dtype, ptr %words) {{
entry:
  %tensor_at = alloca i8, i64 {_TENSOR_BYTES}, align 16
  %self.in = alloca ptr
  store ptr %array, ptr %self.in
{_fields("%record", READER)}
  %kind.in = getelementptr i8, ptr %array, i64 {object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)}
  %kind = load ptr, ptr %kind.in
  %is_tensor = icmp eq ptr %kind, %tensor
  %is_parameter = icmp eq ptr %kind, %parameter
  %is_known = or i1 %is_tensor, %is_parameter
  br i1 %is_known, label %looked, label %unknown
looked:
  %failed = call i32 %look(ptr %array, ptr %tensor_at)
  %is_read = icmp eq i32 %failed, 0
  br i1 %is_read, label %described, label %unknown
described:
  %where.in = getelementptr i8, ptr %tensor_at, i64 8
  %where.32 = load i32, ptr %where.in
  %where = zext i32 %where.32 to i64
  %is_here = icmp eq i64 %where, %device
  %axes.in = getelementptr i8, ptr %tensor_at, i64 16
  %axes.32 = load i32, ptr %axes.in
  %axes = zext i32 %axes.32 to i64
  %has_axes = icmp eq i64 %axes, %rank
  %held.in = getelementptr i8, ptr %tensor_at, i64 20
  %held.32 = load i32, ptr %held.in
  %held = zext i32 %held.32 to i64
  %has_dtype = icmp eq i64 %held, %dtype
  %strides.in = getelementptr i8, ptr %tensor_at, i64 32
  %strides = load ptr, ptr %strides.in
  %has_strides = icmp ne ptr %strides, null
  %fits.1 = and i1 %is_here, %has_axes
  %fits.2 = and i1 %has_dtype, %has_strides
  %fits = and i1 %fits.1, %fits.2
  br i1 %fits, label %fitting, label %unknown
fitting:
{false}
  %data = load i64, ptr %tensor_at
  %offset.in = getelementptr i8, ptr %tensor_at, i64 40
  %offset = load i64, ptr %offset.in
  %address = add i64 %data, %offset
  store i64 %address, ptr %words
  %shape.in = getelementptr i8, ptr %tensor_at, i64 24
  %shape = load ptr, ptr %shape.in
  %lengths = getelementptr i64, ptr %words, i64 1
{_copy("%lengths", "%shape", "%rank")}
  %steps = getelementptr i64, ptr %lengths, i64 %rank
{_copy("%steps", "%strides", "%rank")}
  %number.in = getelementptr i8, ptr %tensor_at, i64 12
  %number.32 = load i32, ptr %number.in
  %number = zext i32 %number.32 to i64
  ret i64 %number
unknown:
  ret i64 -1
}}
"""


def _call() -> str:
    read = f"""  %array = call ptr {_api("PyTuple_GetItem")}(ptr %tensors, i64 %read.i)
  %no_array = icmp eq ptr %array, null
  br i1 %no_array, label %unknown, label %read.one
read.one:
  %rank.in = getelementptr i64, ptr %ranks, i64 %read.i
  %rank = load i64, ptr %rank.in
  %dtype.in = getelementptr i64, ptr %dtypes, i64 %read.i
  %dtype = load i64, ptr %dtype.in
  %word = load i64, ptr %word.in
  %words.to = getelementptr i64, ptr %r, i64 %word
  %device = call i64 @read_tensor(ptr %reader, ptr %array, i64 %rank, i64 %dtype, ptr %words.to)
  %is_first = icmp eq i64 %read.i, 0
  %device.before = load i64, ptr %device.in
  %device.wanted = select i1 %is_first, i64 %device, i64 %device.before
  store i64 %device, ptr %device.in
  %is_read = icmp sge i64 %device, 0
  %is_there = icmp eq i64 %device, %device.wanted
  %is_fine = and i1 %is_read, %is_there
  %twice = shl i64 %rank, 1
  %taken = add i64 %twice, 1
  %word.next = add i64 %word, %taken
  store i64 %word.next, ptr %word.in
  br i1 %is_fine, label %read.fine, label %unknown
read.fine:"""
    give = f"""  %one = call ptr {_api("PyTuple_GetItem")}(ptr %tuple, i64 %give.i)
  %no_number = icmp eq ptr %one, null
  br i1 %no_number, label %unknown, label %give.one
give.one:
  %one.word = call i64 {_api("PyLong_AsLongLong")}(ptr %one)
  %is_odd = icmp eq i64 %one.word, -1
  br i1 %is_odd, label %give.asked, label %give.fine
give.asked:
  %error = call ptr {_api("PyErr_Occurred")}()
  %is_error = icmp ne ptr %error, null
  br i1 %is_error, label %unknown, label %give.fine
give.fine:
  %give.at = add i64 %words, %give.i
  %give.to = getelementptr i64, ptr %r, i64 %give.at
  store i64 %one.word, ptr %give.to"""
    picked = """  %{0}.in = getelementptr i64, ptr %{1}, i64 %{2}.i
  %{0}.at = load i64, ptr %{0}.in
  %{0}.from = getelementptr i64, ptr %r, i64 %{0}.at
  %{0}.word = load i64, ptr %{0}.from
  %{0}.to = getelementptr i64, ptr %{3}, i64 %{2}.i
  store i64 %{0}.word, ptr %{0}.to"""
    return f"""
; call(arrays, numbers), both tuples: LAUNCHED, UNKNOWN, or what failed.
define ptr @call(ptr %self, ptr %arguments, i64 %argument_count) {{
entry:
  %device.in = alloca i64
  %word.in = alloca i64
  %stream.in = alloca i64
  %status.in = alloca i32
  store i64 0, ptr %device.in
  store i64 0, ptr %word.in
  store i64 0, ptr %stream.in
  store i32 0, ptr %status.in
  %record = call ptr {_api("PyLong_AsVoidPtr")}(ptr %self)
{_fields("%record", CALL)}
  %tensors = load ptr, ptr %arguments
  %tuple.in = getelementptr ptr, ptr %arguments, i64 1
  %tuple = load ptr, ptr %tuple.in
  %r = alloca i64, i64 %numbers, align 16
  %key_words = add i64 %keys, 2
  %key_at = alloca i64, i64 %key_words, align 16
  %inputs_at = alloca i64, i64 %inputs, align 16
  %tensor_count = call i64 {_api("PyTuple_Size")}(ptr %tensors)
  %number_count = call i64 {_api("PyTuple_Size")}(ptr %tuple)
  %is_all = icmp eq i64 %tensor_count, %arrays
  %are_all = icmp eq i64 %number_count, %given
  %complete = and i1 %is_all, %are_all
  br i1 %complete, label %begun, label %unknown
begun:
{_loop("read", "begun", "%arrays", read)}
{_loop("give", "read.done", "%given", give)}
  %refused = call i64 @evaluate(ptr %program, ptr %r)
  %is_refused = icmp ne i64 %refused, 0
  br i1 %is_refused, label %unknown, label %seen
seen:
  %stream.out.in = getelementptr i64, ptr %reader, i64 {READER.index("*stream")}
  %ask_stream = load ptr, ptr %stream.out.in
  %device.now = load i64, ptr %device.in
  %device.32 = trunc i64 %device.now to i32
  %streamless = call i32 %ask_stream(i32 {_CUDA}, i32 %device.32, ptr %stream.in)
  %stream = load i64, ptr %stream.in
  %has_stream = icmp eq i32 %streamless, 0
  br i1 %has_stream, label %streamed, label %unknown
streamed:
  %is_own = icmp uge i64 %stream, {_LEGACY_STREAMS}
  %may_capture = icmp ne ptr %is_capturing, null
  %is_asked = and i1 %is_own, %may_capture
  br i1 %is_asked, label %ask, label %looked_up
ask:
  %unasked = call i32 %is_capturing(i64 %stream, ptr %status.in)
  %status = load i32, ptr %status.in
  %captured = or i32 %unasked, %status
  %is_free = icmp eq i32 %captured, 0
  br i1 %is_free, label %looked_up, label %unknown
looked_up:
{_loop("pick", "looked_up", "%keys", picked.format("picked", "key", "pick", "key_at"))}
  %key.device = getelementptr i64, ptr %key_at, i64 %keys
  store i64 %device.now, ptr %key.device
  %key.stream = getelementptr i64, ptr %key.device, i64 1
  store i64 %stream, ptr %key.stream
  %key_bytes = shl i64 %key_words, 3
  %name = call ptr {_api("PyBytes_FromStringAndSize")}(ptr %key_at, i64 %key_bytes)
  %nameless = icmp eq ptr %name, null
  br i1 %nameless, label %unknown, label %named
named:
  %found = call ptr {_api("PyDict_GetItem")}(ptr %launches, ptr %name)
  call void {_api("Py_DecRef")}(ptr %name)
  %is_new = icmp eq ptr %found, null
  br i1 %is_new, label %unknown, label %known
known:
  %launch = call ptr {_api("PyLong_AsVoidPtr")}(ptr %found)
{_loop("pass", "known", "%inputs", picked.format("passed", "input", "pass", "inputs_at"))}
  %thread = call ptr {_api("PyEval_SaveThread")}()
  %said = call i64 @make_launch(ptr %launch, ptr %inputs_at, i64 %stream)
  call void {_api("PyEval_RestoreThread")}(ptr %thread)
  %result = call ptr {_api("PyLong_FromLongLong")}(i64 %said)
  ret ptr %result
unknown:
  call void {_api("PyErr_Clear")}()
  %no_result = call ptr {_api("PyLong_FromLongLong")}(i64 {UNKNOWN})
  ret ptr %no_result
}}
"""


# in this process ----------------------------------------------------------------------------------------------------


class _MethodDefinition(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


# A prototype of our own: `ctypes.pythonapi` is shared by everybody who sets its argtypes.
_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


class Engine(NamedTuple):
    """The machine code, callable."""

    evaluate: Any
    """A program and its numbers, by their addresses."""
    launch: Any
    """A record of `LAUNCH`, the numbers of a call by their address, and a stream."""
    call: _MethodDefinition
    library: Any

    def caller(self, record: NativeRecord) -> Any:
        """call(arrays, numbers) of a record of `CALL`, which lives as long: Python takes it for that one's module."""
        return _new_function(ctypes.addressof(self.call), record.address, record)


@cache
def engine() -> Engine:
    """Made when something is first launched."""
    with IMPORTING:
        import llvmlite.binding as llvm  # noqa: PLC0415  it is heavy, and most of what is compiled is not launched

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1)
    text = _INTRINSICS + _evaluate() + _launch() + _read() + _call()
    builder = llvm.JITLibraryBuilder().add_ir(text)
    for name in ("evaluate", "make_launch", "call"):
        builder.export_symbol(name)
    library = builder.link(llvm.create_lljit_compiler(machine), "host_engine")
    address, word = ctypes.c_void_p, ctypes.c_int64
    return Engine(
        ctypes.PYFUNCTYPE(word, address, address)(library["evaluate"]),
        ctypes.CFUNCTYPE(word, address, address, word)(library["make_launch"]),
        _MethodDefinition(b"call", library["call"], _FAST_CALL, None),
        library,
    )


class NativeRecord:
    """Words in memory that machine code reads, and all that they name by its address."""

    def __init__(self, fields: Sequence[str], values: Mapping[str, Any], kept: object = None) -> None:
        """An address is given as a number, or as what is there. That stays there as long as the record, as `kept` does,
        which other memory of it may name."""
        assert {*values} == {name.lstrip("*") for name in fields}, f"these are no {fields}: {[*values]}"
        self._kept = [*values.values(), kept]
        self._words = (ctypes.c_int64 * len(fields))(*[_word(values[name.lstrip("*")]) for name in fields])
        self.address = ctypes.addressof(self._words)


def words(numbers: Sequence[int], room: int = 1) -> Any:
    """These as words in memory, with room for at least so many; a struct.error where one is no number of 64 bits."""
    count = max(room, len(numbers))
    found = (ctypes.c_int64 * count)()
    struct.pack_into(f"{len(numbers)}q", found, 0, *numbers)
    return found


def _word(value: Any) -> int:
    if isinstance(value, int):
        return value
    return value.address if isinstance(value, NativeRecord) else ctypes.addressof(value)


def in_memory(program: HostProgram) -> NativeRecord:
    """A program as machine code reads it."""
    steps = [number for step in program.steps for number in step]
    return NativeRecord(
        PROGRAM,
        {
            "given": program.given,
            "constants": len(program.constants),
            "constant_words": words(program.constants),
            "steps": len(program.steps),
            "step_words": (ctypes.c_int32 * max(1, len(steps)))(*steps),
        },
    )
