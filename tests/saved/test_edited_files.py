"""A saved file whose `kernel.json` was edited is refused, or runs and is right; nothing else comes of any edit."""

import json
import random
import zipfile

import numpy as np
import pytest
from kernels import check_product, gemm, poisoned, random_array

import tilewave.runtime.scratch as scratch
from tilewave import *
from tilewave.errors import CallError, SavedKernelError
from tilewave.kernels import gemm as product

ODD = (0, 1, -1, 10**9, 2**62, 2**63, 10**400, 1.5, None, True, "x", "", [], [0], {}, ["x"], [[]], [2**62] * 9)
SIZES = ("packed_bytes", "scratch_bytes")
"""How much memory machine code writes to does not follow from a kernel's text, and too little is not tried here."""


def saved(tmp_path, target):
    made = product((40, 48, 32), f16, out=f32, tile=(32, 32, 32))
    file = tmp_path / f"{target}.tilewave"
    wave_compile(WaveCompileOptions(subs=made.subs, target=target), made.kernel).save(file)
    return file


def saved_open(tmp_path):
    file = tmp_path / "open.tilewave"
    wave_compile(WaveCompileOptions(subs=dict.fromkeys(gemm_tiles(), 32), target="cpu"), gemm()).save(file)
    return file


def gemm_tiles():
    return sym.BLOCK_M, sym.BLOCK_N, sym.BLOCK_K


def edited(file, head):
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    other = file.with_name("edited.tilewave")
    with zipfile.ZipFile(other, "w") as archive:
        for name, data in {**members, "kernel.json": json.dumps(head).encode()}.items():
            archive.writestr(name, data)
    return other


def head_of(file):
    with zipfile.ZipFile(file) as archive:
        return json.loads(archive.read("kernel.json"))


def leaves(value, path=()):
    """Where something can be edited."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from leaves(one, (*path, key))


def with_other(value, path, other):
    if not path:
        return other
    copy = value.copy()
    copy[path[0]] = with_other(value[path[0]], path[1:], other)
    return copy


def run(file, call):
    """Whether it was refused; a wrong result, or an error that is not ours, fails."""
    rng = np.random.default_rng(0)
    a, b, c = random_array(rng, (40, 32), f16), random_array(rng, (48, 32), f16), poisoned((40, 48), f32)
    try:
        call(load(file), a, b, c)
    except TilewaveError:
        return True
    check_product(c, a, b)
    return False


CALLS = {
    "cpu": (lambda tmp_path: saved(tmp_path, "cpu"), lambda one, *arrays: one(*arrays)),
    "open": (saved_open, lambda one, *arrays: one(*arrays)),
    "gfx942": (lambda tmp_path: saved(tmp_path, "gfx942"), lambda one, *arrays: one.emulate(*arrays)),
}


TRIED = {"cpu": 120, "open": 120, "gfx942": 60}
"""Edits: emulating takes longer."""


@pytest.mark.parametrize("kind", CALLS)
def test_every_edit_is_refused_or_does_no_harm(kind, tmp_path):
    make, call = CALLS[kind]
    file = make(tmp_path)
    head = head_of(file)
    assert not run(edited(file, head), call)
    refusals = 0
    places = [path for path in leaves(head) if not {*path} & {*SIZES}]
    draw = random.Random(kind)
    for _ in range(TRIED[kind]):
        refusals += run(edited(file, with_other(head, draw.choice(places), draw.choice(ODD))), call)
    assert refusals > TRIED[kind] // 2


EDITS = (
    {"words": 0},
    {"words": 10**9},
    {"words": 2**62},
    {"packed_bytes": [2**62] * 2},
    {"packed_bytes": []},
    {"packed_slots": [0, 1]},
    {"scratch_slot": 0},
    {"scratch_bytes": 2**60},
    {"item_bytes": [0, 0, 0]},
    {"item_bytes": [2]},
)


@pytest.mark.parametrize("what", EDITS, ids=str)
def test_a_launch_of_another_layout_is_refused_when_it_is_loaded(what, tmp_path):
    file = saved(tmp_path, "cpu")
    head = head_of(file)
    with pytest.raises(SavedKernelError, match=r"kernel\.json describes another kernel than kernel\.ir"):
        load(edited(file, {**head, "launch": {**head["launch"], **what}}))


def test_memory_that_the_system_does_not_have_is_said_at_the_call(tmp_path, monkeypatch):
    file = saved(tmp_path, "cpu")
    head = head_of(file)
    one = load(edited(file, {**head, "launch": {**head["launch"], "scratch_bytes": 2**46}}))

    def none(*given, **more):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(scratch.mmap, "mmap", none)
    with pytest.raises(CallError, match="bytes of scratch memory") as said:
        one(np.ones((40, 32), np.float16), np.ones((48, 32), np.float16), np.ones((40, 48), np.float32))
    assert isinstance(said.value, MemoryError)


HEADS = {
    "nested too deeply": "[" * 100_000,
    "a key twice": '{"format": 1, "format": 1}',
    "no number": '{"format": NaN}',
    "a number too long for Python": '{"format": 1' + "0" * 5000 + "}",
}


@pytest.mark.parametrize("name", HEADS)
def test_json_that_is_none_is_refused(name, tmp_path):
    file = saved(tmp_path, "cpu")
    other = edited(file, {})
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("kernel.json", HEADS[name])
    with pytest.raises(SavedKernelError, match=r"kernel\.json is no JSON object: "):
        load(other)
