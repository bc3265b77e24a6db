"""Reading files that others may have written or are writing now, and replacing files atomically.

Every reader has a limit of bytes, never waits for a pipe or a device, and raises an `OSError` or a `ValueError` that
says what is wrong with the file; the caller adds its name and what to do. Nothing is memory-mapped: a mapped file that
gets shorter ends the process with SIGBUS.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import json
import os
import pathlib
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from math import isfinite
from typing import Any, NoReturn

Path = str | os.PathLike[str]
Stamp = tuple[int, ...]
MOST_AT_ONCE = 1 << 20
STEADY_READS = 3
"""How often a file that changes meanwhile is read, before the last content is used."""


def open_plain(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Return a descriptor of a plain file; an OSError for a pipe, a device, a directory, and what cannot be opened."""
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode)  # opening a pipe must not block
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise NotPlain(errno.EINVAL, "it is not a plain file", os.fspath(path))
    return file


def read_plain(path: Path, most_bytes: int, flags: int = os.O_RDONLY) -> bytes:
    """Return all of a plain file; an OSError where it has more than `most_bytes`."""
    file = open_plain(path, flags)
    try:
        return read_all(file, most_bytes, path)
    finally:
        os.close(file)


def read_text(path: Path, most_bytes: int) -> str:
    """Return the text of a plain file in UTF-8; an OSError where it is too long, or no such text."""
    try:
        return read_plain(path, most_bytes).decode()
    except UnicodeDecodeError as error:
        raise NotText(error.start, path) from None


def read_all(file: int, most_bytes: int, path: Path = "") -> bytes:
    """Return the rest of an open file from its position; an OSError where that is more than `most_bytes`.

    The size in the file's metadata is used only to refuse early: it may grow or shrink while it is read.
    """
    if (size := os.fstat(file).st_size) > most_bytes:
        raise TooLong(size, most_bytes, path)
    parts: list[bytes] = []
    left = most_bytes + 1
    while left and (part := os.read(file, min(left, MOST_AT_ONCE))):
        parts.append(part)
        left -= len(part)
    if not left:
        raise TooLong(os.fstat(file).st_size, most_bytes, path)
    return b"".join(parts)


def read_steady(file: int, most_bytes: int, path: Path) -> tuple[bytes, Stamp]:
    """Return all of an open file as it was at one moment, and its stamp; a file that keeps changing as it was last."""
    for _ in range(STEADY_READS):
        stamp = stamp_of(os.fstat(file))
        os.lseek(file, 0, os.SEEK_SET)
        data = read_all(file, most_bytes, path)
        if stamp_of(os.fstat(file)) == stamp and len(data) == stamp[2]:
            break
    return data, stamp


def stamp_of(state: os.stat_result) -> Stamp:
    """Return a stamp that differs for another file, other contents or permissions; its third number is the size."""
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


# -- whom to believe ---------------------------------------------------------------------------------------------------


def is_ours(state: os.stat_result) -> bool:
    """Return whether a file or directory belongs to the user or to root."""
    return state.st_uid in (0, os.geteuid())


def distrust(state: os.stat_result) -> str:
    """Return why a file or directory is not trusted; empty where only its user and root can have written it.

    Its owner must be the user or root, and no one else may write it: its mode gives others no write permission, and its
    group only where that is the owner's private one (of the same name, without other members), which many systems give
    every new file to. In a directory such as /tmp, where only owners replace files, others may write.
    """
    if not is_ours(state):
        return f"belongs to another user (uid {state.st_uid})"
    if stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_ISVTX:
        return ""
    mode = f"mode {stat.S_IMODE(state.st_mode):o}"
    if state.st_mode & stat.S_IWOTH:
        return f"can be written by every user ({mode})"
    if state.st_mode & stat.S_IWGRP and not _is_private_group(state.st_uid, state.st_gid):
        return f"can be written by its group (gid {state.st_gid}, {mode})"
    return ""


@cache
def _is_private_group(user: int, group: int) -> bool:
    try:
        owner, found = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:  # a uid or gid without a name
        return False
    return owner.pw_gid == group and found.gr_name == owner.pw_name and {*found.gr_mem} <= {owner.pw_name}


def read_trusted(path: Path, most_bytes: int) -> tuple[bytes, Stamp]:
    """Return all of a plain file that only the user and root can have written, and its stamp, as `read_steady` does."""
    file = open_plain(path)
    try:
        _want_trusted(path, os.fstat(file))
        return read_steady(file, most_bytes, path)
    finally:
        os.close(file)


def _want_trusted(path: Path, state: os.stat_result) -> None:
    """Raise Distrusted unless only the user and root can have written a file, whose state is that of the opened one.

    Checks its directory too, and a link to the directory: replacing any of these replaces the file.
    """
    folder = os.path.dirname(os.fspath(path)) or "."
    directory, link = os.stat(folder), os.lstat(folder)
    if why := distrust(state):
        raise Distrusted(why, path)
    if why := distrust(directory) or ("" if is_ours(link) else f"is linked by another user (uid {link.st_uid})"):
        raise Distrusted(f"is in a directory that {why}", path)


def nearest_directory(name: str) -> list[pathlib.Path]:
    """Return the nearest directory of a name in the working directory or above it; none where there is none.

    As git does, the search stays on one file system; and it does not go above a directory of another user, who could
    put one there.
    """
    try:
        here = pathlib.Path.cwd()
        device = os.stat(here).st_dev
        for at in (here, *here.parents):
            state = os.stat(at)
            if state.st_dev != device:
                return []
            if os.path.isdir(at / name):
                return [at / name]
            if not is_ours(state):
                return []
    except OSError:  # the working directory was removed, or one above it may not be looked at
        pass
    return []


# -- JSON --------------------------------------------------------------------------------------------------------------


def parse_json(data: str | bytes) -> Any:
    """Return the value of a JSON text, read strictly; a ValueError that says why for everything else.

    Nesting that is too deep, a repeated key in one object, NaN, infinities and numbers beyond what a float or Python's
    longest int can be are refused as well.
    """
    try:
        text = (data if isinstance(data, str) else data.decode()).strip(" \t\r\n")
        found, end = _DECODER.raw_decode(text)
    except RecursionError:
        raise ValueError("its lists or objects are nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is no UTF-8") from None
    if end < len(text):
        raise ValueError(f"more text after its value: {text[end : end + 40]!r}")
    return found


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:40]!r} occurs twice in one object")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _no_number(text)


_DECODER = json.JSONDecoder(object_pairs_hook=_once_each, parse_constant=_no_number, parse_float=_finite)


# -- writing -----------------------------------------------------------------------------------------------------------


def replace_file(path: Path, data: bytes, mode: int | None = None) -> None:
    """Replace a file as a whole, synced to disk, in one step; on an error the previous file stays.

    `mode` is the file's mode whatever the umask says; without it, the file gets the mode of any new file.
    """
    name = os.fspath(path)
    unfinished = f"{name}.{os.urandom(8).hex()}.unfinished"
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if mode is None else 0o600)
    try:
        try:
            write_all(file, data)
            if mode is not None:
                os.fchmod(file, mode)
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(unfinished, name)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file, which is made where there is none, against other processes; the lock ends with its process."""
    file = open_plain(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def append_line(path: Path, line: bytes) -> None:
    """Add a line to a file, synced to disk; half a line that a killed process left is ended. The caller has a lock."""
    file = open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(file).st_size
        is_whole = size == 0 or os.pread(file, 1, size - 1) == b"\n"
        write_all(file, (b"" if is_whole else b"\n") + line + b"\n")
        os.fsync(file)
    finally:
        os.close(file)


def write_all(file: int, data: bytes) -> None:
    """Write all of the data to an open file, in as few writes as the system takes."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


# -- faults of files ---------------------------------------------------------------------------------------------------


class NotPlain(OSError):
    """The path is a pipe, a device or a directory."""


class TooLong(OSError):
    """A file has more bytes than anything of its kind."""

    def __init__(self, size: int, most: int, path: Path) -> None:
        super().__init__(errno.EFBIG, f"it has {size:,} bytes, and {most:,} are the most", os.fspath(path))
        self.size = size


class NotText(OSError):
    """A file is not UTF-8."""

    def __init__(self, at: int, path: Path) -> None:
        super().__init__(errno.EILSEQ, f"it is no text in UTF-8 (byte {at})", os.fspath(path))


class Distrusted(OSError):
    """A file that another user can have written."""

    def __init__(self, why: str, path: Path) -> None:
        super().__init__(errno.EPERM, f"it {why}", os.fspath(path))
        self.why = why
