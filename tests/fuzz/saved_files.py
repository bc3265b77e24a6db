"""Damaged files of saved kernels: loading one gives the kernel, or a TilewaveError."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import tempfile
import zipfile
from functools import cache

from tilewave import *
from tilewave.compiled import Compiled

from .mutations import damaged_bytes, damaged_text
from .texts import WORDS, K, M, N, numbers, product

JSON_WORDS = ("null", "true", "-1", "1e400", "[]", "{}", '"x"', "9" * 5000, "[" * 2000, '"\\ud800"', "0.5", "{" * 2000)


@cache
def corpus() -> tuple[bytes, ...]:
    """A kernel for each target, as its file holds it."""
    found = []
    for target in ("cpu", "gfx942", "sm_90a", "numpy"):
        for kernel, sizes in ((product, (64, 40, 96)), (numbers, (33, 64, 1))):
            options = WaveCompileOptions(subs=dict(zip((M, N, K), sizes, strict=True)), target=target)
            found.append(_saved(wave_compile(options, kernel)))
    for kernel in (product, numbers):
        found.append(_saved(wave_compile(WaveCompileOptions(target="numpy"), kernel)))
    return tuple(found)


def _saved(kernel: Compiled) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "kernel.tilewave")
        kernel.save(path)
        with open(path, "rb") as file:
            return file.read()


def case(seed: int) -> str | None:
    """One file, damaged from outside, or from inside with digests that fit again."""
    rng = random.Random(seed)
    whole = rng.choice(corpus())
    data = damaged_bytes(rng, whole) if rng.randrange(3) == 0 else _resealed(rng, whole)
    handle, path = tempfile.mkstemp(suffix=".tilewave")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        loaded = load(path)
        str(loaded.ir()), repr(loaded), str(loaded.proof)
        loaded.parameters  # noqa: B018  an error where sizes are open
    except TilewaveError:
        return None
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        os.unlink(path)
    return None


def _resealed(rng: random.Random, whole: bytes) -> bytes:
    """Another member or another fact, as somebody would write it who knows the format."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice([name for name in members if name != "code.o"])
    text = members[name].decode(errors="replace")
    members[name] = damaged_text(rng, text, JSON_WORDS if name.endswith("json") else WORDS).encode(errors="replace")
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in members.items() if name != "kernel.json"}
    try:
        head = json.loads(members["kernel.json"])
        members["kernel.json"] = json.dumps({**head, "members": digests}).encode()
    except (ValueError, RecursionError, TypeError):
        pass  # no object of JSON any more: as it is, then
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED))) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return packed.getvalue()
