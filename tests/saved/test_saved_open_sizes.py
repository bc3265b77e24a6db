"""Kernels whose sizes stay open, saved and loaded: any sizes, and what was proved is kept."""

import hashlib
import json
import zipfile

import numpy as np
import pytest

from tilewave import *
from tilewave import kernels as shipped
from tilewave.errors import CoverageError, SavedKernelError

M, N, K, WGM = sym.M, sym.N, sym.K, sym.WGM
G = GLOBAL_ADDRESS_SPACE
TILES = [WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 8, 1), TilingConstraint(K, 4)]
FOURS = ReorderingConstraint(WORKGROUP_0 // 4 * 4 + (WORKGROUP_0 + 1) % 4, 0)
AGAIN = "copy it again, or compile the kernel and save it again: compiled.save(path)"


def saved(path, *extra, **options):
    @wave([*TILES, *extra])
    def gemm(a: Memory[M, K, G, f32], b: Memory[N, K, G, f32], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)

    compiled = wave_compile(WaveCompileOptions(target="numpy", **options), gemm)
    compiled.save(path)
    return compiled


def runs(kernel, m, n, k, **symbols):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (n, k)))
    c = np.full((m, n), np.nan, np.float32)
    kernel(a, b, c, **symbols)
    np.testing.assert_array_equal(c, a @ b.T)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved("gemm.tilewave")
    return "gemm.tilewave"


def resealed(path, change):
    """The file with what `change` does to its facts, and digests that fit."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    head = json.loads(members.pop("kernel.json"))
    change(head)
    head["members"] = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("kernel.json", json.dumps(head))
        for name, data in members.items():
            archive.writestr(name, data)


def facts(path):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("kernel.json"))


def test_a_file_names_the_sizes_that_stay_open(file):
    found = facts(file)
    assert [p["shape"] for p in found["parameters"]] == [["M", "K"], ["N", "K"], ["M", "N"]]
    assert found["workgroups"] == "mul" and found["dynamic_symbols"] == []


@pytest.mark.parametrize("options", [{}, {"subs": {K: 6}}, {"subs": {M: 33, N: 20}}], ids=["all", "some", "K"])
def test_what_is_loaded_runs_for_any_sizes_and_is_still_proved(options, tmp_path):
    path = tmp_path / "gemm.tilewave"
    before, kernel = saved(path, **options), load(path)
    assert kernel.proof == before.proof and kernel.proof.holds
    assert (kernel.open_sizes, kernel.kernel, repr(kernel)) == (before.open_sizes, before.kernel, repr(before))
    given = {s.name: value for s, value in options.get("subs", {}).items()}
    for m, n, k in ((1, 1, 1), (33, 20, 6), (0, 3, 6), (100, 7, 0)):
        runs(kernel, given.get("M", m), given.get("N", n), given.get("K", k))
    assert kernel.verdicts.looked_at == 0


def test_what_is_looked_at_for_each_set_of_sizes_still_is(tmp_path):
    path = tmp_path / "gemm.tilewave"
    saved(path, FOURS)
    kernel = load(path)
    assert "the author's own formula for WORKGROUP_0" in str(kernel.proof)
    runs(kernel, 64, 8, 4)
    with pytest.raises(CoverageError, match=r"^with M = 16, K = 4, N = 8, workgroup 0 computes tile"):
        runs(kernel, 16, 8, 4)


def test_symbols_of_the_call_are_kept_beside_sizes(tmp_path):
    path = tmp_path / "gemm.tilewave"
    saved(path, WorkgroupMapping(mapping.grouped(WGM)), dynamic_symbols=[WGM])
    kernel = load(path)
    assert kernel.dynamic_symbols == ("WGM",) and kernel.proof.positive == ("WGM",)
    runs(kernel, 50, 30, 9, WGM=3)
    assert kernel.verdicts.looked_at == 0


def test_a_file_that_does_not_tell_of_a_proof_is_looked_at(file):
    resealed(file, lambda head: head.pop("every_size"))
    kernel = load(file)
    assert not kernel.proof.holds and "its file does not say" in str(kernel.proof)
    runs(kernel, 17, 9, 5)
    assert kernel.verdicts.looked_at == 1


def put(path, value):
    def change(head):
        *into, last = path
        for step in into:
            head = head[step]
        head[last] = value

    return change


DAMAGED = {
    "an extent of another name": (
        put(["parameters", 0, "shape"], ["Q", "K"]),
        "describes another kernel than kernel.ir",
    ),
    "a number for a name": (put(["parameters", 0, "shape"], [64, "K"]), "describes another kernel than kernel.ir"),
    "half an extent": (put(["parameters", 0, "shape"], [0.5, "K"]), "has no valid shape"),
    "no extents": (put(["parameters", 0, "shape"], "MK"), "has no valid shape"),
    "a number of workgroups": (put(["workgroups"], 6), "has no valid workgroups"),
    "other workgroups": (put(["workgroups"], "M"), "describes another kernel than kernel.ir"),
    "a size that is a symbol": (put(["dynamic_symbols"], ["M"]), "describes another kernel than kernel.ir"),
    "no proof": (put(["every_size"], "yes"), "has no valid every_size"),
    "doubts of another kind": (put(["every_size", "doubts"], [1]), "has no valid doubts"),
    "windows of another kind": (put(["every_size", "windows"], [1]), "has no valid windows"),
    "a window of no array": (put(["every_size", "windows", 0, "array"], "q"), "describes another kernel"),
    "a window of another rank": (put(["every_size", "windows", 0, "window"], [16]), "describes another kernel"),
    "a window without elements": (put(["every_size", "windows", 0, "window"], [0, 8]), "describes another kernel"),
    "a window that goes back": (put(["every_size", "windows", 0, "window"], [-16, 8]), "has no valid window"),
    "no windows": (put(["every_size", "windows"], []), "describes another kernel than kernel.ir"),
    "a symbol nobody has": (put(["every_size", "positive"], ["Q"]), "describes another kernel than kernel.ir"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_fact_that_was_damaged_is_refused(name, file):
    change, said = DAMAGED[name]
    resealed(file, change)
    with pytest.raises(SavedKernelError) as caught:
        load(file)
    assert said in caught.value.what and caught.value.remedy == AGAIN


# what is computed for a launch on a GPU -----------------------------------------------------------------------------

HOSTILE = "__import__('pathlib').Path('was_here').touch()"


@pytest.fixture(scope="module")
def on_hopper(tmp_path_factory):
    made = shipped.gemm((128, 128, 64), f16, tile=(64, 64, 32))
    subs = {s: n for s, n in made.subs.items() if s.name not in "MNK"}
    path = tmp_path_factory.mktemp("saved") / "gemm.tilewave"
    wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), made.kernel).save(path)
    load(path)
    return path.read_bytes()


def in_text(old, new):
    """Other words in what the first code computes at a launch."""

    def change(head):
        code = head["codes"][0]
        assert old in code["launch"]
        code["launch"] = code["launch"].replace(old, new)

    return change


def of_code(*path):
    return lambda value: put(["codes", 0, *path], value)


FORGED = {
    "Python for a launch": of_code("launch")(HOSTILE),
    "Python for an op": in_text("floor_div(", f"{HOSTILE}("),
    "Python for a number": in_text("mul(%", f"mul({HOSTILE}, %"),
    "Python for a size": in_text("%M", f"%{HOSTILE}"),
    "an op that is no arithmetic": in_text("reciprocal(", "workgroup("),
    "a number of millions of digits": in_text("const() {value = ", "const() {value = " + "9" * 100_000),
    "no launch": of_code("launch")(""),
    "Python for workgroups": of_code("workgroups")(HOSTILE),
    "no workgroups": of_code("workgroups")(0),
    "Python for an argument": of_code("arguments", 0, "name")(HOSTILE),
    "an argument of another kind": of_code("arguments", 0, "kind")("code"),
    "an axis that is not there": of_code("arguments", 1, "axis")(7),
    "a map of another array": of_code("maps", 0, "name")("q"),
    "a map along other axes": of_code("maps", 0, "axes")([0, 7]),
    "a map of fewer axes": of_code("maps", 0, "axes")([0]),
    "a box of more axes": of_code("maps", 0, "box")([8, 8, 8, 8, 8, 8]),
    "a box of no elements": of_code("maps", 0, "box")([0, 64]),
    "a box of many": of_code("maps", 0, "box")([1 << 40, 64]),
    "an unknown swizzle": of_code("maps", 0, "swizzle_bytes")(1 << 40),
    "no lanes": of_code("workgroup_size")(0),
    "too many lanes": of_code("workgroup_size")(1 << 40),
    "no cluster": of_code("cluster")(0),
    "shared memory that no number tells": of_code("shared_bytes")(1 << 40),
    "Python for a copy's launch": put(["copies", 0, "launch"], HOSTILE),
    "a copy's argument": put(["copies", 0, "arguments", 0, "name"], HOSTILE),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_file_puts_nothing_into_a_launch(name, on_hopper, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "gemm.tilewave"
    path.write_bytes(on_hopper)
    resealed(path, FORGED[name])
    with pytest.raises(SavedKernelError) as caught:
        load(path)
    assert caught.value.remedy == AGAIN
    assert [*tmp_path.iterdir()] == [path]
