"""Records that are damaged, illegal or of somebody else are passed over with a remark; a right kernel compiles."""

import json
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import K, M, N, check_product, gemm, poisoned, random_array
from sampled import examples

import tilewave.files
import tilewave.tune.store as store
from tilewave import *
from tilewave.cli.main import main
from tilewave.tune.default import TunableKernel
from tilewave.tune.records import RecordKey, TileRecord
from tilewave.tune.store import FILE, RecordFile, Records, RecordsError, add, read_lines, search_path, tidy

ANOTHER = 12345
"""A user that is neither root nor who runs the tests."""
KEY = RecordKey("gemm", "00112233445566aa", "H200", "K=1")
SIZES = {M: 40, N: 48, K: 32}


def record(key=KEY, **more):
    return TileRecord(key, **{"choice": {"BLOCK_M": 64}, **more})


def written(directory, *lines):
    directory.mkdir(exist_ok=True)
    (directory / FILE).write_text("".join(f"{line}\n" for line in lines))
    return directory / FILE


def compiled(target="cpu", subs=SIZES):
    return wave_compile(WaveCompileOptions(subs=subs, target=target), gemm())


def key_of_gemm(target="cpu", subs=SIZES):
    made = TunableKernel.of(gemm(), subs, (), {}, target)
    return made.key(made.typical)


@cache
def of_the_model(target, is_sized):
    """Return the config that the cost model chooses, without any record."""
    return compiled(target, SIZES if is_sized else {}).choice.text


def command(monkeypatch, *words):
    """Run a command and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["tilewave", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWAVE_RECORDS", str(tmp_path))
    return tmp_path


@pytest.fixture
def given_away(monkeypatch):
    """Makes a file or directory another user's, which only root can: else it is us who become another."""

    def give(*paths):
        if os.geteuid() == 0:
            for path in paths:
                os.chown(path, ANOTHER, ANOTHER, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)

    return give


# -- illegal ----------------------------------------------------------------------------------------------------------

ILLEGAL = {
    "a tile too large to verify": ({"BLOCK_M": 65536, "BLOCK_N": 65536, "BLOCK_K": 32}, "", "65536"),
    "one too large for an address": ({"BLOCK_M": 2**31 - 1, "BLOCK_N": 2**31 - 1, "BLOCK_K": 1}, "", "2147483647"),
    "a mapping of nothing": ({"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}, "grouped(0)", "size"),
    "no mapping": ({"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}, "no_such()", "there is no mapping `no_such`"),
    "a text": ({"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}, "x", "there is no mapping `x`"),
    "other symbols": ({"BLOCK": 16}, "", "it chooses BLOCK, and this kernel leaves BLOCK_M, BLOCK_N, BLOCK_K"),
}


@pytest.mark.share(12)
@pytest.mark.parametrize("name", ILLEGAL)
@pytest.mark.parametrize("target", ["cpu", "gfx942", "sm_90a"])
@pytest.mark.parametrize("subs", [SIZES, {}], ids=["known sizes", "open sizes"])
def test_an_illegal_record_is_passed_over_and_why_says_so(directory, target, subs, name):
    choice, order, said = ILLEGAL[name]
    before = of_the_model(target, bool(subs))
    add(record(key_of_gemm(target, subs), choice=choice, order=order), directory)
    one = compiled(target, subs)
    assert one.choice.text == before and not one.choice.record
    remark = one.why().rows[0].what
    assert f"a record in {directory / FILE} was skipped" in remark and said in remark


def test_the_next_record_is_taken_in_place_of_an_illegal_one(tmp_path, monkeypatch):
    """As if the illegal one were not there: the second of its file, or else that of the next."""
    near, far = tmp_path / "near", tmp_path / "far"
    monkeypatch.setenv("TILEWAVE_RECORDS", f"{near}{os.pathsep}{far}")
    tiles = {"BLOCK_M": 16, "BLOCK_N": 48, "BLOCK_K": 32}
    add(record(key_of_gemm(), choice=tiles, order="nothing()", how="measured", tried=9), near)
    add(record(key_of_gemm(), choice={**tiles, "BLOCK_M": 8}, order="morton()"), far)
    assert compiled().choice.text == "BLOCK_M=8, BLOCK_N=48, BLOCK_K=32, morton()"
    add(record(key_of_gemm(), choice=tiles, order="hilbert()"), near)
    one = compiled()
    assert one.choice.text == "BLOCK_M=16, BLOCK_N=48, BLOCK_K=32, hilbert()"
    assert "there is no mapping `nothing`" in one.why().rows[0].what


def test_of_many_illegal_records_a_few_are_tried(directory, monkeypatch):
    lines = [
        record(key_of_gemm(), choice={"BLOCK_M": 9, "BLOCK_N": 9, "BLOCK_K": 9}, order=f"n{i}()") for i in range(99)
    ]
    written(directory, *(one.line for one in lines))
    assert len(compiled().choice.notes) == 8


@settings(max_examples=examples(10))
@given(
    st.dictionaries(st.sampled_from(["BLOCK_M", "BLOCK_N", "BLOCK_K", "split", "buffers"]), st.integers(-1, 2**70)),
    st.text(),
)
def test_no_record_keeps_a_right_kernel_from_its_result(choice, order):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWAVE_RECORDS", folder)
        facts = json.loads(record(key_of_gemm()).line) | {"choice": choice, "order": order}
        written(Path(folder), json.dumps(facts, separators=(",", ":")))
        rng = np.random.default_rng(0)
        a, b, c = random_array(rng, (40, 32), f16), random_array(rng, (48, 32), f16), poisoned((40, 48), f32)
        compiled()(a, b, c)
        check_product(c, a, b)


# -- damaged ----------------------------------------------------------------------------------------------------------


def test_a_damaged_line_of_this_kernel_is_named_by_its_number(directory):
    good = record(key_of_gemm(), choice={"BLOCK_M": 16, "BLOCK_N": 48, "BLOCK_K": 32})
    written(directory, record().line, good.line.replace('"model"', '"guess"'))
    said = compiled().why().rows[0].what
    assert f"{directory / FILE}:2 was skipped: how is 'guess'; there are model, measured, exhaustive" in said
    written(directory, good.line.replace('"model"', '"guess"'), good.line)
    one = compiled()
    assert one.choice.record == str(directory / FILE) and f"{directory / FILE}:1 was skipped" in one.why().rows[0].what


def test_lines_that_say_nothing_are_counted(directory, monkeypatch):
    file = written(directory, "x", "", "   ", "[1]", record().line)
    assert f"2 lines that are no records in {file}: tilewave records check {file}" in compiled().why().rows[0].what
    assert command(monkeypatch, "records", "check", file) == 1  # as it advises


def test_many_damaged_lines_are_counted_after_a_few(directory):
    written(directory, *[record(key_of_gemm()).line.replace('"model"', '"guess"')] * 50)
    notes = compiled().choice.notes
    assert len(notes) == 4 and notes[-1] == f"47 more lines in {directory / FILE} were"


# -- of somebody else -------------------------------------------------------------------------------------------------


def planted(folder, monkeypatch):
    """A file in a directory above the working one."""
    tiles = {"BLOCK_M": 1, "BLOCK_N": 1, "BLOCK_K": 1}
    file = written(folder / store.DIRECTORY, record(key_of_gemm(), choice=tiles).line)
    (folder / "mine").mkdir()
    monkeypatch.chdir(folder / "mine")
    monkeypatch.delenv("TILEWAVE_RECORDS")
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    return file


def test_a_file_above_that_is_ours_is_believed(tmp_path, monkeypatch):
    file = planted(tmp_path, monkeypatch)
    assert compiled().choice.record == str(file)


@pytest.mark.parametrize("what", ["file", "directory", "both"])
def test_a_file_of_another_user_is_passed_over(tmp_path, monkeypatch, given_away, what):
    before = compiled()
    file = planted(tmp_path, monkeypatch)
    given_away(*{"file": [file], "directory": [file.parent], "both": [file, file.parent]}[what])
    one = compiled()
    assert one.choice.text == before.choice.text
    said = one.why().rows[0].what
    assert f"{file} was skipped: it " in said and "belongs to another user (uid " in said


def test_a_link_of_another_user_is_passed_over(tmp_path, monkeypatch, given_away):
    file = planted(tmp_path, monkeypatch)
    file.parent.rename(tmp_path / "elsewhere")
    file.parent.symlink_to(tmp_path / "elsewhere")
    assert Records(search_path()).look_up(key_of_gemm()).fitting[0].file == str(file)
    given_away(file.parent)
    assert not compiled().choice.record


WRITABLE = {
    "everybody": (0o646, "can be written by every user (mode 646)"),
    "a group": (0o664, "can be written by its group"),
}


@pytest.mark.parametrize("whom", WRITABLE)
@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_others_can_write_is_passed_over_until_they_cannot(tmp_path, monkeypatch, whom, what):
    file = planted(tmp_path, monkeypatch)
    mode, said = WRITABLE[whom]
    path = file if what == "file" else file.parent
    monkeypatch.setattr(tilewave.files, "_is_private_group", lambda user, group: False)
    path.chmod(mode | (0o111 if what == "directory" else 0))
    remark = compiled().why().rows[0].what
    assert said.partition(" (")[0] in remark
    subprocess.run(remark[remark.index("chmod go-w") :].partition(";")[0], shell=True, check=True)  # as it advises
    assert compiled().choice.record == str(file)


def test_the_owners_private_group_may_write(tmp_path):
    file = written(tmp_path, record().line)
    file.chmod(0o664)
    mine = tilewave.files._is_private_group(os.getuid(), os.stat(file).st_gid)
    assert bool(Records([tmp_path]).look_up(KEY).fitting) == mine


def test_foreign_records_are_taken_over_as_the_remark_says(tmp_path, monkeypatch, given_away, capsys):
    if os.geteuid():
        pytest.skip("only root can give a file away and read it still")
    file = planted(tmp_path, monkeypatch)
    given_away(file, file.parent)
    assert command(monkeypatch, "records", "check") == 0
    assert f"{file} was skipped" in capsys.readouterr().out
    said = compiled().why().rows[0].what
    assert f"tilewave records merge {file} --into DIRECTORY" in said
    assert command(monkeypatch, "records", "merge", file, "--into", store.user_directory()[0]) == 0
    assert compiled().choice.record == str(store.user_directory()[0] / FILE)


def test_the_search_ends_at_a_directory_of_another_user(tmp_path, monkeypatch, given_away):
    file = planted(tmp_path, monkeypatch)
    inner = tmp_path / "mine" / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    assert search_path()[0] == file.parent
    given_away(tmp_path / "mine")
    assert file.parent not in search_path()


def test_the_search_stays_on_one_file_system(tmp_path, monkeypatch):
    file = planted(tmp_path, monkeypatch)
    real = os.stat

    def elsewhere(path, *more, **how):
        found = real(path, *more, **how)
        if os.fspath(path) == str(tmp_path):
            return os.stat_result((*found[:2], found.st_dev + 1, *found[3:]))
        return found

    assert search_path()[0] == file.parent
    monkeypatch.setattr(os, "stat", elsewhere)
    assert file.parent not in search_path()


def test_without_a_working_directory_or_a_home_there_are_ours(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.delenv("TILEWAVE_RECORDS")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert search_path() == []


# -- files that change, are huge, or no files -------------------------------------------------------------------------

SHRINKING = """
import os, sys
from pathlib import Path
from tilewave.tune.records import RecordKey
from tilewave.tune.store import FILE, RecordFile
directory = Path(sys.argv[1])
file = RecordFile(directory / FILE)
os.truncate(file.path, 0)
keys = [RecordKey("gemm", "00112233445566aa", "H200", f"K={i}") for i in range(3000)]
print(sum(bool(file.look_up(key).fitting) for key in keys))
"""


def test_a_file_that_is_truncated_after_it_was_opened_ends_no_process(tmp_path):
    written(tmp_path, *(record(RecordKey("gemm", "00112233445566aa", "H200", f"K={i}")).line for i in range(3000)))
    done = subprocess.run([sys.executable, "-c", SHRINKING, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "3000\n"), done.stderr


def test_a_file_that_is_replaced_after_it_was_opened_is_read_as_it_was(tmp_path):
    keys = [RecordKey("gemm", "00112233445566aa", "H200", f"K={i}") for i in range(99)]
    written(tmp_path, *(record(one).line for one in keys))
    file = RecordFile(tmp_path / FILE)
    (tmp_path / "other").write_text("")
    (tmp_path / "other").replace(tmp_path / FILE)
    assert all(file.look_up(one).fitting for one in keys) and file.is_old()


def test_files_that_are_no_longer_asked_are_closed(tmp_path):
    written(tmp_path, record().line)
    before = len(os.listdir("/proc/self/fd"))
    records = Records([tmp_path])
    for _ in range(50):
        add(record(), tmp_path)
        assert records.look_up(KEY).fitting
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_long_line_is_read_whole_and_a_longer_one_is_none(tmp_path):
    written(tmp_path, record(notes="x" * 50_000).line)
    assert len(Records([tmp_path]).look_up(KEY).fitting[0].notes) == 50_000
    written(tmp_path, record(notes="x" * 70_000).line)
    assert Records([tmp_path]).look_up(KEY).remarks == (
        f"{tmp_path / FILE}:1 was skipped: a line of {len(record(notes='x' * 70_000).line):,} characters",
    )


def test_a_file_that_is_rewritten_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    old, new = record(order="old").line, record(order="the new one").line
    file = written(tmp_path, old)
    reads = []

    def rewritten(descriptor, count, read=os.read):
        found = read(descriptor, count)
        if not reads:
            file.write_text(f"{new}\n")
        reads.append(found)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", rewritten)
        found = Records([tmp_path]).look_up(KEY)
    assert found.fitting[0].order == "the new one" and not found.remarks


def test_a_rewritten_file_of_the_same_size_and_time_is_seen(tmp_path):
    file = written(tmp_path, record(order="snake()").line)
    records = Records([tmp_path])
    state = os.stat(file)
    assert records.look_up(KEY).fitting[0].order == "snake()"
    other = tmp_path / "other"
    other.write_text(record(order="kenas()").line + "\n")
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    other.replace(file)
    assert records.look_up(KEY).fitting[0].order == "kenas()"


def test_many_lines_for_one_thing_take_time_in_proportion(tmp_path):
    """A megabyte of them took 100 s."""
    line = '{"at":"gemm 00112233445566aa H200 K=1"}'
    written(tmp_path, *[line] * (2**20 // len(line)))
    begin = time.process_time()
    found = Records([tmp_path]).look_up(KEY)
    assert time.process_time() - begin < 10
    assert not found.fitting and len(found.remarks) == 4


def test_a_sparse_file_is_not_read(tmp_path):
    file = written(tmp_path)
    os.truncate(file, 3 << 30)
    tracemalloc.start()
    try:
        (remark,) = Records([tmp_path]).look_up(KEY).remarks
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert remark == f"{file} was skipped: it has 3,221,225,472 bytes, and 33,554,432 are the most"
    assert most < 1 << 20


def test_a_file_that_grows_beyond_the_limit_while_it_is_read_is_passed_over(tmp_path, monkeypatch):
    file = written(tmp_path, record().line)
    monkeypatch.setattr(store, "MOST_BYTES", file.stat().st_size)
    assert Records([tmp_path]).look_up(KEY).fitting

    def grown(descriptor, count, read=os.read):
        with file.open("a") as more:
            more.write("x" * 64)
        return read(descriptor, count)

    monkeypatch.setattr(os, "read", grown)
    assert "was skipped: it has" in Records([tmp_path]).look_up(KEY).remarks[0]


def no_file(path, kind):
    match kind:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path)


@pytest.mark.parametrize("kind", ["directory", "pipe", "device", "loop"])
def test_what_is_no_file_is_passed_over_and_refused_where_it_is_named(directory, kind):
    no_file(directory / FILE, kind)
    assert f"{directory / FILE} was skipped: " in compiled().why().rows[0].what
    with pytest.raises(RecordsError, match="cannot be read"):
        read_lines(directory / FILE)
    with pytest.raises(RecordsError, match="nothing can be written to"):
        add(record(), directory)


def test_a_file_that_may_not_be_read_is_passed_over(tmp_path, monkeypatch):
    written(tmp_path, record().line)

    def denied(*given, **more):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tilewave.files, "open_plain", denied)  # root may read anything
    assert Records([tmp_path]).look_up(KEY).remarks == (f"{tmp_path / FILE} was skipped: Permission denied",)


def test_a_directory_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordsError, match=r"nothing can be written to .*file: ") as said:
        add(record(), tmp_path / "file")
    assert "--records DIRECTORY" in str(said.value)
    add(record(), tmp_path / "another")  # as it advises
    assert Records([tmp_path / "another"]).look_up(KEY).fitting


def test_what_a_tidy_file_does_not_know_stays_byte_for_byte(tmp_path):
    file = tmp_path / FILE
    strange = b"\xff\xfe\x00{\x0b\x1c\xe2\x80\xa8}"
    file.write_bytes(strange + b"\n" + record().line.encode() + b"\n")
    tidy(tmp_path)
    assert file.read_bytes() == record().line.encode() + b"\n" + strange + b"\n"


def test_new_files_are_believed_whatever_the_umask(tmp_path):
    mask = os.umask(0)
    try:
        add(record(), tmp_path / "new")
        tidy(tmp_path / "new")
    finally:
        os.umask(mask)
    assert RecordFile(tmp_path / "new" / FILE).remarks == () and Records([tmp_path / "new"]).look_up(KEY).fitting
