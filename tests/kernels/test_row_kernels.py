"""The kernels on rows that come along, against references with more digits, on every target that runs here."""

import subprocess
import sys

import kernels
import ml_dtypes
import numpy as np
import pytest
import row_kernels as of
from row_kernels import EPS, check_call, check_compiled

from tilewave import *
from tilewave import kernels as shipped
from tilewave.errors import CallError, DTypeError
from tilewave.kernels import Rows

pytestmark = pytest.mark.share(12)

WAYS = ["numpy", "cpu", "lanes of gfx942", "lanes of gfx950", "lanes of sm_90a", "gfx942", "gfx950"]
LANES = ["lanes of gfx942", "lanes of sm_90a"]
HELD, WALKED = Rows(2), Rows(2, 32)
FLOATS = [f64, f32, f16, bf16]
PROBLEMS = {
    "softmax": of.softmax,
    "log_softmax": of.log_softmax,
    "cross_entropy": of.cross_entropy,
    "layer_norm": lambda m, n, dtype, **more: of.layer_norm(m, n, dtype, weight=dtype, bias=f32, **more),
    "rms_norm": lambda m, n, dtype, **more: of.rms_norm(m, n, dtype, weight=dtype, residual=dtype, **more),
    "sum": of.sum_,
    "argmax": of.argmax,
    "cumsum": of.cumsum,
}
HELD_OR_WALKED = [(name, rows) for name in PROBLEMS for rows in (HELD, WALKED) if name != "cumsum" or rows.step]
names = pytest.mark.parametrize("name", PROBLEMS)
either = pytest.mark.parametrize("name, rows", HELD_OR_WALKED, ids=lambda x: x if isinstance(x, str) else str(x.step))
softmaxes = pytest.mark.parametrize("name", ["softmax", "log_softmax", "cross_entropy"])


# -- every target, dtype, length and kind of data --------------------------------------------------------------------


@either
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.share(12)
def test_small_rows_everywhere(name, rows, way):
    check_compiled(PROBLEMS[name](5, 37, f16), way, rows)
    check_compiled(PROBLEMS[name](3, 96, f32), way, rows)


@names
@pytest.mark.parametrize("way", ["lanes of gfx942", "lanes of gfx950", "lanes of sm_90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("n", [1000, 3001])
@pytest.mark.share(12)
def test_rows_as_calls_take_them(name, way, n):
    """Several rows to a workgroup, one a wave, and one row that several waves share."""
    check_compiled(PROBLEMS[name](5 if n == 1000 else 1, n, f16), way)


@either
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_dtype_in_the_interpreter(name, rows, dtype):
    check_compiled(PROBLEMS[name](3, 70, dtype), "numpy", rows)


@names
@pytest.mark.parametrize("dtype", [f64, bf16], ids=str)
@pytest.mark.share(8)
def test_every_dtype_on_the_cpu(name, dtype):
    check_call(PROBLEMS[name](3, 70, dtype))


@either
@pytest.mark.parametrize("way", LANES)
@pytest.mark.share(12)
def test_bf16_on_lanes(name, rows, way):
    check_compiled(PROBLEMS[name](3, 70, bf16), way, rows)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "sum", "argmax", "cumsum"])
@pytest.mark.parametrize("way", LANES)
@pytest.mark.share(8)
def test_f64_on_lanes_where_gpus_have_its_functions(name, way):
    check_compiled(PROBLEMS[name](3, 70, f64), way, WALKED if name == "cumsum" else HELD)


@pytest.mark.parametrize("dtype", [f8e4m3fn, f8e5m2, f8e4m3fnuz, f8e5m2fnuz, i8, i32, i64], ids=str)
@pytest.mark.parametrize("way", ["numpy", "cpu", *LANES])
@pytest.mark.parametrize("name", ["sum", "argmax", "cumsum"])
@pytest.mark.share(12)
def test_bytes_and_integers(name, way, dtype):
    for rows in (HELD, WALKED) if name != "cumsum" else (WALKED,):
        check_compiled(PROBLEMS[name](3, 70, dtype), way, rows)


@names
@pytest.mark.parametrize("m, n", [(1, 1), (3, 2), (5, 13), (0, 16), (70, 16)])
def test_rows_of_one_number_and_no_rows_at_all(name, m, n):
    check_call(PROBLEMS[name](m, n, f32))


@names
@pytest.mark.parametrize("m, n", [(2, 257), (3, 1000), (2, 5120), (1, 65537)])
@pytest.mark.share(12)
def test_longer_rows_on_the_cpu(name, m, n):
    check_call(PROBLEMS[name](m, n, f32))


@softmaxes
@pytest.mark.parametrize("rows", [HELD, WALKED], ids=["held", "walked"])
@pytest.mark.parametrize("way", ["numpy", "cpu", *LANES])
@pytest.mark.parametrize("kind", of.KINDS)
@pytest.mark.share(8)
def test_masked_and_offset_rows(name, rows, way, kind):
    """Includes rows that begin with many -inf, where a loop over the row has found nothing yet."""
    problem = PROBLEMS[name](4, 70, f32, kind=kind)
    check_compiled(problem, way, rows)


@pytest.mark.parametrize("rows", [HELD, WALKED], ids=["held", "walked"])
@pytest.mark.parametrize("way", ["numpy", "cpu", *LANES])
@pytest.mark.parametrize("kind", ["offset", "one value"])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.share(6)
def test_norms_of_rows_far_from_0(name, rows, way, kind):
    check_compiled(PROBLEMS[name](3, 70, f32, kind=kind), way, rows)


def test_rows_without_a_number_are_as_in_numpy():
    x = np.array([[-np.inf] * 3, [0, np.inf, 1], [0, np.nan, 1], [-np.inf, 0, -np.inf]], np.float32)
    with np.errstate(invalid="ignore"):
        powers = np.exp(x - x.max(axis=1, keepdims=True))
        want = powers / powers.sum(axis=1, keepdims=True)
    for rows in (HELD, Rows(2, 2)):
        y = np.zeros_like(x)
        shipped.softmax_kernel(rows, f32, f32)(x, y)
        np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("rows", [HELD, WALKED], ids=["held", "walked"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
@pytest.mark.share(8)
def test_softmax_of_the_first_columns(rows, way, dtype):
    lengths = np.array([70, 0, 1, 33, -(2**31), 2**31 - 1, -1, 64, 69], np.int32)
    x, y = of.rows_of("normal", len(lengths), 70, dtype), np.full((len(lengths), 70), np.nan, dtype.numpy)
    x[3, 33:] = np.nan  # what is masked has no effect
    target = way.removeprefix("lanes of ")
    options = {"max_sizes": {kernels.N: 96}, "target": "cpu" if way == "numpy" else target}
    made = shipped.masked_softmax_kernel(rows, dtype, i32, dtype).compile(**options)
    level = {"level": "lane"} if way != target else {}
    (made if way == "cpu" else made.emulate if way in ("gfx942", "gfx950") else made.interpret)(x, lengths, y, **level)
    counts = np.arange(70) < lengths[:, None]
    powers = np.exp(np.where(counts, x, -np.inf).astype(np.float64))
    want = np.where(counts, powers / np.maximum(powers.sum(axis=1, keepdims=True), 1e-300), 0)
    eps = float(ml_dtypes.finfo(dtype.numpy).eps)
    assert (y[~counts] == 0).all()
    assert (np.abs(y - want) <= (eps / 2 + 40 * 2.0**-24) * want + 2.0**-24).all()


def test_lengths_are_integers_and_may_be_beyond_32_bits():
    x, y = np.zeros((2, 8), np.float32), np.full((2, 8), np.nan, np.float32)
    shipped.masked_softmax(x, np.array([2**32 + 2, -(2**32) + 2]), y)
    assert (y[0] == 0.125).all() and (y[1] == 0).all()
    with pytest.raises(DTypeError, match="lengths is f32, but it counts columns"):
        shipped.masked_softmax(x, y[:, 0], y)


# -- what may be given -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [HELD, WALKED], ids=["held", "walked"])
@pytest.mark.parametrize("residual", [None, f16])
@pytest.mark.parametrize("weight", [None, f16, f32])
def test_rms_norm_takes_what_is_given(weight, residual, rows):
    check_compiled(of.rms_norm(3, 70, f16, weight=weight, residual=residual), "numpy", rows)


@pytest.mark.parametrize("rows", [HELD, WALKED], ids=["held", "walked"])
@pytest.mark.parametrize("weight, bias", [(None, None), (f16, None), (f16, f16), (f32, bf16)])
def test_layer_norm_takes_what_is_given(weight, bias, rows):
    check_compiled(of.layer_norm(3, 70, f16, weight=weight, bias=bias), "numpy", rows)


def test_calls_leave_out_what_they_do_not_have():
    for weight, residual in ((None, None), (f32, None), (None, f32), (f32, f32)):
        check_call(of.rms_norm(3, 16, f32, weight=weight, residual=residual))
    for weight, bias in ((None, None), (f32, None), (f32, f32)):
        check_call(of.layer_norm(3, 16, f32, weight=weight, bias=bias))


def test_a_norm_with_a_residual_is_that_of_the_total_it_writes():
    problem = of.rms_norm(4, 33, f16, weight=f16, residual=f16)
    shipped.rms_norm(**problem.arguments)
    again = np.full_like(problem.written["y"], np.nan)
    shipped.rms_norm(problem.written["total"], again, problem.given["weight"], EPS)
    np.testing.assert_array_equal(again, problem.written["y"])


@pytest.mark.parametrize("dtype, out", [(f16, f16), (f16, f64), (f32, f16), (i8, i64), (i32, i64), (i64, i32)])
def test_sums_are_written_in_any_dtype(dtype, out):
    for rows in (HELD, WALKED):
        check_compiled(of.sum_(3, 70, dtype, out=out), "numpy", rows)
    check_compiled(of.cumsum(3, 70, dtype, out=out), "numpy", WALKED)


@pytest.mark.parametrize("dtype, out", [(f16, f32), (f32, bf16), (bf16, f8e5m2)])
@softmaxes
def test_softmaxes_are_written_in_any_dtype(name, dtype, out):
    check_compiled(PROBLEMS[name](3, 70, dtype, out=out), "numpy", HELD)


@pytest.mark.parametrize("target", [i8, i32, i64])
def test_targets_of_any_width(target):
    check_compiled(of.cross_entropy(9, 70, f32, target=target), "numpy", HELD)


def test_targets_beyond_32_bits_are_no_columns():
    x, y = np.zeros((3, 16), np.float32), np.full(3, -1, np.float32)
    shipped.cross_entropy(x, np.array([2**32 + 5, -(2**32) + 5, 5]), y)
    assert y[0] == 0 and y[1] == 0 and y[2] > 0


def test_places_are_i32_or_i64():
    for out in (i32, i64):
        check_compiled(of.argmax(4, 70, f32, out=out, kind="masked rows"), "numpy", HELD)
        check_compiled(of.argmax(4, 70, f32, out=out, kind="masked rows"), "numpy", WALKED)


# -- layouts of arrays -------------------------------------------------------------------------------------------------


def lying(a, how):
    """Return a's numbers with gaps between columns or rows, or in column-major layout."""
    if how == "columns":
        wide = np.zeros((a.shape[0], 2 * a.shape[1] + 1), a.dtype)
        there = wide[:, 1::2]
    elif how == "rows":
        there = np.zeros((3 * a.shape[0], a.shape[1] + 5), a.dtype)[::3, 2:-3]
    else:
        there = np.zeros(a.shape[::-1], a.dtype).T
    there[...] = a
    return there


@names
@pytest.mark.parametrize("how", ["columns", "rows", "transposed"])
def test_strided_rows(name, how):
    problem = PROBLEMS[name](3, 16, f32)
    for arrays in (problem.given, problem.written):
        arrays.update({of: lying(a, how) for of, a in arrays.items() if a.ndim == 2})
    check_call(problem)


def test_strided_rows_on_lanes():
    for how in ("columns", "transposed"):
        problem = of.softmax(3, 37, f16)
        problem.given["x"], problem.written["y"] = (lying(a, how) for a in (problem.given["x"], problem.written["y"]))
        check_compiled(problem, "lanes of sm_90a", HELD)


class Rigged(np.ndarray):
    """An array that must be looked at closely."""


def test_arrays_of_other_libraries():
    problem = of.softmax(3, 16, f32)
    problem.given["x"] = problem.given["x"].view(Rigged)
    check_call(problem)


# -- laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "sum", "cumsum"])
def test_a_row_does_not_depend_on_other_rows(name):
    problem = PROBLEMS[name](70, 16, f32)
    check_call(problem)
    for row in (0, 41, 69):
        alone = {of: a[row : row + 1] for of, a in problem.given.items() if of == "x"}
        y = np.full_like(problem.written["y"][:1], np.nan)
        rest = {of: a for of, a in {**problem.given, **problem.numbers}.items() if of != "x"}
        getattr(shipped, name)(**alone, **rest, y=y)
        np.testing.assert_array_equal(y[0], problem.written["y"][row])


def test_a_kernel_is_made_once_for_a_kind_of_call():
    x, y = np.zeros((3, 1000), np.float32), np.zeros((3, 1000), np.float32)
    first = shipped.kernel_for(shipped.softmax_kernel, x=x, y=y)
    assert shipped.kernel_for(shipped.softmax_kernel, x=x[:2, :600], y=y[:2, :600]) is first
    assert shipped.kernel_for(shipped.softmax_kernel, x=x.view(Rigged), y=y) is first
    assert shipped.kernel_for(shipped.softmax_kernel, x=x[:, :100], y=y[:, :100]) is not first
    assert shipped.kernel_for(shipped.softmax_kernel, x=x.astype(np.float64), y=y) is not first
    assert shipped.kernel_for(shipped.log_softmax_kernel, x=x, y=y) is not first


def test_rows_are_held_as_long_as_a_workgroup_s_registers_have_room_for_them():
    for target in ("gfx942", "gfx950", "sm_90a"):
        assert shipped.rows_for(target, 65536, f16) == Rows(1)
        assert shipped.rows_for(target, 65537, f16) == Rows(1, 8192)
        assert shipped.rows_for(target, 32769, f32) == Rows(1, 4096)
        assert shipped.rows_for(target, 65537, f8e5m2) == Rows(1, 16384)
    assert shipped.rows_for("cpu", 10**7, f64).step is None
    assert [shipped.rows_for("sm_90a", n, f16).together for n in (1, 128, 256, 768, 769)] == [64, 8, 4, 4, 1]
    assert [shipped.rows_for("cpu", n, f16).together for n in (1, 256, 4096)] == [64, 16, 1]


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm"])
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.share(6)
def test_the_longest_rows_that_are_held_compile_without_spills(name, target):
    kernel = PROBLEMS[name](1, 1, f16).kernel(shipped.rows_for(target, 65536, f16))
    for length in ({"max_sizes": {kernels.N: 65536}}, {"subs": {kernels.N: 65536}}):
        assert wave_compile(WaveCompileOptions(target=target, **length), kernel).resources.spills == 0


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm"])
@pytest.mark.parametrize("way", ["gfx942", "lanes of sm_90a"])
@pytest.mark.parametrize("columns", [16384, 13000, 12999])
@pytest.mark.share(6)
def test_rows_that_lanes_cannot_hold_in_f32(name, way, columns):
    """As long as their kernel takes them; shorter by whole loads of 16 bytes; and by a part of one."""
    check_compiled(PROBLEMS[name](2, columns, f16), way)


def test_kernels_are_there_when_they_are_asked_for():
    script = "import sys, tilewave\nassert 'tilewave.kernels' not in sys.modules\nprint(tilewave.kernels.sum.__doc__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{shipped.sum.__doc__}\n"


# -- what is refused -------------------------------------------------------------------------------------------------

ROWS, ROW, WHOLE = np.zeros((3, 16), np.float32), np.zeros(16, np.float32), np.zeros((3, 16), np.int64)
REFUSED = [
    (lambda y: shipped.softmax([1], y), CallError, "softmax: x is a list, not an array"),
    (lambda y: shipped.softmax(ROW, y), CallError, "softmax: x has 1 axes, but it takes rows and columns"),
    (lambda y: shipped.softmax(WHOLE, y), DTypeError, "softmax: x is i64, but it takes floats"),
    (lambda y: shipped.softmax(ROWS, y[:2]), CallError, "softmax: M is 3 by x, but 2 by y"),
    (lambda y: shipped.softmax(ROWS[:, :0], y[:, :0]), CallError, "softmax: N is 0, and of no elements there is no"),
    (lambda y: shipped.layer_norm(ROWS, y, ROW[:5]), CallError, "layer_norm: N is 16 by x, but 5 by weight"),
    (lambda y: shipped.layer_norm(ROWS, y, bias=ROW), CallError, "layer_norm: there is a bias, but no weight"),
    (lambda y: shipped.rms_norm(ROWS, y, residual=ROWS), CallError, "rms_norm: x + residual goes to total"),
    (lambda y: shipped.rms_norm(ROWS, ROWS), CallError, "rms_norm: x overlaps y, but the kernel writes y"),
    (lambda y: shipped.softmax(None, y), CallError, "softmax: x is None, not an array"),
    (lambda y: shipped.softmax(ROWS, None), CallError, "softmax: y is None, not an array"),
    (lambda y: shipped.layer_norm(None, y), CallError, "layer_norm: x is None, not an array"),
    (lambda y: shipped.sum(ROWS, None), CallError, "sum: y is None, not an array"),
    (lambda y: shipped.cumsum(ROWS, None), CallError, "cumsum: y is None, not an array"),
    (lambda y: shipped.argmax(None, y), CallError, "argmax: x is None, not an array"),
    (lambda y: shipped.cross_entropy(ROWS, None, y[:, 0]), CallError, "cross_entropy: target is None, not an array"),
    (lambda y: shipped.sum(ROWS, WHOLE[:, 0]), DTypeError, "sum: y is i64, but sums of f32 are f32"),
    (lambda y: shipped.argmax(ROWS, y[:, 0]), DTypeError, "argmax: y is f32, but it takes columns, i32 or i64"),
    (lambda y: shipped.cross_entropy(ROWS, ROW[:3], y[:, 0]), DTypeError, "target is f32, but it names columns"),
]


@pytest.mark.parametrize("call, error, message", REFUSED, ids=[message.partition(",")[0] for *_, message in REFUSED])
def test_what_does_not_fit_is_refused_and_nothing_is_touched(call, error, message):
    y = np.full((3, 16), 5, np.float32)
    with pytest.raises(error) as found:
        call(y)
    assert message in str(found.value)
    assert found.value.loc.file == __file__ and found.value.remedy
    assert (y == 5).all()


def test_sums_of_nothing_are_0():
    y = np.full(3, np.nan, np.float32)
    shipped.sum(ROWS[:, :0], y)
    assert (y == 0).all()
