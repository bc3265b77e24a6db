"""What the explorer answers is what the commands say."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewave.cli.main import main
from tilewave.explore.choice import ExplorerChoice, ExplorerError
from tilewave.explore.explorer import Explorer
from tilewave.explore.kernels import ExploredGemm
from tilewave.mapping import Grid, as_mapping

EXAMPLES = Path(__file__).parents[2] / "examples"
SIM = ("sim", "--shape", "1024x2048x256", "--tile", "128x128x64", "--json")


@pytest.fixture
def said(monkeypatch, capsys):
    """What a command prints, read as JSON."""
    import sys

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["tilewave", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        assert not left.value.code
        return json.loads(capsys.readouterr().out)

    return run


def test_two_orders_stand_side_by_side_with_their_difference(explorer, said):
    found = explorer.answer("launch", explorer.start)
    first, second = said(*SIM, "--map", explorer.start.map, "--compare", "linear()")
    assert [run["mapping"] for run in found["runs"]] == [first["mapping"], second["mapping"]]
    rows = {row["name"]: row for row in found["difference"]}
    change = 100 * (second["seconds"] / first["seconds"] - 1)
    assert rows["time"]["difference"] == f"{change:+.1f} %"
    assert rows["L2 hits"]["difference"] == f"{100 * (second['l2_hit'] - first['l2_hit']):+.1f} points"
    assert found["said"].endswith("of HBM") or "compared with" in found["said"]


def test_every_tile_has_its_turn_and_its_bytes(explorer, said):
    run = explorer.answer("launch", explorer.start)["runs"][0]
    tiles = run["tiles"]
    assert (tiles["rows"], tiles["cols"], tiles["every"]) == (8, 16, 1)
    turns = np.array(tiles["cells"]["turn"]).reshape(8, 16)
    assert np.array_equal(turns, as_mapping(explorer.start.map).table(Grid(8, 16)))
    (report,) = said(*SIM, "--map", explorer.start.map)
    assert sum(tiles["cells"]["asked"]) == pytest.approx(report["asked_bytes"], abs=128)
    assert sum(tiles["cells"]["hbm"]) == pytest.approx(report["hbm_read_bytes"], rel=1e-3)


def test_figures_show_every_part_of_the_time_on_an_axis_of_microseconds(explorer):
    time, roofline = explorer.answer("launch", explorer.start)["figures"]
    assert ">µs<" in time and "matrix" in time and "linear()" in time
    assert "FLOP per byte of HBM" in roofline and roofline.count('class="launch"') == 2


def test_a_large_grid_is_drawn_in_squares_of_tiles():
    choice = ExplorerChoice(shape="66560x1024x64", tile="128x128x64")
    tiles = Explorer(ExploredGemm()).answer("launch", choice)["runs"][0]["tiles"]
    assert (tiles["rows"], tiles["cols"], tiles["every"]) == (520, 8, 2)
    assert len(tiles["cells"]["turn"]) == tiles["drawn_rows"] * tiles["drawn_cols"] == 260 * 4


def test_more_tiles_than_a_page_shows_are_refused():
    with pytest.raises(ExplorerError, match="tiles are more than"):
        Explorer(ExploredGemm()).answer("launch", ExplorerChoice(shape="200000x200000x64", tile="128x128x64"))


def test_hbm_has_no_hit_rate(explorer):
    levels = explorer.answer("launch", explorer.start)["runs"][0]["levels"]
    assert [(level["name"], level["hit"]) for level in levels][-1] == ("HBM", "–")


GEMM = EXAMPLES / "gemm.py"


@pytest.fixture(scope="module")
def of_file():
    from tilewave.cli.explore import _of_file

    return Explorer(_of_file(GEMM, ExplorerChoice()), ExplorerChoice())


def test_passes_are_those_of_diff(of_file, said):
    found = of_file.answer("passes", ExplorerChoice(target="gfx942"))
    wanted = said("diff", GEMM, "--target", "gfx942", "--json")["gemm"]
    assert [{**step, "seconds": 0} for step in found["steps"]] == [{**step, "seconds": 0} for step in wanted]


@pytest.mark.parametrize(("target", "multiplies"), [("gfx942", "v_mfma"), ("cpu", "fm")])
def test_assembly_names_the_authors_lines(of_file, target, multiplies):
    found = of_file.answer("code", ExplorerChoice(target=target))
    by_line = {}
    for text, line in found["lines"]:
        by_line.setdefault(line, []).append(text)
    source = found["source"]
    product = next(int(number) for number, text in source.items() if "tkw.mma(" in text)
    assert any(multiplies in text for text in by_line[product])
    assert found["file"].endswith("gemm.py")
    assert (target == "cpu") == (found["loop"] == {})
    assert (target == "cpu") == (found["cycles"] == {})


def test_a_kernel_can_be_given_another_order(of_file):
    own, other = of_file.answer("launch", ExplorerChoice(beside="grouped(2)"))["runs"]
    assert (own["mapping"], other["mapping"]) == ("the kernel's own", "grouped(2)")
    turns = np.array(other["tiles"]["cells"]["turn"]).reshape(8, 8)
    assert np.array_equal(turns, as_mapping("grouped(2)").table(Grid(8, 8)))


def test_tiles_of_several_tasks_are_drawn_without_bytes():
    from tilewave.cli.explore import _of_file

    choice = ExplorerChoice(sizes="B=2,M=256,K2=128", target="gfx942")
    explorer = Explorer(_of_file(EXAMPLES / "attention.py", choice), choice)
    tiles = explorer.answer("launch", choice)["runs"][0]["tiles"]
    assert (tiles["rows"], tiles["cols"], tiles["count"], tiles["wrapped"]) == (2, 2, 4, True)
    assert tiles["cells"]["turn"] == [0, 1, 2, 3] and tiles["cells"]["xcd"] == [0, 1, 2, 3]
    assert "hbm" not in tiles["cells"]


def test_a_kernel_without_products_has_no_loop_to_count():
    from tilewave.cli.explore import _of_file

    choice = ExplorerChoice(sizes="M=16,N=64", target="gfx942")
    found = Explorer(_of_file(EXAMPLES / "softmax.py", choice), choice).answer("code", choice)
    assert found["loop"] == {} and len(found["lines"]) > 50


def test_sizes_of_a_file_are_chosen_as_for_set(of_file):
    tiles = of_file.answer("launch", ExplorerChoice(sizes="M=256,BLOCK_M=128"))["runs"][0]["tiles"]
    assert (tiles["rows"], tiles["cols"]) == (2, 8)


def test_answers_are_worked_out_once_until_the_file_changes():
    count, when = [], [1]

    class Counting(ExploredGemm):
        def run(self, *asked):
            count.append(asked)
            return super().run(*asked)

    explorer = Explorer(Counting(), fresh=lambda: when[0])
    choice = ExplorerChoice(shape="256x256x64", tile="64x64x64")
    for _ in range(3):
        explorer.answer("launch", choice)
    assert len(count) == 1
    when[0] = 2
    explorer.answer("launch", choice)
    explorer.answer("launch", replace(choice, machine="H200"))
    assert len(count) == 3
