"""`out=` of every operation: written in place whatever its strides, or refused before anything runs."""

import ml_dtypes
import numpy as np
import pytest

from tilewave import ops
from tilewave.errors import CallError, TilewaveError

POISON = -7.0


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


A, B = numbers(2, 3, 5, 7), numbers(2, 3, 7, 6, seed=1)
X, W, V = numbers(2, 3, 5, 6), numbers(6, 6, seed=1), numbers(6, seed=2)
IDS = np.random.default_rng(3).integers(-1, 7, (2, 3, 5))
CALLS = {
    "matmul": lambda **out: ops.matmul(A, B, **out),
    "matmul, one b": lambda **out: ops.matmul(A, B[0, 0], **out),
    "linear": lambda **out: ops.linear(X, W, V, activation="relu", residual=X, **out),
    "softmax": lambda **out: ops.softmax(X, **out),
    "softmax of axis 1": lambda **out: ops.softmax(X, 1, **out),
    "softmax of axis -2": lambda **out: ops.softmax(X, -2, **out),
    "rms_norm": lambda **out: ops.rms_norm(X, V, **out),
    "rms_norm with a residual": lambda **out: ops.rms_norm(X, V, residual=X, **out)[0],
    "layer_norm": lambda **out: ops.layer_norm(X, V, V, **out),
    "attention": lambda **out: ops.attention(X, X, X, causal=True, **out),
    "embedding": lambda **out: ops.embedding(W, IDS, **out),
    "index_select": lambda **out: ops.index_select(X, 1, np.array([2, 0, 2]), **out),
    "index_select of the last axis": lambda **out: ops.index_select(X, -1, np.array([5, 5, 1, 0, -1, 7]), **out),
    "index_add": lambda **out: ops.index_add(X, 2, np.array([2, 0, -1, 1, 3]), X, **out),
}
calls = pytest.mark.parametrize("name", CALLS)
SHAPE = (2, 3, 5, 6)


def padded(axis):
    """An array with two elements more along an axis, of which the first are left out."""

    def make(shape):
        base = np.full([size + 2 * (i == axis) for i, size in enumerate(shape)], POISON, np.float32)
        return base, base[tuple(slice(2, None) if i == axis else slice(None) for i in range(len(shape)))]

    return make


def transposed(*order):
    def make(shape):
        base = np.full([shape[i] for i in order], POISON, np.float32)
        return base, base.transpose(np.argsort(order))

    return make


def sliced(*steps):
    def make(shape):
        base = np.full([2 * size for size in shape], POISON, np.float32)
        ends = [2 * size - 1 if step == -2 else None for size, step in zip(shape, steps, strict=True)]
        return base, base[tuple(slice(end, None, step) for end, step in zip(ends, steps, strict=True))]

    return make


def whole(make):
    def made(shape):
        base = make(shape)
        base[...] = POISON
        return base, base

    return made


LAYOUTS = {
    "rows": whole(lambda shape: np.empty(shape, np.float32)),
    "columns": whole(lambda shape: np.empty(shape, np.float32, order="F")),
    "padded batches": padded(0),
    "padded heads": padded(1),
    "padded rows": padded(2),
    "padded columns": padded(3),
    "batches exchanged": transposed(1, 0, 2, 3),
    "rows and columns exchanged": transposed(0, 1, 3, 2),
    "heads inside": transposed(0, 2, 1, 3),
    "all exchanged": transposed(3, 1, 0, 2),
    "every second": sliced(2, 2, 2, 2),
    "backwards": sliced(2, -2, 2, -2),
    "backwards batches": sliced(-2, 2, -2, 2),
    "a class of its own": whole(lambda shape: np.empty(shape, np.float32).view(type("Mine", (np.ndarray,), {}))),
}


@pytest.mark.share(8)
@calls
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_out_of_any_strides_is_written_in_place(name, layout):
    base, out = LAYOUTS[layout](SHAPE)
    want = CALLS[name]()
    assert CALLS[name](out=out) is out
    np.testing.assert_array_equal(np.asarray(out), want)
    assert base.size == out.size or (base == POISON).sum() == base.size - out.size, "nothing beside it is written"


def test_an_out_of_many_uneven_batches_is_written_in_place():
    lead = (2, 3, 2, 2, 2)
    a, b, q = numbers(*lead, 3, 4), numbers(*lead, 4, 5, seed=1), numbers(*lead, 5, 8)
    cases = (ops.matmul, (a, b), (3, 5)), (ops.attention, (q, q, q), (5, 8)), (ops.softmax, (q,), (5, 8))
    for call, arrays, ends in cases:
        base = np.full((3, 2, 2, 3, 2, *ends), POISON, np.float32)
        out = base.transpose(1, 0, 2, 4, 3, 5, 6)[:, :, :, :, 1:]
        assert call(*arrays, out=out) is out
        np.testing.assert_array_equal(out, call(*arrays))
        assert (base[:, :, :, 0] == POISON).all()


def test_the_sum_of_a_norm_with_a_residual_is_a_new_array():
    for shape in (SHAPE, (0, 6)):
        x, out = numbers(*shape), np.full(shape, POISON, np.float32)
        y, total = ops.rms_norm(x, V, residual=x, out=out)
        assert y is out and not np.shares_memory(total, out)
        np.testing.assert_array_equal(total, x + x)
        np.testing.assert_array_equal(out, ops.rms_norm(x + x, V))


def test_the_object_that_was_given_is_given_back():
    """Where an array of another library, or of a derived class, is written through a view."""
    torch = pytest.importorskip("torch")
    x = numbers(3, 6)
    for out in (torch.full((3, 6), POISON), np.full((3, 6), POISON, np.float32).view(np.matrix)):
        for call in (lambda out: ops.softmax(x, out=out), lambda out: ops.softmax(x, 0, out=out)):
            assert call(out) is out
            np.testing.assert_array_equal(np.asarray(out), call(None))


def test_arrays_of_a_derived_class_are_those_numbers():
    x = numbers(3, 6)
    for kind in (np.matrix, np.memmap, type("Mine", (np.ndarray,), {})):
        mine = x.view(kind)
        np.testing.assert_array_equal(ops.softmax(mine, 0), ops.softmax(x, 0))
        np.testing.assert_array_equal(ops.matmul(mine, mine.T), ops.matmul(x, x.T))
        np.testing.assert_array_equal(ops.attention(mine, mine, mine), ops.attention(x, x, x))
        assert type(ops.rms_norm(mine)) is np.ndarray
    with pytest.raises(CallError, match="x is masked"):
        ops.softmax(np.ma.masked_array(x, x > 0))


# sizes and dtypes ---------------------------------------------------------------------------------------------------


def test_an_out_of_one_number_and_of_none():
    a, one = numbers(7), np.full((), POISON, np.float32)
    assert ops.matmul(a, a, out=one) is one and one == ops.matmul(a, a)
    for lead in ((0,), (2, 0)):
        x, out = numbers(*lead, 5), np.empty((*lead, 5), np.float32)
        assert ops.softmax(x, out=out) is out and ops.layer_norm(x, out=out) is out
        assert ops.linear(x, numbers(5, 5), out=out) is out
    out = np.full((5, 3), POISON, np.float32)
    assert ops.matmul(numbers(5, 0), numbers(0, 3), out=out) is out and not out.any()


@pytest.mark.share(12)
@calls
@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["rows", "batches exchanged"])
def test_an_out_of_another_float_is_rounded_once(name, dtype, layout):
    want, out = CALLS[name](), LAYOUTS[layout](SHAPE)[1].astype(dtype, order="K")
    assert CALLS[name](out=out) is out
    unit = max(float(ml_dtypes.finfo(dtype).eps), 64 * 2.0**-23)
    assert np.abs(out.astype(np.float64) - want).max() <= unit * np.abs(want).max()


def test_integer_products_go_into_integers_and_floats():
    a = np.random.default_rng(0).integers(-5, 6, (4, 9), np.int8)
    want = a.astype(int) @ a.T
    for dtype in (np.int32, np.int64, np.float32, np.float64):
        out = np.empty((4, 4), dtype)
        assert ops.matmul(a, a.T, out=out) is out
        np.testing.assert_array_equal(out, want)
    with pytest.raises(CallError, match="out is bool, but the result is i32"):
        ops.matmul(a, a.T, out=np.empty((4, 4), bool))


# refused ------------------------------------------------------------------------------------------------------------


def strided(strides):
    return lambda: np.lib.stride_tricks.as_strided(np.full(4096, POISON, np.float32), SHAPE, strides)


def read_only(layout):
    def make():
        out = LAYOUTS[layout](SHAPE)[1]
        out.flags.writeable = False
        return out

    return make


REFUSED = {
    "no strides": (strided((0, 0, 0, 4)), "out has several elements at one address"),
    "batches without a stride": (strided((0, 120, 24, 4)), "out has several elements at one address"),
    "rows that overlap": (strided((96, 32, 8, 4)), "out has several elements at one address"),
    "read-only": (read_only("rows"), "out is read-only"),
    "read-only and uneven": (read_only("batches exchanged"), "out is read-only"),
    "odd addresses": (
        lambda: np.frombuffer(bytearray(4 * 180 + 1), np.uint8)[1:].view(np.float32).reshape(SHAPE),
        "out has elements at addresses that are no multiples of 4 bytes",
    ),
    "other shape": (lambda: np.zeros((3, 2, 5, 6), np.float32), "out is 3x2x5x6, but the result is 2x3x5x6"),
    "one axis more": (lambda: np.zeros((1, *SHAPE), np.float32), "out is 1x2x3x5x6, but the result is 2x3x5x6"),
    "a number": (lambda: np.zeros((), np.float32), "out is one number, but the result is 2x3x5x6"),
    "integers": (lambda: np.zeros(SHAPE, np.int32), "out is i32, but the result is f32"),
    "bools": (lambda: np.zeros(SHAPE, bool), "out is bool, but the result is f32"),
    "complex": (lambda: np.zeros(SHAPE, np.complex64), "out is complex64, which no kernel takes"),
    "big-endian": (lambda: np.zeros(SHAPE, ">f4"), "out is >f4, which no kernel takes"),
    "objects": (lambda: np.zeros(SHAPE, object), "out is object, which no kernel takes"),
    "a list": (lambda: [0.0], "out is a list, not an array"),
    "a pair": (lambda: (np.zeros(SHAPE, np.float32),) * 2, "out is a tuple, not an array"),
    "masked": (lambda: np.ma.zeros(SHAPE, np.float32), "out is masked"),
}


@calls
@pytest.mark.parametrize("why", REFUSED)
def test_an_out_that_cannot_be_written_is_refused_and_left_alone(name, why):
    make, what = REFUSED[why]
    out = make()
    before = np.array(out, copy=True)
    with pytest.raises(CallError, match=what) as raised:
        CALLS[name](out=out)
    assert raised.value.loc.file == __file__ and raised.value.remedy
    np.testing.assert_array_equal(np.array(out), before)


def test_what_a_refused_out_is_told_to_be_is_taken():
    """The remedies name arrays of the result's shape and dtype, or none."""
    for why in ("no strides", "read-only", "odd addresses", "integers"):
        with pytest.raises(CallError) as raised:
            CALLS["softmax"](out=REFUSED[why][0]())
        assert "np.empty((2, 3, 5, 6), np.float32)" in raised.value.remedy
    with pytest.raises(CallError) as raised:
        CALLS["softmax"](out=REFUSED["other shape"][0]())
    assert raised.value.remedy == "pass an out of shape (2, 3, 5, 6), or none: it is allocated then"
    out = np.empty((2, 3, 5, 6), np.float32)
    np.testing.assert_array_equal(CALLS["softmax"](out=out), CALLS["softmax"]())


OVERLAPPING = {
    "itself": lambda x: x,
    "backwards": lambda x: x[:, ::-1],
    "turned": lambda x: x.swapaxes(0, 1),
    "of a derived class": lambda x: x.view(type("Mine", (np.ndarray,), {})),
}


@pytest.mark.parametrize("how", OVERLAPPING)
@pytest.mark.parametrize("beside", [False, True], ids=["first", "second"])
def test_an_out_that_overlaps_an_input_is_refused(how, beside):
    x = numbers(3, 3, 6, 6)
    before, other, out = x.copy(), numbers(3, 3, 6, 6, seed=1), OVERLAPPING[how](x)
    one, two = (other, x) if beside else (x, other)
    calls = [
        lambda: ops.matmul(one, two, out=out),
        lambda: ops.linear(one, W, residual=two, out=out),
        lambda: ops.rms_norm(one, residual=two, out=out),
        lambda: ops.attention(one, two, two, out=out),
        lambda: ops.attention(other, other, two, bias=one, out=out),
        lambda: ops.softmax(x, out=out),
        lambda: ops.softmax(x, 0, out=out),
        lambda: ops.layer_norm(x, out=out),
    ]
    for call in calls:
        with pytest.raises(CallError, match=r"out (may overlap|overlaps)") as raised:
            call()
        assert raised.value.loc.file == __file__
        np.testing.assert_array_equal(x, before)


def test_an_out_beside_an_input_in_one_array_is_written():
    both = np.full((4, 2, 6), POISON, np.float32)
    both[:, 0] = numbers(4, 6)
    x, out = both[:, 0], both[:, 1]
    want = ops.softmax(x.copy())
    assert ops.softmax(x, out=out) is out
    np.testing.assert_array_equal(out, want)


def test_every_call_looks_at_its_out():
    """Checked even where the call before had one of the same layout that could be written."""
    out = np.empty(SHAPE, np.float32)
    for _ in range(2):
        CALLS["softmax"](out=out)
    with pytest.raises(TilewaveError, match="overlaps"):
        ops.softmax(X, out=X)
