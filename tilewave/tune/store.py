"""Files of tuning records: found along a search path, read safely during concurrent writes, appended without loss.

A file is untrusted by default. It is trusted only if no one but its user and root can have written it
(`tilewave.files.distrust`), and up to `MOST_BYTES`. It is read once; a line is found by the key that it begins with,
and parsed when it is needed. Every fault of a file or a line is a remark of the look-up, never an error: the kernel
compiles as it would without the record.

A process that adds a line or sorts a file holds a lock, which ends with the process. A line is added in one write after
a whole line, and is on the disk before `add` returns; a file is sorted into a new one, which then replaces it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tilewave.errors import TilewaveError
from tilewave.files import (
    Distrusted,
    Stamp,
    append_line,
    locked,
    nearest_directory,
    read_plain,
    read_trusted,
    replace_file,
    stamp_of,
)
from tilewave.records import dataclass
from tilewave.tune.records import NO_RECORD, BadRecord, RecordKey, TileRecord, best_of, key_in, merged

DIRECTORY = "tilewave.records"
"""The directory of a project's tuning records."""
FILE = "tiles.jsonl"
MOST_BYTES = 1 << 25
"""The size limit of a file of tuning records, about 100,000 of them; a longer file is ignored."""
MOST_REMARKS = 3
"""Lines of one file that are named each; more are counted."""
TAKE_OVER = (
    "to take its records over: tilewave records merge {file} --into DIRECTORY, which you own; "
    "or own file and directory, and: chmod go-w {folder} {file}"
)


class RecordsError(TilewaveError):
    """A file of tuning records that was given by name cannot be read or written."""


# -- where they are looked for -----------------------------------------------------------------------------------------


def search_path() -> list[Path]:
    """Return where records are looked for, the nearest first: TILEWAVE_RECORDS, or the project's and the user's."""
    if said := os.environ.get("TILEWAVE_RECORDS"):
        return [Path(part) for part in said.split(os.pathsep) if part and part != "off"]
    return [*nearest_directory(DIRECTORY), *user_directory()]


def user_directory() -> list[Path]:
    """Return $XDG_DATA_HOME/tilewave/records, or that of ~/.local/share; none where there is no home."""
    base = Path(os.environ.get("XDG_DATA_HOME", ""))  # a relative one is ignored, as XDG says
    try:
        return [(base if base.is_absolute() else Path.home() / ".local" / "share") / "tilewave" / "records"]
    except RuntimeError:
        return []


@contextmanager
def records_to_write() -> Iterator[Path]:
    """Yield the directory that calls write records to: the user's, or the first that TILEWAVE_RECORDS names.

    Where records are off, or there is no home, it is a directory that is removed again.
    """
    found = search_path() if os.environ.get("TILEWAVE_RECORDS") else user_directory()
    if found:
        yield found[0]
        return
    with TemporaryDirectory() as directory:
        yield Path(directory)


# -- what files say ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LookedUp:
    """What files say of a decision."""

    fitting: tuple[TileRecord, ...] = ()
    """Records of this text of the kernel: those of the nearest file first, of one file the best."""
    stale: tuple[TileRecord, ...] = ()
    """Records of another text of the kernel."""
    remarks: tuple[str, ...] = ()
    """Which files and lines were passed over, and why."""

    def before(self, other: LookedUp) -> LookedUp:
        """Both, these first."""
        remarks = dict.fromkeys((*self.remarks, *other.remarks))
        return LookedUp(self.fitting + other.fitting, self.stale + other.stale, tuple(remarks))


class RecordFile:
    """One file as it was when it was read; nothing, and a remark, where it is not to be believed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stamp: Stamp = ()
        self.remarks: tuple[str, ...] = ()
        self.fault = ""
        """Why none of it is believed."""
        self._numbered: dict[str, list[tuple[int, bytes]]] = {}
        """Numbered lines, by what they are for, whatever the digest."""
        self._found: dict[RecordKey, LookedUp] = {}
        try:
            self.stamp = stamp_of(os.stat(path))
            self._read()
        except (FileNotFoundError, NotADirectoryError):
            pass
        except Distrusted as error:
            self.stamp = ()  # looked at again: rights of its directory may change without a trace in the file
            self._pass_over(f"{error.strerror}; {TAKE_OVER.format(file=path, folder=path.parent)}")
        except OSError as error:
            self._pass_over(f"{error.strerror or error}")

    def _pass_over(self, why: str) -> None:
        self.fault = f"{self.path} was skipped: {why}"
        self.remarks = (self.fault,)

    def _read(self) -> None:
        data, self.stamp = read_trusted(self.path, MOST_BYTES)
        for number, line in enumerate(data.split(b"\n"), 1):
            if line and not line.isspace():
                self._numbered.setdefault(key_in(line), []).append((number, line))
        count = len(self._numbered.get(NO_RECORD, ()))
        lines = "a line that is no record" if count == 1 else f"{count} lines that are no records"
        self.remarks = (f"{lines} in {self.path}: tilewave records check {self.path}",) if count else ()

    def is_old(self) -> bool:
        """Whether the file has changed since."""
        try:
            return stamp_of(os.stat(self.path)) != self.stamp
        except OSError:
            return self.stamp != ()

    def look_up(self, key: RecordKey) -> LookedUp:
        """Return what the file has for a key; its lines are parsed once."""
        if key not in self._found:
            self._found[key] = self._parsed(key)
        return self._found[key]

    def _parsed(self, key: RecordKey) -> LookedUp:
        records: list[TileRecord] = []
        bad: list[str] = []
        for number, line in self._numbered.get(key.without_digest, ()):
            try:
                records.append(TileRecord.parse(line, str(self.path)))
            except BadRecord as why:
                bad.append(f"{self.path}:{number} was skipped: {why}")
        more = (f"{len(bad) - MOST_REMARKS} more lines in {self.path} were",) if len(bad) > MOST_REMARKS else ()
        records.sort(key=lambda record: record.rank, reverse=True)
        fitting, stale = (
            tuple(one for one in records if (one.key.digest == key.digest) is same) for same in (True, False)
        )
        return LookedUp(fitting, stale, (*self.remarks, *bad[:MOST_REMARKS], *more))


class Records:
    """The files of a path, the nearest first; each is opened when it is first asked, and again when it has changed."""

    def __init__(self, path: Iterable[Path]) -> None:
        self.path = [at / FILE for at in path]
        self.files: dict[Path, RecordFile] = {}

    def look_up(self, key: RecordKey) -> LookedUp:
        """All that the files have for a kernel on a chip with these sizes."""
        found = LookedUp()
        for path in self.path:
            file = self.files.get(path)
            if file is None or file.is_old():
                file = self.files[path] = RecordFile(path)
            found = found.before(file.look_up(key))
        return found


@cache
def records_in(path: tuple[Path, ...]) -> Records:
    """Return the records of a search path, whose files this process reads once."""
    return Records(path)


@lru_cache(maxsize=1)
def records_exist(second: int) -> bool:
    """Return whether there are files of tuning records, looked for once a second."""
    return any((path / FILE).exists() for path in search_path())


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
def writing(directory: Path) -> Iterator[None]:
    """Lock a directory's files against other writers; what the system says against writing names the directory."""
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        with locked(directory / ".lock"):
            yield
    except OSError as error:
        remedy = "name a writable directory: tilewave tune --records DIRECTORY, tilewave records merge --into DIRECTORY"
        what = f"records: nothing can be written to {directory}: {error.strerror or error}"
        raise RecordsError(what, remedy=remedy) from None


def add(record: TileRecord, directory: Path, name: str = FILE) -> None:
    """Add a record to a file of a directory; it is on the disk when this returns."""
    with writing(directory):
        append_line(directory / name, record.line.encode())


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Replace the contents of a file atomically; the caller holds the lock."""
    data = "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")
    replace_file(path, data, mode=0o644)


def tidy(directory: Path, more: Sequence[Path] = ()) -> list[tuple[Path, int, BadRecord]]:
    """Sort a directory's file, with what other files hold; of two lines for one thing the better stays.

    What is no record stays too, at the end: it may be a later tilewave's. Gives (file, line, why) of these.
    """
    with writing(directory):
        records: list[TileRecord] = []
        kept: list[str] = []
        bad: list[tuple[Path, int, BadRecord]] = []
        for path in dict.fromkeys((directory / FILE, *more)):
            found, wrong = merged(read_lines(path))
            records += found
            bad += [(path, number, why) for number, _, why in wrong]
            kept += [text for _, text, _ in wrong]
        write_lines(directory / FILE, [*(one.line for one in best_of(records)), *sorted(dict.fromkeys(kept))])
    return bad
