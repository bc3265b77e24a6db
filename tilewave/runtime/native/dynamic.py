"""Machine code for calls of any sizes: their plan is found by its guards, the result allocated, the kernel launched."""

from __future__ import annotations

import sys

from tilewave.runtime.native.calls import CUDA, MOST_ARRAYS, MOST_AXES, TENSOR_BYTES, address_of, fitting
from tilewave.runtime.native.records import CALL, CALLS, CHOICE, PLAN, READER
from tilewave.runtime.native.text import api, constant, copy, fields, loop

CHOICE_BITS = 10
"""The bits that number the remembered choices of a plan, by sizes."""
_MIXER = 0x9E3779B97F4A7C15 - (1 << 64)
"""The golden ratio times 2⁶⁴, a multiplier that hashes words."""
_KEEPS = "true" if getattr(sys, "_is_gil_enabled", lambda: True)() else "false"
"""Whether choices are remembered: without the GIL, two threads might write to one slot."""


def gathered(name: str, at: str, count: str, to: str, before: str) -> str:
    """Return code that copies the numbers of %r at some positions."""
    return loop(
        name,
        before,
        count,
        f"""  %{name}.in = getelementptr i64, ptr {at}, i64 %{name}.i
  %{name}.at = load i64, ptr %{name}.in
  %{name}.from = getelementptr i64, ptr %r, i64 %{name}.at
  %{name}.word = load i64, ptr %{name}.from
  %{name}.to = getelementptr i64, ptr {to}, i64 %{name}.i
  store i64 %{name}.word, ptr %{name}.to""",
    )


def chosen_call() -> str:
    mixed = f"""  %mix.in = getelementptr i64, ptr %c, i64 %mix.i
  %mix.word = load i64, ptr %mix.in
  %hash.sum = add i64 %hash, %mix.word
  %hash.product = mul i64 %hash.sum, {_MIXER}
  %hash.high = lshr i64 %hash.product, 29
  %hash.next = xor i64 %hash.product, %hash.high"""
    same = """  %same.own = getelementptr i64, ptr %c, i64 %same.i
  %same.own.word = load i64, ptr %same.own
  %same.kept = getelementptr i64, ptr %kept.sizes, i64 %same.i
  %same.kept.word = load i64, ptr %same.kept
  %differ.one = xor i64 %same.own.word, %same.kept.word
  %differ.next = or i64 %differ, %differ.one"""
    return f"""
; The record of CALL for the sizes of a plan's call, by its choice among configs; null where none is compiled.
define ptr @chosen_call(ptr %record, ptr %r) {{
entry:
{fields("%record", CHOICE)}
  %has_choice = icmp ne ptr %program, null
  br i1 %has_choice, label %gather, label %only
only:
  %call.only = load ptr, ptr %calls
  ret ptr %call.only
gather:
  %c = alloca i64, i64 %numbers, align 16
  br label %gathering
gathering:
{gathered("size", "%sizes_at", "%sizes", "%c", "gathering")}
{loop("mix", "size.done", "%sizes", mixed, ("%hash = phi i64", "0", "%hash.next"))}
  %slot = lshr i64 %hash, {64 - CHOICE_BITS}
  %slot.words = add i64 %sizes, 1
  %kept.first = mul i64 %slot, %slot.words
  %kept.slot = getelementptr i64, ptr %kept, i64 %kept.first
  %kept.sizes = getelementptr i64, ptr %kept.slot, i64 1
  %kept.index = load i64, ptr %kept.slot
{loop("same", "mix.done", "%sizes", same, ("%differ = phi i64", "0", "%differ.next"))}
  %is_same = icmp eq i64 %differ, 0
  %is_kept = icmp ne i64 %kept.index, 0
  %is_hit = and i1 %is_same, %is_kept
  br i1 %is_hit, label %hit, label %compute
hit:
  %index.hit = sub i64 %kept.index, 1
  br label %found
compute:
  %out_at = getelementptr i64, ptr %c, i64 %sizes
{copy("%out_at", "%left_out", "%configs")}
  %refused = call i64 @evaluate(ptr %program, ptr %c)
  %is_refused = icmp ne i64 %refused, 0
  br i1 %is_refused, label %none, label %computed
computed:
  %index.in = getelementptr i64, ptr %c, i64 %result
  %index.new = load i64, ptr %index.in
  %is_none = icmp slt i64 %index.new, 0
  br i1 %is_none, label %none, label %some
some:
  br i1 {_KEEPS}, label %keep, label %found
keep:
{copy("%kept.sizes", "%c", "%sizes")}
  %index.kept = add i64 %index.new, 1
  store i64 %index.kept, ptr %kept.slot
  br label %found
found:
  %index = phi i64 [ %index.hit, %hit ], [ %index.new, %some ], [ %index.new, %keep ]
  %call.in = getelementptr ptr, ptr %calls, i64 %index
  %call = load ptr, ptr %call.in
  ret ptr %call
none:
  ret ptr null
}}
"""


def new_tuple() -> str:
    body = f"""  %item.in = getelementptr i64, ptr %at, i64 %item.i
  %item.at = load i64, ptr %item.in
  %item.from = getelementptr i64, ptr %r, i64 %item.at
  %item.word = load i64, ptr %item.from
  %item.number = call ptr {api("PyLong_FromLongLong")}(i64 %item.word)
  %item.set = call i32 {api("PyTuple_SetItem")}(ptr %tuple, i64 %item.i, ptr %item.number)"""
    return f"""
; A new tuple of the numbers of %r at some positions; null where there is no memory.
define ptr @new_tuple(ptr %r, ptr %at, i64 %count) {{
entry:
  %tuple = call ptr {api("PyTuple_New")}(i64 %count)
  %has_tuple = icmp ne ptr %tuple, null
  br i1 %has_tuple, label %filling, label %none
filling:
{loop("item", "filling", "%count", body)}
  ret ptr %tuple
none:
  ret ptr null
}}
"""


def new_result() -> str:
    return f"""
; A new tensor for a plan's result; null where it cannot be allocated.
define ptr @new_result(ptr %record, ptr %r) {{
entry:
  %arguments = alloca ptr, i64 4, align 16
{fields("%record", PLAN)}
  %shape = call ptr @new_tuple(ptr %r, ptr %lengths_at, i64 %axes)
  %has_shape = icmp ne ptr %shape, null
  br i1 %has_shape, label %shaped, label %none
shaped:
  %steps = call ptr @new_tuple(ptr %r, ptr %steps_at, i64 %axes)
  %has_steps = icmp ne ptr %steps, null
  br i1 %has_steps, label %stepped, label %stepless
stepless:
  call void {api("Py_DecRef")}(ptr %shape)
  br label %none
stepped:
  store ptr %shape, ptr %arguments
  %second = getelementptr ptr, ptr %arguments, i64 1
  store ptr %steps, ptr %second
  %third = getelementptr ptr, ptr %arguments, i64 2
  store ptr %dtype, ptr %third
  %fourth = getelementptr ptr, ptr %arguments, i64 3
  store ptr %place, ptr %fourth
  %made = call ptr {api("PyObject_Vectorcall")}(ptr %allocate, ptr %arguments, i64 %positional, ptr %names)
  call void {api("Py_DecRef")}(ptr %shape)
  call void {api("Py_DecRef")}(ptr %steps)
  ret ptr %made
none:
  ret ptr null
}}
"""


def result_of() -> str:
    return f"""
; Launches the kernel of a plan's call; returns its result, a new reference, or null where Python must make the call.
define ptr @result_of(ptr %record, ptr %reader, ptr %call, ptr %r) {{
entry:
  %tensor_at = alloca i8, i64 {TENSOR_BYTES}, align 16
  %stream.in = alloca i64
  store i64 0, ptr %stream.in
{fields("%record", PLAN)}
  %made = call ptr @new_result(ptr %record, ptr %r)
  %is_made = icmp ne ptr %made, null
  br i1 %is_made, label %made_one, label %failed
failed:
  call void {api("PyErr_Clear")}()
  ret ptr null
made_one:
  %is_seen = call i1 @look_at(ptr %reader, ptr %made, ptr %tensor_at)
  br i1 %is_seen, label %seen_one, label %drop
seen_one:
  %device.in = getelementptr i8, ptr %tensor_at, i64 8
  %device.word = load i64, ptr %device.in, align 4
  %is_there = icmp eq i64 %device.word, %device
{address_of("address")}
  %has_address = icmp ne i64 %address, 0
  %is_fine = and i1 %is_there, %has_address
  br i1 %is_fine, label %fine, label %drop
fine:
  %result.to = getelementptr i64, ptr %r, i64 %result
  store i64 %address, ptr %result.to
  %room.in = getelementptr i64, ptr %call, i64 {CALL.index("numbers")}
  %room = load i64, ptr %room.in
  %w = alloca i64, i64 %room, align 16
  br label %passing
passing:
{gathered("pass", "%words_at", "%words", "%w", "passing")}
  %stream.out.in = getelementptr i64, ptr %reader, i64 {READER.index("*stream")}
  %ask_stream = load ptr, ptr %stream.out.in
  %number = lshr i64 %device, 32
  %number.32 = trunc i64 %number to i32
  %streamless = call i32 %ask_stream(i32 {CUDA}, i32 %number.32, ptr %stream.in)
  %stream = load i64, ptr %stream.in
  %has_stream = icmp eq i32 %streamless, 0
  br i1 %has_stream, label %streamed, label %drop
streamed:
  %said = call i64 @make_call(ptr %call, ptr %w, i64 %number, i64 %stream)
  %is_launched = icmp eq i64 %said, 0
  br i1 %is_launched, label %launched, label %drop
launched:
  ret ptr %made
drop:
  call void {api("Py_DecRef")}(ptr %made)
  call void {api("PyErr_Clear")}()
  ret ptr null
}}
"""


def try_plan() -> str:
    differs = """  %head.own = getelementptr i64, ptr %heads, i64 %head.i
  %head.own.word = load i64, ptr %head.own
  %head.seen = getelementptr i64, ptr %seen, i64 %head.i
  %head.seen.word = load i64, ptr %head.seen
  %head.one = xor i64 %head.own.word, %head.seen.word
  %differ.next = or i64 %differ, %head.one"""
    return f"""
; Makes a call by a plan; returns its result, a new reference, or null where the plan does not serve it. %seen has two
; words for each argument, %words the addresses, sizes and strides of arrays.
define ptr @try_plan(ptr %record, ptr %reader, ptr %seen, i64 %count, ptr %words_seen) {{
entry:
{fields("%record", PLAN)}
  %has_count = icmp eq i64 %count, %arrays
  br i1 %has_count, label %counted, label %no
counted:
  %head_count = shl i64 %arrays, 1
  br label %heading
heading:
{loop("head", "heading", "%head_count", differs, ("%differ = phi i64", "0", "%differ.next"))}
  %is_same = icmp eq i64 %differ, 0
  br i1 %is_same, label %equal, label %no
equal:
  %r = alloca i64, i64 %numbers, align 16
{copy("%r", "%words_seen", "%result")}
  %result.to = getelementptr i64, ptr %r, i64 %result
  store i64 0, ptr %result.to
  %refused = call i64 @evaluate(ptr %program, ptr %r)
  %is_refused = icmp ne i64 %refused, 0
  br i1 %is_refused, label %no, label %guarded
guarded:
  %call = call ptr @chosen_call(ptr %choice, ptr %r)
  %has_call = icmp ne ptr %call, null
  br i1 %has_call, label %chosen, label %no
chosen:
  %made = call ptr @result_of(ptr %record, ptr %reader, ptr %call, ptr %r)
  %is_made = icmp ne ptr %made, null
  br i1 %is_made, label %launched, label %no
launched:
  ret ptr %made
no:
  ret ptr null
}}
"""


def _read() -> str:
    """Return code that reads one argument: two words that describe it, and its address, sizes and strides."""
    return f"""  %at = load i64, ptr %word.in
  %head.word = shl i64 %read.i, 1
  %head = getelementptr i64, ptr %seen, i64 %head.word
  %head.second = getelementptr i64, ptr %head, i64 1
  %array = call ptr {api("PyTuple_GetItem")}(ptr %tensors, i64 %read.i)
  %is_none = icmp eq ptr %array, {constant(None)}
  br i1 %is_none, label %none, label %some
none:
  store i64 -1, ptr %head
  store i64 -1, ptr %head.second
  br label %read.given
some:
  %is_seen = call i1 @look_at(ptr %reader, ptr %array, ptr %tensor_at)
  br i1 %is_seen, label %read.seen, label %unknown
read.seen:
  %is_plain = call i1 @is_plain(ptr %reader, ptr %array, i1 %grad)
  br i1 %is_plain, label %plain, label %unknown
plain:
{fitting()}
  br i1 %fits, label %fitting, label %unknown
fitting:
  %kind = load i64, ptr %axes.in, align 4
  store i64 %kind, ptr %head
  %device.in = getelementptr i8, ptr %tensor_at, i64 8
  %device = load i64, ptr %device.in, align 4
  store i64 %device, ptr %head.second
  %to = getelementptr i64, ptr %words, i64 %at
  store i64 %address, ptr %to
  %shape.in = getelementptr i8, ptr %tensor_at, i64 24
  %shape = load ptr, ptr %shape.in
  %lengths = getelementptr i64, ptr %to, i64 1
{copy("%lengths", "%shape", "%axes")}
  %steps = getelementptr i64, ptr %lengths, i64 %axes
{copy("%steps", "%strides", "%axes")}
  %twice = shl i64 %axes, 1
  %taken = add i64 %twice, 1
  %at.next = add i64 %at, %taken
  store i64 %at.next, ptr %word.in
  br label %read.given
read.given:"""


def dynamic_call() -> str:
    return f"""
; dynamic_call(arrays, grad), a tuple of tensors and None, and whether gradients are recorded: the result of a call by
; the first plan that serves it, or None where Python must make the call.
define ptr @dynamic_call(ptr %self, ptr %arguments, i64 %argument_count) {{
entry:
  %tensor_at = alloca i8, i64 {TENSOR_BYTES}, align 16
  %word.in = alloca i64
  store i64 0, ptr %word.in
  %seen = alloca i64, i64 {2 * MOST_ARRAYS}, align 16
  %words = alloca i64, i64 {MOST_ARRAYS * (1 + 2 * MOST_AXES)}, align 16
  %record = call ptr {api("PyLong_AsVoidPtr")}(ptr %self)
{fields("%record", CALLS)}
  %tensors = load ptr, ptr %arguments
  %asks.in = getelementptr ptr, ptr %arguments, i64 1
  %asks = load ptr, ptr %asks.in
  %grad = icmp ne ptr %asks, {constant(False)}
  %count = call i64 {api("PyTuple_Size")}(ptr %tensors)
  %is_few = icmp ule i64 %count, {MOST_ARRAYS}
  br i1 %is_few, label %begun, label %unknown
begun:
{loop("read", "begun", "%count", _read())}
  br label %search
search:
  %plan = phi ptr [ %first, %read.done ], [ %plan.next, %tried ]
  %has_plan = icmp ne ptr %plan, null
  br i1 %has_plan, label %try, label %unknown
try:
  %made = call ptr @try_plan(ptr %plan, ptr %reader, ptr %seen, i64 %count, ptr %words)
  %is_made = icmp ne ptr %made, null
  br i1 %is_made, label %served, label %tried
tried:
  %plan.next.in = getelementptr i64, ptr %plan, i64 {PLAN.index("*next")}
  %plan.next = load ptr, ptr %plan.next.in
  br label %search
served:
  ret ptr %made
unknown:
  call void {api("PyErr_Clear")}()
  call void {api("Py_IncRef")}(ptr {constant(None)})
  ret ptr {constant(None)}
}}
"""
