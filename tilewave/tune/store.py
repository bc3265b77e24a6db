"""Files of records: found along a path, looked up through an index, added to so that nothing is lost.

A file is read through a table of places, by the hash of what a line is for. That of a long file is kept in the compile
cache, under the file's size and time. A place is believed only if the line that stands there says so itself.

Whoever adds a line or sorts a file holds a lock, which ends with its process. A line is added in one write behind a
whole line, and is on the disk before `add` returns; a file is sorted into another, which then takes its name.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tilewave.files import open_plain
from tilewave.runtime.cache import default_cache, key_of
from tilewave.tune.records import BadRecord, RecordKey, TileRecord, key_in, merged

DIRECTORY = "tilewave.records"
"""Of a project."""
FILE = "tiles.jsonl"
SHIPPED = Path(__file__).parent / "shipped"
SHIPPED_OF = "matmul"
"""What the kernels of `ops.matmul` are called, which these are records of."""
LONG_FILE = 1 << 20
"""Bytes of a file from which on its table is kept."""
NOTHING_THERE = (-1, -1)
Slots = memoryview


def search_path() -> list[Path]:
    """Where records are looked for, the nearest first: TILEWAVE_RECORDS, the project's, the user's, and our own."""
    if said := os.environ.get("TILEWAVE_RECORDS"):
        return [*(Path(part) for part in said.split(os.pathsep) if part and part != "off"), *_shipped(said)]
    here = Path.cwd()
    project = next((p / DIRECTORY for p in (here, *here.parents) if (p / DIRECTORY).is_dir()), None)
    return [*([project] if project else []), user_directory(), SHIPPED]


def _shipped(said: str) -> list[Path]:
    return [] if said == "off" else [SHIPPED]


def user_directory() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "tilewave" / "records"


@dataclass(frozen=True)
class Found:
    """A record, and the file that it stands in."""

    record: TileRecord
    file: Path


class RecordFile:
    """One file, read through its table."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, os.fspath(path)
        self.data: bytes | mmap.mmap = b""
        self.stamp = NOTHING_THERE
        with suppress(OSError):
            self._open()

    def _open(self) -> None:
        file = open_plain(self.path)
        try:
            state = os.fstat(file)
            self.data = mmap.mmap(file, 0, access=mmap.ACCESS_READ) if state.st_size else b""
        finally:
            os.close(file)
        self.stamp = state.st_size, state.st_mtime_ns
        self.slots = _table(self.path, self.data, self.stamp)

    def is_old(self) -> bool:
        """Whether the file has changed since."""
        try:
            state = os.stat(self.name)
        except OSError:
            return self.stamp != NOTHING_THERE
        return (state.st_size, state.st_mtime_ns) != self.stamp

    def records(self, key: RecordKey) -> list[TileRecord]:
        """Those of the same kernel, chip and sizes, whatever their digests."""
        found: list[TileRecord] = []
        if not self.data:
            return found
        text, slots = key.without_digest, self.slots
        wanted = _hash(text)
        at = 2 * wanted % len(slots)
        while place := slots[at + 1]:
            if slots[at] == wanted:
                record = self._record(place - 1, key)
                if record is not None and (record.key is key or record.key.without_digest == text):
                    found.append(record)
            at = (at + 2) % len(slots)
        return found

    def _record(self, place: int, expected: RecordKey) -> TileRecord | None:
        end = self.data.find(b"\n", place)
        try:
            return TileRecord.parse(self.data[place : end if end >= 0 else len(self.data)], expected)
        except BadRecord:
            return None


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _table(path: Path, data: bytes | mmap.mmap, stamp: tuple[int, int]) -> Slots:
    """By the hash of kernel, chip and sizes, the place of each line, and 1: nothing stands at 0."""
    if len(data) < LONG_FILE:
        return _made(data)
    kept, key = default_cache(), key_of("table of records", str(path.resolve()), repr(stamp))
    found = kept.get(key)
    if found is not None and len(found) % 16 == 0:
        return memoryview(found).cast("Q")
    made = _made(data)
    kept.put(key, bytes(made))
    return made


def _made(data: bytes | mmap.mmap) -> Slots:
    found = list(_places(data))
    count = 1 << max(4, (4 * len(found) // 3).bit_length())
    slots = [0] * (2 * count)
    for wanted, place in found:
        at = 2 * wanted % len(slots)
        while slots[at + 1]:
            at = (at + 2) % len(slots)
        slots[at], slots[at + 1] = wanted, place + 1
    return memoryview(array("Q", slots))


def _places(data: bytes | mmap.mmap) -> Iterator[tuple[int, int]]:
    place = 0
    while place < len(data):
        end = data.find(b"\n", place)
        end = len(data) if end < 0 else end
        parts = key_in(data[place:end]).split(" ")
        if len(parts) == 4:
            yield _hash(f"{parts[0]} {parts[2]} {parts[3]}"), place
        place = end + 1


# -- a path of files ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LookedUp:
    """What files say of a decision: the record that fits, and those that no longer do."""

    found: Found | None
    stale: tuple[Found, ...] = ()


class Records:
    """The files of a path, the nearest first; each is opened when it is first asked, and again when it has changed."""

    def __init__(self, path: Sequence[Path] | None = None) -> None:
        self.path = list(search_path() if path is None else path)
        self.files: list[RecordFile | None] = [None] * len(self.path)

    def look_up(self, key: RecordKey) -> LookedUp:
        """The best record of the nearest file that has one; without it, those of an older text of the kernel."""
        stale: list[Found] = []
        for at in range(len(self.path)):
            file = self._file(at)
            fitting = []
            for record in file.records(key):
                if record.key.digest == key.digest:
                    fitting.append(record)
                else:
                    stale.append(Found(record, file.path))
            if fitting:
                best = fitting[0] if len(fitting) == 1 else max(fitting, key=lambda record: record.rank)
                return LookedUp(Found(best, file.path))
        return LookedUp(None, tuple(stale))

    def _file(self, at: int) -> RecordFile:
        known = self.files[at]
        if known is None or known.is_old():
            known = self.files[at] = RecordFile(self.path[at] / FILE)
        return known


# -- writing -----------------------------------------------------------------------------------------------------------


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Nobody else adds to the files of a directory, or sorts them, in any process; a lock ends with its process."""
    directory.mkdir(parents=True, exist_ok=True)
    file = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def add_line(path: Path, line: str) -> None:
    """A line at the end of a file, on the disk when this returns; half a line that a killed process left is ended."""
    with locked(path.parent):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(file).st_size
            whole = size == 0 or os.pread(file, 1, size - 1) == b"\n"
            _write_all(file, f"{'' if whole else chr(10)}{line}\n".encode())
            os.fsync(file)
        finally:
            os.close(file)


def add(record: TileRecord, directory: Path) -> None:
    add_line(directory / FILE, record.line)


def tidy(directory: Path, more: Sequence[Path] = ()) -> list[tuple[Path, int, BadRecord]]:
    """Sort a directory's file, with what other files hold; of two lines for one thing the better stays.

    What is no record stays too, at the end: it may be a later tilewave's. Gives (file, line, why) of these.
    """
    with locked(directory):
        lines: list[str] = []
        kept: list[str] = []
        bad: list[tuple[Path, int, BadRecord]] = []
        for path in dict.fromkeys((directory / FILE, *more)):
            found = read_lines(path)
            lines += found
            wrong = merged(found)[1]
            bad += [(path, number, why) for number, _, why in wrong]
            kept += [text for _, text, _ in wrong]
        records, _ = merged(lines)
        _replace(directory / FILE, [*(record.line for record in records), *sorted(dict.fromkeys(kept))])
    return bad


def read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def _replace(path: Path, lines: Sequence[str]) -> None:
    """The whole file under its name, or the one before."""
    unfinished = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        try:
            _write_all(file, "".join(f"{line}\n" for line in lines).encode())
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
