"""Matrix instructions: lanes and registers as the facts say, products against float64.

`tests/data/matrix_layouts` names its sources: AMD's matrix instruction calculator, rocjitsu and Wave agree on it.
"""

import dataclasses
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from emulated_code import compute

from tilewave.emulator.findings import UnsupportedCode
from tilewave.emulator.matrix import layout_of, shape_of
from tilewave.emulator.matrix_table import INSTRUCTIONS

FACTS = [json.loads(p.read_text()) for p in sorted((Path(__file__).parents[1] / "data/matrix_layouts").glob("*.json"))]
CASES = [(fact, chip) for fact in FACTS for chip in fact["arch"]]
rng = np.random.default_rng(11)

facts = pytest.mark.parametrize("fact", FACTS, ids=lambda f: f["instruction"])
cases = pytest.mark.parametrize("fact, chip", CASES, ids=lambda x: x if isinstance(x, str) else x["instruction"])


def test_there_are_facts():
    assert len(FACTS) == 20


@facts
def test_every_element_lies_where_the_facts_say(fact):
    layout = layout_of(shape_of(fact["instruction"]))
    rows, columns, places = (np.array(fact[name]) for name in ("A", "B", "CD"))
    for lane in range(64):
        for element, (row, k) in enumerate(rows[lane]):
            assert (layout.a_lane[0, row, k], layout.a_element[0, row, k]) == (lane, element)
        for element, (k, column) in enumerate(columns[lane]):
            assert (layout.b_lane[0, column, k], layout.b_element[0, column, k]) == (lane, element)
        for register, (row, column) in enumerate(places[lane]):
            assert (layout.c_lane[0, row, column], layout.c_element[0, row, column]) == (lane, register)


def dtype_of(name, chip):
    narrow = {"gfx942": ("float8_e4m3fnuz", "float8_e5m2fnuz"), "gfx950": ("float8_e4m3fn", "float8_e5m2")}[chip]
    return {
        "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "i8": np.int8,
        "fp8": getattr(ml_dtypes, narrow[0]), "bf8": getattr(ml_dtypes, narrow[1]),
    }[name]  # fmt: skip


def random(shape, dtype):
    return (rng.integers(-128, 128, shape) if dtype == np.int8 else rng.standard_normal(shape)).astype(dtype)


def in_lanes(matrix, table):
    """The elements of each lane, by the facts' table."""
    table = np.array(table)
    return np.ascontiguousarray(matrix[table[..., 0], table[..., 1]])


@cases
def test_products_agree_with_float64(fact, chip):
    shape = shape_of(fact["instruction"])
    a_type, b_type = dtype_of(shape.a_format, chip), dtype_of(shape.b_format, chip)
    a, b = random((fact["M"], fact["K"]), a_type), random((fact["K"], fact["N"]), b_type)
    result = np.int32 if shape.result == "i32" else np.float32
    c = (
        random((fact["M"], fact["N"]), np.int8).astype(np.int32)
        if result is np.int32
        else random((fact["M"], fact["N"]), result)
    )
    regs = fact["regs"]
    first_b, first_c = 10 + regs["A"], 10 + regs["A"] + regs["B"]
    ranges = ((100, regs["CD"]), (10, regs["A"]), (first_b, regs["B"]), (first_c, regs["CD"]))
    spelled = [f"v[{first}:{first + n - 1}]" if n > 1 else f"v{first}" for first, n in ranges]
    inputs = [in_lanes(x, fact[name]).view(np.uint8).view(np.uint32) for x, name in ((a, "A"), (b, "B"), (c, "CD"))]
    found = compute(f"\t{fact['instruction']} {', '.join(spelled)}", *inputs, results=regs["CD"], chip=chip)
    d = np.zeros((fact["M"], fact["N"]), result)
    table = np.array(fact["CD"])
    d[table[..., 0], table[..., 1]] = found.view(result)
    exact = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    if result is np.int32:
        assert (d == exact).all()
    else:
        np.testing.assert_array_equal(d, exact.astype(np.float32))  # exact products, one rounding


def test_accumulation_registers_and_a_constant_c():
    a, b = random((16, 16), np.float16), random((16, 16), np.float16)
    fact = next(f for f in FACTS if f["instruction"] == "v_mfma_f32_16x16x16_f16")
    body = """
	v_mfma_f32_16x16x16_f16 a[0:3], v[10:11], v[12:13], 1.0
	s_nop 7
	v_accvgpr_read_b32 v100, a0
	v_accvgpr_read_b32 v101, a1
	v_accvgpr_read_b32 v102, a2
	v_accvgpr_read_b32 v103, a3"""
    inputs = [in_lanes(x, fact[name]).view(np.uint32) for x, name in ((a, "A"), (b, "B"))]
    found = compute(body, *inputs, results=4).view(np.float32)
    table = np.array(fact["CD"])
    exact = (a.astype(np.float64) @ b.astype(np.float64) + 1).astype(np.float32)
    np.testing.assert_array_equal(found, exact[table[..., 0], table[..., 1]])


def test_four_blocks_of_4x4_are_multiplied_at_once():
    """v_mfma_f32_4x4x4_16b_f16: 16 products of 4×4 matrices; lane 4·block + row holds a row of A, K in its elements."""
    a, b = random((16, 4, 4), np.float16), random((16, 4, 4), np.float16)  # [block, row, k], [block, column, k]
    body = "\tv_mfma_f32_4x4x4_16b_f16 v[100:103], v[10:11], v[12:13], 0"
    found = compute(body, a.reshape(64, 4).view(np.uint32), b.reshape(64, 4).view(np.uint32), results=4).view(
        np.float32
    )
    exact = np.einsum("bik,bjk->bji", a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(found.reshape(16, 4, 4), exact)


def test_every_instruction_of_the_table_is_a_bijection_of_lanes_and_elements():
    for name in INSTRUCTIONS:
        layout = layout_of(shape_of(f"v_mfma_{name}"))
        tables = dataclasses.astuple(layout)
        for lane, element in zip(tables[::2], tables[1::2], strict=True):
            places = set(zip(lane.reshape(-1).tolist(), element.reshape(-1).tolist(), strict=True))
            assert len(places) == lane.size and len({p[0] for p in places}) == 64, name


def test_an_instruction_of_the_other_chip_is_refused():
    with pytest.raises(UnsupportedCode, match="gfx942 does not have it"):
        compute("\tv_mfma_f32_16x16x32_f16 v[100:103], v[10:13], v[14:17], 0", np.zeros((64, 8), np.uint32), results=4)


def test_products_in_float64():
    a, b, c = (rng.standard_normal(64) for _ in range(3))  # v_mfma_f64_4x4x4_4b_f64: lane = 16·k + 4·block + row
    body = "\tv_mfma_f64_4x4x4_4b_f64 v[100:101], v[10:11], v[12:13], v[14:15]"
    found = compute(body, a, b, c, results=2).view(np.float64)[:, 0].reshape(4, 4, 4)  # [row, block, column]
    rows, columns = (x.reshape(4, 4, 4) for x in (a, b))  # [k, block, row or column]
    exact = np.einsum("kbi,kbj->ibj", rows, columns) + c.reshape(4, 4, 4)
    np.testing.assert_allclose(found, exact, rtol=0, atol=4 * 2.0**-52 * np.abs(exact).max())
