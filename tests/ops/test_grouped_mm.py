"""ops.grouped_mm beside float64 numpy: its three forms, layouts, dtypes, counts, and what is refused."""

import ml_dtypes
import numpy as np
import pytest

from tilewave import ops
from tilewave.errors import CallError, DTypeError

COUNTS = [[3, 0, 37, 17, 0, 33], [0, 64, 0], [1] * 20, [100]]


def operands(form, counts, rng, dtype=np.float32, m=40, n=24, k=33):
    rows, groups = sum(counts), len(counts)
    shapes = {
        "rows": ((rows, k), (groups, k, n)),
        "columns": ((groups, m, k), (k, rows)),
        "sums": ((m, rows), (rows, n)),
    }
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in shapes[form])
    return a, b, np.cumsum(counts).astype(np.int32)


def expected(form, a, b, ends):
    a, b = a.astype(np.float64), b.astype(np.float64)
    bounds = [*zip((0, *ends[:-1]), ends, strict=True)]
    match form:
        case "rows":
            return np.concatenate([a[s:e] @ b[g] for g, (s, e) in enumerate(bounds)])
        case "columns":
            return np.concatenate([a[g] @ b[:, s:e] for g, (s, e) in enumerate(bounds)], axis=1)
        case _:
            return np.stack([a[:, s:e] @ b[s:e] for s, e in bounds])


def want_near(found, wanted, depth, eps):
    assert found.shape == wanted.shape
    largest = np.abs(wanted).max(initial=1)
    assert (
        np.abs(found.astype(np.float64) - wanted).max(initial=0)
        <= 4 * (depth * np.finfo(np.float32).eps + eps) * largest
    )


@pytest.mark.parametrize("form", ["rows", "columns", "sums"])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_the_forms(form, counts, dtype):
    a, b, ends = operands(form, counts, np.random.default_rng(0), dtype)
    eps = float(ml_dtypes.finfo(dtype).eps)
    want_near(ops.grouped_mm(a, b, ends), expected(form, a, b, ends), 100, eps)


@pytest.mark.parametrize("form", ["rows", "columns", "sums"])
def test_transposed_operands_and_a_given_result(form):
    a, b, ends = operands(form, COUNTS[0], np.random.default_rng(1))
    a, b = (np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) for x in (a, b))
    wanted = expected(form, a, b, ends)
    out = np.full(wanted.shape, np.nan, np.float32)
    assert ops.grouped_mm(a, b, ends.astype(np.int64), out=out) is out
    want_near(out, wanted, 100, 0)


def test_rows_of_other_groups_do_not_change_a_sum():
    """Not even infinities and NaNs."""
    a, b, ends = operands("sums", [5, 27, 9], np.random.default_rng(2))
    wanted = expected("sums", a, b, ends)
    a[:, 0], b[40], a[:, 33] = np.inf, np.nan, np.nan
    want_near(ops.grouped_mm(a, b, ends)[1], wanted[1], 100, 0)


def test_its_kernel():
    a, b, ends = operands("rows", COUNTS[0], np.random.default_rng(0))
    assert ops.grouped_mm.kernel(a, b, ends).name == "grouped_product"
    assert ops.grouped_mm.kernel(*operands("sums", COUNTS[0], np.random.default_rng(0))).name == "grouped_sum"


def test_what_does_not_go_together_is_refused():
    a, b, ends = operands("rows", COUNTS[0], np.random.default_rng(0))
    for wrong in ((a, b[:, :-1], ends), (a, b[:-1], ends), (a[None], b, ends), (a, b, ends[None]), (a, b, ends[:0])):
        with pytest.raises(CallError, match="grouped_mm"):
            ops.grouped_mm(*wrong)
    with pytest.raises(DTypeError):
        ops.grouped_mm(a, b, ends.astype(np.float32))
    with pytest.raises(DTypeError):
        ops.grouped_mm(a, b.astype(np.float16), ends)
    out = np.full((5, 5), np.nan, np.float32)
    with pytest.raises(CallError):
        ops.grouped_mm(a, b, ends, out=out)
    assert np.isnan(out).all()
