"""Small kernels of the lane level as text, with lines that tests find by a mark after `//`."""

import numpy as np

from tilewave.errors import TilewaveError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.parse import parse
from tilewave.ir.verify import verify

START = """  %w = workgroup() : index
  %wave = wave() : index
  %lane = lane() : index
  %zero = const() {value = 0} : index
  %one = const() {value = 1} : index
  %four = const() {value = 4} : index
  %eight = const() {value = 8} : index
  %first = mul(%wave, %four) : index
  %t = add(%first, %lane) : index
  %far = add(%t, %four) : index
  %other = mod(%far, %eight) : index
  %leads = equal(%lane, %zero) : bool
"""
ROW = "{steps = [[0, 1]]}"
"""A lane's eight neighbours along a row."""
ORDERS = [("in turn", 0), ("backwards", 0), ("random", 0), ("random", 1), ("random", 2)]


def text_of(body, waves=2, workgroups=1, memories="%a: memory<8x8xf32, global>, %c: memory<8x8xf32, global>"):
    head = f"kernel @k {{workgroups = {workgroups}, level = lane, waves = [{waves}, 1], lanes = 4}} ({memories}) {{\n"
    return head + START + body.replace("ROW", ROW) + "}\n"


def line_of(text, mark):
    """The number of the one line that ends in `// mark`."""
    (number,) = (n for n, line in enumerate(text.split("\n"), 1) if line.endswith(f"// {mark}"))
    return number


def run_text(text, order="in turn", seed=0, arrays=None, workgroups=None):
    """Row t of an 8x8 `a` belongs to lane t % 4 of wave t // 4; a failed run changes no array."""
    if arrays is None:
        arrays = [np.arange(64, dtype=np.float32).reshape(8, 8), np.full((8, 8), np.nan, np.float32)]
    before = [x.copy() for x in arrays]
    try:
        interpret_lanes(verify(parse(text, "k.ir")), arrays, {}, order, seed, workgroups)
    except TilewaveError:
        for now, then in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(now, then, "a failed run changed an array")
        raise
    return arrays
