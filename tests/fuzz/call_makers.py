"""Random calls of operations along an axis, at indices, with labels and of groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .call_rules_indices import REDUCTIONS
from .calls import VALUES, Call, Laid, Said
from .program import FLOATS

if TYPE_CHECKING:
    from .call_maker import CallMaker


def _index_dtype(m: CallMaker) -> str:
    return m.t.whole if m.t.whole != "bool" else "i64"


def _shape(m: CallMaker) -> tuple[int, ...]:
    return (*m.batch(), m.size(m.t.high), m.size(m.t.wide))


def _numbers(m: CallMaker) -> tuple[str, str]:
    """A dtype and a content for it."""
    if m.t.is_whole:
        return m.t.whole, m.rng.choice(["small", "extreme"])
    return m.t.dtype, m.content()


def _dim(m: CallMaker, rank: int) -> Said:
    return Said(str(m.rng.choice([n for n in range(-rank, rank) if str(n) in VALUES])))


def _dims(m: CallMaker, call: Call, rank: int) -> Call:
    return call.having(dim=_dim(m, rank)) if m.rng.random() < 0.4 else call


def cumsum(m: CallMaker) -> Call:
    shape, (dtype, content) = _shape(m), _numbers(m)
    call = m.call(x=m.array(shape, dtype, content, m.rng.choice([False, None])))
    return m.with_out(_dims(m, call, len(shape)), shape, dtype if dtype in FLOATS else "i64")


def topk(m: CallMaker) -> Call:
    shape, (dtype, content) = _shape(m), _numbers(m)
    call = m.call(x=m.array(shape, dtype, content, m.rng.choice([False, None])), k=Said(m.rng.choice("1123")))
    return _dims(m, call, len(shape))


def argmax(m: CallMaker) -> Call:
    shape, (dtype, content) = _shape(m), _numbers(m)
    call = m.call(x=m.array(shape, dtype, content, m.rng.choice([False, None])))
    axis = -1
    if m.rng.random() < 0.4:
        dim = _dim(m, len(shape))
        call, axis = call.having(dim=dim), int(dim.text)
    axis %= len(shape)
    return m.with_out(call, (*shape[:axis], *shape[axis + 1 :]), m.rng.choice(["i64", "i64", "i32"]))


def gated(m: CallMaker) -> Call:
    shape = _shape(m)
    call = m.call(gate=m.array(shape, m.t.dtype, m.content()), up=m.array(shape, m.t.second, turned=None))
    if m.t.optional["activation"]:
        call = call.having(activation=Said(repr(m.t.activation)))
    return m.with_out(call, shape, m.t.dtype)


def dropout(m: CallMaker) -> Call:
    shape = _shape(m)
    call = m.call(x=m.array(shape, m.t.dtype, m.content(), m.rng.choice([False, None])))
    call = call.having(seed=Said(m.rng.choice(["0", "7", "-1", "2**31", "2**63", "-(2**63)"])))
    if m.rng.random() < 0.7:
        call = call.having(p=Said(m.rng.choice(["0.0", "0.5", "0.125", "1"])))
    return m.with_out(call, shape, m.t.dtype)


def _at_axis(m: CallMaker) -> tuple[Call, tuple[int, ...], int, Laid]:
    """A call on x along an axis, x's shape, the axis, and the list of indices."""
    shape, (dtype, content) = _shape(m), _numbers(m)
    dim = _dim(m, len(shape))
    index = m.array((m.size(m.t.deep),), _index_dtype(m), m.rng.choice(["small", "small", "extreme"]))
    x = m.array(shape, dtype, content, m.rng.choice([False, None]))
    return m.call(x=x, dim=dim, index=index), shape, int(dim.text) % len(shape), index


def index_select(m: CallMaker) -> Call:
    call, shape, axis, index = _at_axis(m)
    return m.with_out(call, (*shape[:axis], *index.shape, *shape[axis + 1 :]), call.get("x").dtype)  # type: ignore[union-attr]


def index_add(m: CallMaker) -> Call:
    call, shape, axis, index = _at_axis(m)
    x = call.get("x")
    assert isinstance(x, Laid)
    added = (*shape[:axis], *index.shape, *shape[axis + 1 :])
    call = call.having(source=m.array(added, x.dtype, x.content, m.rng.choice([False, None])))
    if m.rng.random() < 0.4:
        call = call.having(alpha=Said(m.rng.choice(["2", "3", "-1", "0", "0.5", "-0.25"])))
    return m.with_out(call, shape, x.dtype)


def bincount(m: CallMaker) -> Call:
    shape = (*m.batch(), m.size(m.t.wide))
    call = m.call(x=m.array(shape, _index_dtype(m), m.rng.choice(["small", "small", "extreme"]), None))
    length = m.rng.choice(["0", "1", "3", "7", "16", "100"])
    call, dtype = call.having(length=Said(length)), "i64"
    if m.t.optional["weight"]:
        dtype, content = _numbers(m)
        call = call.having(weights=m.array(shape, dtype, content, None))
    return m.with_out(call, (int(length),), dtype)


def cross_entropy(m: CallMaker) -> Call:
    rows, columns = m.size(m.t.high), m.size(m.t.wide)
    batch = (rows,) if m.rng.random() < 0.85 else ()
    logits = m.array((*batch, columns), m.t.dtype, m.content(), m.rng.choice([False, None]))
    call = m.call(logits=logits, labels=m.array(batch, _index_dtype(m), m.rng.choice(["small", "small", "extreme"])))
    if m.rng.random() < 0.3:
        call = call.having(ignore_index=Said(m.rng.choice(["0", "1", "-1", "100"])))
    reduction = m.rng.choice(REDUCTIONS)
    if reduction != "mean" or m.rng.random() < 0.5:
        call = call.having(reduction=Said(repr(reduction)))
    return m.with_out(call, batch if reduction == "none" else (), m.t.dtype)


def grouped_mm(m: CallMaker) -> Call:
    dtype, groups = "i8" if m.t.is_whole else m.t.dtype, m.rng.choice([1, 2, 3, 5])
    rows, n, k = m.size(m.t.high), m.size(m.t.wide), m.size(m.t.deep)
    form = m.rng.randrange(3)
    shape_a, shape_b, result = [
        ((rows, k), (groups, k, n), (rows, n)),
        ((groups, n, k), (k, rows), (n, rows)),
        ((n, rows), (rows, k), (groups, n, k)),
    ][form]
    ends = m.array((groups,), _index_dtype(m), m.rng.choice(["rising", "rising", "rising", "extreme"]))
    call = m.call(a=m.matrix("a", shape_a, dtype), b=m.matrix("b", shape_b, dtype), ends=ends)
    known = dtype if dtype in ("f16", "bf16", "f32", "f64") else "f32"
    return m.with_out(call, result, "i32" if dtype == "i8" else known)


MAKERS: dict[str, Callable[[CallMaker], Call]] = {
    "ops.cumsum": cumsum,
    "ops.topk": topk,
    "ops.argmax": argmax,
    "ops.gated": gated,
    "ops.dropout": dropout,
    "ops.index_select": index_select,
    "ops.index_add": index_add,
    "ops.bincount": bincount,
    "ops.cross_entropy": cross_entropy,
    "ops.grouped_mm": grouped_mm,
}
