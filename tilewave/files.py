"""Files that somebody else may have put there: none keeps us waiting, and none is read further than agreed."""

from __future__ import annotations

import errno
import os
import stat

Path = str | os.PathLike[str]
MOST_AT_ONCE = 1 << 20


def open_plain(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """A descriptor of a plain file; an OSError for a pipe, a device, a directory, and what cannot be opened."""
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode)  # a pipe does not keep us waiting
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise NotPlain(errno.EINVAL, "it is not a plain file", os.fspath(path))
    return file


def read_plain(path: Path, most_bytes: int, flags: int = os.O_RDONLY) -> bytes:
    """All of a plain file; an OSError where it holds more than `most_bytes`."""
    file = open_plain(path, flags)
    try:
        size = os.fstat(file).st_size
        if size > most_bytes:
            raise TooLong(size, most_bytes, path)
        return read_all(file, most_bytes)
    finally:
        os.close(file)


def read_all(file: int, most_bytes: int) -> bytes:
    """What an open file holds, as far as `most_bytes`, whatever it said its size was."""
    parts: list[bytes] = []
    left = most_bytes
    while left and (part := os.read(file, min(left, MOST_AT_ONCE))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


class NotPlain(OSError):
    """A pipe, a device, a directory."""


class TooLong(OSError):
    """More bytes than anything of its kind has."""

    def __init__(self, size: int, most: int, path: Path) -> None:
        super().__init__(errno.EFBIG, f"it has {size:,} bytes, and {most:,} are the most", os.fspath(path))
        self.size = size
