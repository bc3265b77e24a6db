"""The emulator's numbers and those of `machine/` were written down apart; here they meet."""

import numpy as np
import pytest

from tilewave.emulator.banks import WRITE_BANKS, access_cycles, bank_count, phases
from tilewave.emulator.chips import CHIP_NAMES, MOST_WAVES, OPINIONS, REGISTER_PIECE, REGISTERS, UNITS
from tilewave.emulator.matrix_table import INSTRUCTIONS
from tilewave.emulator.statistics import LANES
from tilewave.ir.types import DTYPES
from tilewave.machine.banks import cycles
from tilewave.machine.chips import CHIPS
from tilewave.machine.matrix import ALL

KINDS = ("read", "write")


def test_the_emulator_judges_every_amd_chip_that_kernels_are_compiled_for():
    assert {c.cpu for c in CHIPS.values() if c.vendor == "amd"} == set(CHIP_NAMES)


@pytest.mark.parametrize("chip", CHIP_NAMES)
def test_sizes(chip):
    ours, units = CHIPS[chip], CHIPS[chip].matrix_units
    assert (ours.lanes, ours.shared.bytes) == (LANES, OPINIONS[chip].shared_bytes)
    assert (units.count, units.waves, units.registers, units.register_grain) == (
        UNITS,
        MOST_WAVES,
        REGISTERS,
        REGISTER_PIECE,
    )
    assert max(ours.direct_load_bytes) * LANES <= OPINIONS[chip].direct_reach + 1
    assert ours.shared.bytes <= OPINIONS[chip].direct_reach + 1, "loads into shared memory reach all of it"


@pytest.mark.parametrize("chip", CHIP_NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_who_is_served_together(chip, kind):
    shared = CHIPS[chip].shared
    ours = shared.read_phases if kind == "read" else shared.write_phases
    for size, groups in ours.items():
        assert set(map(frozenset, groups)) == set(map(frozenset, phases(chip, kind, size))), size
        assert bank_count(chip, kind, size) == (shared.read_banks if kind == "read" else shared.write_banks)
    assert shared.write_banks == WRITE_BANKS


@pytest.mark.parametrize("chip", CHIP_NAMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_how_long_an_access_takes(chip, kind, size):
    choose = np.random.default_rng(size)
    for step in (size, 2 * size, 128, 132, 256 + size):
        addresses = choose.permutation(64) * step // size * size
        ideal, actual = cycles(CHIPS[chip].shared, addresses, size, kind)
        assert access_cycles(chip, kind, size, addresses.tolist(), [True] * 64) == (actual, ideal)


@pytest.mark.parametrize("chip", CHIP_NAMES)
def test_what_is_converted_by_an_instruction_is_what_the_emulator_converts(chip):
    ours = [DTYPES[name].numpy for name in CHIPS[chip].converts]
    assert ours == [np.dtype(OPINIONS[chip].float8[name]) for name in ("fp8", "bf8")]


@pytest.mark.parametrize("chip", CHIP_NAMES)
def test_matrix_instructions_and_their_8_bit_floats(chip):
    family = CHIPS[chip].matrix
    rows = [i for i in ALL if family in i.chips]
    assert rows and all(chip in INSTRUCTIONS[i.name].chips for i in rows)
    for row in rows:
        for name, dtype in zip(row.name.split("_")[2:], row.dtypes(family)[:2], strict=False):
            if name in OPINIONS[chip].float8:
                assert DTYPES[dtype].numpy == np.dtype(OPINIONS[chip].float8[name])
