"""What every GPU vendor's driver library needs: functions bound by their signatures, and failures as clear errors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

from tilewave.errors import TargetError, here
from tilewave.records import dataclass

Function = Callable[..., Any]
ANYWHERE = "interpret(…) runs the kernel in numpy on any machine"


@dataclass(frozen=True)
class Vendor:
    """A vendor's driver: its name, its possible file names, its functions, and what to do about an error."""

    name: str
    files: tuple[str, ...]
    signatures: Mapping[str, tuple[Any, ...]]
    remedies: Mapping[str, str]
    since: Mapping[str, str] = field(default_factory=dict)
    """Functions that older drivers do not have, and the release that introduced them."""
    texts: tuple[str, ...] = ()
    """Functions that return a C string; all others return an error code."""


def open_library(vendor: Vendor) -> Any:
    """Return the vendor's driver library; an error where this machine has none."""
    for file in vendor.files:
        try:
            return ctypes.CDLL(file)
        except OSError:
            continue
    raise TargetError(
        f"this machine has no {vendor.name} driver ({' or '.join(vendor.files)})",
        loc=here(),
        remedy=f"run it on a machine with an {vendor.name} GPU; {ANYWHERE}",
    )


def of(kernel: str) -> str:
    """Return the beginning of a message that may be about a kernel."""
    return f"{kernel}: " if kernel else ""


class Driver:
    """A driver library; a call that fails raises a TargetError with the kernel's name and the driver's message."""

    vendor: Vendor

    def __init__(self, library: Any) -> None:
        self._library = library
        self._functions: dict[str, Function] = {}

    def function(self, name: str, kernel: str = "") -> Function:
        """Return one of the vendor's functions; bound once, so that a call costs no more than ctypes does."""
        found = self._functions.get(name)
        if found is None:
            found = self._functions[name] = self._bind(name, kernel)
        return found

    def address(self, name: str, kernel: str = "") -> int:
        """Return a function's address, for machine code."""
        bound: Any = self.function(name, kernel)
        return ctypes.cast(bound, ctypes.c_void_p).value or 0

    def _bind(self, name: str, kernel: str) -> Function:
        try:
            bound = getattr(self._library, name)
        except AttributeError:
            since = self.vendor.since.get(name, "")
            raise TargetError(
                f"{of(kernel)}the {self.vendor.name} driver of this machine is too old: it has no {name}",
                loc=here(),
                remedy=f"install {since or 'a newer driver'}",
            ) from None
        bound.argtypes = self.vendor.signatures[name]
        bound.restype = ctypes.c_char_p if name in self.vendor.texts else ctypes.c_int
        return bound  # type: ignore[no-any-return]

    def call(self, kernel: str, name: str, *arguments: Any) -> None:
        """Call a function that must succeed."""
        code = self.function(name, kernel)(*arguments)
        if code:
            raise self.failure(kernel, name, code)

    def failure(self, kernel: str, name: str, code: int, log: str = "") -> TargetError:
        """Return the error for a call that returned `code`; `log` is the assembler's."""
        error, text = self.words(code)
        what = f"{of(kernel)}{name} failed with {error} ({text})"
        remedy = self.vendor.remedies.get(error, f"{self.vendor.name} calls this error {code}; {ANYWHERE}")
        return TargetError(what, loc=here(), remedy="\n".join([*_lines(log), remedy]))

    def words(self, code: int) -> tuple[str, str]:
        """Return an error code's name and its explanation."""
        raise NotImplementedError


def _lines(log: str) -> Iterable[str]:
    return (line.rstrip() for line in log.strip().splitlines() if line.strip())


def as_text(value: bytes | None) -> str:
    """Return a C string, which may be missing, as text."""
    return (value or b"").decode(errors="replace")
