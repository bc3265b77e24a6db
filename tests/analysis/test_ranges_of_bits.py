"""The ranges of ops on bits hold every result, of all operands in some ranges of bytes."""

from itertools import combinations_with_replacement, product

import numpy as np
import pytest

from tilewave.analysis.ranges import range_of
from tilewave.interp.arithmetic import elementwise
from tilewave.ir.core import Value
from tilewave.ir.ops import Add, BitAnd, BitOr, FloorDiv, Max, Mod, Mul, ShiftLeft, ShiftRight, Sub, Xor
from tilewave.ir.types import I8, U8, Scalar, Tile

ENDS = {"i8": (-128, -127, -9, -1, 0, 1, 5, 7, 8, 126, 127), "u8": (0, 1, 3, 7, 8, 9, 127, 128, 254, 255)}


@pytest.mark.parametrize("dtype", [I8, U8], ids=str)
@pytest.mark.parametrize("cls", [BitAnd, BitOr, Xor, ShiftLeft, ShiftRight, Add, Sub, Mul, FloorDiv, Mod, Max])
def test_no_result_is_outside_the_range(cls, dtype):
    given = list(combinations_with_replacement(ENDS[dtype.name], 2))
    least, _ = dtype.bounds
    every = np.arange(256) + least
    kind = Tile((256, 256), dtype)
    a, b = Value("a", kind), Value("b", kind)
    operands = [np.broadcast_to(x, (256, 256)).astype(dtype.numpy) for x in (every[:, None], every[None, :])]
    results = elementwise(cls(a, b, results=(Value("c", kind),)), operands).astype(int)
    x, y = Value("x", Scalar(dtype)), Value("y", Scalar(dtype))
    op = cls(x, y, results=(Value("z", Scalar(dtype)),))
    for first, second in product(given, given[::3]):
        low, high = range_of(op, {x: first, y: second}.__getitem__)
        inside = results[first[0] - least : first[1] + 1 - least, second[0] - least : second[1] + 1 - least]
        assert low <= inside.min() <= inside.max() <= high, f"{first} {second}: {low} to {high}"


def test_a_mask_and_a_shift_bound_an_index():
    """So that lanes compute with 32 bits after a mask."""
    x, y = Value("x", Scalar(I8)), Value("y", Scalar(I8))
    result = (Value("z", Scalar(I8)),)
    assert range_of(BitAnd(x, y, results=result), {x: (-128, 127), y: (15, 15)}.__getitem__) == (0, 15)
    assert range_of(ShiftRight(x, y, results=result), {x: (-128, 127), y: (4, 4)}.__getitem__) == (-8, 7)
    assert range_of(ShiftLeft(x, y, results=result), {x: (0, 3), y: (2, 2)}.__getitem__) == (0, 12)
