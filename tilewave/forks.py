"""Fork safety: a child of fork() must not inherit a half-done import, or a lock held by a thread that it does not have.

A fork waits for both, by taking the locks itself. They are taken in the order of the list, which is the order in which
one thread may want several: an import may call LLVM, and starting a process may collect garbage of LLVM's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
Self = TypeVar("Self", bound="cached_property[Any]")

IMPORTING = threading.RLock()
"""Held around imports inside functions, which any thread may make at any time."""
STARTING = threading.RLock()
"""Held while a process is started: a child forked meanwhile would inherit the ends of its pipes, and keep them open."""

LOCKS: list[AbstractContextManager[Any]] = [IMPORTING, STARTING]
"""All locks that a fork takes; each is reentrant."""

_taken = threading.local()


def _before() -> None:
    _taken.stack = ExitStack()
    for lock in LOCKS:
        _taken.stack.enter_context(lock)


def _after() -> None:
    _taken.stack.close()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)


class cached_property(Generic[T]):
    """A cached property without the lock of Python before 3.12, which is one for all objects of a class.

    A process forked while another thread computes a value inherits that lock held, and would wait for it forever.
    """

    def __init__(self, work_out: Callable[[Any], T]) -> None:
        self.work_out, self.__doc__ = work_out, work_out.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self: Self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self: Self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        found = instance.__dict__[self.name] = self.work_out(instance)
        return found  # type: ignore[no-any-return]
