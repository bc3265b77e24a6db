"""A cache whose files were damaged or replaced returns what was put, or nothing; it follows no links and never
blocks."""

from __future__ import annotations

import os
import random
import tempfile
import warnings
from pathlib import Path

from tilewave.runtime.cache import Cache

from .mutations import damaged_bytes

PRECIOUS = b"a file of the user's"


def case(seed: int) -> str | None:
    """Put entries, damage some files of the directory, then get and put everything again."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outside = Path(directory, "outside")
        outside.write_bytes(PRECIOUS)
        store = Cache(Path(directory, "cache"), rng.choice((1 << 12, 1 << 14, 1 << 30)))
        payloads = {f"key {i}": rng.randbytes(rng.choice((0, 1, 100, 3000))) for i in range(4)}
        try:
            return _tried(rng, store, payloads, outside)
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def _tried(rng: random.Random, store: Cache, payloads: dict[str, bytes], outside: Path) -> str | None:
    for _ in range(rng.randint(1, 3)):
        for key, payload in payloads.items():
            store.put(key, payload)
        assert store.directory is not None
        for path in sorted(store.directory.iterdir()):
            if rng.randrange(2):
                _damage(rng, path, outside)
        for key, payload in payloads.items():
            if store.get(key) not in (payload, None):
                return f"{key} is not what was put"
        if outside.read_bytes() != PRECIOUS:
            return "a file outside was changed"
    return None


def _damage(rng: random.Random, path: Path, outside: Path) -> None:
    data = path.read_bytes() if path.is_file() and not path.is_symlink() else b"x"
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink()
    match rng.randrange(8):
        case 0 | 1 | 2:
            path.write_bytes(damaged_bytes(rng, data))
        case 3:
            os.mkfifo(path)
        case 4:
            path.symlink_to(rng.choice((outside, Path("/dev/zero"), Path("/dev/full"), path)))
        case 5:
            path.mkdir()
        case 6:
            path.write_bytes(rng.randbytes(rng.choice((0, 1, 84, 200))))
        case 7:
            pass  # it is gone
