"""Compiled code on disk, so that the second process need not compile.

The cache is an optimisation and nothing more: whatever goes wrong with it, `get` returns None and `put` does nothing,
with one `CacheUnavailable` warning. It has machine code that will be run, so it trusts nothing: a directory that
others can write to is refused, and so is an entry that another user wrote or that does not match its checksum.

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
from functools import cache
from pathlib import Path

from tilewave._version import __version__
from tilewave.errors import TilewaveError
from tilewave.files import NotPlain, TooLong, open_plain, read_all
from tilewave.forks import IMPORTING
from tilewave.records import dataclass

DEFAULT_LIMIT_BYTES = 1 << 30
_LONGEST_NUMBER = 18
"""The most digits of a size in bytes."""

_MAGIC = b"tilewave"
_VERSION = 1
_HEADER = struct.Struct("<8sI32sQ32s")
"""Magic, format version, sha256 of the key, bytes of payload, sha256 of the payload."""

_ENTRY = ".entry"
_UNFINISHED = ".unfinished"
_JOURNAL = "journal"
"""One byte for every `_JOURNAL_UNIT_BYTES` that any process wrote since the last sweep."""

_JOURNAL_UNIT_BYTES = 1 << 12
_SWEEPS_PER_LIMIT = 16
_STALE_SECONDS = 600.0
"""An unfinished file this old has lost its writer: writing one takes milliseconds."""

_USED_SECONDS = 60.0
"""The resolution of the time of last use; marking every use would write to the disk at every call."""


class CacheUnavailable(UserWarning):
    """The compile cache cannot be used; everything works without it, but every process compiles again."""


@cache
def sources() -> str:
    """Return a key of tilewave's source files, so that results of another version are not used.

    Their times count in whole seconds: layers of a container image keep no fractions, and a cache may be in one.
    """
    states = ((path, os.stat(path)) for path in sorted(_python_files(Path(__file__).parents[1])))
    return key_of(*(f"{path} {state.st_size} {int(state.st_mtime)}" for path, state in states))


def _python_files(directory: Path) -> Iterator[str]:
    for at, _, names in os.walk(directory):  # several times as fast as Path.rglob
        yield from (f"{at}/{name}" for name in names if name.endswith(".py"))


def compile_key(*parts: str) -> str:
    """Return the key of what this tilewave and this LLVM compile from the parts."""
    return key_of(__version__, sources(), _llvm_version(), *parts)


@cache
def _llvm_version() -> str:
    with IMPORTING:
        from llvmlite import __version__ as version  # noqa: PLC0415  the targets' table is read without it
    return str(version)


def key_of(*parts: str | bytes) -> str:
    """Return one key for all the parts; other parts, or the same text divided otherwise, have another."""
    digest = hashlib.sha256()
    for part in parts:
        data = _bytes(part) if isinstance(part, str) else part
        digest.update(struct.pack("<Q", len(data)) + data)
    return digest.hexdigest()


class Cache:
    """Payloads by key, in a directory; the least recently used are removed when they exceed `limit_bytes` in all."""

    def __init__(self, directory: Path | None, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        """A cache without a directory is switched off: it stores nothing and never warns."""
        self.directory = directory
        self.limit_bytes = limit_bytes
        self._warned = False

    def get(self, key: str) -> bytes | None:
        """Return the payload that was put under the key, or None."""
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
        """Store the payload for `get` in this and other processes, where the disk allows."""
        if self.directory is None or _HEADER.size + len(payload) > self.limit_bytes:
            return
        digest = hashlib.sha256(_bytes(key)).digest()
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            # The journal is written first, so that files left by killed writers are counted and swept.
            journal_bytes = self._journal(_HEADER.size + len(payload))
            _write(_entry(self.directory, digest), digest, payload)
            if journal_bytes > self.limit_bytes // _SWEEPS_PER_LIMIT:
                self._sweep(self.directory)
        except OSError as error:
            self._warn(error)

    def _journal(self, added_bytes: int) -> int:
        """Record that `added_bytes` are written, and return what all processes wrote since the last sweep."""
        assert self.directory is not None
        units = -(-added_bytes // _JOURNAL_UNIT_BYTES)
        file = _open_journal(self.directory)
        try:
            os.write(file, bytes(units))
            return os.fstat(file).st_size * _JOURNAL_UNIT_BYTES
        finally:
            os.close(file)

    def _sweep(self, directory: Path) -> None:
        """Remove files of dead writers, then the least recently used entries down to a share of the limit."""
        journal = _open_journal(directory)
        try:
            os.ftruncate(journal, 0)  # first, so that no other process sweeps at the same time
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
    """Open the journal for appending; a link or a pipe planted under its name is refused."""
    return open_plain(directory / _JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)


def _read(path: str, digest: bytes, limit_bytes: int) -> bytes | None:
    """Return the payload of an entry; None where anything differs from what `_write` wrote."""
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
            with suppress(OSError):  # a read-only disk is still a good cache
                os.utime(file)
        return payload
    except TooLong:  # it has grown since `fstat`
        return None
    finally:
        os.close(file)


def _checked(data: bytes, digest: bytes) -> bytes | None:
    payload = data[_HEADER.size :]
    return payload if data[: _HEADER.size] == _header(digest, payload) else None


def _header(digest: bytes, payload: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, _VERSION, digest, len(payload), hashlib.sha256(payload).digest())


def _write(path: str, digest: bytes, payload: bytes) -> None:
    """Write the whole entry under its name, or nothing."""
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
    with suppress(OSError):  # another process was faster, or the disk is read-only
        os.unlink(path)


@dataclass(frozen=True)
class _File:
    path: str
    bytes: int
    used: float
    """The time of last use, in seconds since 1970."""


def _files(directory: Path) -> Iterator[_File]:
    with os.scandir(directory) as found:
        for item in found:
            with suppress(FileNotFoundError):
                about = item.stat(follow_symlinks=False)
                yield _File(item.path, about.st_size, about.st_mtime)


def held_bytes(directory: Path) -> int:
    """Return the total size of a cache's files."""
    return sum(file.bytes for file in _files(directory))


# Where it is, and how large -----------------------------------------------------------------------------------------

_ELSEWHERE = "Set TILEWAVE_CACHE_DIR to another directory, or to off"


def default_cache() -> Cache:
    """Return the cache that the environment variables describe."""
    return Cache(default_directory(), default_limit_bytes())


def default_limit_bytes() -> int:
    """Return TILEWAVE_CACHE_BYTES, or 1 GiB."""
    wanted = os.environ.get("TILEWAVE_CACHE_BYTES", str(DEFAULT_LIMIT_BYTES))
    if not (wanted.isascii() and wanted.isdigit() and len(wanted) <= _LONGEST_NUMBER):
        raise TilewaveError(
            f"TILEWAVE_CACHE_BYTES is {wanted!r}, which is no number of bytes",
            remedy=f"set it to a whole number, such as {DEFAULT_LIMIT_BYTES} for 1 GiB",
        )
    return int(wanted)


def default_directory() -> Path | None:
    """Return TILEWAVE_CACHE_DIR, $XDG_CACHE_HOME/tilewave or ~/.cache/tilewave, made if need be; None where it is off.

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
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
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
    # The XDG specification says to ignore a relative path.
    return (base if base.is_absolute() else Path.home() / ".cache") / "tilewave"


def _fault(directory: Path) -> str | None:
    """Return why code in this directory cannot be trusted."""
    about = os.stat(directory)
    if about.st_uid != os.geteuid():
        return f"belongs to another user (uid {about.st_uid}), whose code would be run"
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(about.st_mode):o}), whose code would be run"
    return None
