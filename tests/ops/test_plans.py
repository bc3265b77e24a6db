"""Calls with arrays of a known layout are launched at once; other layouts are analyzed."""

import numpy as np
import pytest

from tilewave import ops
from tilewave.errors import CallError
from tilewave.ops import attending, products, rows
from tilewave.ops.plans import MOST_NEW

RANDOM = np.random.default_rng(0)


def floats(*shape, dtype=np.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


@pytest.fixture
def looks(monkeypatch):
    """How often an operation was asked what a call comes to."""
    found = []
    for operated in (rows.softmax, rows.rms_norm, products.matmul, products.linear, attending.attention):

        def work(*args, asked=operated.work):
            found.append(1)
            return asked(*args)

        monkeypatch.setattr(operated, "work", work)
        for name, empty in (("kept", {}), ("once", set()), ("new", 0)):
            monkeypatch.setattr(operated, name, empty)
    return found


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True), dtype=np.float64)
    return powers / powers.sum(-1, keepdims=True)


def near(found, want):
    assert found.shape == want.shape
    assert np.allclose(found, want, atol=64 * np.finfo(found.dtype).eps * np.abs(want).max())


@pytest.mark.parametrize(
    ("call", "want"),
    [
        (ops.softmax, softmax),
        (lambda x: ops.rms_norm(x, x[0], 0.5), lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 0.5) * x[0]),
        (lambda x: ops.matmul(x, x.T), lambda x: x @ x.T),
        (lambda x: ops.matmul(x[None], x.T), lambda x: x[None] @ x.T),
        (lambda x: ops.linear(x, x, x[:, 0], activation="relu"), lambda x: np.maximum(x @ x.T + x[:, 0], 0)),
        (lambda x: ops.attention(x, x, x, scale=1.0), lambda x: softmax(x @ x.T) @ x),
    ],
    ids=["softmax", "rms_norm", "matmul", "batched", "linear", "attention"],
)
def test_a_call_like_one_before_is_not_looked_at(call, want, looks):
    first, second, third = (floats(16, 16) for _ in range(3))
    found = call(first)
    near(found, want(first))
    assert len(looks) == 1
    again = call(second)
    near(again, want(second))
    near(call(third), want(third))
    near(again, want(second))  # each call has separate results
    near(found, want(first))
    assert len(looks) == 1


def test_which_array_is_which_does_not_follow_from_where_they_are(looks):
    """What was kept of a product of an array with itself serves two arrays."""
    x, y = floats(16, 16), floats(16, 16)
    near(ops.matmul(x, x), x @ x)
    near(ops.matmul(x, y), x @ y)
    near(ops.matmul(y, x), y @ x)
    assert len(looks) == 1


def test_an_address_off_cache_lines_needs_no_look(looks):
    """No code of CPUs depends on it."""
    shifted = floats(16 * 16 + 1)[1:].reshape(16, 16)
    ops.softmax(floats(16, 16))
    near(ops.softmax(shifted), softmax(shifted))
    assert len(looks) == 1


def test_an_address_off_elements_is_refused_though_one_of_its_layout_was_taken():
    whole, other = floats(16, 16), floats(16, 16)
    odd = np.frombuffer(b"\0" + other.tobytes(), np.float32, 256, 1).reshape(16, 16)
    assert not odd.flags.aligned
    for x in (whole, odd.copy()):
        near(ops.matmul(x, other), x.astype(float) @ other)
    with pytest.raises(CallError, match="no multiples of 4 bytes"):
        ops.matmul(odd, other)


@pytest.mark.parametrize(
    "otherwise",
    [
        floats(24, 16),
        floats(16, 24),
        floats(16, 16, dtype=np.float64),
        floats(16, 16).T,
        floats(16, 32)[:, :16],
        floats(16, 20)[:, :16],
        floats(16, 16)[::-1],
        np.broadcast_to(floats(16), (16, 16)),
        floats(2, 16, 16),
    ],
    ids=["longer", "wider", "f64", "transposed", "gaps", "narrow gaps", "backwards", "repeated", "stacked"],
)
def test_what_lies_otherwise_is_looked_at(otherwise, looks):
    ops.softmax(floats(16, 16))
    near(ops.softmax(otherwise), softmax(otherwise))
    assert len(looks) == 2
    ops.softmax(floats(16, 16))
    assert len(looks) == 2


def test_elements_at_odd_addresses_are_refused_whatever_came_before(looks):
    ops.softmax(floats(16, 16))
    odd = np.frombuffer(bytes(16 * 16 * 4 + 1), np.float32, offset=1).reshape(16, 16)
    with pytest.raises(CallError, match="no multiples of 4 bytes"):
        ops.softmax(odd)


def test_other_numbers_and_words_are_other_calls(looks):
    x, w = floats(16, 16), floats(16)
    scale = (x * x).mean(-1, keepdims=True)
    for eps in (0.5, 0.25, 0.5):
        near(ops.rms_norm(x, w, eps), x / np.sqrt(scale + eps) * w)
    assert len(looks) == 2
    near(ops.linear(x, x, activation="relu"), np.maximum(x @ x.T, 0))
    near(ops.linear(x, x), x @ x.T)
    assert len(looks) == 4


def test_an_out_that_overlaps_nothing_is_not_looked_at_again(looks):
    out = np.empty((16, 16), np.float32)
    for x in (floats(16, 16), floats(16, 16)):
        assert ops.softmax(x, out=out) is out
        near(out, softmax(x))
    assert len(looks) == 1
    out.flags.writeable = False
    with pytest.raises(CallError, match="read-only"):
        ops.softmax(x, out=out)


@pytest.mark.parametrize("shift", [0, 1, 15, 16 * 16 - 1, -1, -16 * 16 + 1])
def test_an_out_that_overlaps_is_found_though_another_of_its_layout_did_not(shift, looks):
    """One element in common is enough."""
    memory, size = np.zeros(4 * 256, np.float32), 16 * 16
    x = memory[256 : 256 + size].reshape(16, 16)
    x[...] = floats(16, 16)
    apart = memory[512 + shift % 16 :][:size].reshape(16, 16)
    out = memory[256 + shift :][:size].reshape(16, 16)
    near(ops.softmax(x, out=apart), softmax(x))
    before = memory.copy()
    with pytest.raises(CallError, match="overlaps"):
        ops.softmax(x, out=out)
    assert np.array_equal(memory, before)
    for beside in (memory[:size], memory[512 : 512 + size]):
        near(ops.softmax(x, out=beside.reshape(16, 16)), softmax(x))


def test_what_needed_a_copy_needs_it_again(looks):
    """The rows have no uniform stride."""
    for _ in range(2):
        x = floats(4, 8, 16)[:, :7]
        near(ops.softmax(x), softmax(x))
    assert len(looks) == 2


def test_products_that_are_put_back_are_put_back_again(looks):
    """A result with more batch axes than a grid has, without uniform strides, is computed in another array."""
    a, b = floats(2, 2, 2, 2, 4, 8), floats(2, 2, 2, 2, 8, 4)
    for _ in range(2):
        out = np.zeros((2, 2, 3, 2, 4, 4), np.float32)[:, :, :2].transpose(3, 1, 2, 0, 4, 5)
        assert ops.matmul(a, b, out=out) is out
        near(out, a @ b)
    assert len(looks) == 2


def test_many_kinds_of_calls_are_not_all_kept(looks, monkeypatch):
    monkeypatch.setattr("tilewave.ops.plans.KEPT_PLANS", 3)
    for columns in range(1, 6):
        ops.softmax(floats(2, columns))
    assert len(rows.softmax.kept) <= 3


def test_a_plan_is_made_of_sizes_that_come_again_where_all_are_new(looks):
    for columns in range(1, 9):
        ops.softmax(floats(2, columns))
    assert len(rows.softmax.kept) == MOST_NEW
    for count in (9, 9):
        near(ops.softmax(x := floats(2, 8)), softmax(x))
        assert len(looks) == count
    assert len(rows.softmax.kept) == MOST_NEW + 1
