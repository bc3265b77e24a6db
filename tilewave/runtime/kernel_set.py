"""The kernels of a kernel set: the sizes of each call choose one, and what is missing is compiled in the background.

The first call waits for its kernel. A later call whose best config is not compiled yet is served by the best one that
is, while another thread compiles the better one; so which of them serves depends on time, and so does the order of
sums of a kernel that is not batch-invariant. `TILEWAVE_BACKGROUND=0`, or torch's deterministic algorithms, let each
call wait for its best kernel instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from tilewave.errors import ConstraintError
from tilewave.runtime.background import BACKGROUND_WORK, STATE
from tilewave.runtime.native.choice import NativeChoice

BACKGROUND = "TILEWAVE_BACKGROUND"
KEPT_SIZES = 4096
"""The most sizes whose kernel is remembered; one more clears them all."""
MOST_RANKED = 2
"""After so many rankings in Python the choice is recorded as machine code, which takes as long as several of them."""


Sizes = Mapping[Any, int]
"""The dynamic sizes of a call, by their symbols."""


class KernelConfig(Protocol):
    """A config; equal texts are equal configs."""

    @property
    def text(self) -> str: ...


C = TypeVar("C", bound=KernelConfig)
T = TypeVar("T")


class Maker(Protocol[C, T]):
    """Chooses and compiles the kernels of a set."""

    def choices(self, sizes: Sizes) -> list[C]:
        """Return the choices for sizes, the best first."""

    def choice_of(self, text: str, sizes: Sizes) -> C:
        """Return the choice with the text of a config that the choice as machine code has found."""

    def time(self, sizes: Sizes) -> None:
        """Time configs for the class of these sizes, where that is asked for and not known."""

    def make(self, choice: C) -> T:
        """Compile the kernel of a choice."""

    def first(self, choices: Sequence[C], make: Callable[[C], T]) -> T:
        """Return what `make` gives for the first choice that can be compiled; an error where none can."""

    def stored_choice(self) -> NativeChoice | None:
        """Return the choice as machine code, from the cache; None where it is not there."""

    def recorded_choice(self) -> NativeChoice | None:
        """Return the choice as machine code; None where machine code cannot compute it."""

    def has_records(self) -> bool:
        """Return whether tuning records may know a better choice."""

    def prepare(self, made: T, arrays: Sequence[Any]) -> None:
        """Do all that a call with such arrays would wait for."""


class KernelSet(Generic[C, T]):
    """The kernels of one author's kernel, by config."""

    def __init__(self, passed: Mapping[Any, tuple[int, int]], maker: Maker[C, T]) -> None:
        """`passed` has the dynamic sizes, each with the array and axis of a call that it is read from."""
        self.passed, self.maker = passed, maker
        self.by_size: dict[tuple[int, ...], T] = {}
        self.made: dict[str, T] = {}
        """By the text of the config."""
        self.waiting: set[str] = set()
        """Configs that are to be compiled in the background, or were."""
        self.refused: set[str] = set()
        """Configs that cannot be compiled."""
        self.ranked: dict[tuple[int, ...], list[C]] = {}
        """The choices for sizes that have no settled kernel yet."""
        self.native: NativeChoice | None = None
        """Finds the best config by machine code, once it is recorded or read from the cache."""
        self.rankings = 0
        """How many sizes were ranked in Python."""

    def of(self, shapes: Sequence[tuple[int, ...]], arrays: Sequence[Any] = ()) -> T:
        """Return the kernel for arrays of these shapes."""
        try:
            key = self._key(shapes)
        except IndexError:  # an array has too few axes, which the kernel's check of its arguments reports
            return next(iter(self.made.values()))
        return self.by_size.get(key) or self._new(key, arrays)

    def near(self, sizes: Sizes) -> T:
        """Return the kernel for calls with these sizes."""
        return self._new(tuple(sizes[symbol] for symbol in self.passed), ())

    def choice(self, shapes: Sequence[tuple[int, ...]]) -> C:
        """Return the best choice for arrays of these shapes, whether or not it is compiled."""
        return self.maker.choices(self._sizes(self._key(shapes)))[0]

    def is_settled(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Return whether calls with these shapes have their best kernel, so that they may be replayed."""
        return self._key(shapes) in self.by_size

    def _key(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        return tuple([shapes[array][axis] for array, axis in self.passed.values()])

    def _new(self, key: tuple[int, ...], arrays: Sequence[Any]) -> T:
        """Return the kernel for sizes that have no settled one yet."""
        native = self._native_choice()
        best = "" if native is None or self.maker.has_records() else native(key, self.refused)
        if best in self.made:
            return self._settled(key, self.made[best])
        if native is None or not best:
            return self._new_by_ranking(key, arrays)
        usable = native.among(key, self.made)
        if not usable or not arrays or must_wait():
            return self._new_alone(best, key, arrays)
        self._compile_later(best, key, arrays)
        return self.made[usable]

    def _new_alone(self, text: str, key: tuple[int, ...], arrays: Sequence[Any]) -> T:
        """Return the kernel of a config that the caller waits for; of another where it cannot be compiled."""
        try:
            return self._settled(key, self._made([self.maker.choice_of(text, self._sizes(key))]))
        except ConstraintError:
            self.refused.add(text)
            return self._new_by_ranking(key, arrays)

    def _new_by_ranking(self, key: tuple[int, ...], arrays: Sequence[Any]) -> T:
        if arrays:
            self.maker.time(self._sizes(key))
        choices = self._ranked(key)
        best = next((one for one in choices if one.text not in self.refused), None)
        if best is not None and best.text in self.made:
            return self._settled(key, self.made[best.text])
        usable = next((self.made[one.text] for one in choices if one.text in self.made), None)
        if usable is None or must_wait() or not arrays:
            return self._settled(key, self._made([one for one in choices if one.text not in self.refused] or choices))
        if best is not None:
            self._compile_later(best.text, key, arrays)
        return usable

    def _native_choice(self) -> NativeChoice | None:
        """Return the choice as machine code, read from the cache at once, or recorded after some rankings."""
        with STATE:
            count, self.rankings = self.rankings, self.rankings + (self.native is None)
        if count == 0:
            self._take(self.maker.stored_choice())
        elif count == MOST_RANKED and self.native is None:
            self._take(self.maker.recorded_choice())
        return self.native

    def _take(self, native: NativeChoice | None) -> None:
        self.native = native
        if native is not None and not must_wait():
            BACKGROUND_WORK.add(native.compile)

    def _ranked(self, key: tuple[int, ...]) -> list[C]:
        """Return the choices for sizes, the best first, remembered until the sizes have a settled kernel."""
        found = self.ranked.get(key)
        if found is None:
            if len(self.ranked) >= KEPT_SIZES:
                self.ranked.clear()
            found = self.ranked[key] = self.maker.choices(self._sizes(key))
        return found

    def _sizes(self, key: tuple[int, ...]) -> Sizes:
        return dict(zip(self.passed, key, strict=True))

    def _compile_later(self, text: str, key: tuple[int, ...], arrays: Sequence[Any]) -> None:
        with STATE:
            is_new = text not in self.waiting
            self.waiting.add(text)
        if is_new:
            BACKGROUND_WORK.add(lambda: self._compile(text, key, arrays))

    def _settled(self, key: tuple[int, ...], found: T) -> T:
        if len(self.by_size) >= KEPT_SIZES:
            self.by_size.clear()
        self.by_size[key] = found
        self.ranked.pop(key, None)
        return found

    def _made(self, choices: Sequence[C]) -> T:
        """Return the kernel of the first choice that compiles; the caller waits."""

        def made(choice: C) -> T:
            found = self.made.get(choice.text)
            return self.made.setdefault(choice.text, self.maker.make(choice)) if found is None else found

        return self.maker.first(choices, made)

    def _choice(self, text: str, key: tuple[int, ...]) -> C:
        if self.native is not None and text in self.native.texts and not self.maker.has_records():
            return self.maker.choice_of(text, self._sizes(key))
        return next(one for one in self._ranked(key) if one.text == text)

    def _compile(self, text: str, key: tuple[int, ...], arrays: Sequence[Any]) -> None:
        """Compile a config in the background; one that cannot be compiled is left out from then on."""
        try:
            found = self.maker.make(self._choice(text, key))
            self.maker.prepare(found, arrays)
            self.made[text] = found
        except Exception:  # the kernel that serves meanwhile is right, and a call that waits says why
            self.refused.add(text)


def must_wait() -> bool:
    """Return whether each call waits for its best kernel."""
    if os.environ.get(BACKGROUND, "") == "0":
        return True
    # Another thread may be importing torch.
    is_deterministic = getattr(sys.modules.get("torch"), "are_deterministic_algorithms_enabled", None)
    return is_deterministic is not None and bool(is_deterministic())
