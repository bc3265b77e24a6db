"""Pieces of LLVM IR text: fields of a record, loops, copies, and functions of Python's C API."""

from __future__ import annotations

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
    return f"  call void @copy_words(ptr {to}, ptr {source}, i64 {words})"


def copy_words() -> str:
    """Return the function that `copy` calls: most copies are of a few words, and it needs no library."""
    body = """  %word.from = getelementptr i64, ptr %source, i64 %word.i
  %copied = load i64, ptr %word.from
  %word.to = getelementptr i64, ptr %to, i64 %word.i
  store i64 %copied, ptr %word.to"""
    return f"""
define internal void @copy_words(ptr %to, ptr %source, i64 %words) {{
entry:
{loop("word", "entry", "%words", body)}
  ret void
}}
"""


def api(name: str) -> str:
    """Return a function of Python's C API."""
    return f"@{name}"


def constant(value: bool | None) -> str:
    """Return an immortal object of Python: None or False."""
    assert not value
    return "@_Py_NoneStruct" if value is None else "@_Py_FalseStruct"
