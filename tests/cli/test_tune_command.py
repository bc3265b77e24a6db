"""`tilewave tune` and `tilewave records`: what is decided, written and printed, and how mistakes are answered."""

import json
import os
import pickle

import pytest

from tilewave import Tune
from tilewave.bench import measure, reference, tuning
from tilewave.bench.workers import Killed
from tilewave.cli.tune_tasks import OverWorkers, TuneTask, compile_configs, install, measure_configs
from tilewave.errors import TilewaveError
from tilewave.tune.search import ConfigTime

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
    """The command, with separate tuning records and quick measurements."""
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
    assert "configs, " in out and "0 timed" in out and "tiles, 304 concurrent" in out
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
        (["--sizes", "M=40"], "error: product: sizes K, N are missing\n  pass --sizes K=…,N=…\n"),
        (["--sizes", SIZES, "--strength", "quick"], "error: unknown strength 'quick'\n"),
        (["--sizes", SIZES, "--try", "BLOCK_M"], "error: --try: 'BLOCK_M' is no list of values\n"),
        (["--sizes", SIZES, "--try", "X=3"], "error: Tune: X cannot be tuned here\n"),
        (["--sizes", SIZES, "--kernel", "other"], "error: k.py defines no kernel 'other'"),
    ],
)
def test_mistakes_are_told_with_what_to_write(call, words, told):
    code, out, err = call("tune", "k.py", *words, k=PRODUCT)
    assert (code, out) == (2, "") and err.startswith(told)


def test_tiles_that_the_file_fixes_are_not_tuned(call, tmp_path):
    words = ["tune", "k.py", "--sizes", SIZES, "--target", "cpu", "--strength", "model"]
    some = PRODUCT.replace("@wave(tiles)", "@wave(tiles, subs={sym.BLOCK_M: 16, sym.BLOCK_N: 8})")
    every = some.replace("16, ", "16, sym.BLOCK_K: 32, ")
    said = "error: nothing to tune: product fixes BLOCK_M=16, BLOCK_N=8, BLOCK_K=32\n"
    remedy = "  remove BLOCK_M, BLOCK_N, BLOCK_K from subs\n"
    assert call(*words, k=every) == (2, "", said + remedy)
    assert not (tmp_path / RECORDS).exists()
    code, out, _ = call(*words, "--json", k=some)
    assert code == 0 and "BLOCK_M" not in json.loads(out)[0]["record"]["choice"]
    told = "error: Tune: nothing to tune: product fixes BLOCK_M=16\n"
    code, out, err = call(*words, "--try", "BLOCK_M=64:128", k=some)
    assert (code, out) == (2, "") and err.startswith(told)


def test_a_page_shows_every_point(call, tmp_path):
    words = ["--sizes", SIZES, "--runs", 2, "--rounds", 2, "--html", "page.html"]
    assert call("tune", "k.py", *words, k=PRODUCT)[0] == 0
    text = (tmp_path / "page.html").read_text()
    assert text.count('<tr class="') > 2 and text.count('<tr class="untimed') > 0 and "(chosen)" in text


@pytest.mark.parametrize(
    "place, told", [("nowhere/page.html", "there is no directory nowhere"), (".", ". is a direct")]
)
def test_a_page_that_cannot_be_written_is_told_before_anything_is_decided(call, tmp_path, place, told):
    code, out, err = call("tune", "k.py", "--sizes", SIZES, "--strength", "model", "--html", place, k=PRODUCT)
    assert (code, out) == (2, "") and err.startswith(f"error: {told}")
    assert not (tmp_path / RECORDS).exists()


ROWS = """
from tilewave import *
M, N, ROWS, G = sym.M, sym.N, sym.ROWS, GLOBAL_ADDRESS_SPACE

@wave([WorkgroupConstraint(M, ROWS, 0)])
def softmax(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
    powers = exp(read(x) - read(x).max(dim=N))
    write(powers / powers.sum(dim=N), y)

@wave([WorkgroupConstraint(M, ROWS, 0), WaveConstraint(M, sym.OF_A_WAVE)])
def rms_norm(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32], eps: f32, times: i32):
    x = read(x)
    write(x * rsqrt((x * x).sum(dim=N) / scalar(N, f32) + eps) * cast(times, f32), y)
"""
ATTENTION = """
from tilewave import *
M, N, K1, K2, G = sym.M, sym.N, sym.K1, sym.K2, GLOBAL_ADDRESS_SPACE
queries = [WorkgroupConstraint(M, sym.BLOCK_M, 0), WaveConstraint(M, sym.BLOCK_M / 4)]

@wave([*queries, WorkgroupConstraint(N, 16, 1), TilingConstraint(K2, sym.BLOCK_K2)])
def attention(q: Memory[M, K1, G, f16], k: Memory[K2, K1, G, f16], v: Memory[K2, N, G, f16], y: Memory[M, N, G, f32]):
    begin = Register[M, f32](-1e30), Register[M, f32](0.0), Register[M, N, f32](0.0)
    @iterate(K2, init_args=begin)
    def walked(largest, total, sums):
        x = mma(read(q), read(k), Register[M, K2, f32](0.0))
        larger = x.max(dim=K2, acc=largest)
        shrink, p = exp2(largest - larger), exp2(x - larger)
        return larger, total * shrink + p.sum(dim=K2), mma(cast(p, f16), read(v), sums * shrink)
    _, total, sums = walked
    write(sums / total, y)
"""


@pytest.mark.parametrize(("target", "how"), [("cpu", "measured"), ("sm_90a", "model"), ("gfx942", "model")])
def test_kernels_on_rows_are_tuned_by_the_same_command(call, target, how):
    words = ["--sizes", "M=12,N=70", "--target", target, "--runs", 2, "--rounds", 2, "--json"]
    code, out, _ = call("tune", "k.py", *words, k=ROWS)
    softmax, norm = json.loads(out)
    assert code == 0 and [one["record"]["how"] for one in (softmax, norm)] == [how, how]
    assert set(softmax["record"]["choice"]) == {"ROWS"} and set(norm["record"]["choice"]) == {"ROWS", "OF_A_WAVE"}
    assert norm["record"]["choice"]["ROWS"] % norm["record"]["choice"]["OF_A_WAVE"] == 0
    if target == "gfx942":
        assert "waves share a SIMD" in softmax["record"]["notes"]


@pytest.mark.parametrize(("target", "how"), [("cpu", "measured"), ("sm_90a", "model"), ("gfx942", "model")])
def test_blocks_of_attention_are_tuned_by_the_same_command(call, target, how):
    words = ["--sizes", "M=64,K2=300,K1=16,N=16", "--target", target, "--runs", 2, "--rounds", 2, "--json"]
    code, out, _ = call("tune", "k.py", *words, k=ATTENTION)
    (found,) = json.loads(out)
    assert code == 0 and found["record"]["how"] == how
    choice = found["record"]["choice"]
    assert set(choice) == {"BLOCK_M", "BLOCK_K2"} and choice["BLOCK_M"] % 4 == 0  # the quarter is a whole number
    if target == "sm_90a":
        assert choice["BLOCK_M"] >= 64  # fewer rows are multiplied as if there were so many
    if target == "gfx942":
        assert "instructions for each matrix instruction" in found["record"]["notes"]


def test_a_point_without_a_time_is_told_below_the_table(call, monkeypatch):
    monkeypatch.setattr(tuning.ConfigTimer, "compiled", refusing("BLOCK_N=32", tuning.ConfigTimer.compiled))
    words = ["--sizes", SIZES, "--runs", 3, "--rounds", 2, "--try", "BLOCK_M=8", "--try", "BLOCK_N=16:32"]
    code, out, _ = call("tune", "k.py", *words, k=PRODUCT)
    assert code == 0 and "BLOCK_M=8, BLOCK_N=32, BLOCK_K=64 has no time: not this one" in out


def refusing(text, compiled):
    def maybe(self, config):
        if text in config.text:
            raise TilewaveError("not this one")
        return compiled(self, config)

    return maybe


def test_records_are_shown_merged_and_checked(call, tmp_path):
    for sizes in (SIZES, "M=8,N=8,K=8"):
        call("tune", "k.py", "--sizes", sizes, "--strength", "model", k=PRODUCT)
    lines = (tmp_path / RECORDS).read_text().splitlines()
    (tmp_path / "theirs.jsonl").write_text("\n".join([lines[1], "damaged", lines[0]]) + "\n")
    code, out, _ = call("records", "merge", "theirs.jsonl", "--into", "both")
    assert (code, out.splitlines()) == (
        0,
        [
            "theirs.jsonl:2: kept as it is: this is no JSON: Expecting value: line 1 column 1 (char 0)",
            "2 tuning records in both/tiles.jsonl",
        ],
    )
    assert (tmp_path / "both" / "tiles.jsonl").read_text().splitlines() == [*lines, "damaged"]
    code, out, _ = call("records", "merge", "theirs.jsonl", "--into", "again", "--json")
    assert code == 0 and json.loads(out)["file"] == "again/tiles.jsonl" and json.loads(out)["records"] == 2
    why = "this is no JSON: Expecting value: line 1 column 1 (char 0)"
    assert json.loads(out)["kept_as_is"] == [{"file": "theirs.jsonl", "line": 2, "why": why}]
    code, out, _ = call("records", "check", "both")
    assert (code, out.splitlines()) == (
        1,
        [
            "both/tiles.jsonl: 2 records",
            "both/tiles.jsonl:3: this is no JSON: Expecting value: line 1 column 1 (char 0)",
        ],
    )
    code, out, _ = call("records", "show", "--json")
    assert code == 0 and len(next(iter(json.loads(out).values()))) == 2
    assert "product" in call("records", "show")[1]
    assert call("records", "check")[0] == 0


def test_an_action_or_a_file_that_is_not_there_is_told(call):
    assert call("records", "burn")[2].startswith(
        "error: records: unknown action 'burn'\n  there are show, merge, check"
    )
    assert call("records", "show", "nothing.jsonl")[2] == "error: records: there is no file nothing.jsonl\n"


# -- over workers


def task_of(tmp_path, text=PRODUCT, sizes=SIZES, target="cpu"):
    return TuneTask("k.py", text, 0, sizes, target, 2, Tune(BLOCK_M=(8, 16), BLOCK_N=16, in_place=1))


def test_what_a_worker_compiles_is_in_the_cache_of_whoever_measures(tmp_path, monkeypatch):
    task = task_of(tmp_path)
    configs = task.timer.open_tiles.predicted({})
    entries = compile_configs(task.of(configs[:1]))
    assert entries and os.environ.get("TILEWAVE_CACHE_DIR") != str(tmp_path)
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(tmp_path / "there"))
    install(entries)
    written = {path.name for path in (tmp_path / "there").glob("*.entry")}
    assert written == {name for name, _ in entries}
    task.timer.compiled(configs[0]).build.code  # noqa: B018
    assert {path.name for path in (tmp_path / "there").glob("*.entry")} == written  # nothing was compiled again


def test_points_travel_by_name_and_come_back_as_they_were(tmp_path):
    task = task_of(tmp_path)
    configs = task.timer.open_tiles.predicted({})
    assert [one.text for one in pickle.loads(pickle.dumps(task.of(configs))).choices] == [p.text for p in configs]


class Here:
    """Workers that are this process, on a machine of some name."""

    def __init__(self, machine=None, kills=()):
        self.machine, self.kills, self.did = machine, kills, []

    def results(self, do, tasks):
        for number, task in reversed(list(enumerate(tasks))):  # in whichever order they come
            self.did.append(do.__name__)
            if do.__name__ in self.kills:
                yield number, Killed(3)
            elif do is measure_configs:
                yield (
                    number,
                    (self.machine or task.timer.open_tiles.machine.name, [ConfigTime(1e-3)] * len(task.configs)),
                )
            else:
                yield number, do(task)


def spread(tmp_path, **workers):
    task, here = task_of(tmp_path), Here(**workers)
    configs = task.timer.open_tiles.predicted({})
    over = OverWorkers(here, task, here)
    assert not over.measures_here and OverWorkers(here, task).measures_here
    return here, [times for _, times in over(None, [configs[:1], configs[1:]])]


def test_workers_compile_and_measure_every_batch(tmp_path):
    here, found = spread(tmp_path)
    assert here.did == ["compile_configs"] * 2 + ["measure_configs"] * 2
    assert [one.seconds for times in found for one in times] == [1e-3, 1e-3]


def test_times_of_another_machine_and_of_batches_that_kill_are_none(tmp_path):
    _, found = spread(tmp_path, machine="A100")
    assert all(one.seconds is None and "measured on A100, not on" in one.why for times in found for one in times)
    _, found = spread(tmp_path, kills=("measure_configs", "compile_configs"))
    assert {one.why for times in found for one in times} == {"3 processes died of this batch"}


def test_explain_says_what_calls_take_and_what_would_be_faster(call, tmp_path):
    words = ["tune", "k.py", "--sizes", "M=512,N=512,K=512", "--target", "sm_90a", "--explain"]
    code, out, _ = call(*words, k=PRODUCT)
    assert code == 0 and "H200: BLOCK_M=" in out and "faster would be " in out and "Bottleneck" in out
    assert not (tmp_path / RECORDS).exists()
    (said,) = json.loads(call(*words, "--json")[1])
    assert said["machine"] == "H200" and len(said["configs"]) == 12
    assert said["configs"][0]["config"] in said["reason"] and said["faster"] in said["reason"]
