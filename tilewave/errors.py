"""Error messages for authors: what is wrong, where (file, line, caret), and what to write instead."""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import TypeVar

from tilewave.records import dataclass

PACKAGE = str(Path(__file__).parent) + os.sep
BETWEEN = ("tilewave", "functools", "contextlib", "dataclasses", "torch")
"""Modules between an author's line and tilewave's: functools calls a cached property, dataclasses the options that
`replace` makes, torch an operator."""
COMMANDS = ("typer", "click")
"""Modules that call tilewave's commands: no author's code is above them."""
NOTEBOOK = re.compile(r"ipykernel_\d+[/\\]\d+\.py$")
"""Jupyter's file name for the code of a cell."""

E = TypeVar("E", bound="TilewaveError")


@dataclass(frozen=True)
class Loc:
    """A place in source code; columns count from 0 and are -1 where Python does not give them."""

    file: str = "?"
    line: int = 0
    column: int = -1
    end_column: int = -1
    also: tuple[Loc, ...] = ()
    """Other expressions that an error here is about."""

    def __str__(self) -> str:
        return f"{short_path(self.file)}:{self.line}"

    def shown(self) -> list[str]:
        """Return the place, its line and carets under the expressions, and those of other lines."""
        by_line: dict[str, list[Loc]] = {}
        for loc in (self, *self.also):
            by_line.setdefault(str(loc), []).append(loc)
        lines: list[str] = []
        for first, *others in by_line.values():
            marked = Loc(first.file, first.line, first.column, first.end_column, tuple(others))
            lines += [f"  {marked}", *(f"      {text}" for text in marked.excerpt())]
        return lines

    def excerpt(self) -> list[str]:
        """Return the line and carets under the expressions on it; nothing where the source cannot be read."""
        text = linecache.getline(self.file, self.line).rstrip()
        if not text:
            return []
        body = text.lstrip()
        marked = [loc._characters(text) for loc in (self, *self.also) if loc.column >= 0 and loc.line == self.line]
        if not marked:
            return [body]
        carets = [" "] * (max(max(1 + start, stop) for start, stop in marked))
        for start, stop in marked:
            carets[start : max(1 + start, stop)] = "^" * max(1, stop - start)
        return [body, "".join(carets[len(text) - len(body) :])]

    def text(self) -> str:
        """Return the text of the expression; empty where Python does not give its columns."""
        line = linecache.getline(self.file, self.line).rstrip()
        if not line or self.column < 0:
            return ""
        start, stop = self._characters(line)
        return line[start:stop]

    def _characters(self, line: str) -> tuple[int, int]:
        """Return the columns in characters, as carets count; co_positions counts bytes of UTF-8."""
        start = len(line.encode()[: self.column].decode(errors="replace"))
        stop = len(line.encode()[: self.end_column].decode(errors="replace")) if self.end_column > 0 else len(line)
        return start, stop


NOWHERE = Loc()


class TilewaveError(Exception):
    """An error that the author can fix; `str` is the whole message."""

    def __init__(self, what: str, *, loc: Loc = NOWHERE, remedy: str = "") -> None:
        super().__init__(what, loc, remedy)
        self.what, self.loc, self.remedy = what, loc, remedy

    def __str__(self) -> str:
        lines = [self.what]
        if self.loc.line:
            lines += self.loc.shown()
        lines += [f"  {line}" for line in self.remedy.splitlines()]
        return "\n".join(lines)

    def at(self: E, loc: Loc) -> E:
        """Return this error for another source line."""
        other = type(self).__new__(type(self), *self.args)
        other.__dict__.update(self.__dict__, loc=loc)
        return other

    def _render_traceback_(self) -> list[str]:
        """Return what IPython and Jupyter print instead of a traceback."""
        return [f"error: {self}"]


class SymbolError(TilewaveError):
    """A symbol has no value, or one that cannot be used.

    `missing` is the name of a symbol without one, `example` a value that it might have.
    """

    def __init__(
        self, what: str, *, loc: Loc = NOWHERE, remedy: str = "", missing: str = "", example: str = "…"
    ) -> None:
        super().__init__(what, loc=loc, remedy=remedy)
        self.missing, self.example = missing, example


class ConstraintError(TilewaveError):
    """The constraints contradict each other or name an impossible size."""


class CoverageError(TilewaveError):
    """The workgroups do not compute every tile exactly once."""


class AccessError(TilewaveError):
    """A workgroup reads what another writes, or a tile that is entirely out of bounds."""


class DimensionError(TilewaveError):
    """A dimension is read or written that no constraint covers."""


class ShapeError(TilewaveError):
    """Shapes do not fit."""


class DTypeError(TilewaveError):
    """Dtypes do not match."""


class TraceError(TilewaveError):
    """The kernel's function does what a kernel cannot: branch on a value, call an op outside a kernel."""


class NoAttribute(TraceError, AttributeError):
    """A traced value has no such attribute, which arrays have; `hasattr` returns False."""


class EndlessLoop(TilewaveError):
    """A while loop would never end."""


class TargetError(TilewaveError):
    """A target that does not exist, or whose device this machine does not have."""


class CallError(TilewaveError):
    """The arrays or symbols of a call do not fit the kernel; no array was changed."""


class WrongDevice(CallError):
    """An array is not on the kernel's device; `device` is the kind of device that it is on."""

    def __init__(self, what: str, *, loc: Loc = NOWHERE, remedy: str = "", device: str = "") -> None:
        super().__init__(what, loc=loc, remedy=remedy)
        self.device = device

    def but(self, instead: str) -> WrongDevice:
        """Return this error with another remedy."""
        return WrongDevice(self.what, loc=self.loc, remedy=f"{self.remedy}, or {instead}", device=self.device)


class SavedKernelError(TilewaveError):
    """A kernel cannot be saved, or a file has none that can be loaded."""


class InterpreterError(TilewaveError):
    """The interpreter found an error that a GPU would hide; no array was changed."""


def first_line(error: BaseException) -> str:
    """What an error says, without where and what to write instead; with its kind, where it is none of ours."""
    text = error.what.splitlines()[0] if isinstance(error, TilewaveError) else f"{type(error).__name__}: {error}"
    return text[:200]


def text_error(what: str, text: str, start: int, stop: int, remedy: str = "") -> str:
    """Return a message about a part of one line of text, with a caret under `text[start:stop]`."""
    caret = " " * start + "^" * max(1, stop - start)
    return "\n".join([what, f"      {text}", f"      {caret}", *(f"  {line}" for line in remedy.splitlines())])


def short_path(file: str) -> str:
    """Return a path relative to the current directory where that is shorter; Jupyter's cells get a readable name."""
    if file.startswith("<"):
        return file
    if NOTEBOOK.search(file):
        return "notebook cell"
    try:
        relative = os.path.relpath(file)
    except ValueError:  # another drive
        return file
    return file if relative.startswith("..") else relative


def author_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is not tilewave's; by module, since generated methods have no file."""
    while frame is not None and _package(frame) in BETWEEN:
        frame = frame.f_back
    return None if frame is None or _package(frame) in COMMANDS else frame


def levels_to_author() -> int:
    """Return how many frames the author's line is above the caller, as `warnings.warn(…, stacklevel=…)` counts."""
    author, level = author_frame(sys._getframe(1)), 1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not author:
        frame, level = frame.f_back, level + 1
    return level


def _package(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def here() -> Loc:
    """Return the place in the author's code that led to this call."""
    frame = author_frame(sys._getframe(1))
    if frame is None:
        return NOWHERE
    column, end_column = _columns(frame.f_code, frame.f_lasti)
    return Loc(frame.f_code.co_filename, frame.f_lineno, column, end_column)


def raised_at(error: BaseException) -> Loc:
    """Return the place in the author's code where Python itself raised an error."""
    found, step = NOWHERE, error.__traceback__
    while step is not None:
        if _package(step.tb_frame) not in (*BETWEEN, *COMMANDS):
            code = step.tb_frame.f_code
            found = Loc(code.co_filename, step.tb_lineno, *_columns(code, step.tb_lasti))
        step = step.tb_next
    return found


@lru_cache(maxsize=4096)
def _columns(code: CodeType, last_instruction: int) -> tuple[int, int]:
    """Return the columns of the running expression; (-1, -1) on Python 3.10 and for calls over several lines."""
    positions = getattr(code, "co_positions", None)
    if positions is None:
        return -1, -1
    for at, (line, end_line, column, end_column) in enumerate(positions()):
        if at == last_instruction // 2:
            return (column, end_column) if line == end_line and column is not None else (-1, -1)
    return -1, -1


def authors_traceback(error: BaseException) -> str:
    """Return the traceback of a foreign error without tilewave's frames."""
    given = traceback.TracebackException.from_exception(error)
    _leave_out_our_frames(given)
    return "".join(given.format() if given.stack else given.format_exception_only())


def _leave_out_our_frames(given: traceback.TracebackException) -> None:
    given.stack = traceback.StackSummary.from_list([f for f in given.stack if not _is_ours(f.filename)])
    for earlier in (given.__cause__, given.__context__):
        if earlier is not None:
            _leave_out_our_frames(earlier)


def _is_ours(file: str) -> bool:
    return file.startswith(PACKAGE) or os.path.basename(file) in ("runpy.py", "<frozen runpy>")


def _is_between(frame: traceback.FrameSummary) -> bool:
    """Return whether a frame of the standard library is between the author and tilewave, such as contextlib's."""
    library = os.path.dirname(os.__file__)
    modules = ("contextlib.py", "functools.py", "dataclasses.py")
    made = frame.filename == "<string>" and frame.name == "__init__"
    return made or (os.path.dirname(frame.filename) == library and os.path.basename(frame.filename) in modules)


def _print_for_the_author(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print tilewave's errors without its frames; everything else as before."""
    if not isinstance(error, TilewaveError) or os.environ.get("TILEWAVE_TRACEBACK"):
        _previous_hook(kind, error, trace)
        return
    print(f"error: {error}", file=sys.stderr)
    frames = [f for f in traceback.extract_tb(trace) if not _is_ours(f.filename) and not _is_between(f)]
    for f in frames[-3:]:
        if (f.filename, f.lineno) != (error.loc.file, error.loc.line):
            print(f"  called from {short_path(f.filename)}:{f.lineno}, in {f.name}", file=sys.stderr)


_previous_hook = sys.excepthook
sys.excepthook = _print_for_the_author


# warnings -----------------------------------------------------------------------------------------------------------


class SlowCodeWarning(UserWarning):
    """Machine code that is correct, and slower than it could be."""


class SpillWarning(SlowCodeWarning):
    """A kernel needs more registers than a lane has."""


_IN_BUILT_IN = ContextVar("in_built_in", default=False)


@contextmanager
def in_built_in() -> Iterator[None]:
    """Suppress warnings of machine code while a built-in kernel is called: its caller chose none of its tile sizes."""
    token = _IN_BUILT_IN.set(True)
    try:
        yield
    finally:
        _IN_BUILT_IN.reset(token)


def warn_of_code(what: str, kind: type[SlowCodeWarning]) -> None:
    """Warn about a kernel's machine code at the author's line."""
    if not _IN_BUILT_IN.get():
        warnings.warn(what, kind, stacklevel=levels_to_author())
