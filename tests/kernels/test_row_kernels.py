"""The kernels on rows that come along, against references with more digits, on every target that runs here."""

import numpy as np
import pytest
import row_kernels as of
from row_kernels import EPS, check_call, check_compiled

from tilewave import *
from tilewave import kernels as shipped
from tilewave.errors import CallError, DTypeError
from tilewave.kernels import Rows

WAYS = ["numpy", "cpu", "lanes of gfx942", "lanes of gfx950", "lanes of sm_90a", "gfx942", "gfx950"]
HELD, WALKED = Rows(2), Rows(2, 32)
PROBLEMS = {
    "softmax": lambda m, n, dtype: of.softmax(m, n, dtype),
    "log_softmax": lambda m, n, dtype: of.log_softmax(m, n, dtype),
    "cross_entropy": lambda m, n, dtype: of.cross_entropy(m, n, dtype),
    "layer_norm": lambda m, n, dtype: of.layer_norm(m, n, dtype, weight=dtype, bias=f32),
    "rms_norm": lambda m, n, dtype: of.rms_norm(m, n, dtype, weight=dtype, residual=dtype),
    "sum": lambda m, n, dtype: of.sum_(m, n, dtype),
    "cumsum": lambda m, n, dtype: of.cumsum(m, n, dtype),
    "argmax": lambda m, n, dtype: of.argmax(m, n, dtype),
}
names = pytest.mark.parametrize("name", PROBLEMS)


def rows_of(name, rows):
    return Rows(2, 32) if name == "cumsum" else rows


@names
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [HELD, WALKED], ids=["held", "walked"])
@pytest.mark.share(3)
def test_small_rows_everywhere(name, way, rows):
    if name == "cumsum" and rows == HELD:
        pytest.skip("cumsum always walks")
    check_compiled(PROBLEMS[name](5, 37, f16), way, rows_of(name, rows))
    check_compiled(PROBLEMS[name](3, 96, f32), way, rows_of(name, rows))
