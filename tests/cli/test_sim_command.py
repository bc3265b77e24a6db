"""`tilewave sim` and `tilewave machines`: tables for people, JSON for machines, a page, and mistakes in words."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tilewave.cli.commands import function_of
from tilewave.cli.sim import parse_tiles
from tilewave.errors import TilewaveError
from tilewave.mapping import as_mapping
from tilewave.sim import Gemm, simulate
from tilewave.sim.explain import size
from tilewave.sim.simulate import run
from tilewave.view import palette
from tilewave.view.traffic import origin_of_tasks, traffic_figures
from tilewave.view.traffic_page import traffic_page

EXAMPLES = Path(__file__).parents[2] / "examples"
app = typer.Typer()
for name in ("sim", "machines"):
    app.command(name)(function_of(name))
SMALL = ("--shape", "2048x1024x512", "--machine", "MI300X")
KERNEL = """
from tilewave import *
M, N, BLOCK = sym.M, sym.N, sym.BLOCK

@wave([WorkgroupConstraint(M, BLOCK, 0), WorkgroupConstraint(N, BLOCK, 1)])
def doubled(a: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32], b: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]):
    write(read(a), b)
"""


def said(*arguments: str) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    if result.exception:
        raise result.exception
    return result.output


def test_one_launch_is_a_table_of_levels_and_a_verdict():
    text = said("sim", *SMALL, "--map", "grouped(4)")
    report = simulate(Gemm(2048, 1024, 512), "MI300X", "grouped(4)")
    for words in (
        "last level",
        "HBM",
        f"{100 * report.l2_hit:.1f} %",
        report.breakdown_text,
        "resident workgroups 16 steps",
    ):
        assert words in text, words


def test_several_orders_are_compared():
    text = said("sim", *SMALL, "--compare", "grouped(4)", "--compare", "hilbert()")
    assert all(order in text for order in ("linear()", "grouped(4)", "hilbert()"))
    assert "compared with linear()" in text


def test_the_best_comes_first():
    text = said("sim", *SMALL, "--best", "--top", "3", "--tile", "128x128..256x64")
    ranks = re.findall(r"^\s+(\d+)\. .*\s128×", text, re.MULTILINE)
    assert ranks == ["1", "2", "3"]
    ranked = json.loads(said("sim", *SMALL, "--best", "--tile", "128x128..256x64", "--json"))
    times = [one["seconds"] for one in ranked]
    assert times == sorted(times) and {tuple(one["tile"]) for one in ranked} == {(128, 128, 64), (128, 256, 64)}


def test_json_is_the_report():
    (read,) = json.loads(said("sim", *SMALL, "--json"))
    assert read == simulate(Gemm(2048, 1024, 512), "MI300X").to_json()


def test_engine_occupancy_and_skew_reach_the_simulator():
    (read,) = json.loads(said("sim", *SMALL, "--engine", "trace", "--occupancy", "2", "--json"))
    assert (read["engine"], read["occupancy"]) == ("trace", 2)
    (read,) = json.loads(said("sim", *SMALL, "--skew", "8", "--json"))
    assert read["skew_steps"] == 8


def test_k_can_be_walked_to_and_fro():
    at = ("sim", "--shape", "4096x4096x4096", "--machine", "H200", "--workgroups", "132", "--json")
    there, back = (json.loads(said(*at, "--walk", walk))[0] for walk in ("forwards", "to-and-fro"))
    assert back["hbm_read_bytes"] < 0.8 * there["hbm_read_bytes"]
    assert "K to-and-fro" in back["problem"]


def test_a_kernel_of_a_file(tmp_path):
    path = tmp_path / "doubled.py"
    path.write_text(KERNEL)
    (read,) = json.loads(said("sim", str(path), "--set", "M=1024,N=1024,BLOCK=64", "--machine", "H200", "--json"))
    assert read["hbm_read_bytes"] == read["hbm_write_bytes"] == 1024 * 1024 * 4
    text = said("sim", str(path), "--set", "M=1024,N=1024,BLOCK=64", "--machine", "H200")
    assert "two workgroups per CU or SM" in text and "bottleneck" in text.lower()


def test_a_kernel_of_a_file_is_simulated_in_other_orders(tmp_path):
    path = tmp_path / "doubled.py"
    path.write_text(KERNEL)
    at = ("sim", str(path), "--set", "M=1024,N=1024,BLOCK=64", "--machine", "MI300X", "--json")
    own, grouped = json.loads(said(*at, "--compare", "grouped(4)"))
    (asked,) = json.loads(said(*at, "--map", "grouped(4)"))
    assert (own["mapping"], grouped["mapping"]) == ("the kernel's own", "grouped(4)")
    assert grouped == asked
    wanted = path.with_name("grouped.py")
    wanted.write_text(KERNEL.replace("BLOCK, 1)]", "BLOCK, 1), WorkgroupMapping('grouped(4)')]"))
    (written,) = json.loads(said("sim", str(wanted), *at[2:]))
    assert {**written, "mapping": "grouped(4)"} == asked
    (over,) = json.loads(said("sim", str(wanted), *at[2:], "--map", "linear()"))
    assert {**over, "mapping": own["mapping"]} == own


def test_the_best_order_of_a_kernel_is_searched(tmp_path, monkeypatch):
    orders = [as_mapping(text) for text in ("linear()", "grouped(2)", "hilbert()")]
    monkeypatch.setattr("tilewave.sim.search.mappings_for", lambda machine: orders)
    path = tmp_path / "doubled.py"
    path.write_text(KERNEL)
    at = ("sim", str(path), "--set", "M=512,N=512,BLOCK=64", "--best", "--html", str(tmp_path / "best.html"))
    ranked = json.loads(said(*at, "--json"))
    assert {one["mapping"] for one in ranked} == {"linear()", "grouped(2)", "hilbert()"}
    assert [one["seconds"] for one in ranked] == sorted(one["seconds"] for one in ranked)
    assert "1. " in (tmp_path / "best.html").read_text(encoding="utf-8")


def test_a_kernel_with_a_loop_of_its_own_keeps_its_order():
    with pytest.raises(TilewaveError, match="the kernel's own while loop decides which tiles it computes"):
        said("sim", str(EXAMPLES / "persistent_gemm.py"), "--map", "grouped(4)")


def test_a_file_that_compiles_its_kernel_keeps_its_order(tmp_path):
    path = tmp_path / "doubled.py"
    path.write_text(KERNEL + "\ncompiled = wave_compile(WaveCompileOptions(subs={M: 64, N: 64, BLOCK: 64}), doubled)\n")
    with pytest.raises(TilewaveError, match="compiles its kernels itself") as error:
        said("sim", str(path), "--map", "grouped(4)")
    assert error.value.remedy == "leave --map out: it would change nothing"


def test_a_search_has_a_page(tmp_path, monkeypatch):
    orders = [as_mapping(text) for text in ("linear()", "grouped(2)", "hilbert()")]
    monkeypatch.setattr("tilewave.sim.search.mappings_for", lambda machine: orders)
    path = tmp_path / "best.html"
    said("sim", "--shape", "1024x1024x256", "--tile", "64..128x128x64", "--best", "--top", "4", "--html", str(path))
    page = path.read_text(encoding="utf-8")
    assert "<h2>The best 4</h2>" in page
    assert len(re.findall(r"<code>\d+\. ", page)) == 4
    assert 1 <= page.count("<article") <= 2, "the best, beside linear()"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--machine", "MI300"), "unknown machine 'MI300'; did you mean 'MI300X'?"),
        (("--tile", "64..256x128x64"), "a range of tiles is searched with --best"),
        (("--tile", "64..x128x64", "--best"), "is no size and no range of sizes"),
        (("--tile", "64..128x64", "--best"), "a tile has M, N and K"),
        (("--tile", "1..4096x1..4096x64", "--best"), "169 tiles are more than 64"),
        (("--best", "--compare", "linear()"), "--compare cannot be used with --best"),
        (("--set", "M=512"), "--set cannot be used with a GEMM"),
        (("--shape", "12x12"), "a shape"),
        (("--dtype", "f99"), "unknown dtype 'f99'"),
        (("--engine", "quick"), "unknown engine 'quick'"),
        (("--map", "grouped(0)"), "grouped: size is 0"),
    ],
    ids=str,
)
def test_mistakes_are_told_in_words(arguments, words):
    with pytest.raises(TilewaveError) as error:
        said("sim", *arguments)
    assert words in str(error.value)


def test_ranges_of_tiles_double():
    assert parse_tiles("64..256x128x64") == [(64, 128, 64), (128, 128, 64), (256, 128, 64)]
    assert parse_tiles("128x256x64") == [(128, 256, 64)]


def test_machines_are_listed_with_their_sources():
    text = said("machines")
    assert all(name in text for name in ("MI300X", "MI325X", "MI350X", "MI355X", "H100", "H200"))
    assert "white paper" in said("machines", "h100")
    (one,) = json.loads(said("machines", "MI300X", "--json"))
    assert one["l2"]["bytes"] == 4 << 20


def test_the_page_is_whole_and_fetches_nothing(tmp_path):
    path = tmp_path / "traffic.html"
    text = said("sim", *SMALL, "--compare", "grouped(4)", "--html", str(path))
    page = path.read_text(encoding="utf-8")
    assert f"wrote {path}" in text.replace("\n", "")
    assert page.count("<article") == 2 and page.count("<figure>") == 7
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", page)
    assert "default-src 'none'" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert [one["mapping"] for one in data] == ["linear()", "grouped(4)"]


def test_figures_are_well_formed_and_name_their_launch():
    made = run(Gemm(2048, 1024, 512), "H200", "grouped(2)")
    figures = traffic_figures(made)
    assert [figure.kind for figure in figures] == ["over-time", "per-xcd", "heat"]
    for figure in figures:
        xml.fromstring(figure.svg())
        assert "grouped(2); H200" in figure.caption
    assert figures[2].body.count("tile (") == made.accesses.tasks


def test_the_bytes_of_all_tiles_are_the_bytes_of_the_launch():
    for machine in ("MI300X", "H200"):
        made = run(Gemm(2048, 2048, 1024), machine, "grouped(4)")
        origin = origin_of_tasks(made)
        assert origin.total.sum() == pytest.approx(made.report.asked_bytes)
        assert origin.from_hbm.sum() == pytest.approx(made.report.hbm_read_bytes)
        assert (origin.from_l2 >= 0).all() and (origin.from_between >= 0).all()


def test_a_hostile_name_cannot_leave_the_page():
    made = run(Gemm(256, 256, 64), "H200", lambda w, grid: (w % grid.rows, w // grid.rows))
    from dataclasses import replace

    nasty = replace(made, report=replace(made.report, mapping="</script><script>alert(1)"))
    page = traffic_page((nasty,))
    assert "<script>alert" not in page


def test_a_large_grid_is_drawn_in_squares_of_tiles():
    made = run(Gemm(1 << 14, 1 << 14, 64, (64, 64, 64)), "MI300X")
    heat = traffic_figures(made)[-1]
    assert heat.body.count("tile (") == 128 * 128
    assert "A square is the mean of 2×2 tiles." in heat.caption


def test_the_heat_of_tiles_has_a_scale():
    made = run(Gemm(2048, 2048, 1024), "MI300X", "grouped(4)")
    hbm = origin_of_tasks(made).from_hbm
    heat = traffic_figures(made)[-1]
    assert f">{size(float(hbm.min()))}<" in heat.body
    assert f">{size(float(hbm.max()))} from HBM<" in heat.body
    assert palette.heat(0.0) in heat.body and palette.heat(1.0) in heat.body


def test_hbm_has_no_hit_rate_and_the_two_counts_of_l2_are_told_apart(tmp_path):
    text = said("sim", *SMALL)
    assert re.search(r"HBM +[\d.]+ MB +– +– +–", text)
    page = traffic_page((run(Gemm(2048, 1024, 512), "MI300X"),))
    assert "100.0 %" not in page
    assert "% of bytes from L2" in page and "Hits are counted as a profiler counts them" in page


def test_an_address_space_without_a_value_is_asked_for_with_the_sizes(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(KERNEL.replace("a: Memory[M, N, GLOBAL_ADDRESS_SPACE", "a: Memory[M, N, sym.ADDRESS_SPACE"))
    with pytest.raises(TilewaveError, match="sizes M, N are missing") as raised:
        said("sim", str(file))
    assert raised.value.remedy == "pass --set M=…,N=…,ADDRESS_SPACE=shared\nor ADDRESS_SPACE=global"
    with pytest.raises(TilewaveError, match="--set: ADDRESS_SPACE is an address space, not 1") as number:
        said("sim", str(file), "--set", "M=256,N=256,BLOCK=32,ADDRESS_SPACE=1")
    assert number.value.remedy == "write ADDRESS_SPACE=shared or ADDRESS_SPACE=global"
    with pytest.raises(TilewaveError, match="ADDRESS_SPACE is in the place of the address space, and has no value"):
        said("sim", str(file), "--set", "M=256,N=256,BLOCK=32")
    for space in ("shared", "global"):
        assert "HBM" in said("sim", str(file), "--set", f"M=256,N=256,BLOCK=32,ADDRESS_SPACE={space}")
