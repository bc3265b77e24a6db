"""How a compiled kernel shows itself: to rich, and as a table in a notebook."""

from kernels import gemm, sizes
from rich.pretty import pretty_repr

from tilewave import *
from tilewave.kernels import Rows, softmax_kernel


def compiled(target, subs=None):
    return wave_compile(WaveCompileOptions(subs=subs or sizes(256, 512, 64), target=target), gemm())


def test_rich_shows_what_it_is_and_what_it_takes():
    shown = pretty_repr(compiled("gfx942"), max_width=200)
    assert shown.startswith(
        "Compiled(\n    name='gemm',\n    target='gfx942',\n    workgroups=32,\n    tiles=(4, 8),\n"
    )
    assert "instructions=('f32_16x16x16_f16',)" in shown and "registers=" in shown
    assert "instruction_set=" in pretty_repr(compiled("cpu"))


def test_sizes_that_stay_open_are_named():
    rows = softmax_kernel(Rows(2), f16, f16).compile(target="numpy", max_sizes={sym.N: 64})
    assert "sizes={'M': 'any', 'N': 'up to 64'}" in pretty_repr(rows)
    assert "<tr><th>sizes</th><td>M: any, N: up to 64</td></tr>" in rows._repr_html_()


def test_a_notebook_gets_a_table_whose_text_is_escaped():
    table = compiled("sm_90a")._repr_html_()
    assert table.startswith("<table><tr><th>name</th><td>gemm</td></tr><tr><th>target</th><td>sm_90a</td></tr>")
    assert "<tr><th>shared bytes</th><td>" in table and table.count("<tr>") == table.count("</tr>")


def test_a_loaded_kernel_shows_what_its_file_holds(tmp_path):
    compiled("cpu").save(tmp_path / "gemm.tilewave")
    assert "workgroups=32" in pretty_repr(load(tmp_path / "gemm.tilewave"))
