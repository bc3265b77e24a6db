"""Makes a call that goes wrong smaller, as long as it goes wrong in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from .call_arrays import buffered
from .calls import Alias, Call, Laid, Said

StillWrong = Callable[[Call], bool]


def shrink_call(call: Call, still_wrong: StillWrong) -> Call:
    """The smallest that was found; `still_wrong` may be asked often, and says no when time is up."""
    found: Call | None = call
    while found is not None:
        call = found
        found = next((c for c in _candidates(call) if c != call and _is_valid(c) and still_wrong(c)), None)
    return call


def _is_valid(call: Call) -> bool:
    try:
        buffered(call)
    except (ValueError, TypeError):
        return False
    return True


def _candidates(call: Call) -> Iterator[Call]:
    yield from (replace(call, **{f: d}) for f, d in (("times", 1), ("other", ""), ("library", "numpy")))
    for name, _ in call.arguments:
        yield call.having(**{name: None})
    yield from _without_front_axis(call)
    sizes = {s for _, a in call.arguments if isinstance(a, (Laid, Alias)) for s in a.shape}
    for size in sorted(sizes, reverse=True):
        for smaller in dict.fromkeys((1, 2, 3, size // 2, size - 1)):
            if 1 <= smaller < size:
                yield _resized(call, size, smaller)
    for name, a in call.arguments:
        yield from (call.having(**{name: plainer}) for plainer in _plainer(a))


def _without_front_axis(call: Call) -> Iterator[Call]:
    """All arrays of the highest rank without one of their axes."""
    ranks = [len(a.shape) for _, a in call.arguments if isinstance(a, (Laid, Alias))]
    for axis in range(max(ranks, default=0) - 1):
        changed = {
            name: replace(
                a, shape=a.shape[:axis] + a.shape[axis + 1 :], **({} if isinstance(a, Alias) else _cut(a, axis))
            )
            for name, a in call.arguments
            if isinstance(a, (Laid, Alias)) and len(a.shape) == max(ranks)
        }
        yield call.having(**changed)


def _cut(a: Laid, axis: int) -> dict:
    if a.layout is None:
        return {}
    order = tuple(n - (n > axis) for n in a.layout.order if n != axis)
    parts = {f: tuple(x for n, x in enumerate(getattr(a.layout, f)) if n != axis) for f in ("steps", "before", "after")}
    return {"layout": replace(a.layout, order=order, **parts)}


def _resized(call: Call, old: int, new: int) -> Call:
    changed = {
        name: replace(a, shape=tuple(new if s == old else s for s in a.shape))
        for name, a in call.arguments
        if isinstance(a, (Laid, Alias))
    }
    return call.having(**changed)


def _plainer(a: Laid | Alias | Said) -> Iterator[Laid | Alias]:
    if isinstance(a, Alias) and a.shift:
        yield replace(a, shift=0)
    if not isinstance(a, Laid):
        return
    if a.flaw:
        yield replace(a, flaw="")
    if a.layout:
        yield replace(a, layout=None)
        rank = range(len(a.shape))
        plain = {"order": tuple(rank), "steps": (1,) * len(rank), "before": (0,) * len(rank), "after": (0,) * len(rank)}
        for field, value in plain.items():
            if getattr(a.layout, field) != value:
                yield replace(a, layout=replace(a.layout, **{field: value}))
    if a.content not in ("poison", "small"):
        yield replace(a, content="small")
    if a.dtype != "f32" and a.dtype.startswith(("f", "bf")):
        yield replace(a, dtype="f32")
