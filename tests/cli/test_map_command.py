"""`tilewave map`, as it is typed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tilewave.cli.main import main


class Outcome(NamedTuple):
    code: object
    out: str
    err: str


@pytest.fixture
def run(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["tilewave", "map", *arguments])
        code: object = 0
        try:
            main()
        except SystemExit as leave:
            code = leave.code
        return Outcome(code, *capsys.readouterr())

    return run


def test_the_documents_example_is_drawn_measured_and_verified(run, golden):
    outcome = run("8x8", "xcd_contiguous(8) >> grouped(2)", "--xcds", "8")
    assert (outcome.code, outcome.err) == (0, "")
    assert "one XCD 72 → 48" in outcome.out
    assert "every tile exactly once: verified, 64 workgroups" in outcome.out
    golden(trimmed(outcome.out))


def test_persistent_launch_shows_its_rounds_beside_another_mapping(run, golden):
    outcome = run("6x8", "xcd_contiguous(8) >> grouped(2)", "--workgroups", "20", "--compare", "linear()")
    assert outcome.code == 0
    golden(trimmed(outcome.out))


def test_colour_replaces_the_table_of_xcds(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = run("8x8", "grouped(2)").out
    assert "\x1b[38;2;17;20;24;48;2;119;170;221m 0 \x1b[0m" in out  # workgroup 0 on the blue of XCD 0
    assert "M\\N" in out
    assert "XCD  " not in out.partition("reads, in blocks")[0].replace("XCDs", "")


def test_no_color_is_obeyed(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    out = run("8x8", "grouped(2)").out
    assert "48;2;" not in out
    assert "XCD" in out.splitlines()[2]


def test_more_xcds_than_colours_are_also_told_by_number(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "XCD" in run("8x8", "grouped(2)", "--xcds", "10").out.splitlines()[2]


@pytest.mark.parametrize("grid", ["60x20", "16x300", "2000x2000"])
def test_large_grid_does_not_flood_the_terminal_and_says_so(run, grid, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    outcome = run(grid, "grouped(8)")
    assert outcome.code == 0
    assert "too large for numbers" in outcome.out and "--html, --svg or --json show the rest\n" in outcome.out
    lines = outcome.out.splitlines()
    assert len(lines) < 80
    assert max(map(len, lines)) <= 80


def test_json_tells_everything(run):
    outcome = run("3x4", "xcd_chunked(2, 99) >> grouped(2)", "--xcds", "2", "--compare", "linear()", "--json")
    told = json.loads(outcome.out)
    assert told["grid"] == {"rows": 3, "cols": 4}
    assert (told["xcds"], told["k_blocks"], told["workgroups"], told["rounds"]) == (2, 8, 12, 1)
    first, second = told["mappings"]
    (warning,) = first["warnings"]
    assert warning.endswith("a chunk of 99 is larger than an XCD's share of 6, so nothing is chunked")
    assert second["workgroups"] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    assert second["xcds"] == [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
    assert second["locality"]["compulsory"] == 7 * 8
    assert second["locality"]["xcds"][0]["blocks"] == 7 * 8


def test_json_of_a_persistent_launch_tells_workgroup_and_round(run):
    told = json.loads(run("2x3", "linear()", "--workgroups", "4", "--xcds", "2", "--json").out)["mappings"][0]
    assert told["turns"] == [[0, 2, 4], [1, 3, 5]]
    assert told["workgroups"] == [[0, 2, 0], [1, 3, 1]]
    assert told["rounds"] == [[0, 0, 1], [0, 0, 1]]


def test_mapping_that_counts_other_xcds_is_warned_about(run):
    out = run("8x8", "xcd_contiguous(4) >> grouped(2)").out
    assert "warning: xcd_contiguous(4) renumbers for 4 XCDs, but the launch has 8" in out


def test_files_are_written_and_named(run, tmp_path):
    svg, html = tmp_path / "map.svg", tmp_path / "map.html"
    outcome = run("8x8", "grouped(2)", "--svg", str(svg), "--html", str(html))
    assert outcome.code == 0
    assert svg.read_text().startswith("<svg ")
    assert html.read_text().startswith("<!doctype html>")
    assert outcome.out.replace("\n", "").endswith(f"wrote {svg}wrote {html}")
    assert sorted(os.listdir(tmp_path)) == ["map.html", "map.svg"]


BAD = {
    ("8x",): """error: a grid is two numbers, rows x columns
      8x
        ^
  write 8x8
""",
    ("8 by 8",): """error: a grid is two numbers, rows x columns
      8 by 8
        ^^^^
  write 8x8
""",
    ("0x8",): """error: a grid needs at least one of its rows
      0x8
      ^
""",
    (
        "3x99999999999999999999",
    ): """error: cols = 99999999999999999999 is too large; a launch numbers at most 2147483647 tiles
      3x99999999999999999999
      ^^^^^^^^^^^^^^^^^^^^^^
""",
    ("9" * 70,): "error: a grid is two numbers such as 8x8, not 70 characters\n",
    ("8x8", "groupd(2)"): """error: there is no mapping `groupd`
      groupd(2)
      ^^^^^^
  did you mean grouped?
  renumberings: xcd_contiguous, xcd_chunked, last_first, folded
  orders: linear, paired, grouped, supertiles, snake, morton, hilbert
""",
    ("8x8", "linear()", "--compare", "grouped(2"): """error: this ( is never closed
      grouped(2
             ^
""",
    ("8x8", "--xcds", "0"): "error: xcds is 0, but must be between 1 and 2147483647\n",
    ("8x8", "--xcds", "257"): "error: xcds is 257, but a picture shows at most 256\n",
    ("8x8", "--workgroups", "-1"): "error: workgroups is -1, but must be between 1 and 2147483647\n",
    ("8000x8000",): """error: a grid of 8000×8000 has 64000000 tiles; a picture shows at most 4194304
  Mapping.verify and mapping.locality take any grid
""",
    (
        "2000x2000",
        "--concurrent",
        "1",
    ): """error: 4000000 waves on 8 XCDs are more than the 262144 shares a picture counts
  let more workgroups run at a time
""",
}


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_input_gets_one_message_and_exit_code_2(run, arguments):
    assert run(*arguments) == (2, "", BAD[arguments])


def test_a_large_grid_is_drawn_in_squares_of_tiles(run, tmp_path):
    outcome = run("200x300", "--svg", str(tmp_path / "map.svg"))
    assert (outcome.code, outcome.err) == (0, "")
    drawn = (tmp_path / "map.svg").read_text(encoding="utf-8")
    assert "Each cell is 2×2 tiles" in drawn
    assert drawn.count('class="tile"') == 2 * 100 * 150  # order and XCDs; the reads' have a second class


def test_xcd_that_does_not_exist_is_named(run, tmp_path):
    outcome = run("8x8", "--svg", str(tmp_path / "map.svg"), "--xcd", "8")
    assert (outcome.code, outcome.err) == (2, "error: there is no XCD 8; the launch has 8 XCDs, from 0\n")


def test_unwritable_places_are_named(run, tmp_path):
    cases = {
        tmp_path: f"error: {tmp_path} is a directory\n  give the name of a file in it\n",
        tmp_path / "no" / "map.svg": f"error: there is no directory {tmp_path / 'no'}\n  make it first\n",
        Path("/dev/full"): "error: /dev/full is not a plain file\n",
    }
    for path, said in cases.items():
        assert run("2x2", "--svg", str(path)) == (2, "", said)


def test_help_teaches_with_examples(run):
    outcome = run("--help")
    assert outcome.code == 0
    assert 'tilewave map 8x8 "xcd_contiguous(8) >> grouped(2)"' in outcome.out
    for option in ("--xcds", "--k-blocks", "--workgroups", "--concurrent", "--compare", "--svg", "--html", "--json"):
        assert option in outcome.out


def trimmed(text: str) -> str:
    """Without the spaces at the ends of lines, which a golden file cannot keep."""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


CAUSAL = ("16x4", "xcd_contiguous(8) >> paired()", "--causal", "128x64", "--concurrent", "16")


def test_causal_grid_shows_what_each_tile_costs_and_when_the_units_are_done(run, golden):
    outcome = run(*CAUSAL, "--compare", "linear()")
    assert (outcome.code, outcome.err) == (0, "")
    golden(trimmed(outcome.out))


def test_costs_of_a_causal_grid_for_machines_and_in_pictures(run, tmp_path):
    svg, html = tmp_path / "map.svg", tmp_path / "map.html"
    assert run(*CAUSAL, "--svg", str(svg), "--html", str(html)).code == 0
    assert "16 units done after" in svg.read_text() and "blocks of keys that it iterates over" in svg.read_text()
    assert "Work, in blocks of keys" in html.read_text() and "Reads, in blocks" not in html.read_text()
    found = json.loads(run(*CAUSAL, "--keys", "2000", "--json").out)["mappings"][0]["balance"]
    assert [row[0] for row in found["costs"]] == [2 * row + 2 for row in range(16)]
    assert sum(xcd["work"] for xcd in found["xcds"]) == found["work"] == 4 * 16 * 17
    ragged = json.loads(run(*CAUSAL, "--keys", "1985", "--json").out)["mappings"][0]["balance"]
    assert ragged["costs"][15] == [32] * 4
    shorter = json.loads(run(*CAUSAL, "--keys", "1984", "--json").out)["mappings"][0]["balance"]
    assert shorter["costs"][15] == [31] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--keys", "100"), "--keys has no effect without --causal"),
        (("--causal", "128x64", "--k-blocks", "4"), "--k-blocks has no effect with --causal"),
        (("--causal", "128"), "a block is two numbers, queries x keys"),
        (("--causal", "128x0"), "causal: keys is 0, but must be at least 1"),
        (("--causal", "128x64", "--concurrent", "4"), "4 units are too few for 8 XCDs"),
    ],
)
def test_what_a_causal_grid_cannot_be_asked_is_said(run, options, message):
    outcome = run("16x4", "linear()", *options)
    assert outcome.code == 2
    assert message in outcome.err


KERNEL = """
from tilewave import *
M, N, BLOCK = sym.M, sym.N, sym.BLOCK
GLOBAL = GLOBAL_ADDRESS_SPACE


@wave([WorkgroupConstraint(M, BLOCK, 0), WorkgroupConstraint(N, 64, 1), WorkgroupMapping("grouped(2)")])
def copied(a: Memory[M, N, GLOBAL, f32], c: Memory[M, N, GLOBAL, f32]):
    write(read(a), c)
"""
SIZES = ("--set", "M=384,N=448,BLOCK=64")


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL)
    return "kernel.py"


def test_a_kernel_of_a_file_is_drawn_in_its_own_order(run, kernel):
    drawn = json.loads(run(kernel, *SIZES, "--compare", "linear()", "--json").out)
    own, other = drawn["mappings"]
    assert (drawn["grid"], own["mapping"]) == ({"rows": 6, "cols": 7}, "copied")
    assert own["workgroups"] == json.loads(run("6x7", "grouped(2)", "--json").out)["mappings"][0]["workgroups"]
    assert own["workgroups"] != other["workgroups"]


def test_a_file_and_what_does_not_go_with_it_is_refused_with_what_to_write(run, kernel):
    file = Path(kernel)
    for arguments, said, remedy in (
        (("6x7", kernel), "kernel.py is a file, and a mapping is a text such as grouped(4)", f"tilewave map {kernel}"),
        ((kernel, *SIZES, "linear()"), "kernel.py is drawn in its own order", '--compare "linear()"'),
        ((kernel,), "copied: sizes M, N are missing", "pass --set M=…,N=…"),
        ((kernel, "--set", "M=384,N=448"), "copied leaves tile sizes open", "pass --set BLOCK=…"),
        ((kernel, *SIZES, "--workgroups", "4"), "--workgroups has no effect on a kernel", "GridConstraint"),
        ((kernel, *SIZES, "--kernel", "other"), "kernel.py has no kernel 'other'", "a kernel that the file defines"),
        (("6x7", *SIZES), "--set has no effect without a file", "tilewave map FILE --set"),
        (("none.py",), "there is no file none.py", "name a Python file"),
    ):
        outcome = run(*arguments)
        assert outcome.code == 2 and said in outcome.err and remedy in outcome.err, outcome.err
    file.write_text(KERNEL + KERNEL.partition("\n\n\n")[2].replace("copied", "twice"))
    two = run(kernel, *SIZES).err
    assert "kernel.py has 2 kernels, not one: copied, twice" in two and "pass --kernel NAME" in two
    assert run(kernel, *SIZES, "--kernel", "twice").code == 0
