"""Machine code for replayed calls: the layout key of tensors, and calls in which only addresses and numbers are new."""

from __future__ import annotations

from tilewave.ir.host_program import LINE
from tilewave.ir.types import WIDEST_BYTES
from tilewave.runtime.native.calls import CUDA, MOST_ARRAYS, MOST_AXES, TENSOR_BYTES, address_of, fitting, giving
from tilewave.runtime.native.records import CALL, READER, REPLAY, UNKNOWN
from tilewave.runtime.native.text import api, constant, copy, fields, loop

HOST = 1
"""DLPack's number of host devices."""
_HEAD = 3
"""Words of an array's layout key before its lengths: dtype and axes, device, alignment."""
_ROOM = MOST_ARRAYS * (_HEAD + 2 * MOST_AXES)


def layout() -> str:
    return f"""
; layout(arrays, grad), a tuple of tensors and None, and whether gradients are recorded: bytes that are equal for
; arrays of the same layout, or None where Python must handle them.
define ptr @layout(ptr %self, ptr %arguments, i64 %argument_count) {{
entry:
  %tensor_at = alloca i8, i64 {TENSOR_BYTES}, align 16
  %word.in = alloca i64
  store i64 0, ptr %word.in
  %r = alloca i64, i64 {_ROOM}, align 16
  %reader = call ptr {api("PyLong_AsVoidPtr")}(ptr %self)
  %tensors = load ptr, ptr %arguments
  %asks.in = getelementptr ptr, ptr %arguments, i64 1
  %asks = load ptr, ptr %asks.in
  %grad = icmp ne ptr %asks, {constant(False)}
  %arrays = call i64 {api("PyTuple_Size")}(ptr %tensors)
  %is_few = icmp ule i64 %arrays, {MOST_ARRAYS}
  br i1 %is_few, label %begun, label %unknown
begun:
{loop("read", "begun", "%arrays", _read_one())}
  %count = load i64, ptr %word.in
  %bytes = shl i64 %count, 3
  %found = call ptr {api("PyBytes_FromStringAndSize")}(ptr %r, i64 %bytes)
  ret ptr %found
unknown:
  call void {api("PyErr_Clear")}()
  call void {api("Py_IncRef")}(ptr {constant(None)})
  ret ptr {constant(None)}
}}
"""


def _read_one() -> str:
    """Return code that adds one array to the layout key."""
    return f"""  %word = load i64, ptr %word.in
  %to = getelementptr i64, ptr %r, i64 %word
  %array = call ptr {api("PyTuple_GetItem")}(ptr %tensors, i64 %read.i)
  %is_none = icmp eq ptr %array, {constant(None)}
  br i1 %is_none, label %none, label %some
none:
  store i64 -1, ptr %to
  %word.none = add i64 %word, 1
  store i64 %word.none, ptr %word.in
  br label %read.given
some:
  %is_seen = call i1 @look_at(ptr %reader, ptr %array, ptr %tensor_at)
  br i1 %is_seen, label %seen, label %unknown
seen:
  %is_plain = call i1 @is_plain(ptr %reader, ptr %array, i1 %grad)
  br i1 %is_plain, label %plain, label %unknown
plain:
{fitting()}
  br i1 %fits, label %fitting, label %unknown
fitting:
  %kind.in = getelementptr i8, ptr %tensor_at, i64 16
  %kind = load i64, ptr %kind.in, align 4
  store i64 %kind, ptr %to
  %device.in = getelementptr i8, ptr %tensor_at, i64 8
  %device = load i64, ptr %device.in, align 4
  %device.to = getelementptr i64, ptr %to, i64 1
  store i64 %device, ptr %device.to
  %kind_of_device = trunc i64 %device to i32
  %is_host = icmp eq i32 %kind_of_device, {HOST}
  %most = select i1 %is_host, i64 {WIDEST_BYTES}, i64 {LINE}
  %on_line = or i64 %address, %most
  %negative = sub i64 0, %on_line
  %grain = and i64 %on_line, %negative
  %grain.to = getelementptr i64, ptr %to, i64 2
  store i64 %grain, ptr %grain.to
  %shape.in = getelementptr i8, ptr %tensor_at, i64 24
  %shape = load ptr, ptr %shape.in
  %lengths = getelementptr i64, ptr %to, i64 {_HEAD}
{copy("%lengths", "%shape", "%axes")}
  %steps = getelementptr i64, ptr %lengths, i64 %axes
{copy("%steps", "%strides", "%axes")}
  %twice = shl i64 %axes, 1
  %taken = add i64 %twice, {_HEAD}
  %word.next = add i64 %word, %taken
  store i64 %word.next, ptr %word.in
  br label %read.given
read.given:"""


def _placed() -> str:
    """Return code that stores the address of one array."""
    return f"""  %array = call ptr {api("PyTuple_GetItem")}(ptr %tensors, i64 %read.i)
  %no_array = icmp eq ptr %array, null
  br i1 %no_array, label %unknown, label %read.one
read.one:
  %is_seen = call i1 @look_at(ptr %reader, ptr %array, ptr %tensor_at)
  br i1 %is_seen, label %read.seen, label %unknown
read.seen:
{address_of("address")}
  %place.in = getelementptr i64, ptr %places, i64 %read.i
  %place = load i64, ptr %place.in
  %address.to = getelementptr i64, ptr %r, i64 %place
  store i64 %address, ptr %address.to"""


def replay_call() -> str:
    numbers_at = CALL.index("numbers")
    return f"""
; replay_call(arrays) or replay_call(arrays, numbers), tuples: launch arrays of the same layout as the record's, at any
; address, with its scalar arguments or others: LAUNCHED, UNKNOWN, or what failed.
define ptr @replay_call(ptr %self, ptr %arguments, i64 %argument_count) {{
entry:
  %tensor_at = alloca i8, i64 {TENSOR_BYTES}, align 16
  %stream.in = alloca i64
  store i64 0, ptr %stream.in
  %record = call ptr {api("PyLong_AsVoidPtr")}(ptr %self)
{fields("%record", REPLAY)}
  %numbers.in = getelementptr i64, ptr %call, i64 {numbers_at}
  %numbers = load i64, ptr %numbers.in
  %r = alloca i64, i64 %numbers, align 16
  %every = add i64 %words, %given
{copy("%r", "%template", "%every")}
  %tensors = load ptr, ptr %arguments
  br label %begun
begun:
{loop("read", "begun", "%arrays", _placed())}
  %has_numbers = icmp ugt i64 %argument_count, 1
  br i1 %has_numbers, label %numbered, label %give.done
numbered:
  %tuple.in = getelementptr ptr, ptr %arguments, i64 1
  %tuple = load ptr, ptr %tuple.in
  %number_count = call i64 {api("PyTuple_Size")}(ptr %tuple)
  %are_all = icmp eq i64 %number_count, %given
  br i1 %are_all, label %counted, label %unknown
counted:
{loop("give", "counted", "%given", giving())}
  %stream.out.in = getelementptr i64, ptr %reader, i64 {READER.index("*stream")}
  %ask_stream = load ptr, ptr %stream.out.in
  %device.32 = trunc i64 %device to i32
  %streamless = call i32 %ask_stream(i32 {CUDA}, i32 %device.32, ptr %stream.in)
  %stream = load i64, ptr %stream.in
  %has_stream = icmp eq i32 %streamless, 0
  br i1 %has_stream, label %streamed, label %unknown
streamed:
  %said = call i64 @make_call(ptr %call, ptr %r, i64 %device, i64 %stream)
  %result = call ptr {api("PyLong_FromLongLong")}(i64 %said)
  ret ptr %result
unknown:
  call void {api("PyErr_Clear")}()
  %no_result = call ptr {api("PyLong_FromLongLong")}(i64 {UNKNOWN})
  ret ptr %no_result
}}
"""
