"""Machine code for whole calls: it reads torch tensors, classifies the call, and finds its launch."""

from __future__ import annotations

import ctypes

from tilewave.runtime.native.records import CALL, READER, UNKNOWN
from tilewave.runtime.native.text import api, constant, copy, fields, loop

CUDA = 2
"""DLPack's number of CUDA devices."""
_LEGACY_STREAMS = 2
"""Smaller numbers are default streams, which CUDA does not capture."""
TENSOR_BYTES = 48
"""The size of a DLTensor, whose fields the code below addresses by their offsets."""
MOST_ARRAYS, MOST_AXES = 16, 8
"""Calls of tensors with more are left to Python."""


def look_at() -> str:
    """Return code that reads a tensor into a DLTensor."""
    return f"""
; Whether the array is a tensor whose class means what torch's does; its DLTensor is written then.
define i1 @look_at(ptr %record, ptr %array, ptr %tensor_at) {{
entry:
{fields("%record", READER)}
  %kind.in = getelementptr i8, ptr %array, i64 {object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)}
  %kind = load ptr, ptr %kind.in
  %is_tensor = icmp eq ptr %kind, %tensor
  %is_parameter = icmp eq ptr %kind, %parameter
  %is_known = or i1 %is_tensor, %is_parameter
  br i1 %is_known, label %known, label %unknown
known:
  %failed = call i32 %look(ptr %array, ptr %tensor_at)
  %is_read = icmp eq i32 %failed, 0
  ret i1 %is_read
unknown:
  ret i1 false
}}
"""


def is_plain() -> str:
    gradient = f"call ptr {api('PyObject_GetAttr')}(ptr %array, ptr %requires_grad)"
    negated = f"call ptr {api('PyObject_Vectorcall')}(ptr %is_neg, ptr %self.in, i64 1, ptr null)"
    return f"""
; Whether a tensor is not lazily negated and, with %grad, requires no gradient.
define i1 @is_plain(ptr %record, ptr %array, i1 %grad) {{
entry:
  %self.in = alloca ptr
  store ptr %array, ptr %self.in
{fields("%record", READER)}
  br i1 %grad, label %asked, label %fine
asked:
{_want_false("asked", gradient)}
  br label %fine
fine:
{_want_false("negated", negated)}
  ret i1 true
unknown:
  ret i1 false
}}
"""


def _want_false(name: str, call: str) -> str:
    """Return code that continues where a Python call returns False, and jumps to `unknown` otherwise."""
    return f"""  %{name}.said = {call}
  %{name}.failed = icmp eq ptr %{name}.said, null
  br i1 %{name}.failed, label %unknown, label %{name}.known
{name}.known:
  call void {api("Py_DecRef")}(ptr %{name}.said)
  %{name}.no = icmp eq ptr %{name}.said, {constant(False)}
  br i1 %{name}.no, label %{name}.fine, label %unknown
{name}.fine:"""


def read_tensor() -> str:
    return f"""
; Reads the address, sizes, strides and device of a tensor; below 0 where Python must handle it.
define i64 @read_tensor(ptr %record, ptr %array, i64 %rank, i64 %dtype, ptr %words) {{
entry:
  %tensor_at = alloca i8, i64 {TENSOR_BYTES}, align 16
  %device.in = getelementptr i64, ptr %record, i64 {READER.index("device")}
  %device = load i64, ptr %device.in
  %is_seen = call i1 @look_at(ptr %record, ptr %array, ptr %tensor_at)
  br i1 %is_seen, label %described, label %unknown
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
  %is_plain = call i1 @is_plain(ptr %record, ptr %array, i1 true)
  br i1 %is_plain, label %fine, label %unknown
fine:
{address_of("address")}
  store i64 %address, ptr %words
  %shape.in = getelementptr i8, ptr %tensor_at, i64 24
  %shape = load ptr, ptr %shape.in
  %lengths = getelementptr i64, ptr %words, i64 1
{copy("%lengths", "%shape", "%rank")}
  %steps = getelementptr i64, ptr %lengths, i64 %rank
{copy("%steps", "%strides", "%rank")}
  %number.in = getelementptr i8, ptr %tensor_at, i64 12
  %number.32 = load i32, ptr %number.in
  %number = zext i32 %number.32 to i64
  ret i64 %number
unknown:
  ret i64 -1
}}
"""


def address_of(name: str) -> str:
    """Return code for the address of the first element of the tensor in `%tensor_at`."""
    return f"""  %{name}.data = load i64, ptr %tensor_at
  %{name}.offset.in = getelementptr i8, ptr %tensor_at, i64 40
  %{name}.offset = load i64, ptr %{name}.offset.in
  %{name} = add i64 %{name}.data, %{name}.offset"""


def fitting() -> str:
    """Return code for whether the tensor in `%tensor_at` has an address, strides, and few enough axes: `%fits`."""
    return f"""{address_of("address")}
  %axes.in = getelementptr i8, ptr %tensor_at, i64 16
  %axes.32 = load i32, ptr %axes.in
  %axes = zext i32 %axes.32 to i64
  %strides.in = getelementptr i8, ptr %tensor_at, i64 32
  %strides = load ptr, ptr %strides.in
  %has_address = icmp ne i64 %address, 0
  %has_strides = icmp ne ptr %strides, null
  %has_few_axes = icmp ule i64 %axes, {MOST_AXES}
  %fits.1 = and i1 %has_address, %has_strides
  %fits = and i1 %fits.1, %has_few_axes"""


def _reading() -> str:
    """Return code that reads one of the arrays: all are on the device of the first."""
    return f"""  %array = call ptr {api("PyTuple_GetItem")}(ptr %tensors, i64 %read.i)
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


def giving() -> str:
    """Return code that reads one of the scalar arguments."""
    return f"""  %one = call ptr {api("PyTuple_GetItem")}(ptr %tuple, i64 %give.i)
  %no_number = icmp eq ptr %one, null
  br i1 %no_number, label %unknown, label %give.one
give.one:
  %one.word = call i64 {api("PyLong_AsLongLong")}(ptr %one)
  %is_odd = icmp eq i64 %one.word, -1
  br i1 %is_odd, label %give.asked, label %give.fine
give.asked:
  %error = call ptr {api("PyErr_Occurred")}()
  %is_error = icmp ne ptr %error, null
  br i1 %is_error, label %unknown, label %give.fine
give.fine:
  %give.at = add i64 %words, %give.i
  %give.to = getelementptr i64, ptr %r, i64 %give.at
  store i64 %one.word, ptr %give.to"""


def call() -> str:
    return f"""
; call(arrays, scalar arguments), both tuples: LAUNCHED, UNKNOWN, or what failed.
define ptr @call(ptr %self, ptr %arguments, i64 %argument_count) {{
entry:
  %device.in = alloca i64
  %word.in = alloca i64
  %stream.in = alloca i64
  store i64 0, ptr %device.in
  store i64 0, ptr %word.in
  store i64 0, ptr %stream.in
  %record = call ptr {api("PyLong_AsVoidPtr")}(ptr %self)
{fields("%record", CALL)}
  %tensors = load ptr, ptr %arguments
  %tuple.in = getelementptr ptr, ptr %arguments, i64 1
  %tuple = load ptr, ptr %tuple.in
  %r = alloca i64, i64 %numbers, align 16
  %tensor_count = call i64 {api("PyTuple_Size")}(ptr %tensors)
  %number_count = call i64 {api("PyTuple_Size")}(ptr %tuple)
  %is_all = icmp eq i64 %tensor_count, %arrays
  %are_all = icmp eq i64 %number_count, %given
  %complete = and i1 %is_all, %are_all
  br i1 %complete, label %begun, label %unknown
begun:
{loop("read", "begun", "%arrays", _reading())}
{loop("give", "read.done", "%given", giving())}
  %stream.out.in = getelementptr i64, ptr %reader, i64 {READER.index("*stream")}
  %ask_stream = load ptr, ptr %stream.out.in
  %device.now = load i64, ptr %device.in
  %device.32 = trunc i64 %device.now to i32
  %streamless = call i32 %ask_stream(i32 {CUDA}, i32 %device.32, ptr %stream.in)
  %stream = load i64, ptr %stream.in
  %has_stream = icmp eq i32 %streamless, 0
  br i1 %has_stream, label %streamed, label %unknown
streamed:
  %said = call i64 @make_call(ptr %record, ptr %r, i64 %device.now, i64 %stream)
  %result = call ptr {api("PyLong_FromLongLong")}(i64 %said)
  ret ptr %result
unknown:
  call void {api("PyErr_Clear")}()
  %no_result = call ptr {api("PyLong_FromLongLong")}(i64 {UNKNOWN})
  ret ptr %no_result
}}
"""


def make_call() -> str:
    picked = """  %{0}.in = getelementptr i64, ptr %{1}, i64 %{2}.i
  %{0}.at = load i64, ptr %{0}.in
  %{0}.from = getelementptr i64, ptr %r, i64 %{0}.at
  %{0}.word = load i64, ptr %{0}.from
  %{0}.to = getelementptr i64, ptr %{3}, i64 %{2}.i
  store i64 %{0}.word, ptr %{0}.to"""
    return f"""
; Makes a call: its arrays and scalar arguments are stored before %r, which has room for its program; returns as @call.
define i64 @make_call(ptr %record, ptr %r, i64 %device, i64 %stream) {{
entry:
  %status.in = alloca i32
  store i32 0, ptr %status.in
{fields("%record", CALL)}
  %key_words = add i64 %keys, 2
  %key_at = alloca i64, i64 %key_words, align 16
  %inputs_at = alloca i64, i64 %inputs, align 16
  %refused = call i64 @evaluate(ptr %program, ptr %r)
  %is_refused = icmp ne i64 %refused, 0
  br i1 %is_refused, label %unknown, label %seen
seen:
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
{loop("pick", "looked_up", "%keys", picked.format("picked", "key", "pick", "key_at"))}
  %key.device = getelementptr i64, ptr %key_at, i64 %keys
  store i64 %device, ptr %key.device
  %key.stream = getelementptr i64, ptr %key.device, i64 1
  store i64 %stream, ptr %key.stream
  %key_bytes = shl i64 %key_words, 3
  %name = call ptr {api("PyBytes_FromStringAndSize")}(ptr %key_at, i64 %key_bytes)
  %nameless = icmp eq ptr %name, null
  br i1 %nameless, label %unknown, label %named
named:
  %found = call ptr {api("PyDict_GetItem")}(ptr %launches, ptr %name)
  call void {api("Py_DecRef")}(ptr %name)
  %is_new = icmp eq ptr %found, null
  br i1 %is_new, label %unknown, label %known
known:
  %address = call ptr {api("PyTuple_GetItem")}(ptr %found, i64 0)
  %launch = call ptr {api("PyLong_AsVoidPtr")}(ptr %address)
{loop("pass", "known", "%inputs", picked.format("passed", "input", "pass", "inputs_at"))}
  %said = call i64 @make_launch(ptr %launch, ptr %inputs_at, i64 %stream)
  ret i64 %said
unknown:
  call void {api("PyErr_Clear")}()
  ret i64 {UNKNOWN}
}}
"""
