"""For a file with open tiles, every command uses and names the tiles of the requested machine or target."""

import json
import re
import textwrap
from html import escape
from pathlib import Path

import pytest

from tilewave.cli.diff import fixed_in, parse_sizes
from tilewave.cli.explore import _of_file
from tilewave.explore.choice import ExplorerChoice
from tilewave.explore.explorer import QUESTIONS, Explorer
from tilewave.machine import MACHINES
from tilewave.sim import search, simulate
from tilewave.sim.search import mappings_for

PRODUCT = """
from tilewave import *

M, N, K = sym.M, sym.N, sym.K
G = GLOBAL_ADDRESS_SPACE
tiles = [WorkgroupConstraint(M, sym.BLOCK_M, 0), WorkgroupConstraint(N, sym.BLOCK_N, 1)]

@wave([*tiles, TilingConstraint(K, sym.BLOCK_K)])
def product(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)
"""
SIZES = "M=2048,N=2048,K=512"
CARDS = ("MI300X", "MI355X", "H200")


def told(call, *words):
    code, out, err = call(*words, k=PRODUCT)
    assert (code, err) == (0, "")
    return out


def chosen(call, target):
    return json.loads(told(call, "compile", "k.py", "--set", SIZES, "--target", target, "--json"))["product"]["chosen"]


@pytest.mark.parametrize("card", CARDS)
def test_sim_takes_and_names_the_tiles_that_compile_chooses_for_the_machine(card, call):
    target = MACHINES[card].target
    config = f"product, {chosen(call, target)}, chosen for {target}"
    words = ["sim", "k.py", "--set", SIZES, "--machine", card]
    (report,) = json.loads(told(call, *words, "--json", "--html", "page.html"))
    assert (report["problem"], report["warnings"]) == (config, [])
    assert f"{config} on {card}" in told(call, *words)
    assert escape(config) in Path("page.html").read_text()


def test_tiles_of_cards_differ_so_that_the_test_above_can_fail(call):
    assert len({chosen(call, target) for target in ("cpu", "gfx942", "sm_90a")}) == 3


@pytest.mark.parametrize("every", [pytest.param(40, id="sample"), pytest.param(1, marks=pytest.mark.slow, id="all")])
def test_every_order_of_a_search_has_the_same_tiles(call, every, monkeypatch):
    monkeypatch.setattr(search, "mappings_for", lambda machine: mappings_for(machine)[::every])
    own = re.match(r"(\w+=\d+(, )?)+", chosen(call, "gfx942"))[0].removesuffix(", ")
    ranked = json.loads(told(call, "sim", "k.py", "--set", SIZES, "--machine", "MI300X", "--best", "--json"))
    assert {one["problem"] for one in ranked} == {f"product, {own}, chosen for gfx942"}
    assert f"product, {own}, chosen for gfx942 on MI300X" in told(call, "sim", "k.py", "--set", SIZES, "--best")


@pytest.mark.parametrize("card", CARDS)
def test_every_tab_of_the_explorer_shows_one_kernel_with_its_tiles(card, call, tmp_path):
    path = tmp_path / "k.py"
    path.write_text(textwrap.dedent(PRODUCT))
    start = ExplorerChoice(sizes=SIZES, machine=card)
    explorer = Explorer(_of_file(path, start), start)
    config = f"product, {chosen(call, MACHINES[card].target)}, chosen for {MACHINES[card].target}"
    answers = [explorer.answer(question, start) for question in QUESTIONS]
    assert [answer.get("problem") or answer["kernel"] for answer in answers] == [config] * 3
    workgroups = explorer.explored.compiled(start, "", MACHINES[card].target).kernel.workgroups
    assert answers[0]["runs"][0]["launched"] == workgroups


def test_tiles_of_another_target_than_the_machine_s_are_warned_of(call):
    told(call, "compile", "k.py", "--set", SIZES)
    (kernel,) = fixed_in(Path("k.py"), parse_sizes([SIZES]), "--set", "cpu")
    (warning,) = [w for w in simulate(kernel, "H200").warnings if "chosen" in w]
    assert warning == "its tiles were chosen for cpu, but H200 is sm_90a: compile it with that target"
    (kernel,) = fixed_in(Path("k.py"), parse_sizes([SIZES]), "--set", "sm_90a")  # as it says
    assert simulate(kernel, "H200").warnings == ()


CARD = """
name = "Mine"
target = "gfx1100"
xcds = 4
units_per_xcd = 16
clock_hz = 2e9
rates = { f16 = 100e12 }
l2 = { bytes = 4194304 }
hbm = { bytes = 64000000000, bytes_per_second = 1e12 }
"""


def test_a_chip_without_a_target_needs_tiles_that_are_given(call, tmp_path):
    call("machines")
    (tmp_path / "mine.toml").write_text(CARD)
    words = ["sim", "k.py", "--machine", "mine.toml", "--set"]
    code, out, err = call(*words, SIZES, k=PRODUCT)
    assert (code, out) == (2, "")
    assert err == (
        "error: product leaves tile sizes open, and no target is for gfx1100, the chip of Mine\n"
        "  pass --set BLOCK_M=…,BLOCK_N=…,BLOCK_K=…\n"
    )
    given = told(call, *words, f"{SIZES},BLOCK_M=128,BLOCK_N=128,BLOCK_K=64")
    assert "product, tiles of 128×128×64 on Mine" in given


def test_a_run_and_a_diff_name_the_tiles(call):
    small = "M=64,N=64,K=64"
    config = json.loads(told(call, "compile", "k.py", "--set", small, "--json"))["product"]["chosen"]
    line = f"tiles: {config}, chosen for cpu\n"
    assert line in told(call, "run", "k.py", "--sizes", small, "--repeats", "2")
    assert line in told(call, "diff", "k.py", "--set", small)
    (report,) = json.loads(told(call, "bench", "k.py", "--sizes", small, "--rounds", "2", "--json"))["reports"]
    assert report["correctness"][0]["config"] == f"{config}, chosen for cpu"
