"""Rows that begin anywhere, loaded in aligned blocks: what the machine code does, on this machine."""

import numpy as np
import pytest
from host_lanes import host_text, rounds_addresses, run_on_host
from kernels import G, K, M, N, gemm, sizes, tiling

from tilewave import *
from tilewave.ir.parse import parse
from tilewave.ir.verify import verify
from tilewave.machine.chips import SM_90A

ROWS, COLUMNS = 5, 43
COPY = """
kernel @copy {{workgroups = 1, level = lane, waves = [1, 1], lanes = 32}} {arrays} {{
  %lane = lane() : index
  %eight = const() {{value = 8}} : index
  %row = floor_div(%lane, %eight) : index
  %chunk = mod(%lane, %eight) : index
  %column = mul(%chunk, %eight) : index
  %x = load(%a, [%row, %column], []{own}) {{steps = [[4, 0], [0, 1]], guard = [0, 1]{within}}} : vector<2x8xf16>
  store(%x, %c, [%row, %column], []) {{steps = [[4, 0], [0, 1]]}}
}}
"""
ARRAYS = "(%a: memory<5x43xf16, global>, %c: memory<8x64xf16, global>)"
PARTS = {"all of a tile": (8, 64), "its first columns": (8, 24), "its first rows": (3, 64), "few of both": (6, 8)}


def copied(rows, columns):
    """A tile of 8 x 64, of which so many rows and columns are there."""
    whole = (rows, columns) == (8, 64)
    own, within = ("", "") if whole else (", [%row, %column]", f", within = [{rows}, {columns}]")
    return verify(parse(COPY.format(arrays=ARRAYS, own=own, within=within)))


@pytest.mark.parametrize("part", PARTS)
def test_every_element_arrives_wherever_rows_begin_and_only_blocks_of_the_array_are_touched(part):
    rows, columns = PARTS[part]
    kernel = copied(rows, columns)
    for begin in range(8):
        memory = np.arange(1, 1 + 8 + ROWS * COLUMNS + 64).astype(np.float16)
        first = -memory.ctypes.data // 2 % 8 + begin
        a = memory[first : first + ROWS * COLUMNS].reshape(ROWS, COLUMNS)
        c = np.full((8, 64), np.nan, np.float16)
        looked = run_on_host(kernel, [a, c], ())
        want = np.zeros((8, 64), np.float16)
        want[: min(rows, ROWS), : min(columns, COLUMNS)] = a[:rows, :columns]
        np.testing.assert_array_equal(c, want)
        inside = range(a.ctypes.data // 16, (a.ctypes.data + a.nbytes - 1) // 16 + 1)
        assert not (looked % 16).any() and {*(looked // 16).tolist()} <= {*inside}


IN_PLACE = ("(%a: memory<5x43xf16, global>)", "%a", "load i16")
ON_BLOCKS = ("(%a: memory<5x48xf16, global>, %c: memory<8x64xf16, global>)", "%c", "load <4 x i32>")


@pytest.mark.parametrize(("arrays", "to", "load"), [IN_PLACE, ON_BLOCKS], ids=["in place", "on blocks"])
def test_what_a_kernel_writes_and_rows_on_blocks_are_loaded_as_they_were(arrays, to, load):
    text = host_text(verify(parse(COPY.format(arrays=arrays, own="", within="").replace("%c,", f"{to},"))))
    assert f"{load}, ptr addrspace(1)" in text and not rounds_addresses(text)


@wave(tiling())
def across(a: Memory[M, K, G, f16], b: Memory[K, N, G, f16], c: Memory[M, N, G, f16]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(cast(total, f16), c)


@pytest.mark.parametrize(("kernel", "in_loop"), [(across, 18), (gemm(), 6)])
def test_odd_rows_are_loaded_sixteen_bytes_at_a_time_and_a_step_ahead(kernel, in_loop):
    """Holds even where a lane stores across rows; what is out of bounds for every lane is not loaded at all."""
    made = wave_compile(WaveCompileOptions(subs=sizes(4, 763, 457, 8, 16, 128), target=SM_90A.name), kernel)
    loads = [line for line in made.asm.splitlines() if "ld.global" in line]
    assert in_loop < len(loads) <= 2 * in_loop and all(".v4" in line for line in loads)
    _, loop = made.asm.split("$L__BB0_1:", 1)
    assert loop.index("ld.global") < loop.index("wgmma") < loop.index("st.shared")
