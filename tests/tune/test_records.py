"""Tuning records: lines that merge by concatenation, survive kills, are found quickly, and are never code."""

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N, check_product, gemm, poisoned, random_array

from tilewave import *
from tilewave.files import append_line
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.tune.default import TunableKernel
from tilewave.tune.records import BadRecord, NewerRecord, RecordKey, TileRecord, merged
from tilewave.tune.store import FILE, Records, add, search_path, tidy

KILLS = 8
MANY = 20_000
LOOKUP_SECONDS, START_SECONDS = 50e-6, 200e-3
"""Seconds of CPU time, because wall-clock time is longer on a busy machine."""


def key(k=1024, kernel="gemm", digest="00112233445566aa", chip="H200"):
    return RecordKey(kernel, digest, chip, f"K={k},M=1024,N=1024")


def record(k=1024, **more):
    facts = {"choice": {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64}, "considered": 36, "predicted": 5e-6, **more}
    return TileRecord(facts.pop("key", key(k)), **facts)


# -- lines ------------------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), st.integers(1, 4096), min_size=1),
    st.sampled_from(["model", "measured", "exhaustive"]),
    st.integers(0, 99),
    st.none() | st.floats(0, 1e6),
    st.text(),
)
def test_a_record_is_read_as_it_was_written(choice, how, count, seconds, notes):
    one = record(choice=choice, how=how, tried=count, measured=seconds, spread=seconds, notes=notes, order="grouped(8)")
    assert "\n" not in one.line and one.line.startswith('{"at":"gemm ')
    assert TileRecord.parse(one.line) == one and TileRecord.parse(one.line).line == one.line


BAD = {
    "no JSON": "{",
    "a list": "[1, 2]",
    "no format": '{"at": "x"}',
    "at without a digest": record().line.replace("00112233445566aa", "0011"),
    "a choice of texts": record().line.replace('"BLOCK_M":64', '"BLOCK_M":"64"'),
    "a choice of nothing": record(choice={"B": 1}).line.replace('{"B":1}', "{}"),
    "a negative time": record().line.replace("5e-06", "-1.0"),
    "a truth value": record().line.replace('"rounds":0', '"rounds":true'),
    "another strength": record().line.replace('"model"', '"guess"'),
    "nested too deeply": "[" * 60_000,
    "a number of more digits than Python reads": record().line.replace('"rounds":0', '"rounds":1' + "0" * 5000),
    "a choice too large for any tile": record(choice={"BLOCK_M": 2**31}).line,
    "a name that is no symbol": record(choice={"BLOCK M": 2}).line,
    "a key twice": record().line.replace('"rounds":0', '"rounds":0,"rounds":1'),
    "no number": record().line.replace("5e-06", "NaN"),
    "an infinite number": record().line.replace("5e-06", "1e999"),
    "half a surrogate pair": record().line.replace('"order":""', '"order":"\\ud800"'),
    "no UTF-8": record().line.encode().replace(b'"order":""', b'"order":"\xff"'),
    "too long": record(notes="x" * 100_000).line,
}


@pytest.mark.parametrize("line", BAD.values(), ids=BAD)
def test_what_is_no_record_is_refused(line):
    with pytest.raises(BadRecord):
        TileRecord.parse(line)


def test_a_line_of_a_later_tilewave_is_told_apart():
    with pytest.raises(NewerRecord, match="format 2, and 1 is the last that is known here"):
        TileRecord.parse(record().line.replace('"format":1', '"format":2'))


def test_lines_merge_in_any_order():
    ours = [record(k, how=how, tried=n, rounds=n) for k in (1, 2) for how in ("model", "measured") for n in (3, 8)]
    lines = [one.line for one in ours] + ["damaged"]
    first, bad = merged(lines)
    assert [(r.key.sizes, r.how, r.tried) for r in first] == [
        ("K=1,M=1024,N=1024", "measured", 8),
        ("K=2,M=1024,N=1024", "measured", 8),
    ]
    assert [(number, text) for number, text, _ in bad] == [(9, "damaged")]
    for seed in range(20):
        random.Random(seed).shuffle(lines)
        assert merged(lines)[0] == first


# -- files ------------------------------------------------------------------------------------------------------------


def test_the_nearest_file_that_has_a_record_answers(tmp_path):
    near, far = tmp_path / "near", tmp_path / "far"
    add(record(1, tried=1), near)
    add(record(1, tried=9), far)
    add(record(2, tried=9), far)
    files = Records([near, far])
    assert files.look_up(key(1)).fitting[0].tried == 1
    assert files.look_up(key(2)).fitting[0].file == str(far / FILE)
    assert not files.look_up(key(3)).fitting


def test_a_record_of_another_text_is_told_and_not_used(tmp_path):
    add(record(1), tmp_path)
    found = Records([tmp_path]).look_up(replace(key(1), digest="f" * 16))
    assert not found.fitting and [one.key for one in found.stale] == [key(1)]


def test_records_of_another_chip_or_size_are_none(tmp_path):
    add(record(1), tmp_path)
    files = Records([tmp_path])
    for other in (replace(key(1), chip="H100"), key(2), replace(key(1), kernel="other")):
        found = files.look_up(other)
        assert not found.fitting and not found.stale


def test_a_file_that_changes_is_read_again(tmp_path):
    files = Records([tmp_path])
    assert not files.look_up(key(1)).fitting
    add(record(1), tmp_path)
    assert files.look_up(key(1)).fitting
    (tmp_path / FILE).unlink()
    assert not files.look_up(key(1)).fitting


def test_damaged_lines_hide_no_others(tmp_path):
    add(record(1), tmp_path)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b"\xff\xfe{\x00}\n" + record(2).line.encode()[:40])  # half a line, as a killed process leaves it
    add(record(3), tmp_path)
    files = Records([tmp_path])
    assert files.look_up(key(1)).fitting and files.look_up(key(3)).fitting
    assert not files.look_up(key(2)).fitting


def test_a_tidy_file_is_sorted_and_keeps_what_it_does_not_know(tmp_path):
    newer = record(9).line.replace('"format":1', '"format":2')
    for one in (record(3), record(1), record(3, tried=8, how="measured")):
        add(one, tmp_path)
    append_line(tmp_path / FILE, newer.encode())
    other = tmp_path / "other.jsonl"
    other.write_text(record(2).line + "\n")
    bad = tidy(tmp_path, [other])
    lines = (tmp_path / FILE).read_text().splitlines()
    assert lines == [record(1).line, record(2).line, record(3, tried=8, how="measured").line, newer]
    assert [(path.name, number, type(why)) for path, number, why in bad] == [(FILE, 4, NewerRecord)]
    assert tidy(tmp_path) and (tmp_path / FILE).read_text().splitlines() == lines


def test_the_path_begins_at_the_project_and_ends_at_the_user(tmp_path, monkeypatch):
    (tmp_path / "tilewave.records").mkdir()
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    monkeypatch.delenv("TILEWAVE_RECORDS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    found = [tmp_path / "tilewave.records", tmp_path / "data" / "tilewave" / "records"]
    assert search_path() == found
    monkeypatch.setenv("TILEWAVE_RECORDS", "off")
    assert search_path() == []


# -- killed, and two at once ------------------------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from tilewave.tune.records import RecordKey, TileRecord
from tilewave.tune.store import add, tidy
directory, name = Path(sys.argv[1]), sys.argv[2]
number = 0
while True:
    key = RecordKey(name, "00112233445566aa", "H200", f"K={number},M=1")
    add(TileRecord(key, {"BLOCK_M": 64}, notes="x" * (number * 37 % 500)), directory)
    print(number, flush=True)
    number += 1
    if number % 7 == 0:
        tidy(directory)
"""


def start(directory, name):
    words = [sys.executable, "-c", WRITER, str(directory), name]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_what_was_added_survives_a_kill_at_any_moment(tmp_path):
    """Two processes write and sort one file; each is killed again and again, and nothing that it had done is lost."""
    draw, done = random.Random(1), set()
    for kill in range(KILLS // 2):
        writers = {name: start(tmp_path, name) for name in (f"a{kill}", f"b{kill}")}
        for name, writer in writers.items():
            writer.stdout.readline()  # it is at work
            done.add((name, 0))
        time.sleep(draw.uniform(0, 0.06))
        for name, writer in writers.items():
            writer.send_signal(signal.SIGKILL)
            done |= {(name, int(line)) for line in writer.communicate()[0].split()}
    tidy(tmp_path)
    records, bad = merged((tmp_path / FILE).read_text().splitlines())
    there = {(r.key.kernel, int(r.key.sizes.split(",")[0][2:])) for r in records}
    assert len(done) > KILLS and done <= there
    assert all(not text.endswith("}") for _, text, _ in bad)  # at most halves of unfinished lines


# -- quick ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_many_records_are_opened_and_looked_up_quickly(tmp_path):
    with (tmp_path / FILE).open("w") as file:
        for number in range(MANY):
            file.write(record(number).line + "\n")
    starts = []
    for _ in range(5):
        begin = time.process_time()
        files = Records([tmp_path])
        assert files.look_up(key(7)).fitting
        starts.append(time.process_time() - begin)
    times = []
    for seed in range(1000):
        wanted = [key(number) for number in random.Random(seed).sample(range(MANY), 20)]
        begin = time.process_time()
        assert all(files.look_up(one).fitting for one in wanted)
        times.append((time.process_time() - begin) / len(wanted))
    assert min(starts) < START_SECONDS and min(times) < LOOKUP_SECONDS


# -- used -------------------------------------------------------------------------------------------------------------


def subs(m, n, k):
    return {M: m, N: n, K: k}


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A kernel of 64x64x64 with a tuning record in a file."""
    monkeypatch.setenv("TILEWAVE_RECORDS", str(tmp_path))
    kernel = gemm()
    open_tiles = TunableKernel.of(kernel, subs(64, 64, 64), (), {}, "cpu")
    choice = {"BLOCK_M": 16, "BLOCK_N": 48, "BLOCK_K": 32}
    add(record(key=open_tiles.key({}), choice=choice, how="measured", tried=8, measured=9e-6, spread=1e-7), tmp_path)
    return kernel, tmp_path


def test_a_decision_on_record_is_taken_and_said(recorded):
    kernel, directory = recorded
    one = wave_compile(WaveCompileOptions(subs=subs(64, 64, 64), target="cpu"), kernel)
    assert {s.name: v for s, v in one.choice.config.items()} == {"BLOCK_M": 16, "BLOCK_N": 48, "BLOCK_K": 32}
    said = one.why().rows[0].what
    assert f"a record in {directory / FILE}, measured, of 8 runs, chose BLOCK_M=16" in said and "9 µs ± 1 %" in said
    other = wave_compile(WaveCompileOptions(subs=subs(64, 64, 65), target="cpu"), kernel)
    assert "the model chose" in other.why().rows[0].what


def test_a_record_of_an_older_text_is_said_and_not_used(recorded):
    def changed(x):
        return x + x

    one = wave_compile(WaveCompileOptions(subs=subs(64, 64, 64), target="cpu"), gemm(epilogue=changed))
    said = one.why().rows[0].what
    assert "the model chose" in said and "of another version of this kernel and were not used" in said


@pytest.mark.parametrize("choice", [{"BLOCK_M": 16}, {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "SPLIT": 2}])
def test_a_record_of_other_symbols_is_said_and_not_used(recorded, choice):
    kernel, directory = recorded
    (directory / FILE).write_text(
        (directory / FILE)
        .read_text()
        .replace(json.dumps({"BLOCK_K": 32, "BLOCK_M": 16, "BLOCK_N": 48}, separators=(",", ":")), json.dumps(choice))
    )
    one = wave_compile(WaveCompileOptions(subs=subs(64, 64, 64), target="cpu"), kernel)
    said = one.why().rows[0].what
    assert "the model chose" in said and f"a record in {directory / FILE} was skipped: it chooses BLOCK_M" in said


def test_a_record_of_a_calls_sizes_serves_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWAVE_RECORDS", str(tmp_path))
    monkeypatch.setenv("TILEWAVE_BACKGROUND", "0")
    kernel = gemm()
    open_tiles = TunableKernel.of(kernel, {}, (), {}, "cpu")
    at = open_tiles.key(subs(40, 60, 50))
    assert at.sizes == "K=50,M=40,N=60"
    add(record(key=at, choice={"BLOCK_M": 24, "BLOCK_N": 48, "BLOCK_K": 32}), tmp_path)
    for m in (40, 41):
        rng = np.random.default_rng(m)
        a, b, c = random_array(rng, (m, 50), f16), random_array(rng, (60, 50), f16), poisoned((m, 60), f32)
        kernel(a, b, c)
        check_product(c, a, b)
    (one,) = kernel.kept["call"]._kernels.values()
    assert one.by_size.choice([(40, 50), (60, 50), (40, 60)]).tiles == {BLOCK_M: 24, BLOCK_N: 48, BLOCK_K: 32}
    assert one.by_size.of([(40, 50), (60, 50), (40, 60)]).choice.record
    assert not one.by_size.of([(41, 50), (60, 50), (41, 60)]).choice.record


def test_a_record_is_data_and_never_code(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWAVE_RECORDS", str(tmp_path))
    kernel = gemm()
    open_tiles = TunableKernel.of(kernel, subs(64, 64, 64), (), {}, "cpu")
    evil = "__import__('os').system('touch evil')"
    add(record(key=open_tiles.key({}), order=evil), tmp_path)
    monkeypatch.chdir(tmp_path)
    one = wave_compile(WaveCompileOptions(subs=subs(64, 64, 64), target="cpu"), kernel)
    assert "there is no mapping `__import__`" in one.why().rows[0].what and not Path("evil").exists()


# -- a kernel and its names --------------------------------------------------------------------------------------------

CUTS = [WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1), TilingConstraint(K, BLOCK_K)]


def own_product(space, clamped=False):
    @wave(CUTS)
    def my_gemm(
        x: Memory[M, K, space, f16], weights: Memory[N, K, space, f16], y: Memory[M, N, GLOBAL_ADDRESS_SPACE, f16]
    ):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(x), read(weights), acc)

        write(cast(maximum(total, 0.0) if clamped else total, f16), y)

    return my_gemm


@pytest.mark.parametrize("space", [GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE])
def test_a_kernel_of_ones_own_has_the_digest_of_the_product_that_it_computes(space):
    sizes = subs(128, 4096, 14336)
    ours = TunableKernel.of(product_kernel(ProductForm(f16, f16)), sizes, (), {}, "sm_90a").digest
    assert TunableKernel.of(own_product(space), sizes, (), {}, "sm_90a").digest == ours
    assert TunableKernel.of(own_product(space, clamped=True), sizes, (), {}, "sm_90a").digest != ours


def test_a_record_of_a_kernel_of_ones_own_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWAVE_RECORDS", str(tmp_path))
    sizes = {M: 128, N: 4096, K: 14336}
    own = TunableKernel.of(own_product(SHARED_ADDRESS_SPACE), sizes, (), {}, "sm_90a")
    add(record(key=own.key({}), choice={"BLOCK_M": 128, "BLOCK_N": 32, "BLOCK_K": 64}), tmp_path)
    assert [*own.choices({})[0].tiles.values()] == [128, 32, 64]


def test_who_asks_for_shared_memory_tells_kernels_apart_where_that_is_heard():
    spaces = GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE
    for target, count in (("sm_90a", 1), ("gfx942", 2)):
        made = [TunableKernel.of(own_product(space), {M: 64, N: 64, K: 64}, (), {}, target) for space in spaces]
        assert len({one.digest for one in made}) == count
