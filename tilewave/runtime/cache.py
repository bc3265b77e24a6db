"""Compiled code on disk, so that the second process need not compile.

The cache is an optimisation and nothing more: whatever goes wrong with it, `get` answers None and `put` does nothing,
with one `CacheUnavailable` warning. It holds machine code that will be run, so it trusts nothing: a directory that
others can write to is refused, and so is an entry that another user wrote or that its own checksum denies.

One entry is one file, named by the hash of its key: a header, then the payload. It appears under its name in one step
(`os.replace`), so readers and writers in any number of processes need no lock. There is no fsync: a file that a crash
of the machine left in pieces fails its checksum, is removed, and is compiled again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite

from tilewave._version import __version__
from tilewave.errors import TilewaveError
from tilewave.files import NotPlain, TooLong, open_plain, read_all

DEFAULT_LIMIT_BYTES = 1 << 30
_LONGEST_NUMBER = 18
"""Digits of a number of bytes that any disk has."""

_MAGIC = b"tilewave"
_VERSION = 1
_HEADER = struct.Struct("<8sI32sQ32s")
"""Magic, format version, sha256 of the key, bytes of payload, sha256 of the payload."""

_ENTRY = ".entry"
_UNFINISHED = ".unfinished"
_JOURNAL = "journal"
"""One byte for every `_JOURNAL_UNIT_BYTES` written since the last sweep, by whichever process."""

_JOURNAL_UNIT_BYTES = 1 << 12
_SWEEPS_PER_LIMIT = 16
_STALE_SECONDS = 600.0
"""An unfinished file this old has lost its writer: writing one takes milliseconds."""

_USED_SECONDS = 60.0
"""How exactly the time of last use is kept; marking every use would write to the disk at every call."""


class CacheUnavailable(UserWarning):
    """The compile cache cannot be used; everything works without it, but every process compiles anew."""


@cache
def sources() -> str:
    """Which state of tilewave's own files this is, so that nothing made by another is taken for it."""
    states = ((path, os.stat(path)) for path in sorted(_python_files(Path(__file__).parents[1])))
    return key_of(*(f"{path} {state.st_size} {state.st_mtime_ns}" for path, state in states))


def _python_files(directory: Path) -> Iterator[str]:
    for at, _, names in os.walk(directory):  # several times as fast as Path.rglob
        yield from (f"{at}/{name}" for name in names if name.endswith(".py"))


def compile_key(*parts: str) -> str:
    """The key of what this tilewave and this LLVM make of the parts."""
    return key_of(__version__, sources(), llvmlite.__version__, *parts)


def key_of(*parts: str | bytes) -> str:
    """One key for all the parts; other parts, or the same ones cut elsewhere, have another."""
    digest = hashlib.sha256()
    for part in parts:
        data = _bytes(part) if isinstance(part, str) else part
        digest.update(struct.pack("<Q", len(data)) + data)
    return digest.hexdigest()


class Cache:
    """Payloads by key, in a directory; the least recently used go when they are more than `limit_bytes` in all."""

    def __init__(self, directory: Path | None, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        """A cache without a directory is switched off: it holds nothing and says nothing."""
        self.directory = directory
        self.limit_bytes = limit_bytes
        self._warned = False

    def get(self, key: str) -> bytes | None:
        """What was put under the key, byte for byte, or None."""
        if self.directory is None:
            return None
        digest = hashlib.sha256(_bytes(key)).digest()
        path = _entry(self.directory, digest)
        try:
            payload = _read(path, digest, self.limit_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(error)
            return None
        if payload is None:
            with suppress(OSError):
                os.unlink(path)
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Keep the payload for `get`, here and in other processes, where the disk allows."""
        if self.directory is None or _HEADER.size + len(payload) > self.limit_bytes:
            return
        digest = hashlib.sha256(_bytes(key)).digest()
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            # The journal comes first, so that what killed writers leave behind is counted, and swept up.
            journal_bytes = self._journal(_HEADER.size + len(payload))
            _write(_entry(self.directory, digest), digest, payload)
            if journal_bytes > self.limit_bytes // _SWEEPS_PER_LIMIT:
                self._sweep(self.directory)
        except OSError as error:
            self._warn(error)

    def _journal(self, added_bytes: int) -> int:
        """Note that so much is written; how much all processes have since the last sweep."""
        assert self.directory is not None
        units = -(-added_bytes // _JOURNAL_UNIT_BYTES)
        file = _open_journal(self.directory)
        try:
            os.write(file, bytes(units))
            return os.fstat(file).st_size * _JOURNAL_UNIT_BYTES
        finally:
            os.close(file)

    def _sweep(self, directory: Path) -> None:
        """Remove what lost its writer, and the least recently used entries, until the next sweep's share is free."""
        journal = _open_journal(directory)
        try:
            os.ftruncate(journal, 0)  # first: no other process need sweep now
        finally:
            os.close(journal)
        files = list(_files(directory))
        now = time.time()
        for file in files:
            if file.path.endswith(_UNFINISHED) and now - file.used > _STALE_SECONDS:
                _unlink(file.path)
        entries = sorted((f for f in files if f.path.endswith(_ENTRY)), key=lambda f: (f.used, f.path))
        excess = sum(f.bytes for f in entries) - (self.limit_bytes - self.limit_bytes // _SWEEPS_PER_LIMIT)
        for file in entries:
            if excess <= 0:
                break
            _unlink(file.path)
            excess -= file.bytes

    def _warn(self, error: OSError) -> None:
        if self._warned:
            return
        self._warned = True
        what = f"the compile cache in {self.directory} cannot be used: {error.strerror or error}"
        warnings.warn(f"{what}. {_ELSEWHERE}", CacheUnavailable, stacklevel=3)


# Entries ------------------------------------------------------------------------------------------------------------


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _entry(directory: Path, digest: bytes) -> str:
    return f"{directory}/{digest.hex()}{_ENTRY}"


def _open_journal(directory: Path) -> int:
    """To be written at its end; neither a link nor a pipe that somebody planted under its name."""
    return open_plain(directory / _JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)


def _read(path: str, digest: bytes, limit_bytes: int) -> bytes | None:
    """The payload of an entry; None where anything about it is not as `_write` left it."""
    try:
        file = open_plain(path, os.O_RDONLY | os.O_NOFOLLOW)  # a planted link is not followed
    except NotPlain:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise
    try:
        about = os.fstat(file)
        if about.st_uid != os.geteuid() or not _HEADER.size <= about.st_size <= limit_bytes:
            return None
        data = read_all(file, limit_bytes)
        payload = _checked(data, digest)
        if payload is not None and time.time() - about.st_mtime > _USED_SECONDS:
            with suppress(OSError):  # a disk that can only be read is a good cache still
                os.utime(file)
        return payload
    except TooLong:  # it has grown since
        return None
    finally:
        os.close(file)


def _checked(data: bytes, digest: bytes) -> bytes | None:
    payload = data[_HEADER.size :]
    return payload if data[: _HEADER.size] == _header(digest, payload) else None


def _header(digest: bytes, payload: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, _VERSION, digest, len(payload), hashlib.sha256(payload).digest())


def _write(path: str, digest: bytes, payload: bytes) -> None:
    """The whole entry under its name, or nothing."""
    unfinished = f"{path}.{os.urandom(8).hex()}{_UNFINISHED}"
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            for data in (_header(digest, payload), payload):
                left = memoryview(data)
                while left:
                    left = left[os.write(file, left) :]
        finally:
            os.close(file)
        os.replace(unfinished, path)
    except BaseException:
        _unlink(unfinished)
        raise


def _unlink(path: str) -> None:
    with suppress(OSError):  # another process was faster, or the disk can only be read
        os.unlink(path)


@dataclass(frozen=True)
class _File:
    path: str
    bytes: int
    used: float
    """When it was last used, in seconds since 1970."""


def _files(directory: Path) -> Iterator[_File]:
    with os.scandir(directory) as found:
        for item in found:
            with suppress(FileNotFoundError):
                about = item.stat(follow_symlinks=False)
                yield _File(item.path, about.st_size, about.st_mtime)


def held_bytes(directory: Path) -> int:
    """What a cache's files take together."""
    return sum(file.bytes for file in _files(directory))


# Where it is, and how large -----------------------------------------------------------------------------------------

_ELSEWHERE = "Set TILEWAVE_CACHE_DIR to a directory of your own, or to off"


def default_cache() -> Cache:
    """The cache that the environment asks for."""
    return Cache(default_directory(), default_limit_bytes())


def default_limit_bytes() -> int:
    """TILEWAVE_CACHE_BYTES, or 1 GiB."""
    wanted = os.environ.get("TILEWAVE_CACHE_BYTES", str(DEFAULT_LIMIT_BYTES))
    if not (wanted.isascii() and wanted.isdigit() and len(wanted) <= _LONGEST_NUMBER):
        raise TilewaveError(
            f"TILEWAVE_CACHE_BYTES is {wanted!r}, which is no number of bytes",
            remedy=f"set it to a whole number, such as {DEFAULT_LIMIT_BYTES} for 1 GiB",
        )
    return int(wanted)


def default_directory() -> Path | None:
    """TILEWAVE_CACHE_DIR, $XDG_CACHE_HOME/tilewave or ~/.cache/tilewave, made if need be; None where it is off.

    A directory that others could fill with their code is an error where TILEWAVE_CACHE_DIR names it, and off otherwise.
    """
    named = os.environ.get("TILEWAVE_CACHE_DIR")
    if named in ("", "off"):
        return None
    try:
        directory = _users_directory() if named is None else Path(named).expanduser().absolute()
        os.makedirs(directory, mode=0o700, exist_ok=True)
        fault = _fault(directory)
    except (FileExistsError, NotADirectoryError):
        fault = "is not a directory"
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        warnings.warn(f"there is no compile cache: {error}. {_ELSEWHERE}", CacheUnavailable, stacklevel=2)
        return None
    if fault is None:
        return directory
    if named is not None:
        raise TilewaveError(f"TILEWAVE_CACHE_DIR: {directory} {fault}", remedy=_ELSEWHERE)
    warnings.warn(f"there is no compile cache: {directory} {fault}. {_ELSEWHERE}", CacheUnavailable, stacklevel=2)
    return None


def _users_directory() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # Its specification says that a relative one is to be ignored.
    return (base if base.is_absolute() else Path.home() / ".cache") / "tilewave"


def _fault(directory: Path) -> str | None:
    """Why code in this directory cannot be trusted."""
    about = os.stat(directory)
    if about.st_uid != os.geteuid():
        return f"belongs to another user (uid {about.st_uid}), whose code would be run"
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(about.st_mode):o}), whose code would be run"
    return None
