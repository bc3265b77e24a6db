"""Pieces of LLVM IR text: fields of a record, loops, copies, and functions of Python's C API."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence


def fields(record: str, names: Sequence[str]) -> str:
    lines = []
    for i, name in enumerate(names):
        kind = "ptr" if name.startswith("*") else "i64"
        word = name.lstrip("*")
        lines.append(f"  %{word}.field = getelementptr i64, ptr {record}, i64 {i}")
        lines.append(f"  %{word} = load {kind}, ptr %{word}.field")
    return "\n".join(lines)


def loop(name: str, before: str, count: str, body: str, carried: tuple[str, str, str] | None = None) -> str:
    """Return a loop that is entered from the block `before` and continues in `name.done`; its counter is `%name.i`.

    `carried` is a loop-carried value: its type, its initial value, and its value after an iteration.
    """
    value, first, following = carried or ("", "", "")
    phi = f"  {value} [ {first}, %{before} ], [ {following}, %{name}.end ]\n" if carried else ""
    return f"""  br label %{name}
{name}:
  %{name}.i = phi i64 [ 0, %{before} ], [ %{name}.next, %{name}.end ]
{phi}  %{name}.more = icmp ult i64 %{name}.i, {count}
  br i1 %{name}.more, label %{name}.body, label %{name}.done
{name}.body:
{body}
  br label %{name}.end
{name}.end:
  %{name}.next = add i64 %{name}.i, 1
  br label %{name}
{name}.done:"""


def copy(to: str, source: str, words: str) -> str:
    name = to.lstrip("%")
    return f"""  %{name}.bytes = shl i64 {words}, 3
  call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {source}, i64 %{name}.bytes, i1 false)"""


def api(name: str) -> str:
    """Return a function of Python's C API, by its address."""
    return f"inttoptr (i64 {ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value} to ptr)"


def constant(value: object) -> str:
    """Return an immortal Python object, by its address."""
    return f"inttoptr (i64 {id(value)} to ptr)"
