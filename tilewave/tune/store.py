"""Files of tuning records: found along a search path, read safely during concurrent writes, appended without loss.

A file is untrusted by default. It is trusted only if no one but its user and root can have written it
(`tilewave.files.distrust`), and up to `MOST_BYTES`. It is read once; a line is found by the key that it begins with,
and parsed when it is needed. Every fault of a file or a line is a remark of the look-up, never an error: the kernel
compiles as it would without the record.

A process that adds a line or sorts a file holds a lock, which ends with the process. A line is added in one write after
a whole line, and is on the disk before `add` returns; a file is sorted into a new one, which then replaces it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tilewave.errors import TilewaveError
from tilewave.files import (
    Distrusted,
    Stamp,
    TooLong,
    distrust,
    is_ours,
    open_plain,
    read_plain,
    read_steady,
    replace_file,
    stamp_of,
    write_all,
)
from tilewave.tune.records import BadRecord, RecordKey, TileRecord, key_in, merged

DIRECTORY = "tilewave.records"
"""The directory of a project's tuning records."""
FILE = "tiles.jsonl"
MOST_BYTES = 1 << 25
"""The size limit of a file of tuning records, about 100,000 of them; a longer file is ignored."""
MOST_REMARKS = 3
"""RecordLines of one file that are named each; more are counted."""
NO_RECORD = ""
"""What lines without a key are for."""


class RecordsError(TilewaveError):
    """A file of tuning records that was given by name cannot be read or written."""


# -- where they are looked for -----------------------------------------------------------------------------------------


def search_path() -> list[Path]:
    """Return where records are looked for, the nearest first: TILEWAVE_RECORDS, or the project's and the user's."""
    if said := os.environ.get("TILEWAVE_RECORDS"):
        return [Path(part) for part in said.split(os.pathsep) if part and part != "off"]
    return [*_project_directory(), *_known_user_directory()]


def _project_directory() -> list[Path]:
    """The nearest `tilewave.records` in the working directory or above it.

    As git does, the search stays on one file system; and it does not go above a directory of another user, who could
    put one there.
    """
    try:
        here = Path.cwd()
        device = os.stat(here).st_dev
        for at in (here, *here.parents):
            state = os.stat(at)
            if state.st_dev != device:
                return []
            if os.path.isdir(at / DIRECTORY):
                return [at / DIRECTORY]
            if not is_ours(state):
                return []
    except OSError:  # the working directory was removed, or one above it may not be looked at
        pass
    return []


def _known_user_directory() -> list[Path]:
    try:
        return [user_directory()]
    except RuntimeError:  # there is no home
        return []


def user_directory() -> Path:
    """$XDG_DATA_HOME/tilewave/records, or that of ~/.local/share; a relative $XDG_DATA_HOME is ignored, as it says."""
    base = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "share") / "tilewave" / "records"


@contextmanager
def records_to_write() -> Iterator[Path]:
    """Yield the directory that calls write records to: the user's, or the first that TILEWAVE_RECORDS names.

    Where records are off, or there is no home, it is a directory that is removed again.
    """
    found = search_path() if os.environ.get("TILEWAVE_RECORDS") else _known_user_directory()
    if found:
        yield found[0]
        return
    with TemporaryDirectory() as directory:
        yield Path(directory)


# -- one file ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A tuning record, and the file that contains it."""

    record: TileRecord
    file: Path


@dataclass(frozen=True)
class RecordLines:
    """What a file has for one kernel, chip and sizes, whatever the digests: records, and why other lines are none."""

    best_first: tuple[TileRecord, ...]
    remarks: tuple[str, ...]


class RecordFile:
    """One file as it was when it was read; nothing, and a remark, where it is not to be believed."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, os.fspath(path)
        self.stamp: Stamp = ()
        self.remarks: tuple[str, ...] = ()
        self.fault = ""
        """Why none of it is believed."""
        self._numbered: dict[str, list[tuple[int, bytes]]] = {}
        """Numbered lines, by what they are for, whatever the digest."""
        self._lines: dict[str, RecordLines] = {}
        try:
            self.stamp = stamp_of(os.stat(self.name))
            self._read()
        except (FileNotFoundError, NotADirectoryError):
            pass
        except Distrusted as error:
            self.stamp = ()  # looked at again: rights of its directory may change without a trace in the file
            self._pass_over(f"{error.strerror}; {takeover(self.path)}")
        except OSError as error:
            self._pass_over(f"{error.strerror or error}")

    def _pass_over(self, why: str) -> None:
        self.fault = f"{self.path} was skipped: {why}"
        self.remarks = (self.fault,)

    def _read(self) -> None:
        file = open_plain(self.path)
        try:
            state = os.fstat(file)
            _want_trusted(self.path, state)
            if state.st_size > MOST_BYTES:
                raise TooLong(state.st_size, MOST_BYTES, self.path)
            data, self.stamp = read_steady(file, MOST_BYTES, self.path)
        finally:
            os.close(file)
        for number, line in enumerate(data.split(b"\n"), 1):
            if line and not line.isspace():
                parts = key_in(line).split(" ")
                text = f"{parts[0]} {parts[2]} {parts[3]}" if len(parts) == 4 else NO_RECORD
                self._numbered.setdefault(text, []).append((number, line))
        count = len(self._numbered.get(NO_RECORD, ()))
        lines = "a line that is no record" if count == 1 else f"{count} lines that are no records"
        self.remarks = (f"{lines} in {self.path}: tilewave records check {self.path}",) if count else ()

    def is_old(self) -> bool:
        """Whether the file has changed since."""
        try:
            return stamp_of(os.stat(self.name)) != self.stamp
        except OSError:
            return self.stamp != ()

    def lines(self, key: RecordKey) -> RecordLines:
        """Return the lines for the key's kernel, chip and sizes; each line is parsed once."""
        text = key.without_digest
        found = self._lines.get(text)
        if found is None:
            found = self._lines[text] = self._parsed(self._numbered.get(text, ()), key)
        return found

    def _parsed(self, numbered: Sequence[tuple[int, bytes]], key: RecordKey) -> RecordLines:
        records: list[TileRecord] = []
        bad: list[str] = []
        for number, line in numbered:
            try:
                record = TileRecord.parse(line, key)
                if record.key.without_digest == key.without_digest:  # JSON may give a key twice
                    records.append(record)
            except BadRecord as why:
                bad.append(f"{self.path}:{number} was skipped: {why}")
        more = (f"{len(bad) - MOST_REMARKS} more lines in {self.path} were",) if len(bad) > MOST_REMARKS else ()
        records.sort(key=lambda record: record.rank, reverse=True)
        return RecordLines(tuple(records), (*bad[:MOST_REMARKS], *more))


def _want_trusted(path: Path, state: os.stat_result) -> None:
    """Raise Distrusted unless only the user and root can have written a file.

    Checks the opened file, its directory, and a link to the directory: replacing any of these replaces the records.
    """
    directory, link = os.stat(path.parent), os.lstat(path.parent)
    if why := distrust(state):
        raise Distrusted(why, path)
    if why := distrust(directory) or ("" if is_ours(link) else f"is linked by another user (uid {link.st_uid})"):
        raise Distrusted(f"is in a directory that {why}", path)


def takeover(path: Path) -> str:
    """How the records of a file that is not believed become the user's own, or the file believed."""
    return (
        f"to take its records over: tilewave records merge {path} --into DIRECTORY, which you own; "
        f"or own file and directory, and: chmod go-w {path.parent} {path}"
    )


# -- a path of files ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LookedUp:
    """What files say of a decision."""

    fitting: tuple[Found, ...] = ()
    """Records of this text of the kernel: those of the nearest file first, of one file the best."""
    stale: tuple[Found, ...] = ()
    """Records of another text of the kernel."""
    remarks: tuple[str, ...] = ()
    """Which files and lines were passed over, and why."""

    @property
    def found(self) -> Found | None:
        """The record that is to be taken, if it can be."""
        return self.fitting[0] if self.fitting else None

    def before(self, other: LookedUp) -> LookedUp:
        """Both, these first."""
        remarks = dict.fromkeys((*self.remarks, *other.remarks))
        return LookedUp(self.fitting + other.fitting, self.stale + other.stale, tuple(remarks))


class Records:
    """The files of a path, the nearest first; each is opened when it is first asked, and again when it has changed."""

    def __init__(self, path: Sequence[Path] | None = None) -> None:
        self.path = list(search_path() if path is None else path)
        self.files: list[RecordFile | None] = [None] * len(self.path)

    def look_up(self, key: RecordKey) -> LookedUp:
        """All that the files have for a kernel on a chip with these sizes."""
        fitting: list[Found] = []
        stale: list[Found] = []
        remarks: list[str] = []
        for at in range(len(self.path)):
            file = self._file(at)
            lines = file.lines(key)
            for record in lines.best_first:
                (fitting if record.key.digest == key.digest else stale).append(Found(record, file.path))
            remarks += file.remarks
            remarks += lines.remarks
        return LookedUp(tuple(fitting), tuple(stale), tuple(remarks))

    def are_there(self) -> bool:
        """Return whether a file of records exists."""
        return any((path / FILE).exists() for path in self.path)

    def _file(self, at: int) -> RecordFile:
        known = self.files[at]
        if known is None or known.is_old():
            known = self.files[at] = RecordFile(self.path[at] / FILE)
        return known


# -- reading what was named, and writing -------------------------------------------------------------------------------


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file given by name, trusted or not; none if there is no file.

    Bytes that are not UTF-8 are kept as surrogates, so that a line can be written back unchanged.
    """
    try:
        data = read_plain(path, MOST_BYTES)
    except FileNotFoundError:
        return []
    except OSError as error:
        remedy = f"name a plain file of records of at most {MOST_BYTES:,} bytes that you may read"
        raise RecordsError(f"records: {path} cannot be read: {error.strerror or error}", remedy=remedy) from None
    lines = data.decode(errors="surrogateescape").split("\n")
    return lines if lines[-1] else lines[:-1]


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a directory's files against other writers in any process; the lock ends with its process."""
    with _writing(directory):
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        file = open_plain(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    """What the system says against writing, as an error that names the directory."""
    try:
        yield
    except OSError as error:
        remedy = "name a writable directory: tilewave tune --records DIRECTORY, tilewave records merge --into DIRECTORY"
        what = f"records: nothing can be written to {directory}: {error.strerror or error}"
        raise RecordsError(what, remedy=remedy) from None


def add_line(path: Path, line: str) -> None:
    """A line at the end of a file, on the disk when this returns; half a line that a killed process left is ended."""
    with locked(path.parent), _writing(path.parent):
        file = open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(file).st_size
            whole = size == 0 or os.pread(file, 1, size - 1) == b"\n"
            write_all(file, f"{'' if whole else chr(10)}{line}\n".encode())
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
        write_lines(directory / FILE, [*(record.line for record in records), *sorted(dict.fromkeys(kept))])
    return bad


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Replace the contents of a file atomically; the caller holds the lock."""
    with _writing(path.parent):
        data = "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")
        replace_file(path, data, mode=0o644)
