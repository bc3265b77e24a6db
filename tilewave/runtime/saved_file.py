"""The file of a saved kernel: a zip archive that is written atomically, and validated in full when read.

`kernel.json` says what the kernel is and lists the other members, each with its sha256; members that it does not list
are never read. Times and modes in the archive are fixed, so that the same kernel gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import linecache
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tilewave._version import __version__
from tilewave.errors import SavedKernelError, TilewaveError, here, short_path
from tilewave.files import NotPlain, TooLong, parse_json, read_plain, replace_file
from tilewave.ir.core import Kernel
from tilewave.ir.parse import parse
from tilewave.ir.verify import verify
from tilewave.records import dataclass
from tilewave.runtime.records import AGAIN, HEAD, Record

FORMAT = 1
"""The version of the members and of the calling convention; raised when code saved before cannot be called."""

LARGEST_BYTES = 1 << 26
"""The largest file, and the most that its members unpack to; a kernel takes some 20 KB."""
LARGEST_HEAD = 1 << 20
"""The largest `kernel.json`; a usual one takes some 2 KB."""
MOST_MEMBERS = 64

_NAME = re.compile(r"[a-z][a-z0-9_]*\.[a-z]+")
_BEGINNING, _LISTED = b"PK\x03\x04", b"PK\x01\x02"
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError, OverflowError)
"""The errors that Python's zipfile raises for a broken archive."""

Path = str | os.PathLike[str]

Stored = tuple[dict[str, Any], dict[str, bytes]]
"""The contents of `kernel.json`, and the other members."""


# Writing ------------------------------------------------------------------------------------------------------------


def write(path: Path, about: Mapping[str, Any], members: Mapping[str, bytes]) -> None:
    """Write the file as a whole, or raise and leave the previous one as it was."""
    shown = short_path(os.fspath(path))
    target = os.path.realpath(path)
    try:
        replace_file(target, _archive(about, members), _mode_of_the_old(target))
    except OSError as error:
        remedy = "give the name of a plain file, in a directory that exists and can be written"
        what = f"{shown} cannot be written: {error.strerror or error}"
        raise SavedKernelError(what, loc=here(), remedy=remedy) from None


def _archive(about: Mapping[str, Any], members: Mapping[str, bytes]) -> bytes:
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    head = {"format": FORMAT, "tilewave": __version__, **about, "members": digests}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {HEAD: json.dumps(head, indent=2).encode() + b"\n", **members}.items():
            assert _NAME.fullmatch(name), f"a member is called {name}"
            archive.writestr(_entry(name), data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.create_system = 3
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    return entry


def _mode_of_the_old(target: str) -> int | None:
    """Return the mode of the file to be replaced, None where there is none; refuse devices and read-only files."""
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise OSError(0, "it is not a plain file")
    if not os.access(target, os.W_OK):
        raise PermissionError(13, os.strerror(13))
    return stat.S_IMODE(mode)


# Reading ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contents:
    """The contents of a file: each member as it was written under its name."""

    path: str
    about: Record
    members: Mapping[str, bytes]

    def member(self, name: str) -> bytes:
        if name not in self.members:
            raise SavedKernelError(f"{self.path} holds no {name}", loc=here(), remedy=AGAIN)
        return self.members[name]

    def text(self, name: str) -> str:
        try:
            return self.member(name).decode()
        except UnicodeDecodeError:
            raise SavedKernelError(f"{self.path}: {name} is no text", loc=here(), remedy=AGAIN) from None

    def kernel(self, name: str) -> Kernel:
        """Return the verified kernel of an IR member."""
        text, file = self.text(name), f"{self.path}/{name}"
        linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file  # errors show the op they mean
        try:
            return verify(parse(text, file))
        except TilewaveError as error:
            what = f"{self.path}: {name} is no kernel: {error.what}"
            raise SavedKernelError(what, loc=here(), remedy=AGAIN) from None

    @contextmanager
    def holding_against(self, name: str) -> Iterator[None]:
        """Compare facts with a member before anything is launched: any error means that they do not fit."""
        try:
            yield
        except Exception:
            raise self.unaligned(name) from None

    def unaligned(self, name: str) -> SavedKernelError:
        what = f"{self.path}: {HEAD} describes another kernel than {name}"
        return SavedKernelError(what, loc=here(), remedy=AGAIN)


def read(path: Path) -> Contents:
    """Return what `write` wrote; an error says what is wrong with the file."""
    shown = short_path(os.fspath(path))
    archive = _opened(shown, _bytes_of(path, shown))
    about = _head(shown, archive)
    listed = about.record("members")
    members = {}
    room = LARGEST_BYTES
    for name in listed.fields:
        if not _NAME.fullmatch(name):
            raise SavedKernelError(f"{shown}: no member may be called {name!r}", loc=here(), remedy=AGAIN)
        members[name] = _member(shown, archive, name, room)
        room -= len(members[name])
        if hashlib.sha256(members[name]).hexdigest() != listed.text(name):
            raise SavedKernelError(f"{shown}: {name} is damaged", loc=here(), remedy=AGAIN)
    return Contents(shown, about, members)


def _bytes_of(path: Path, shown: str) -> bytes:
    try:
        return read_plain(path, LARGEST_BYTES)
    except NotPlain:
        raise SavedKernelError(f"{shown} is not a plain file", loc=here(), remedy=AGAIN) from None
    except TooLong as error:
        what = f"{shown} is no saved kernel: it has {error.size:,} bytes"
        raise SavedKernelError(what, loc=here(), remedy=f"a kernel has at most {LARGEST_BYTES:,}") from None
    except FileNotFoundError:
        remedy = "compiled.save(path) writes one"
        raise SavedKernelError(f"there is no file {shown}", loc=here(), remedy=remedy) from None
    except OSError as error:
        what = f"{shown} cannot be read: {error.strerror or error}"
        raise SavedKernelError(what, loc=here()) from None


def _opened(shown: str, data: bytes) -> zipfile.ZipFile:
    if data.count(_LISTED) > MOST_MEMBERS:  # before Python makes a record of each
        raise SavedKernelError(f"{shown} is no saved kernel: it has too many members", loc=here(), remedy=AGAIN)
    try:
        return zipfile.ZipFile(io.BytesIO(data))
    except _BROKEN:
        what = "is incomplete" if data.startswith(_BEGINNING) else "is no saved kernel"
        raise SavedKernelError(f"{shown} {what}", loc=here(), remedy=AGAIN) from None


def _head(shown: str, archive: zipfile.ZipFile) -> Record:
    if HEAD not in archive.namelist():
        what = f"{shown} is no saved kernel: it holds no {HEAD}"
        raise SavedKernelError(what, loc=here(), remedy="give the name of a file that compiled.save(path) wrote")
    try:
        found, why = parse_json(_member(shown, archive, HEAD, LARGEST_HEAD)), ""
    except ValueError as error:
        found, why = None, f": {error}"
    if not isinstance(found, dict):
        raise SavedKernelError(f"{shown}: {HEAD} is no JSON object{why}", loc=here(), remedy=AGAIN)
    about = Record(shown, found)
    if (version := about.number("format")) != FORMAT:
        ours = f"this is tilewave {__version__}, which reads format {FORMAT}"
        raise SavedKernelError(
            f"{shown} has format {version}, written by tilewave {about.text('tilewave')}; {ours}",
            loc=here(),
            remedy="compile the kernel with this tilewave and save it again, or load it with the one that wrote it",
        )
    return about


def _member(shown: str, archive: zipfile.ZipFile, name: str, room: int) -> bytes:
    entries = [entry for entry in archive.infolist() if entry.filename == name]
    if len(entries) != 1:
        often = "more than one" if entries else "no"
        raise SavedKernelError(f"{shown} holds {often} {name}", loc=here(), remedy=AGAIN)
    if entries[0].file_size > room:
        what = f"{shown}: {name} unpacks to {entries[0].file_size:,} bytes"
        raise SavedKernelError(what, loc=here(), remedy=f"a kernel takes at most {LARGEST_BYTES:,} in all")
    try:
        if entries[0].compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            with archive.open(entries[0]) as packed:
                return packed.read(entries[0].file_size)  # no more is unpacked, however long the member goes on
    except _BROKEN:
        pass
    raise SavedKernelError(f"{shown}: {name} is damaged", loc=here(), remedy=AGAIN)
