"""`tilewave tune` and `tilewave records`: what is decided, written and printed, and how mistakes are answered."""

import json

import pytest

from tilewave.bench import measure, reference

PRODUCT = """
from tilewave import *
M, N, K, G = sym.M, sym.N, sym.K, GLOBAL_ADDRESS_SPACE
rows, cols = WorkgroupConstraint(M, sym.BLOCK_M, 0), WorkgroupConstraint(N, sym.BLOCK_N, 1)
tiles = [rows, cols, TilingConstraint(K, sym.BLOCK_K)]

@wave(tiles)
def product(a: Memory[M, K, G, f32], b: Memory[N, K, G, f32], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)
    write(total, c)
"""
SIZES = "M=40,N=30,K=20"
RECORDS = "tilewave.records/tiles.jsonl"


@pytest.fixture
def call(call, tmp_path, monkeypatch):
    """The command, with records of its own and quick measurements."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TILEWAVE_RECORDS", str(tmp_path / "tilewave.records"))
    monkeypatch.setattr(measure, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(measure, "SHORTEST_SECONDS", 0)
    monkeypatch.setattr(reference, "CHECK_SECONDS", 600.0)
    return call


def test_the_model_s_choice_is_printed_and_recorded(call, tmp_path):
    code, out, _ = call("tune", "k.py", "--sizes", SIZES, "--target", "gfx942", "--strength", "model", k=PRODUCT)
    assert code == 0
    assert out.startswith(f"product {SIZES}, MI300X: BLOCK_M=") and "predicted; model" in out
    assert "points, " in out and "0 timed" in out and "tiles, 304 at once" in out
    (line,) = (tmp_path / RECORDS).read_text().splitlines()
    assert json.loads(line)["how"] == "model"


def test_points_are_timed_and_shown_and_the_second_time_looked_up(call, tmp_path):
    few = ["--runs", 2, "--rounds", 2, "--sizes", SIZES, "--sizes", "M=8,N=8,K=8"]
    code, out, _ = call("tune", "k.py", *few, k=PRODUCT)
    assert code == 0 and out.count("2 timed") == 2 and "│ BLOCK_M=" in out
    assert len((tmp_path / RECORDS).read_text().splitlines()) == 2
    code, out, _ = call("compile", "k.py", "--set", SIZES)
    assert code == 0 and "a record in" in out and "measured, of 2 runs, chose" in out


def test_json_has_every_point(call):
    words = ["--sizes", SIZES, "--runs", 3, "--rounds", 2, "--json"]
    code, out, _ = call("tune", "k.py", *words, k=PRODUCT)
    (found,) = json.loads(out)
    assert code == 0 and len(found["tried"]) == 3
    assert found["record"]["choice"] in [one["point"] for one in found["tried"]]


def test_values_and_orders_to_try_are_said_on_the_command_line(call):
    words = ["--sizes", SIZES, "--strength", "model", "--try", "BLOCK_M=8:16", "--try", "BLOCK_N=8", "--json"]
    code, out, _ = call("tune", "k.py", *words, "--map", "grouped(2)", k=PRODUCT)
    record = json.loads(out)[0]["record"]
    assert code == 0 and record["choice"]["BLOCK_M"] in (8, 16) and record["choice"]["BLOCK_N"] == 8
    assert record["order"] == "grouped(2)"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--sizes", "M=40"], "error: product: how large its arrays are depends on K, N\n"),
        (["--sizes", SIZES, "--strength", "quick"], "error: no strength is called 'quick'\n"),
        (["--sizes", SIZES, "--try", "BLOCK_M"], "error: --try: 'BLOCK_M' is no list of values\n"),
        (["--sizes", SIZES, "--try", "X=3"], "error: Tune: X is nothing that is decided here\n"),
        (["--sizes", SIZES, "--kernel", "other"], "error: k.py defines no kernel 'other'"),
    ],
)
def test_mistakes_are_told_with_what_to_write(call, words, told):
    code, out, err = call("tune", "k.py", *words, k=PRODUCT)
    assert (code, out) == (2, "") and err.startswith(told)


def test_records_are_shown_merged_and_checked(call, tmp_path):
    for sizes in (SIZES, "M=8,N=8,K=8"):
        call("tune", "k.py", "--sizes", sizes, "--strength", "model", k=PRODUCT)
    lines = (tmp_path / RECORDS).read_text().splitlines()
    (tmp_path / "theirs.jsonl").write_text("\n".join([lines[1], "damaged", lines[0]]) + "\n")
    code, out, _ = call("records", "merge", "theirs.jsonl", "--into", "both")
    assert (code, out.splitlines()) == (
        0,
        ["theirs.jsonl:2: kept as it is: this is no JSON", "2 decisions in both/tiles.jsonl"],
    )
    assert (tmp_path / "both" / "tiles.jsonl").read_text().splitlines() == [*lines, "damaged"]
    code, out, _ = call("records", "check", "both")
    assert (code, out.splitlines()) == (1, ["both/tiles.jsonl: 2 records", "both/tiles.jsonl:3: this is no JSON"])
    code, out, _ = call("records", "show", "--json")
    assert code == 0 and len(next(iter(json.loads(out).values()))) == 2
    assert "product" in call("records", "show")[1]
    assert call("records", "check")[0] == 0


def test_an_action_or_a_file_that_is_not_there_is_told(call):
    assert call("records", "burn")[2].startswith(
        "error: records: no action is called 'burn'\n  there are show, merge, check"
    )
    assert call("records", "show", "nothing.jsonl")[2] == "error: records: there is no file nothing.jsonl\n"
