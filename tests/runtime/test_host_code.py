"""Functions for the host come from the compile cache without LLVM, and compute what LLVM's linker gives."""

import ctypes
import platform
import subprocess
import sys

import pytest

from tilewave.runtime.cache import default_cache
from tilewave.runtime.native import host_code
from tilewave.runtime.native.host_code import functions_of
from tilewave.runtime.native.image import Image, image_of

TEXT = """
define ptr @which(ptr %self, i64 %x) {
  switch i64 %x, label %other [ i64 0, label %none i64 1, label %no i64 2, label %number i64 3, label %sum ]
none:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
no:
  call void @Py_IncRef(ptr @_Py_FalseStruct)
  ret ptr @_Py_FalseStruct
number:
  %made = call ptr @PyLong_FromLongLong(i64 41)
  ret ptr %made
sum:
  %inner = call i64 @inner(i64 %x)
  %boxed = call ptr @PyLong_FromLongLong(i64 %inner)
  ret ptr %boxed
other:
  call void @Py_IncRef(ptr %self)
  ret ptr %self
}
define i64 @inner(i64 %x) noinline {
  %real = sitofp i64 %x to double
  %more = fadd double %real, 0.1
  %scaled = fmul double %more, 1.0e1
  %found = fptosi double %scaled to i64
  ret i64 %found
}
"""


@pytest.fixture(autouse=True)
def _an_empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(tmp_path / "cache"))


def results(key):
    made = functions_of(["which", "inner"], [key], lambda: TEXT)
    which = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_int64)(made["which"])
    inner = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(made["inner"])
    return [which("self", x) for x in range(5)], inner(7)


IMAGES = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="images are made of ELF files for x86-64"
)
EXPECTED = [None, False, 41, 31, "self"], 71


def forbid(monkeypatch, name):
    monkeypatch.setattr(host_code, name, lambda *given: pytest.fail(f"{name} was called"))


@IMAGES
def test_code_is_compiled_once_and_then_needs_no_llvm(monkeypatch):
    assert results("a") == EXPECTED
    forbid(monkeypatch, "_llvm")
    assert results("a") == EXPECTED
    with pytest.raises(pytest.fail.Exception, match="_llvm was called"):
        results("another")


def test_where_there_is_no_image_llvm_links_what_the_cache_has(monkeypatch):
    monkeypatch.setattr(host_code, "image_of", lambda made: None)
    assert results("a") == EXPECTED
    forbid(monkeypatch, "_compiled")
    assert results("a") == EXPECTED


@IMAGES
def test_an_object_file_of_an_older_entry_becomes_an_image(monkeypatch):
    monkeypatch.setattr(host_code, "image_of", lambda made: None)
    assert results("a") == EXPECTED
    monkeypatch.setattr(host_code, "image_of", image_of)
    forbid(monkeypatch, "_compiled")
    assert results("a") == EXPECTED
    forbid(monkeypatch, "_llvm")
    assert results("a") == EXPECTED


def entry_of(key):
    return host_code.compile_key("host code", *host_code._HOST, "which", "inner", key)


@IMAGES
@pytest.mark.parametrize("damage", [b"{}\n", b'{"bytes_of_parts": [1]}\nx', b"{", "cut", "far"])
def test_what_is_no_image_is_compiled_anew(damage):
    assert results("a") == EXPECTED
    whole = default_cache().get(entry_of("a"))
    image = Image.restored(whole)
    damaged = {
        "cut": image._replace(code=image.code[:-64]).stored(),
        "far": image._replace(functions={**image.functions, "which": len(image.code)}).stored(),
    }
    default_cache().put(entry_of("a"), damaged.get(damage, damage))
    assert results("a") == EXPECTED
    assert default_cache().get(entry_of("a")) == whole


def test_code_that_calls_a_library_has_no_image():
    calling = "declare double @llvm.sin.f64(double)\ndefine double @of(double %x) {\n  %y = call double @llvm.sin.f64("
    assert image_of(host_code._compiled(calling + "double %x)\n  ret double %y\n}\n")) is None
    assert image_of(b"\xcf\xfa\xed\xfe" + bytes(100)) is None


@IMAGES
def test_an_image_is_the_same_in_every_process():
    """It has no address of the process that compiled it."""
    script = f"""
from tilewave.runtime.native.host_code import functions_of
functions_of(["which", "inner"], ["a"], lambda: {TEXT!r})
"""
    stored = []
    for key in ("a", "b"):
        subprocess.run([sys.executable, "-c", script.replace('["a"]', f'["{key}"]')], check=True)
        stored.append(default_cache().get(entry_of(key)))
    assert stored[0] == stored[1] is not None


ENGINE = """
import sys
from tilewave.runtime.native.engine import engine
engine()
print("llvmlite.binding" in sys.modules)
"""


@IMAGES
def test_the_engine_of_a_second_process_needs_no_llvm():
    said = [subprocess.check_output([sys.executable, "-c", ENGINE], text=True).strip() for _ in range(2)]
    assert said == ["True", "False"]
