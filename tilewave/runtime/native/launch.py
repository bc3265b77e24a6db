"""Machine code that fills a launch's frame on the stack, and has the driver launch it."""

from __future__ import annotations

import sys

from tilewave.runtime.native.records import KEPT_BITS, LAUNCH, MAP, MAP_WORDS, UNKNOWN
from tilewave.runtime.native.text import api, copy, fields, loop

_CONFIG_STREAM, _CONFIG_ATTRIBUTES, _CONFIG_COUNT = 32, 40, 48
"""Byte offsets of fields of a CUlaunchConfig."""
_MIXER = 0x9E3779B97F4A7C15 - (1 << 64)
"""The golden ratio times 2⁶⁴, a multiplier that hashes words."""
_KEEPS = "true" if getattr(sys, "_is_gil_enabled", lambda: True)() else "false"
"""Whether encoded maps are stored: without the GIL, two threads might write to one slot."""


def _filled() -> str:
    """Return code for words, pointers to parameters, and the config; from the block `filled` to `point.done`."""
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
    return f"""  %words_at = getelementptr i8, ptr %frame, i64 %stores_at
{loop("store", "filled", "%stores", store)}
  %pointers = getelementptr i8, ptr %frame, i64 %pointers_at
{loop("point", "store.done", "%parameters", point)}
  %config = getelementptr i8, ptr %frame, i64 %config_at
{size}
  store i32 %side0, ptr %side0.to
  store i32 %side1, ptr %side1.to
  store i32 %side2, ptr %side2.to
  %late = icmp eq i64 %grid3, 0
  %fewer = select i1 %late, i64 %uses_pdl, i64 0
  %count = sub i64 %attributes, %fewer
  %count.32 = trunc i64 %count to i32
  %stream.to = getelementptr i8, ptr %config, i64 {_CONFIG_STREAM}
  store i64 %stream, ptr %stream.to
  %attribute = getelementptr i8, ptr %frame, i64 %attributes_at
  %attribute.to = getelementptr i8, ptr %config, i64 {_CONFIG_ATTRIBUTES}
  store ptr %attribute, ptr %attribute.to
  %count.to = getelementptr i8, ptr %config, i64 {_CONFIG_COUNT}
  store i32 %count.32, ptr %count.to"""


def _encoded() -> str:
    """Return code for a tensor map: a stored one, or a new one."""
    mix = f"""  %mix.in = getelementptr i64, ptr %sizes, i64 %mix.i
  %mix.word = load i64, ptr %mix.in
  %mixed = xor i64 %hash, %mix.word
  %hash.next = mul i64 %mixed, {_MIXER}"""
    same = """  %now.in = getelementptr i64, ptr %sizes, i64 %same.i
  %now = load i64, ptr %now.in
  %then.in = getelementptr i64, ptr %kept.sizes, i64 %same.i
  %then = load i64, ptr %then.in
  %differs = xor i64 %now, %then
  %differ.next = or i64 %differ, %differs"""
    narrow = [name for name in MAP if name in ("dtype", "rank", "interleave", "swizzle", "promotion", "fill")]
    return f"""  %map.first = mul i64 %encode_one.i, {len(MAP)}
  %map.in = getelementptr i64, ptr %encodings, i64 %map.first
{fields("%map.in", MAP)}
  %map = getelementptr i8, ptr %frame, i64 %map_at
  %array.from = getelementptr i64, ptr %r, i64 %pointer
  %array = load ptr, ptr %array.from
  %sizes = getelementptr i8, ptr %frame, i64 %sizes_at
  %strides = getelementptr i8, ptr %frame, i64 %strides_at
{chr(10).join(f"  %{name}.32 = trunc i64 %{name} to i32" for name in narrow)}
  %count.map = shl i64 %rank, 1
  %address = ptrtoint ptr %array to i64
  %hash.first = mul i64 %address, {_MIXER}
{loop("mix", "encode_one.body", "%count.map", mix, ("%hash = phi i64", "%hash.first", "%hash.next"))}
  %kept.at = lshr i64 %hash, {64 - KEPT_BITS}
  %kept.words = add i64 %count.map, {1 + MAP_WORDS}
  %kept.first = mul i64 %kept.at, %kept.words
  %kept.address = getelementptr i64, ptr %kept, i64 %kept.first
  %kept.sizes = getelementptr i64, ptr %kept.address, i64 1
  %kept.map = getelementptr i64, ptr %kept.sizes, i64 %count.map
  %before = load i64, ptr %kept.address
  %differ.first = xor i64 %before, %address
{loop("same", "mix.done", "%count.map", same, ("%differ = phi i64", "%differ.first", "%differ.next"))}
  %is_same = icmp eq i64 %differ, 0
  %is_kept = and i1 %is_same, {_KEEPS}
  br i1 %is_kept, label %again, label %anew
again:
{copy("%map", "%kept.map", str(MAP_WORDS))}
  br label %next_map
anew:
  %encoded = call i32 %encode(ptr %map, i32 %dtype.32, i32 %rank.32, ptr %array, ptr %sizes, ptr %strides,
    ptr %box, ptr %units, i32 %interleave.32, i32 %swizzle.32, i32 %promotion.32, i32 %fill.32)
  %is_encoded = icmp eq i32 %encoded, 0
  br i1 %is_encoded, label %made_map, label %not_encoded
made_map:
  br i1 {_KEEPS}, label %keep, label %next_map
keep:
  store i64 %address, ptr %kept.address
{copy("%kept.sizes", "%sizes", "%count.map")}
{copy("%kept.map", "%map", str(MAP_WORDS))}
  br label %next_map
next_map:"""


def make_launch() -> str:
    return f"""
; Launches with the scalar arguments of a call; returns 0, or a code such as UNKNOWN. Releases the GIL, because the
; driver may wait for room in its queue.
define i64 @make_launch(ptr %record, ptr %numbers_at, i64 %stream) {{
entry:
{fields("%record", LAUNCH)}
  %current.in = alloca ptr
  store ptr null, ptr %current.in
  %r = alloca i64, i64 %numbers, align 16
{copy("%r", "%numbers_at", "%inputs")}
  %fixed_at = getelementptr i64, ptr %r, i64 %inputs
{copy("%fixed_at", "%fixed_words", "%fixed")}
  %refused = call i64 @evaluate(ptr %program, ptr %r)
  %is_refused = icmp ne i64 %refused, 0
  br i1 %is_refused, label %refused_launch, label %filled
refused_launch:
  ret i64 {UNKNOWN}
filled:
  %frame = alloca i8, i64 %frame_bytes, align 64
  %frame_words = lshr i64 %frame_bytes, 3
{copy("%frame", "%image", "%frame_words")}
{_filled()}
  %asked = call i32 %get_current(ptr %current.in)
  %current = load ptr, ptr %current.in
  %is_current = icmp eq ptr %current, %context
  br i1 %is_current, label %within, label %entered
entered:
  %pushed = call i32 %push(ptr %context)
  %is_pushed = icmp eq i32 %pushed, 0
  br i1 %is_pushed, label %within, label %not_pushed
not_pushed:
  %pushed.64 = zext i32 %pushed to i64
  ret i64 %pushed.64
within:  ; tensor maps are encoded in a context too, and autograd's threads have none
{loop("encode_one", "within", "%maps", _encoded())}
  %thread = call ptr {api("PyEval_SaveThread")}()
  %code = call i32 %launch(ptr %config, ptr %function, ptr %pointers, ptr null)
  call void {api("PyEval_RestoreThread")}(ptr %thread)
  %code.64 = zext i32 %code to i64
  br label %made
not_encoded:
  %encoded.64 = zext i32 %encoded to i64
  %below = sub i64 {UNKNOWN}, %encoded.64
  br label %made
made:
  %said = phi i64 [ %code.64, %encode_one.done ], [ %below, %not_encoded ]
  br i1 %is_current, label %done, label %left
left:
  %popped = call i32 %pop(ptr %current.in)
  br label %done
done:
  ret i64 %said
}}
"""
