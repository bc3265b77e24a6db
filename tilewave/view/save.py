"""Files written whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from tilewave.errors import TilewaveError


class SaveError(TilewaveError):
    """A file could not be written; its old content is unchanged."""


def check_place(path: str | Path | None) -> None:
    """Raise an error where a file cannot be saved, before the work that would be lost; None is no file."""
    if path is None:
        return
    target = Path(path)
    if target.is_dir():
        raise SaveError(f"{target} is a directory", remedy="give the name of a file in it")
    if not target.parent.is_dir():
        raise SaveError(f"there is no directory {target.parent}", remedy="make it first")
    if target.exists() and not target.is_file():
        raise SaveError(f"{target} is not a plain file")


def save(path: str | Path, text: str) -> None:
    """Write `text` to a temporary file and move it to `path` in one step, so that half a file is never read."""
    check_place(path)
    target = Path(path)
    try:
        _replace(Path(os.path.realpath(target)), text)
    except OSError as error:
        raise SaveError(f"{target} could not be written: {error.strerror or error}") from None


def _replace(target: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.", suffix=".part")
    try:
        with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, _mode(target))
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _mode(target: Path) -> int:
    """What the file had, or what a new one gets here."""
    if target.exists():
        if not os.access(target, os.W_OK):
            raise PermissionError(13, os.strerror(13), str(target))
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
