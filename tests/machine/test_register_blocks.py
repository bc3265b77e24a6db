"""Blocks of sums in a CPU's vector registers: they divide a tile's, and leave room for the operands of a step."""

import pytest

from tilewave.machine.register_blocks import STREAMS, VECTORS, block_of, dots_of

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 14, 16, 24, 28, 30, 32, 64, 96, 128)


def registers_of(high, wide):
    """Return the registers of a step: the sums, a row of b, and an element of a."""
    return high * wide + wide + 1


@pytest.mark.parametrize("registers", [16, 32])
def test_a_block_divides_the_tile_and_fits_the_registers(registers):
    for rows in SIZES:
        for vectors in SIZES:
            high, wide = block_of(registers, rows, vectors)
            assert rows % high == 0 and vectors % wide == 0 and registers_of(high, wide) <= registers


@pytest.mark.parametrize("registers", [16, 32])
def test_no_larger_block_with_as_many_rows_fits(registers):
    for rows in SIZES:
        for vectors in SIZES:
            high, wide = block_of(registers, rows, vectors)
            wider = (w for w in range(wide + 1, vectors + 1) if vectors % w == 0)
            assert all(registers_of(high, w) > registers for w in wider)
            higher = (h for h in range(high + 1, rows + 1) if rows % h == 0)
            assert all(registers_of(h, min(VECTORS, vectors)) > registers for h in higher)


def test_blocks_of_common_tiles():
    assert block_of(16, 6, 2) == (6, 2) and block_of(32, 14, 2) == (14, 2) and block_of(32, 30, 1) == (30, 1)
    assert block_of(16, 64, 8) == (4, 2) and block_of(16, 1, 8) == (1, 4)


def test_dots_read_few_operands_in_parallel():
    assert dots_of(8, 8) == (2, 4) and dots_of(8, 3) == (4, 3) and dots_of(3, 6) == (1, 3)
    assert all(max(dots_of(rows, columns)) <= STREAMS for rows in SIZES for columns in SIZES)
