"""Makes a program that disagrees smaller, as long as it disagrees in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from .ownership import WrongProgram
from .program import (
    FLOATS,
    Array,
    Cast,
    Compute,
    Dim,
    Fill,
    IllTyped,
    Loop,
    Mma,
    Number,
    Program,
    Read,
    Reduce,
    Scope,
    Statement,
    Write,
    check,
)
from .reference import expected

Wanted = Callable[[Program], bool]


def shrink(program: Program, still_wrong: Wanted) -> Program:
    """The smallest that was found; `still_wrong` may be asked often, and says no when time is up."""
    changed = True
    while changed:
        changed = False
        for way in (
            _without_what_is_unused,
            _fewer_statements,
            _plainer_program,
            _fewer_arrays,
            _smaller_dims,
            _plainer_arrays,
            _plainer_parts,
        ):
            found = _first(program, way, still_wrong)
            while found is not None:
                program, changed = found, True
                found = _first(program, way, still_wrong)
    return program


def _first(program: Program, way: Callable[[Program], Iterator[Program]], still_wrong: Wanted) -> Program | None:
    for candidate in way(program):
        if candidate != program and is_valid(candidate) and still_wrong(candidate):
            return candidate
    return None


def is_valid(program: Program) -> bool:
    try:
        check(program)
        for call in program.calls():
            expected(call)
    except (IllTyped, WrongProgram):
        return False
    return True


# -- statements -----------------------------------------------------------------------------------------------------


def _fewer_statements(p: Program) -> Iterator[Program]:
    types = _types(p)
    for s in reversed(p.walk()):
        yield replace(p, body=_without(p.body, s))
        name = getattr(s, "name", "")
        if name in types and not isinstance(s, Loop):
            for other, kind in types.items():
                if kind == types[name] and other != name:
                    yield replace(p, body=_renamed(_without(p.body, s), name, other))
        if isinstance(s, Loop):
            yield from _plainer_loop(p, s)


def _without_what_is_unused(p: Program) -> Iterator[Program]:
    """Yield the program without all statements whose values are unused."""
    taken: set[str] = set()
    for s in p.walk():
        match s:
            case Compute():
                taken |= {x for x in s.args if isinstance(x, str)}
            case Cast() | Write() | Reduce():
                taken.add(s.x)
            case Mma():
                taken |= {s.a, s.b, s.acc}
            case Loop():
                taken |= {*s.init, *s.returns}
    body = p.body
    for s in p.walk():
        if not isinstance(s, (Loop, Write)) and s.name not in taken:
            body = _without(body, s)
    yield _without_idle_arrays(replace(p, body=body))


def _plainer_loop(p: Program, s: Loop) -> Iterator[Program]:
    names = dict(zip((*s.params, *s.results), (*s.init, *s.init), strict=True))
    without = _without(p.body, s)
    for old, new in names.items():
        without = _renamed(without, old, new)
    yield replace(p, body=without)
    for n in range(len(s.init)):
        kept = {
            f: tuple(x for i, x in enumerate(getattr(s, f)) if i != n) for f in ("init", "params", "returns", "results")
        }
        body = _renamed(s.body, s.params[n], s.init[n])
        smaller = replace(s, body=body, **kept)
        yield replace(p, body=_renamed(_replaced(p.body, s, smaller), s.results[n], s.init[n]))
        for field in ("init", "params"):
            other = tuple(getattr(s, field)[n] if i == n else x for i, x in enumerate(s.returns))
            yield replace(p, body=_replaced(p.body, s, replace(s, returns=other)))


def _types(p: Program) -> dict:
    """Return the types of all names in the program; a name out of scope makes no valid program."""
    found: dict = {}

    def block(body, scope: Scope) -> None:
        for s in body:
            if isinstance(s, Loop):
                inner = Scope(p, dict(scope.types))
                inner.types.update({a: scope.of(b) for a, b in zip(s.params, s.init, strict=True)})
                block(s.body, inner)
            scope.add(s)
        found.update(scope.types)

    block(p.body, Scope.before(p))
    return found


def _without(body: tuple, gone: Statement) -> tuple:
    kept = tuple(s for s in body if s is not gone)
    return tuple(replace(s, body=_without(s.body, gone)) if isinstance(s, Loop) else s for s in kept)


def _replaced(body: tuple, old: Statement, new: Statement) -> tuple:
    return tuple(
        new if s is old else replace(s, body=_replaced(s.body, old, new)) if isinstance(s, Loop) else s for s in body
    )


def _renamed(body: tuple, old: str, new: str) -> tuple:
    def other(x):
        return new if x == old else x

    found = []
    for s in body:
        match s:
            case Compute():
                found.append(replace(s, args=tuple(map(other, s.args))))
            case Cast() | Write() | Reduce():
                found.append(replace(s, x=other(s.x)))
            case Mma():
                found.append(replace(s, a=other(s.a), b=other(s.b), acc=other(s.acc)))
            case Loop():
                inner = _renamed(s.body, old, new)
                found.append(
                    replace(s, init=tuple(map(other, s.init)), returns=tuple(map(other, s.returns)), body=inner)
                )
            case _:
                found.append(s)
    return tuple(found)


# -- the rest -------------------------------------------------------------------------------------------------------


def _plainer_program(p: Program) -> Iterator[Program]:
    for field in fields(Program):
        if field.name not in ("dims", "arrays", "body", "seed", "opens") and getattr(p, field.name) != field.default:
            yield replace(p, **{field.name: field.default})
    yield from (replace(p.called(c), more=p.more[n:]) for n, c in enumerate(p.more, 1))
    yield from (replace(p.called(c), more=()) for c in p.more)
    yield from (replace(p, more=tuple(c for c in p.more if c is not gone)) for gone in p.more)
    yield from (replace(p, left_open=tuple(d for d in p.left_open if d != gone)) for gone in p.left_open)
    yield from (replace(p, numbers=tuple(n for n in p.numbers if n is not gone)) for gone in p.numbers)
    if p.dealt:
        yield replace(p, dealt=False, workgroups=0)
    used = {s.stop for s in p.walk() if isinstance(s, Loop)} | {s.value for s in p.walk() if isinstance(s, Number)}
    yield replace(p, opens=tuple((name, v) for name, v in p.opens if name in used or name in p.mapping))


def _without_idle_arrays(p: Program) -> Program:
    """Return the program without unused arrays, and dims that only they had."""
    used = {s.array for s in p.walk() if isinstance(s, (Read, Write))}
    arrays = tuple(a for a in p.arrays if a.name in used)
    had = {d for a in arrays for d in a.dims}
    left_open = tuple(d for d in p.left_open if d in had)
    dims = tuple(d for d in p.dims if d.tile or d.name in had)
    return replace(p, arrays=arrays, dims=dims, left_open=left_open)


def _fewer_arrays(p: Program) -> Iterator[Program]:
    yield _without_idle_arrays(p)
    yield from (replace(p, dims=tuple(d for d in p.dims if d is not gone)) for gone in p.dims)


def _smaller_dims(p: Program) -> Iterator[Program]:
    for d in p.dims:
        for change in _smaller_dim(d):
            yield replace(p, dims=tuple(change if e is d else e for e in p.dims))
    for size in {d.size for d in p.dims}:
        yield replace(p, dims=tuple(replace(d, size=1) if d.size == size else d for d in p.dims))


def _smaller_dim(d: Dim) -> Iterator[Dim]:
    if d.wave:
        yield replace(d, wave=0)
    for size in dict.fromkeys([1, d.tile, 2 * d.tile, d.size // 2, d.size - 1]):
        if 1 <= size < d.size:
            yield replace(d, size=size)
    for tile in dict.fromkeys([1, 2, 4, 8, 16, d.tile // 2, d.size]):
        if 1 <= tile < d.tile and not d.wave:
            yield replace(d, tile=tile)


def _plainer_arrays(p: Program) -> Iterator[Program]:
    for a in p.arrays:
        for change in _plainer_array(a):
            yield replace(p, arrays=tuple(change if b is a else b for b in p.arrays))


def _plainer_array(a: Array) -> Iterator[Array]:
    if a.layout:
        yield replace(a, layout=None)
        rank = range(len(a.dims))
        plain = {"order": tuple(rank), "steps": (1,) * len(rank), "before": (0,) * len(rank), "after": (0,) * len(rank)}
        for field, value in plain.items():
            if getattr(a.layout, field) != value:
                yield replace(a, layout=replace(a.layout, **{field: value}))
    if a.space != "GLOBAL_ADDRESS_SPACE":
        yield replace(a, space="GLOBAL_ADDRESS_SPACE")
    if a.content not in ("poison", "small"):
        yield replace(a, content="small")


def _plainer_parts(p: Program) -> Iterator[Program]:
    for s in p.walk():
        if isinstance(s, (Read, Write)) and s.mapping:
            yield replace(p, body=_replaced(p.body, s, replace(s, mapping=None)))
        if isinstance(s, (Read, Write)) and s.per_thread:
            yield replace(p, body=_replaced(p.body, s, replace(s, per_thread=0)))
        if isinstance(s, Loop) and isinstance(s.stop, str):
            stop = dict(p.opens)[s.stop]
            yield replace(p, body=_replaced(p.body, s, replace(s, stop=stop)))
    for dtype in sorted(
        {a.dtype for a in p.arrays} | {s.dtype for s in p.walk() if isinstance(s, (Cast, Fill, Number))}
    ):
        for plainer in ("f32",) if dtype in FLOATS else ("i32",):
            if dtype not in ("bool", "f32", "i32"):
                yield _with_dtype(p, dtype, plainer)


def _with_dtype(p: Program, old: str, new: str) -> Program:
    def other(s):
        if isinstance(s, Loop):
            return replace(s, body=tuple(map(other, s.body)))
        return replace(s, dtype=new) if getattr(s, "dtype", "") == old else s

    arrays = tuple(replace(a, dtype=new) if a.dtype == old else a for a in p.arrays)
    return replace(p, arrays=arrays, body=tuple(map(other, p.body)))
