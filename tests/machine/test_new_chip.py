"""A chip of a known vendor is one record: nothing else is edited, and passes, backends and messages follow it."""

import ast
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from kernels import check_product, gemm, poisoned, random_array, sizes

import tilewave
from tilewave import *
from tilewave.backend.amd.build import build_amd
from tilewave.backend.nvidia.build import build_nvidia
from tilewave.errors import ConstraintError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.constraint_locations import Places
from tilewave.machine.chips import (
    CHIPS,
    GFX942,
    GFX950,
    SM_90A,
    Chip,
    MatrixUnits,
    SharedMemory,
    consecutive,
)
from tilewave.passes.grid.set_occupancy import SetOccupancy

SHAPE = (1024, 1024, 256)
SMALL = replace(GFX942, name="gfx94x", shared=replace(GFX942.shared, bytes=24 << 10))
"""As gfx942, which LLVM takes it for, with less shared memory."""
NARROW = replace(SM_90A, name="sm_90a_114", processors=114, shared=replace(SM_90A.shared, bytes=100 << 10))
"""As the cards that are sold with fewer processors; and with less shared memory."""


@pytest.fixture(autouse=True)
def _nothing_from_the_cache(monkeypatch):
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", "off")


def tiles(*tile, shape=SHAPE, **kinds):
    return wave_compile(WaveCompileOptions(subs=sizes(*shape, *tile), target="numpy"), gemm(**kinds)).kernel


def check_lanes(lanes, shape):
    choose = np.random.default_rng(0)
    a, b = (random_array(choose, (extent, shape[2]), f16) for extent in shape[:2])
    c = poisoned(shape[:2], f32)
    interpret_lanes(lanes, [a, b, c], {}, "in turn", 0)
    check_product(c, a, b)


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_every_number_of_a_chip_has_a_source(chip):
    words = {"name", "vendor", "cpu", "features", "sources", "tuning"}
    given = {f.name for f in fields(Chip) if getattr(chip, f.name) not in (None, ())} - words
    assert {name for name in given if not chip.source(name)} == set()
    assert {s.field for s in chip.sources} <= given


def test_a_new_amd_chip_compiles_to_lanes_and_assembly():
    built = build_amd(tiles(64, 64, 64, shape=(128, 128, 128)), SMALL, Places(), 0)
    check_lanes(built.lanes, (128, 128, 128))
    assert built.resources.machine == "gfx94x"
    assert re.search(r'\.amdgcn_target "amdgcn-amd-amdhsa--gfx942"', built.asm) and "v_mfma_f32" in built.asm
    assert built.code.startswith(b"\x7fELF")


def test_it_has_what_its_record_says_and_not_what_its_sister_has():
    kernel = tiles(128, 128, 64)
    with pytest.raises(ConstraintError, match=r"32,768 bytes of shared memory, but gfx94x has 24,576"):
        build_amd(kernel, SMALL, Places(), 0)
    assert build_amd(kernel, GFX942, Places(), 0).resources.shared_bytes == 32768
    brings = replace(GFX942, name="gfx94y", direct_load_bytes=(1, 2, 4, 16))
    assert "copy_async_chunks" in str(build_amd(kernel, brings, Places(), 1).lanes)
    assert "copy_async_chunks" not in str(build_amd(kernel, GFX942, Places(), 1).lanes)


def test_matrix_instructions_are_those_of_the_family_that_it_names():
    """Only one of the two families computes with f8 of the OCP standard."""
    kernel = tiles(64, 64, 64, shape=(128, 128, 128), dtype=f8e4m3fn)
    with pytest.raises(ConstraintError, match="no matrix instruction of gfx94x is used for f8e4m3fn"):
        build_amd(kernel, SMALL, Places(), 0)
    other = replace(GFX950, name="gfx95x")
    assert build_amd(kernel, other, Places(), 0).resources.instructions == ("f32_16x16x32_fp8_fp8",)


def test_a_new_nvidia_chip_compiles_to_lanes_and_ptx():
    shape = (512, 512, 128)
    built = build_nvidia(tiles(128, 128, 64, shape=shape), NARROW, Places(), 0)
    check_lanes(built.lanes, shape)
    assert ".target sm_90a" in built.asm and "wgmma.mma_async" in built.asm
    assert built.resources.machine == "sm_90a_114" and built.resources.shared_bytes <= NARROW.shared.bytes


def test_processors_and_shared_memory_are_the_records():
    kernel = tiles(128, 256, 64, shape=(4096, 4096, 512))
    assert build_nvidia(kernel, SM_90A, Places(), 0).lanes.workgroups == 132
    fewer = build_nvidia(kernel, replace(SM_90A, name="sm_90a_114", processors=114), Places(), 0)
    assert fewer.lanes.workgroups == 114
    whole, less = (build_nvidia(kernel, chip, Places(), 0).resources.shared_bytes for chip in (SM_90A, NARROW))
    assert less <= NARROW.shared.bytes < whole, "the ring has as many stages as fit"


def test_code_of_one_chip_is_not_taken_for_anothers_with_the_same_name(monkeypatch, tmp_path):
    """The cache knows a chip by its record."""
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(tmp_path))
    kernel = tiles(64, 64, 64, shape=(128, 128, 128))
    banks = replace(SMALL.shared, bytes=SMALL.shared.bytes * 2)
    keys = {build_amd(kernel, chip, Places(), 0).key for chip in (SMALL, replace(SMALL, shared=banks))}
    assert len(keys) == 2


ROOMS = ("analysis", "emulator", "interp", "ir", "lower", "passes", "pipeline", "sim")


def test_nobody_decides_by_a_chips_name():
    """In the rooms between the author and the backends no text is a chip's name, but for the emulator's opinions."""
    package = Path(tilewave.__file__).parent
    files = [path for room in ROOMS for path in sorted((package / room).rglob("*.py"))]
    assert len(files) > 100
    found = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in files
        if path != package / "emulator/chips.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in CHIPS
    ]
    assert found == []


def test_a_chip_of_32_lanes_from_another_vendors_document_can_be_written_down():
    """What it would compile to is a backend's matter; passes that ask for sizes get them."""
    phases = consecutive(128, (1, 2, 4, 8, 16), lanes=32)
    chip = Chip(
        "gfx1200",
        vendor="amd",
        cpu="gfx1200",
        matrix="gfx1200",
        processors=64,
        lanes=32,
        most_waves=32,
        matrix_units=MatrixUnits(count=2, waves=16, registers=1536, register_grain=24),
        widest_load_bytes=16,
        line_bytes=128,
        shared=SharedMemory(64 << 10, 32, 32, phases, phases),
        tuning=GFX942.tuning,
    )
    assert (chip.resident_waves, chip.shared.widest_bytes, chip.multiplies) == (32, 16, ())
    assert repr(SetOccupancy(chip, Places())) == "SetOccupancy(gfx1200)"
