"""The cache gives back what was put, byte for byte, or nothing; it never harms, whatever happens to its files."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tilewave.errors import TilewaveError
from tilewave.runtime import cache as cache_module
from tilewave.runtime.cache import (
    DEFAULT_LIMIT_BYTES,
    Cache,
    CacheUnavailable,
    default_cache,
    default_directory,
    default_limit_bytes,
    key_of,
)

HEADER_BYTES = 84
ELSEWHERE = "Set TILEWAVE_CACHE_DIR to another directory, or to off"


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def entries(cache):
    return sorted(cache.directory.glob("*.entry"))


def unfinished(cache):
    return sorted(cache.directory.glob("*.unfinished"))


def entry(cache, key, payload=b"payload"):
    """The file of a new entry."""
    before = set(entries(cache)) if cache.directory.exists() else set()
    cache.put(key, payload)
    (path,) = set(entries(cache)) - before
    return path


def age(path, seconds):
    used = time.time() - seconds
    os.utime(path, (used, used))


# Keys and payloads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"", b"\0", b"code", bytes(range(256)) * 1000], ids=len)
def test_what_was_put_is_got(cache, payload):
    cache.put("key", payload)
    assert cache.get("key") == payload
    assert Cache(cache.directory).get("key") == payload


def test_what_was_not_put_is_not_got(cache):
    assert cache.get("key") is None
    cache.put("key", b"code")
    assert cache.get("another key") is None


def test_the_last_put_counts(cache):
    cache.put("key", b"first")
    cache.put("key", b"second")
    assert cache.get("key") == b"second"
    assert len(entries(cache)) == 1


def test_a_directory_that_vanished_is_made_again(cache):
    entry(cache, "key").unlink()
    (cache.directory / "journal").unlink()
    cache.directory.rmdir()
    assert cache.get("key") is None
    cache.put("key", b"code")
    assert cache.get("key") == b"code"


HOSTILE = ["", ".", "..", "../up", "/etc/passwd", "a/b/c", "nul\0byte", "new\nline", "ä∂😀", "\ud800", "x" * 100_000]


def test_a_key_is_no_path(cache):
    for at, key in enumerate(HOSTILE):
        cache.put(key, str(at).encode())
    assert [cache.get(key) for key in HOSTILE] == [str(at).encode() for at in range(len(HOSTILE))]
    assert len(entries(cache)) == len(HOSTILE)
    assert os.listdir(cache.directory.parent) == ["cache"]
    assert all(re.fullmatch(r"[0-9a-f]{64}\.entry", path.name) for path in entries(cache))


PARTS = st.lists(st.text(max_size=4) | st.binary(max_size=4), max_size=4)


@given(PARTS, PARTS)
@example(["ab", "c"], ["a", "bc"])
@example(["a"], ["a", ""])
@example([], [""])
def test_a_key_has_one_list_of_parts(a, b):
    same = [x.encode() if isinstance(x, str) else x for x in a] == [x.encode() if isinstance(x, str) else x for x in b]
    assert (key_of(*a) == key_of(*b)) is same


def test_a_key_is_the_same_in_every_process():
    spelled = b"\6\0\0\0\0\0\0\0kernel" + b"\2\0\0\0\0\0\0\0\0\1" + b"\2\0\0\0\0\0\0\0\xc3\xa4"
    assert key_of("kernel", b"\0\1", "ä") == hashlib.sha256(spelled).hexdigest()


def test_files_are_for_their_owner_alone(cache):
    before = os.umask(0)
    try:
        path = entry(cache, "key")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((cache.directory / "journal").stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700


def test_a_cache_without_a_directory_touches_no_disk(monkeypatch):
    cache = Cache(None)
    with monkeypatch.context() as patched:
        for function in ("open", "makedirs"):
            patched.setattr(os, function, None)
        cache.put("key", b"code")
        assert cache.get("key") is None


# Damage -------------------------------------------------------------------------------------------------------------

PAYLOAD = bytes(range(100))


def got_after(damage):
    """What is got from an entry after damage to its bytes, which must be gone then."""
    with tempfile.TemporaryDirectory() as directory:
        cache = Cache(Path(directory))
        path = entry(cache, "key", PAYLOAD)
        path.write_bytes(damage(path.read_bytes()))
        got = cache.get("key")
        assert path.exists() is (got is not None)
        cache.put("key", PAYLOAD)
        assert cache.get("key") == PAYLOAD
        return got


def test_an_entry_without_damage_is_got():
    assert got_after(lambda data: data) == PAYLOAD


@pytest.mark.parametrize("at", range(HEADER_BYTES + len(PAYLOAD)))
def test_an_entry_with_one_bit_turned_is_absent(at):
    assert got_after(lambda data: data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]) is None


@pytest.mark.parametrize("size", [*range(0, HEADER_BYTES + len(PAYLOAD), 7), HEADER_BYTES - 1, HEADER_BYTES])
def test_an_entry_cut_short_is_absent(size):
    assert got_after(lambda data: data[:size]) is None


@given(st.data())
def test_an_entry_with_any_damage_is_absent(data):
    whole = HEADER_BYTES + len(PAYLOAD)
    start = data.draw(st.integers(0, whole))
    stop = data.draw(st.integers(start, whole))
    middle = data.draw(st.binary(max_size=200))

    changed = []

    def damage(entry_bytes):
        damaged = entry_bytes[:start] + middle + entry_bytes[stop:]
        changed.append(damaged != entry_bytes)
        return damaged

    got = got_after(damage)
    assert got == (None if changed == [True] else PAYLOAD)


def test_an_entry_of_zeros_is_absent():
    """What a file system may leave of a new file when the power fails."""
    assert got_after(lambda data: bytes(len(data))) is None


def test_an_entry_of_another_key_is_absent(cache):
    one, other = entry(cache, "one", b"code of one"), entry(cache, "other", b"code of other")
    one.write_bytes(other.read_bytes())
    assert cache.get("one") is None
    assert not one.exists()
    assert cache.get("other") == b"code of other"


def test_an_entry_of_another_version_is_absent(cache, monkeypatch):
    monkeypatch.setattr(cache_module, "_VERSION", 2)
    path = entry(cache, "key")
    assert cache.get("key") == b"payload"
    monkeypatch.undo()
    assert cache.get("key") is None
    assert not path.exists()


def test_an_entry_larger_than_the_cache_is_not_read(cache, monkeypatch):
    path = entry(cache, "key")
    os.truncate(path, 1 << 40)
    monkeypatch.setattr(os, "read", None)
    assert cache.get("key") is None
    assert not path.exists()


def link(path, tmp_path):
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")


def pipe(path, tmp_path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("plant", [link, pipe])
def test_what_is_no_file_is_absent(cache, tmp_path, plant):
    path = entry(cache, "key")
    plant(path, tmp_path)
    assert cache.get("key") is None
    assert not os.path.lexists(path)


def test_a_directory_in_place_of_an_entry_is_absent(cache):
    path = entry(cache, "key")
    path.unlink()
    path.mkdir()
    assert cache.get("key") is None
    with pytest.warns(CacheUnavailable, match="Is a directory"):
        cache.put("key", b"code")
    assert unfinished(cache) == []


def test_an_entry_that_another_user_wrote_is_absent(cache, monkeypatch):
    path = entry(cache, "key")
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert cache.get("key") is None
    assert not path.exists()


# Disks that fail ----------------------------------------------------------------------------------------------------


def fails(error):
    def fail(*args, **options):
        raise OSError(error, os.strerror(error))

    return fail


FAILURES = {
    "full disk": ("write", errno.ENOSPC),
    "full disk, new file": ("open", errno.ENOSPC),
    "read-only disk": ("open", errno.EROFS),
    "no rename": ("replace", errno.EXDEV),
    "no directory": ("makedirs", errno.EACCES),
}


@pytest.mark.parametrize(("function", "error"), FAILURES.values(), ids=FAILURES)
def test_a_put_that_fails_warns_once_and_loses_nothing(cache, monkeypatch, function, error):
    cache.put("old", b"code")
    with monkeypatch.context() as patched:
        patched.setattr(os, function, fails(error))
        with pytest.warns(CacheUnavailable) as caught:
            cache.put("old", b"new code")
            cache.put("new", b"code")
    assert [str(w.message) for w in caught] == [
        f"the compile cache in {cache.directory} cannot be used: {os.strerror(error)}. {ELSEWHERE}"
    ]
    assert caught[0].filename == __file__
    assert unfinished(cache) == []
    assert cache.get("old") == b"code"
    assert cache.get("new") is None
    cache.put("new", b"code")
    assert cache.get("new") == b"code"


def test_a_disk_that_fills_up_in_the_middle_keeps_no_piece(cache, monkeypatch):
    cache.put("key", b"old")
    write, written = os.write, []

    def fill_up(file, data):
        if sum(written) > 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(write(file, data[:300]))
        return written[-1]

    monkeypatch.setattr(os, "write", fill_up)
    with pytest.warns(CacheUnavailable, match="No space left"):
        cache.put("key", bytes(5000))
    assert unfinished(cache) == []
    assert cache.get("key") == b"old"


def test_a_write_in_many_pieces_is_whole(cache, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    cache.put("key", bytes(range(100)))
    assert cache.get("key") == bytes(range(100))


def test_a_get_that_fails_warns_once(cache, monkeypatch):
    cache.put("key", b"code")
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fails(errno.EIO))
        with pytest.warns(CacheUnavailable, match="Input/output error") as caught:
            assert cache.get("key") is None
            assert cache.get("key") is None
    assert len(caught) == 1
    assert cache.get("key") == b"code"


def test_a_cache_that_can_only_be_read_is_read(cache, monkeypatch):
    path = entry(cache, "key", b"code")
    age(path, 1000)
    for function in ("utime", "unlink"):
        monkeypatch.setattr(os, function, fails(errno.EROFS))
    assert cache.get("key") == b"code"
    path.write_bytes(b"damaged")
    assert cache.get("key") is None


PUTS = """
import os, resource, sys, warnings
from pathlib import Path
from tilewave.runtime.cache import Cache
exec(sys.argv[2])
warnings.simplefilter("always")
cache = Cache(Path(sys.argv[1]))
with warnings.catch_warnings(record=True) as caught:
    for _ in range(2):
        cache.put("key", bytes(5000))
    print(cache.get("key"))
for warning in caught:
    print(warning.message)
"""
SYSTEMS = {
    "File too large": "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))",
    "Permission denied": "os.chmod(sys.argv[1], 0o555); os.geteuid() or os.seteuid(65534)",  # root may write anywhere
}


@pytest.mark.parametrize(("error", "before"), SYSTEMS.items(), ids=SYSTEMS)
def test_a_real_failure_of_the_system_warns_once(tmp_path, error, before):
    command = [sys.executable, "-c", PUTS, tmp_path, before]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        tmp_path.chmod(0o700)
    message = f"the compile cache in {tmp_path} cannot be used: {error}. {ELSEWHERE}"
    assert done.stdout.splitlines() == ["None", message], done
    assert {path.name for path in tmp_path.iterdir()} <= {"journal"}


# Many processes -----------------------------------------------------------------------------------------------------

HAMMER = """
import random, sys, time
from pathlib import Path
from tilewave.runtime.cache import Cache
cache, choose = Cache(Path(sys.argv[1]), int(sys.argv[3])), random.Random(sys.argv[2])
print("ready", flush=True)
end = time.monotonic() + float(sys.argv[4])
hits = 0
while time.monotonic() < end:
    key = f"key {choose.randrange(20)}"
    if choose.random() < 0.5:
        cache.put(key, (key * choose.randrange(1, 5000)).encode())
    else:
        got = cache.get(key)
        assert got is None or got.decode() == key * (len(got) // len(key)) and got, (key, got)
        hits += got is not None
print(hits)
"""


def hammer(cache, seed, seconds):
    command = [sys.executable, "-W", "error", "-c", HAMMER, cache.directory, str(seed), str(cache.limit_bytes)]
    return subprocess.Popen([*command, str(seconds)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("limit_bytes", [DEFAULT_LIMIT_BYTES, 200_000], ids=["roomy", "tight"])
def test_processes_that_use_the_same_keys_get_whole_entries(tmp_path, limit_bytes):
    cache = Cache(tmp_path, limit_bytes)
    processes = [hammer(cache, seed, 1.5) for seed in range(3)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [errors for _, errors in outputs] == [""] * 3
    assert [process.returncode for process in processes] == [0] * 3
    assert all(int(output.split()[1]) > 0 for output, _ in outputs)
    assert unfinished(cache) == []


def test_a_writer_that_is_killed_leaves_whole_entries_or_none(tmp_path):
    cache = Cache(tmp_path)
    choose = random.Random(0)
    for round_number in range(8):
        process = hammer(cache, round_number, 60)
        process.stdout.readline()
        time.sleep(0.02 + choose.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        for path in entries(cache):
            assert cache_module._read(str(path), bytes.fromhex(path.name[:64]), cache.limit_bytes) is not None
        for n in range(20):
            got = cache.get(f"key {n}")
            assert got is None or got == f"key {n}".encode() * (len(got) // len(f"key {n}"))


def test_a_reader_keeps_what_it_opened(cache, monkeypatch):
    """The entry is replaced between the open and the read."""
    cache.put("key", b"old")
    read = os.read

    def replace_first(file, size):
        monkeypatch.setattr(os, "read", read)
        cache.put("key", b"new and longer")
        return read(file, size)

    monkeypatch.setattr(os, "read", replace_first)
    assert cache.get("key") == b"old"
    assert cache.get("key") == b"new and longer"


# Size ---------------------------------------------------------------------------------------------------------------


def size(cache):
    return sum(path.stat().st_size for path in entries(cache))


def test_the_cache_stays_within_its_limit(tmp_path):
    cache = Cache(tmp_path, limit_bytes=1_000_000)
    for at in range(300):
        cache.put(f"key {at}", bytes(10_000))
        assert size(cache) <= 1_000_000
    assert size(cache) > 800_000


def test_the_limit_holds_over_many_short_processes(tmp_path):
    for at in range(300):
        Cache(tmp_path, limit_bytes=1_000_000).put(f"key {at}", bytes(10_000))
    assert 800_000 < size(Cache(tmp_path)) <= 1_000_000


def test_what_was_used_last_stays(tmp_path):
    cache = Cache(tmp_path, limit_bytes=1_000_000)
    for at in range(90):
        age(entry(cache, f"key {at}", bytes(10_000)), 100_000 - at)
    assert cache.get("key 3") is not None
    for at in range(90, 130):
        cache.put(f"key {at}", bytes(10_000))
    held = [at for at in range(130) if cache.get(f"key {at}") is not None]
    assert held == [3, *range(held[1], 130)]
    assert held[1] > 4


def test_a_sweep_is_rare(tmp_path, monkeypatch):
    sweeps, sweep = [], Cache._sweep
    monkeypatch.setattr(Cache, "_sweep", lambda self, directory: sweeps.append(1) or sweep(self, directory))
    cache = Cache(tmp_path, limit_bytes=10_000_000)
    for at in range(1000):
        cache.put(f"key {at}", bytes(10_000))
    assert 10 <= len(sweeps) <= 20  # ten times the limit over 16, in units of 4 KiB


def test_a_payload_larger_than_the_cache_is_not_kept(tmp_path):
    cache = Cache(tmp_path, limit_bytes=10_000)
    cache.put("small", bytes(1000))
    cache.put("large", bytes(10_000))
    assert cache.get("large") is None
    assert cache.get("small") == bytes(1000)


def test_a_sweep_removes_what_lost_its_writer_and_nothing_else(tmp_path):
    cache = Cache(tmp_path, limit_bytes=100_000)
    cache.put("key", b"code")
    old, new = tmp_path / "old.unfinished", tmp_path / "new.unfinished"
    foreign = tmp_path / "README"
    for path in (old, new, foreign):
        path.write_bytes(b"")
    age(old, 1000)
    age(foreign, 1000)
    for at in range(5):
        cache.put(f"key {at}", bytes(2000))
    assert sorted(tmp_path.glob("*.unfinished")) == [new]
    assert foreign.exists()
    assert cache.get("key") == b"code"


def test_a_use_is_marked_now_and_then(cache, monkeypatch):
    path = entry(cache, "key")
    age(path, 1000)
    cache.get("key")
    assert time.time() - path.stat().st_mtime < 100
    monkeypatch.setattr(os, "utime", None)
    assert cache.get("key") == b"payload"


# The environment ----------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("TILEWAVE_CACHE_DIR", "TILEWAVE_CACHE_BYTES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_default_is_in_the_users_cache(home, monkeypatch):
    assert default_directory() == home / ".cache" / "tilewave"
    assert stat.S_IMODE((home / ".cache" / "tilewave").stat().st_mode) == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    assert default_directory() == home / "xdg" / "tilewave"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_directory() == home / ".cache" / "tilewave"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert default_directory() == home / ".cache" / "tilewave"


def test_the_environment_names_a_directory(home, monkeypatch):
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(home / "a" / "b"))
    assert default_directory() == home / "a" / "b"
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", "~/mine")
    assert default_directory() == home / "mine"
    monkeypatch.chdir(home)
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", "here")
    assert default_directory() == home / "here"


@pytest.mark.parametrize("off", ["", "off"])
def test_the_environment_switches_the_cache_off(home, monkeypatch, off):
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", off)
    assert default_directory() is None
    assert default_cache().directory is None
    assert list(home.iterdir()) == []


def test_the_default_cache_is_as_the_environment_says(home, monkeypatch):
    assert default_cache().limit_bytes == 1 << 30
    monkeypatch.setenv("TILEWAVE_CACHE_BYTES", "12345")
    assert default_cache().limit_bytes == 12345
    assert default_cache().directory == home / ".cache" / "tilewave"


@pytest.mark.parametrize("wrong", ["", "-1", "1G", "1e9", "²"])
def test_a_limit_that_is_no_number_is_refused(home, monkeypatch, wrong):
    monkeypatch.setenv("TILEWAVE_CACHE_BYTES", wrong)
    with pytest.raises(TilewaveError) as caught:
        default_limit_bytes()
    assert str(caught.value) == (
        f"TILEWAVE_CACHE_BYTES is {wrong!r}, which is no number of bytes\n"
        "  set it to a whole number, such as 1073741824 for 1 GiB"
    )


def a_group_writes(directory, monkeypatch):
    directory.mkdir(parents=True)
    directory.chmod(0o775)
    return "can be written by others (mode 775), whose code would be run"


def everybody_writes(directory, monkeypatch):
    directory.mkdir(parents=True)
    directory.chmod(0o777)
    return "can be written by others (mode 777), whose code would be run"


def another_user_owns(directory, monkeypatch):
    directory.mkdir(parents=True)
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    return f"belongs to another user (uid {uid}), whose code would be run"


def a_file(directory, monkeypatch):
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.write_bytes(b"")
    return "is not a directory"


def below_a_file(directory, monkeypatch):
    directory.parent.parent.mkdir(parents=True, exist_ok=True)
    directory.parent.write_bytes(b"")
    return "is not a directory"


FAULTS = [a_group_writes, everybody_writes, another_user_owns, a_file, below_a_file]


@pytest.mark.parametrize("make", FAULTS)
def test_a_named_directory_that_cannot_be_trusted_is_refused(home, monkeypatch, make):
    directory = home / "a" / "cache"
    fault = make(directory, monkeypatch)
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(directory))
    with pytest.raises(TilewaveError) as caught:
        default_directory()
    assert str(caught.value) == f"TILEWAVE_CACHE_DIR: {directory} {fault}\n  {ELSEWHERE}"


@pytest.mark.parametrize("make", FAULTS)
def test_a_default_directory_that_cannot_be_trusted_is_not_used(home, monkeypatch, make):
    directory = home / ".cache" / "tilewave"
    fault = make(directory, monkeypatch)
    with pytest.warns(CacheUnavailable) as caught:
        assert default_directory() is None
    assert [str(w.message) for w in caught] == [f"there is no compile cache: {directory} {fault}. {ELSEWHERE}"]


def test_a_directory_that_cannot_be_made_is_done_without(home, monkeypatch):
    monkeypatch.setattr(os, "makedirs", fails(errno.EROFS))
    with pytest.warns(CacheUnavailable, match="Read-only file system"):
        assert default_directory() is None
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(home / "named"))
    with pytest.warns(CacheUnavailable, match="Read-only file system"):
        assert default_directory() is None


# Cost ---------------------------------------------------------------------------------------------------------------


def test_a_get_is_quick(cache):
    """200 KB in less than 0.2 ms on a quiet machine that has SHA instructions; ten times that on any."""
    payload = random.Random(0).randbytes(200_000)
    cache.put("key", payload)
    best = float("inf")
    for _ in range(200):
        start = time.perf_counter()
        got = cache.get("key")
        best = min(best, time.perf_counter() - start)
    assert got == payload
    assert best < 2e-3


def planted_pipe(journal, other):
    os.mkfifo(journal)


def planted_link(journal, other):
    journal.symlink_to(other)


def planted_device(journal, other):
    journal.symlink_to("/dev/full")


def planted_directory(journal, other):
    journal.mkdir()


@pytest.mark.parametrize("plant", [planted_pipe, planted_link, planted_device, planted_directory])
def test_a_journal_that_is_no_plain_file_is_neither_waited_for_nor_followed(tmp_path, plant):
    other = tmp_path / "precious"
    other.write_bytes(b"kept")
    small = Cache(tmp_path / "cache", 1 << 12)  # every put sweeps
    small.directory.mkdir(mode=0o700)
    plant(small.directory / "journal", other)
    with pytest.warns(CacheUnavailable, match="cannot be used"):
        small.put("key", b"payload" * 100)
    with suppress(OSError):
        small._sweep(small.directory)
    assert other.read_bytes() == b"kept"
