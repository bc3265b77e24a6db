"""Arrays of every library become one record, and a call that does not fit is refused with words."""

from __future__ import annotations

import ctypes
import gc
import math
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import fake_target
import kernels
import ml_dtypes
import numpy as np
import pytest
from fake_array_libraries import forget_guests, install_cupy, install_torch
from fake_target import ToyBackend
from hypothesis import given
from hypothesis import strategies as st

from tilewave.backend.targets import TARGETS
from tilewave.errors import NOWHERE, CallError, Loc, WrongDevice
from tilewave.ir.types import (
    BF16,
    BOOL,
    DTYPES,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F16,
    F32,
    I32,
    I64,
    INDEX,
    INTERNAL,
)
from tilewave.runtime import arrays, call_checks, overlaps
from tilewave.runtime.arrays import ArrayView, Parameter, view
from tilewave.runtime.call_checks import check_call, device_number
from tilewave.runtime.dlpack import Refused, Unversioned, Versioned
from tilewave.runtime.foreign_arrays import stream_of

STORED = [dtype for dtype in DTYPES.values() if dtype not in INTERNAL]
ANYTHING = "pass a numpy array, a torch tensor, or anything with DLPack or __cuda_array_interface__"


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(CallError) as caught:
        call()
    return str(caught.value)


# numpy --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_a_numpy_array_of_every_dtype_is_seen_where_it_lies(dtype):
    array = np.zeros((3, 4), dtype.numpy)
    v = view(array)
    assert v == ArrayView(array.ctypes.data, (3, 4), array.strides, dtype, "cpu", False, array)
    assert v.dtype is dtype
    assert v.owner is array


STRIDED = {
    "contiguous": lambda x: x,
    "fortran": np.asfortranarray,
    "transposed": lambda x: x.T,
    "columns": lambda x: x[:, 1:3],
    "steps": lambda x: x[::2, ::3],
    "backwards": lambda x: x[::-1, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[0], (4, 6)),
    "empty": lambda x: x[2:2],
    "scalar": lambda x: x[1, 1, ...],
    "field": lambda x: np.zeros(3, [("pad", "i1"), ("x", "f4")])["x"],
    "matrix": lambda x: x.view(np.matrix),
}


@pytest.mark.parametrize("kind", STRIDED)
def test_a_numpy_array_keeps_its_strides(kind):
    array = STRIDED[kind](np.arange(24, dtype=np.float32).reshape(4, 6))
    v = view(array)
    assert (v.pointer, v.shape, v.strides) == (array.ctypes.data, array.shape, array.strides)
    assert v.readonly == (not array.flags.writeable)
    back = v.numpy()
    assert (back.ctypes.data, back.strides, back.flags.writeable) == (v.pointer, v.strides, not v.readonly)
    np.testing.assert_array_equal(back, array)


def test_the_pointer_is_read_from_the_struct_and_asked_for_where_that_fails():
    for make in STRIDED.values():
        array = make(np.zeros((4, 6), np.float32))
        assert arrays.numpy_data(array) == arrays._data_asked(array) == array.ctypes.data
    assert arrays.numpy_address is arrays.numpy_data


def test_long_and_long_long_are_both_i64():
    assert view(np.zeros(2, np.longlong)).dtype is view(np.zeros(2, np.int64)).dtype is I64


def test_a_read_only_array_says_so_and_its_numpy_view_too():
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    v = view(array)
    assert v.readonly
    with pytest.raises(ValueError, match="read-only"):
        v.numpy()[0] = 1


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_the_numpy_view_writes_through(dtype):
    array = np.zeros((2, 3), dtype.numpy)
    back = view(array).numpy()
    assert back.dtype == dtype.numpy
    back[1, 2] = 1
    assert array[1, 2] == 1


def test_the_numpy_view_keeps_the_memory_alive():
    array = np.arange(1000, dtype=np.float32)
    watch = weakref.ref(array)
    back = view(array).numpy()
    del array
    assert watch() is not None
    assert back[999] == 999
    del back
    assert watch() is None


def test_a_view_is_frozen_comparable_and_printable():
    array = np.zeros((2, 3), np.float16)
    v = view(array)
    assert v == view(array)
    assert hash(v) == hash(view(array))
    assert v != view(array.copy())
    assert repr(v) == (
        f"ArrayView(pointer={v.pointer}, shape=(2, 3), strides=(6, 2), dtype=f16, device='cpu', readonly=False)"
    )
    with pytest.raises(AttributeError):
        v.pointer = 0


NOT_ARRAYS = [
    (None, "is None, not an array", ANYTHING),
    (3, "is an int, not an array", ANYTHING),
    ([1, 2], "is a list, not an array", "pass np.array(array)"),
    ((1, 2), "is a tuple, not an array", "pass np.array(array)"),
    (np.float32(1), "is a numpy.float32, not an array", "pass np.array(array)"),
    ("abc", "is a str, not an array", ANYTHING),
    (np.zeros(2, np.complex64), "is complex64, which no kernel takes", None),
    (np.zeros(2, np.longdouble), "is float128, which no kernel takes", None),
    (np.zeros(2, ">f4"), "is byte-swapped float32, which no kernel takes", None),
    (np.zeros(2, object), "is object, which no kernel takes", None),
    (np.zeros(2, ml_dtypes.float8_e3m4), "is float8_e3m4, which no kernel takes", None),
    (
        np.ma.zeros(2, np.float32),
        "is masked, and a kernel would not see the mask",
        "pass array.filled(0), or array.data",
    ),
]
KNOWN = (
    "pass one of f16, bf16, f32, f64, f8e4m3fn, f8e5m2, f8e4m3fnuz, f8e5m2fnuz, "
    "i8, i16, i32, i64, u8, u16, u32, u64, bool"
)


@pytest.mark.parametrize(("value", "what", "remedy"), NOT_ARRAYS, ids=[what for _, what, _ in NOT_ARRAYS])
def test_what_is_no_array_is_named(value, what, remedy):
    assert refusal(lambda: view(value)) == f"view: array {what}\n  {remedy or KNOWN}"


def test_tables_and_sparse_matrices_are_told_how_to_become_arrays():
    frame = type("DataFrame", (), {"__module__": "pandas.core.frame", "to_numpy": None, "__array__": None})()
    assert refusal(lambda: view(frame)) == "view: array is a pandas.DataFrame, not an array\n  pass array.to_numpy()"
    sparse = type("csr_matrix", (), {"__module__": "scipy.sparse._csr", "toarray": None})()
    assert refusal(lambda: view(sparse)) == "view: array is a scipy.csr_matrix, not an array\n  pass array.toarray()"


def test_all_dtypes_are_in_the_list_of_dtypes():
    assert "pass one of " + ", ".join(dtype.name for dtype in STORED) == KNOWN


# __cuda_array_interface__ --------------------------------------------------------------------------------------------


@dataclass
class CudaArray:
    __cuda_array_interface__: dict[str, object]


def cuda_array(**changes: object) -> CudaArray:
    interface = {"shape": (4, 8), "typestr": "<f2", "data": (4096, False), "version": 3, "strides": None}
    return CudaArray(interface | changes)


def test_a_cuda_array_is_seen_without_its_device_number():
    array = cuda_array()
    v = view(array)
    assert v == ArrayView(4096, (4, 8), (16, 2), F16, "cuda", False, array)
    assert v.owner is array


def test_a_cuda_array_of_version_2_may_leave_out_its_strides():
    array = cuda_array(version=2)
    del array.__cuda_array_interface__["strides"]
    assert view(array).strides == (16, 2)


def test_a_cuda_array_keeps_strides_and_read_only_flag():
    v = view(cuda_array(strides=(2, 8), data=(4096, True)))
    assert v.strides == (2, 8)
    assert v.readonly


def test_an_empty_cuda_array_has_no_address():
    assert view(cuda_array(shape=(0, 8), data=(None, False))).pointer == 0


def test_a_cuda_array_refuses_masks_and_unknown_dtypes():
    assert refusal(lambda: view(cuda_array(mask=cuda_array()))) == (
        "view: array is masked, and a kernel would not see the mask\n  pass array without its mask"
    )
    assert refusal(lambda: view(cuda_array(typestr="<c8"))) == (
        f"view: array is complex64, which no kernel takes\n  {KNOWN}"
    )


def test_a_cuda_array_is_out_of_numpys_reach():
    assert refusal(lambda: view(cuda_array()).numpy()) == (
        "an array on cuda is not in numpy's reach\n  copy it to the CPU first"
    )


# DLPack ---------------------------------------------------------------------------------------------------------------

Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, Destructor)(
    ("PyCapsule_New", ctypes.pythonapi)
)
is_named = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
ALIVE: dict[int, object] = {}
DELETED: list[int] = []


@Deleter
def delete(address: int) -> None:
    DELETED.append(address)
    del ALIVE[address]


@Destructor
def destroy(capsule: int) -> None:
    """As the protocol asks: a capsule that still has its name was not consumed, so its tensor is deleted here."""
    for name, kind in ((b"dltensor", Unversioned), (b"dltensor_versioned", Versioned)):
        if is_named(capsule, name):
            address = pointer_of(capsule, name)
            Deleter(kind.from_address(address).deleter)(address)


@dataclass
class Producer:
    """An array library as others see it: DLPack, and nothing else."""

    memory: bytearray = field(default_factory=lambda: bytearray(256))
    shape: tuple[int, ...] = (4, 8)
    strides: tuple[int, ...] | None = (8, 1)
    code: int = 2
    bits: int = 32
    lanes: int = 1
    device: tuple[int, int] = (1, 0)
    version: tuple[int, int] | None = (1, 1)
    flags: int = 0
    byte_offset: int = 0
    asked: list[dict[str, object]] = field(default_factory=list)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **arguments: object) -> object:
        self.asked.append(arguments)
        if self.version is None and "max_version" in arguments:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        kind = Unversioned if self.version is None else Versioned
        managed = kind()
        tensor = managed.tensor
        buffer = (ctypes.c_char * len(self.memory)).from_buffer(self.memory)
        tensor.data = ctypes.addressof(buffer) if 0 not in self.shape else None
        tensor.device_type, tensor.device_id = self.device
        tensor.ndim, tensor.code, tensor.bits, tensor.lanes = len(self.shape), self.code, self.bits, self.lanes
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        strides = (ctypes.c_int64 * len(self.shape))(*self.strides) if self.strides is not None else None
        tensor.shape = ctypes.cast(shape, type(tensor.shape))
        if strides is not None:
            tensor.strides = ctypes.cast(strides, type(tensor.strides))
        tensor.byte_offset = self.byte_offset
        managed.deleter = ctypes.cast(delete, ctypes.c_void_p)
        if self.version is not None:
            managed.major, managed.minor = self.version
            managed.flags = self.flags
        ALIVE[ctypes.addressof(managed)] = (managed, buffer, shape, strides)
        name = b"dltensor" if self.version is None else b"dltensor_versioned"
        return new_capsule(ctypes.addressof(managed), name, destroy)

    @property
    def address(self) -> int:
        return ctypes.addressof((ctypes.c_char * len(self.memory)).from_buffer(self.memory))


@pytest.fixture(scope="module", autouse=True)
def only_garbage_of_this_module_is_collected() -> None:
    """Each test collects garbage, which takes a second where thousands of tests have filled the memory before."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """Every exported tensor is deleted once: not more often, and not never."""
    DELETED.clear()
    yield
    gc.collect()
    assert ALIVE == {}


CODES = [
    (0, 8, "i8"),
    (0, 32, "i32"),
    (0, 64, "i64"),
    (2, 16, "f16"),
    (2, 32, "f32"),
    (2, 64, "f64"),
    (4, 16, "bf16"),
    (6, 8, "bool"),
    (10, 8, "f8e4m3fn"),
    (11, 8, "f8e4m3fnuz"),
    (12, 8, "f8e5m2"),
    (13, 8, "f8e5m2fnuz"),
]


@pytest.mark.parametrize(("code", "bits", "name"), CODES, ids=[name for *_, name in CODES])
@pytest.mark.parametrize("version", [None, (1, 0), (1, 3)], ids=["unversioned", "1.0", "1.3"])
def test_dlpack_tensors_of_every_dtype_and_version(code, bits, name, version):
    producer = Producer(code=code, bits=bits, version=version)
    v = view(producer)
    size = bits // 8
    assert v == ArrayView(producer.address, (4, 8), (8 * size, size), DTYPES[name], "cpu", False, v.owner)
    back = v.numpy()
    back[1, 2] = 1
    assert back.dtype == DTYPES[name].numpy
    assert bytes(producer.memory[10 * size : 11 * size]) == np.ones((), back.dtype).tobytes()


def test_a_dlpack_capsule_lives_as_long_as_the_view_and_dies_once():
    producer = Producer()
    v = view(producer)
    assert 'capsule object "dltensor_versioned"' in repr(v.owner)
    back = v.numpy()
    del v
    gc.collect()
    assert DELETED == []
    back[0, 0] = 1
    del back
    gc.collect()
    assert len(DELETED) == 1


def test_a_refused_dlpack_tensor_is_deleted_too():
    assert refusal(lambda: view(Producer(code=1, bits=4))).startswith("view: array is uint4")
    gc.collect()
    assert len(DELETED) == 1


def test_dlpack_without_strides_lies_row_after_row():
    assert view(Producer(strides=None)).strides == (32, 4)


def test_dlpack_strides_offset_and_scalars():
    v = view(Producer(shape=(2, 3), strides=(-4, 0), byte_offset=64))
    assert v.strides == (-16, 0)
    with_offset = Producer(byte_offset=16)
    assert view(with_offset).pointer == with_offset.address + 16
    assert view(Producer(shape=(), strides=None)).strides == ()
    empty = view(Producer(shape=(0, 3), strides=(3, 1)))
    assert (empty.pointer, empty.numpy().shape) == (0, (0, 3))


@pytest.mark.parametrize(("flags", "readonly"), [(0, False), (1, True), (2, True), (4, False)])
def test_dlpack_flags_tell_what_may_be_written(flags, readonly):
    v = view(Producer(flags=flags))
    assert v.readonly is readonly
    assert v.numpy().flags.writeable is not readonly


DEVICES = [
    ((1, 0), "cpu"),
    ((2, 0), "cuda:0"),
    ((2, 3), "cuda:3"),
    ((3, 0), "cpu"),
    ((10, 1), "rocm:1"),
    ((11, 0), "cpu"),
    ((13, 0), "cuda:0"),
    ((8, 0), "metal:0"),
    ((99, 1), "dlpack99:1"),
]


@pytest.mark.parametrize(("device", "name"), DEVICES)
def test_dlpack_devices_are_named(device, name):
    assert view(Producer(device=device)).device == name


def test_dlpack_is_asked_not_to_synchronise_and_only_where_there_are_streams():
    cpu, cuda, rocm, old = Producer(), Producer(device=(2, 0)), Producer(device=(10, 0)), Producer(version=None)
    old_cuda = Producer(device=(2, 0), version=None)
    for producer in (cpu, cuda, rocm, old, old_cuda):
        view(producer)
    assert cpu.asked == [{"max_version": (1, 1)}]
    assert cuda.asked == rocm.asked == [{"max_version": (1, 1), "stream": -1}]
    assert old.asked == [{"max_version": (1, 1)}, {}]
    assert old_cuda.asked == [{"max_version": (1, 1), "stream": -1}, {"stream": -1}]


UNKNOWN = [
    (1, 4, 1, "uint4"),
    (5, 64, 1, "complex64"),
    (0, 128, 1, "int128"),
    (2, 32, 4, "float32x4"),
    (8, 8, 1, "float8_e4m3"),
    (17, 4, 1, "float4_e2m1fn"),
    (40, 8, 1, "dlpack40_8"),
]


@pytest.mark.parametrize(("code", "bits", "lanes", "name"), UNKNOWN)
def test_dlpack_dtypes_that_no_kernel_takes_are_named(code, bits, lanes, name):
    producer = Producer(code=code, bits=bits, lanes=lanes)
    assert refusal(lambda: view(producer)) == f"view: array is {name}, which no kernel takes\n  {KNOWN}"


def test_a_newer_major_version_of_dlpack_is_not_read():
    assert refusal(lambda: view(Producer(version=(2, 0)))) == (
        "view: array exports DLPack 2.0, which is newer than what tilewave reads\n"
        "  pass it as a numpy array, or use an older release of its library"
    )


def test_a_capsule_that_is_none_is_refused():
    class Liar(Producer):
        def __dlpack__(self, **arguments: object) -> object:
            return "capsule"

    assert refusal(lambda: view(Liar())) == (
        "view: array exports no DLPack capsule that tilewave can read\n  pass it as a numpy array"
    )


def test_an_export_that_fails_says_why():
    class Sparse(Producer):
        def __dlpack__(self, **arguments: object) -> object:
            raise BufferError("it is sparse {name}")

    assert refusal(lambda: view(Sparse())) == (
        "view: array does not export its memory: it is sparse {name}\n  pass a dense copy of array"
    )

    class Trained(Sparse):
        requires_grad = True

    assert refusal(lambda: view(Trained())) == (
        "view: array requires grad, which a kernel does not compute\n  pass array.detach()"
    )


# check_call -----------------------------------------------------------------------------------------------------------

A, B, C = (
    Parameter("a", (64, 32), F16, False),
    Parameter("b", (32, 64), F16, False),
    Parameter("c", (64, 64), F32, True),
)


def arguments() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.ones((64, 32), np.float16), np.ones((32, 64), np.float16), np.ones((64, 64), np.float32)


def gemm(*given: object, parameters: tuple[Parameter, ...] = (A, B, C), device: str = "cpu") -> tuple[ArrayView, ...]:
    return check_call("gemm", parameters, given, device, NOWHERE)


def swap(at: int, value: object) -> str:
    """What gemm says when one of its arrays is replaced; the others stay as they are."""
    given: list[Any] = list(arguments())
    given[at] = value
    message = refusal(lambda: gemm(*given))
    for index, array in enumerate(given):
        if index != at:
            np.testing.assert_array_equal(array, 1)
    return message


def test_arrays_that_fit_come_back_as_views():
    given = arguments()
    assert gemm(*given) == tuple(view(array) for array in given)
    assert [v.owner is array for v, array in zip(gemm(*given), given, strict=True)] == [True] * 3


def test_strided_arrays_fit():
    a, b, c = np.ones((32, 64), np.float16).T, np.ones((64, 128), np.float16)[::2, ::-2], np.ones((64, 99), np.float32)
    assert gemm(a, b, c[:, 7:71]) == (view(a), view(b), view(c[:, 7:71]))


def test_other_libraries_fit_beside_numpy():
    a, b, _ = arguments()
    producer = Producer(memory=bytearray(64 * 64 * 4), shape=(64, 64), strides=(64, 1))
    assert gemm(a, b, producer)[2].pointer == producer.address


def test_one_array_may_be_read_twice():
    square = np.ones((32, 32), np.float32)
    parameters = (Parameter("a", (32, 32), F32, False), Parameter("b", (32, 32), F32, False))
    assert gemm(square, square, parameters=parameters) == (view(square), view(square))
    assert gemm(square, square.T, parameters=parameters) == (view(square), view(square.T))


def test_empty_arrays_fit_anywhere():
    empty = Parameter("c", (0, 64), F32, True)
    square = np.ones((64, 64), np.float32)
    given = Parameter("a", (64, 64), F32, False)
    assert gemm(square, square[3:3], parameters=(given, empty))[1].shape == (0, 64)
    assert gemm(square, square[3:3, ::-1], parameters=(given, empty))[1].shape == (0, 64)


def test_an_index_array_is_passed_as_i64():
    index = Parameter("offsets", (3,), INDEX, False)
    assert gemm(np.zeros(3, np.int64), parameters=(index,))[0].dtype is I64
    assert refusal(lambda: gemm(np.zeros(3, np.int32), parameters=(index,))) == (
        "gemm: offsets is i32, but the kernel reads i64\n"
        "  pass offsets.astype(np.int64), or compile with Memory[..., i32]"
    )


def test_the_wrong_number_of_arrays():
    a, b, c = arguments()
    assert refusal(lambda: gemm(a, b)) == "gemm: takes 3 arrays (a, b, c), but got 2\n  call gemm(a, b, c)"
    assert refusal(lambda: gemm(a, b, c, 4)) == "gemm: takes 3 arrays (a, b, c), but got 4\n  call gemm(a, b, c)"
    assert refusal(lambda: gemm(parameters=(A,))) == "gemm: takes 1 array (a), but got 0\n  call gemm(a)"


def test_the_message_says_where_the_call_stands():
    loc = Loc("nowhere.py", 21)
    text = "gemm: takes 1 array (a), but got 0\n  nowhere.py:21\n  call gemm(a)"
    assert refusal(lambda: check_call("gemm", [A], [], "cpu", loc)) == text
    text = f"gemm: a is None, not an array\n  nowhere.py:21\n  {ANYTHING}"
    assert refusal(lambda: check_call("gemm", [A], [None], "cpu", loc)) == text


def test_something_that_is_no_array():
    assert swap(1, [[1.0]]) == "gemm: b is a list, not an array\n  pass np.array(b)"
    assert swap(2, None) == f"gemm: c is None, not an array\n  {ANYTHING}"
    assert swap(0, np.ma.ones((64, 32), np.float16)) == (
        "gemm: a is masked, and a kernel would not see the mask\n  pass a.filled(0), or a.data"
    )


def test_a_wrong_dtype():
    assert swap(0, np.ones((64, 32), np.float32)) == (
        "gemm: a is f32, but the kernel reads f16\n  pass a.astype(np.float16), or compile with Memory[..., f32]"
    )
    assert swap(2, np.ones((64, 64), np.float16)) == (
        "gemm: c is f16, but the kernel writes f32\n"
        "  pass np.empty((64, 64), np.float32), or compile with Memory[..., f16]"
    )
    assert swap(1, np.ones((32, 64), np.complex64)) == (
        "gemm: b is complex64, but the kernel reads f16\n  pass b.astype(np.float16)"
    )
    assert swap(1, np.ones((32, 64), ">f2")) == (
        "gemm: b is byte-swapped float16, but the kernel reads f16\n  pass b.astype(np.float16)"
    )


@pytest.mark.parametrize(
    ("dtype", "spelled"),
    [
        (BF16, "ml_dtypes.bfloat16"),
        (F8E4M3FN, "ml_dtypes.float8_e4m3fn"),
        (F8E5M2, "ml_dtypes.float8_e5m2"),
        (F8E4M3FNUZ, "ml_dtypes.float8_e4m3fnuz"),
        (F8E5M2FNUZ, "ml_dtypes.float8_e5m2fnuz"),
        (BOOL, "np.bool_"),
        (I32, "np.int32"),
    ],
    ids=str,
)
def test_a_remedy_is_spelled_as_numpy_spells_it(dtype, spelled):
    x = Parameter("x", (3,), dtype, False)
    assert refusal(lambda: gemm(np.zeros(3, np.float32), parameters=(x,))) == (
        f"gemm: x is f32, but the kernel reads {dtype}\n  pass x.astype({spelled}), or compile with Memory[..., f32]"
    )
    assert eval(spelled, {"np": np, "ml_dtypes": ml_dtypes}) == dtype.numpy


def test_a_wrong_shape():
    assert swap(1, np.ones((64, 32), np.float16)) == (
        "gemm: b is 64x32, but the kernel was compiled for 32x64\n  it looks transposed: pass b.T"
    )
    assert swap(1, np.ones((32, 65), np.float16)) == (
        "gemm: b is 32x65, but the kernel was compiled for 32x64\n"
        "  pass an array of shape (32, 64), or compile for 32x65"
    )
    assert swap(1, np.ones(64, np.float16)) == (
        "gemm: b is 64, but the kernel was compiled for 32x64\n  pass an array of shape (32, 64), or compile for 64"
    )
    assert swap(2, np.ones((), np.float32)) == (
        "gemm: c is 0-dimensional, but the kernel was compiled for 64x64\n"
        "  pass an array of shape (64, 64), or compile for 0-dimensional"
    )
    batched = Parameter("x", (2, 3, 4), F32, False)
    assert refusal(lambda: gemm(np.ones((2, 4, 3), np.float32), parameters=(batched,))) == (
        "gemm: x is 2x4x3, but the kernel was compiled for 2x3x4\n  it looks transposed: pass x.swapaxes(-1, -2)"
    )


def test_a_wrong_device():
    a = cuda_array(shape=(64, 32))
    assert swap(0, a) == ("gemm: a is on cuda, but the kernel runs on cpu\n  pass a copy of a on cpu")
    rocm = Producer(shape=(64, 64), strides=(64, 1), device=(10, 0))
    assert swap(2, rocm) == ("gemm: c is on rocm:0, but the kernel runs on cpu\n  pass np.empty((64, 64), np.float32)")
    metal = Producer(shape=(64, 32), strides=(32, 1), bits=16, device=(8, 0))
    assert swap(0, metal) == "gemm: a is on metal:0, but the kernel runs on cpu\n  pass a copy of a on cpu"
    assert refusal(lambda: gemm(*arguments(), device="cuda:0")) == (
        "gemm: a is on cpu, but the kernel runs on cuda:0\n  pass a copy of a on cuda:0"
    )
    assert refusal(lambda: gemm(np.ones((64, 64), np.float32), parameters=(C,), device="cuda:0")) == (
        "gemm: c is on cpu, but the kernel runs on cuda:0\n  pass a new f32 array of shape (64, 64) on cuda:0"
    )
    second = Producer(shape=(64, 32), strides=(32, 1), bits=16, device=(2, 1))
    assert refusal(lambda: gemm(second, parameters=(A,), device="cuda:0")) == (
        "gemm: a is on cuda:1, but the kernel runs on cuda:0\n  pass a copy of a on cuda:0"
    )


def test_a_compiled_kernel_names_the_targets_that_would_take_an_array_where_it_lies(monkeypatch):
    """The targets of the table, including one that this test adds."""
    monkeypatch.setitem(TARGETS, "toy_1", ToyBackend())
    options = {"subs": kernels.sizes(64, 64, 32)}
    made = {name: kernels.compiled(kernels.gemm(), target=name, **options) for name in ("cpu", "numpy", "toy_1")}
    b, c = np.ones((64, 32), np.float16), np.ones((64, 64), np.float32)

    def remedies(array):
        for run in (*made.values(), made["cpu"].interpret, made["toy_1"].emulate):
            with pytest.raises(WrongDevice) as caught:
                run(array, b, c)
            assert caught.value.loc.file in (__file__, fake_target.__file__)
            yield caught.value.remedy

    def on(device):
        return Producer(shape=(64, 32), strides=(32, 1), bits=16, device=(device, 0))

    copy = "pass a copy of a on cpu"
    assert {*remedies(cuda_array(shape=(64, 32)))} == {f'{copy}, or compile with target="sm_90a"'}
    assert {*remedies(on(10))} == {f'{copy}, or compile with target="gfx942" or "gfx950"'}
    assert {*remedies(on(8))} == {f'{copy}, or compile with target="toy_1"'}
    assert {*remedies(on(7))} == {copy}, "no target is for Vulkan"


def test_a_device_without_a_number_fits_every_number():
    a = cuda_array(shape=(64, 32))
    assert gemm(a, parameters=(A,), device="cuda:1") == (view(a),)
    assert "runs on rocm:0" in refusal(lambda: gemm(a, parameters=(A,), device="rocm:0"))


class FakeTensor(Producer):
    """Counts as torch's: what counts is the module its class comes from."""


FakeTensor.__module__ = "torch"


def test_torch_is_answered_in_its_own_words():
    half = FakeTensor(shape=(64, 32), strides=(32, 1), bits=16)
    assert swap(0, FakeTensor(shape=(64, 32), strides=(32, 1))) == (
        "gemm: a is f32, but the kernel reads f16\n  pass a.to(torch.float16), or compile with Memory[..., f32]"
    )
    assert swap(2, FakeTensor(code=4, bits=16, shape=(64, 64), strides=(64, 1))) == (
        "gemm: c is bf16, but the kernel writes f32\n"
        "  pass torch.empty((64, 64), dtype=torch.float32), or compile with Memory[..., bf16]"
    )
    on_gpu = FakeTensor(shape=(64, 32), strides=(32, 1), bits=16, device=(2, 0))
    assert swap(0, on_gpu) == ("gemm: a is on cuda:0, but the kernel runs on cpu\n  pass a.cpu()")
    # torch calls AMD's devices cuda, too
    assert refusal(lambda: gemm(half, parameters=(A,), device="rocm:1")) == (
        'gemm: a is on cpu, but the kernel runs on rocm:1\n  pass a.to("cuda:1")'
    )
    out = FakeTensor(shape=(64, 64), strides=(64, 1))
    assert refusal(lambda: gemm(out, parameters=(C,), device="cuda:0")) == (
        "gemm: c is on cpu, but the kernel runs on cuda:0\n"
        '  pass torch.empty((64, 64), dtype=torch.float32, device="cuda:0")'
    )


def test_an_array_between_the_addresses_of_its_dtype():
    raw = np.zeros(64 * 64 * 4 + 1, np.uint8)
    odd = raw[1:].view(np.float32).reshape(64, 64)
    assert swap(2, odd) == (
        "gemm: c has elements at addresses that are no multiples of 4 bytes\n  pass np.empty((64, 64), np.float32)"
    )
    packed = np.zeros((64, 32), [("x", "f2"), ("pad", "i1")])["x"]
    assert swap(0, packed) == "gemm: a has elements at addresses that are no multiples of 2 bytes\n  pass a.copy()"


def test_a_read_only_output():
    c = np.ones((64, 64), np.float32)
    c.flags.writeable = False
    text = "gemm: c is read-only, but the kernel writes it\n  pass np.empty((64, 64), np.float32)"
    assert swap(2, c) == text
    assert swap(2, Producer(shape=(64, 64), strides=(64, 1), flags=1)) == text


def test_a_read_only_input_is_fine():
    a, b, c = arguments()
    a.flags.writeable = False
    assert gemm(a, b, c)[0].readonly


def test_an_output_that_overlaps_an_input():
    square, output = Parameter("a", (8, 8), F32, False), Parameter("c", (8, 8), F32, True)
    memory = np.zeros((16, 16), np.float32)
    text = "gemm: c overlaps a, but the kernel writes c\n  pass np.empty((8, 8), np.float32) as c"
    left = memory[:8, :8]
    for other in (
        left,
        left.T,
        left[::-1],
        memory[7:15, 7:15],
        memory[:8, 7:15],
        memory.reshape(-1)[:64].reshape(8, 8),
    ):
        assert refusal(lambda other=other: gemm(other, left, parameters=(square, output))) == text
    for apart in (memory[:8, 8:], memory[8:, :8]):
        assert len(gemm(apart, left, parameters=(square, output))) == 2
    even, odd = memory.reshape(-1)[::2], memory.reshape(-1)[1::2]
    assert len(gemm(even[:64].reshape(8, 8), odd[:64].reshape(8, 8), parameters=(square, output))) == 2


def test_two_outputs_that_overlap():
    c, d = Parameter("c", (8,), F32, True), Parameter("d", (8,), F32, True)
    memory = np.zeros(15, np.float32)
    assert refusal(lambda: gemm(memory[:8], memory[7:], parameters=(c, d))) == (
        "gemm: c overlaps d, but the kernel writes c\n  pass np.empty((8,), np.float32) as c"
    )


def test_an_output_that_overlaps_an_array_of_another_library():
    memory = bytearray(64 * 64 * 4)
    producer = Producer(memory=memory, shape=(64, 64), strides=(64, 1))
    array = np.frombuffer(memory, np.float32).reshape(64, 64)
    given = Parameter("a", (64, 64), F32, False)
    assert refusal(lambda: gemm(array, producer, parameters=(given, C))).startswith("gemm: c overlaps a, but")


def test_overlaps_on_a_gpu_are_found_by_address_alone():
    a = cuda_array(shape=(8,), typestr="<f4")
    c = cuda_array(shape=(8,), typestr="<f4", data=(4096 + 28, False))
    parameters = (Parameter("a", (8,), F32, False), Parameter("c", (8,), F32, True))
    assert refusal(lambda: gemm(a, c, parameters=parameters, device="cuda:0")) == (
        "gemm: c overlaps a, but the kernel writes c\n  pass a new f32 array of shape (8,) on cuda as c"
    )
    apart = cuda_array(shape=(8,), typestr="<f4", data=(4096 + 32, False))
    assert len(gemm(a, apart, parameters=parameters, device="cuda:0")) == 2


def test_an_output_that_overlaps_itself():
    row = np.ones(64, np.float32)
    text = "has several elements at one address (strides {}), but the kernel writes it"
    broadcast = np.lib.stride_tricks.as_strided(row, (64, 64), (0, 4))
    assert swap(2, broadcast) == f"gemm: c {text.format('(0, 4)')}\n  pass np.empty((64, 64), np.float32)"
    sliding = np.lib.stride_tricks.as_strided(np.ones(127, np.float32), (64, 64), (4, 4))
    assert swap(2, sliding) == f"gemm: c {text.format('(4, 4)')}\n  pass np.empty((64, 64), np.float32)"


HARD = (1049, 1049, 1049), (36674 * 4, 61119 * 4, 85569 * 4)


def test_a_riddle_of_strides_is_refused_without_a_claim():
    # One element of c among a billion would have to be found; numpy's own tests use these numbers.
    a = cuda_array(shape=HARD[0], strides=HARD[1], typestr="<f4")
    c = cuda_array(shape=(1049, 1049), strides=(12223 * 4, 12224 * 4), typestr="<f4", data=(4096 + 64023025 * 4, False))
    parameters = (Parameter("a", HARD[0], F32, False), Parameter("c", (1049, 1049), F32, True))
    assert refusal(lambda: gemm(a, c, parameters=parameters, device="cuda:0")) == (
        "gemm: c may overlap a, but the kernel writes c\n  pass a new f32 array of shape (1049, 1049) on cuda as c"
    )


def test_a_riddle_within_one_array_is_refused_without_a_claim(monkeypatch):
    monkeypatch.setattr(overlaps, "OVERLAP_WORK", 1)
    shape, strides = (39, 7, 19), (15652, 65136, 59112)
    c = cuda_array(shape=shape, strides=strides, typestr="<f4")
    parameters = (Parameter("c", shape, F32, True),)
    overlaps.repeats.cache_clear()
    message = refusal(lambda: gemm(c, parameters=parameters, device="cuda:0"))
    monkeypatch.undo()
    overlaps.repeats.cache_clear()
    assert overlaps.repeats(shape, strides, 4) is False
    assert message == (
        f"gemm: c may have several elements at one address (strides {strides}), but the kernel writes it\n"
        "  pass a new f32 array of shape (39, 7, 19) on cuda"
    )


def offsets(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    return [sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(*shape)]


sizes = st.integers(0, 4)
layouts = st.lists(st.tuples(sizes, st.integers(-9, 9)), max_size=3).map(
    lambda axes: (tuple(size for size, _ in axes), tuple(4 * stride for _, stride in axes))
)


@given(layouts)
def test_self_overlap_is_exact(layout):
    addresses = offsets(*layout)
    assert overlaps.repeats(*layout, 4) is (len(set(addresses)) < len(addresses))


@given(layouts, layouts, st.integers(-20, 20))
def test_overlap_is_exact_and_the_fast_answer_agrees(one, other, distance):
    memory = np.zeros(400, np.float32)
    a = np.lib.stride_tricks.as_strided(memory[200:], *one)
    c = np.lib.stride_tricks.as_strided(memory[200 + distance :], *other)
    parameters = (Parameter("a", one[0], F32, False), Parameter("c", other[0], F32, True))
    own = offsets(*other)
    meet = set(offsets(*one)) & {at + 4 * distance for at in own}
    if len(set(own)) < len(own):
        assert "several elements at one address" in refusal(lambda: gemm(a, c, parameters=parameters))
    elif meet:
        assert "c overlaps a" in refusal(lambda: gemm(a, c, parameters=parameters))
    else:
        assert gemm(a, c, parameters=parameters) == (view(a), view(c))


def test_checks_come_in_order():
    """Several arrays are wrong; the message is about the first kind of fault, not about the first array."""
    frozen = np.ones((64, 64), np.float32)
    frozen.flags.writeable = False
    a, b = np.ones((3, 3), np.float16), np.ones((32, 64), np.float32)
    assert refusal(lambda: gemm(a, b, "c")).startswith("gemm: c is a str")
    assert refusal(lambda: gemm(a, b, frozen)).startswith("gemm: b is f32")
    assert refusal(lambda: gemm(a, arguments()[1], frozen)).startswith("gemm: a is 3x3")
    odd = np.zeros(64 * 32 * 2 + 1, np.uint8)[1:].view(np.float16).reshape(64, 32)
    assert refusal(lambda: gemm(odd, arguments()[1], frozen, device="cuda:0")).startswith("gemm: a is on cpu")
    assert refusal(lambda: gemm(odd, arguments()[1], frozen)).startswith("gemm: a has elements")
    repeated = np.broadcast_to(np.float32(1), (64, 64))
    assert refusal(lambda: gemm(*arguments()[:2], repeated)).startswith("gemm: c is read-only")


# GPUs -----------------------------------------------------------------------------------------------------------------

GPU = (Parameter("a", (8, 8), F16, False), Parameter("c", (8, 8), F32, True))


@pytest.fixture
def torch_on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield install_torch(monkeypatch)
    forget_guests()


@pytest.fixture
def cupy_on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield install_cupy(monkeypatch)
    forget_guests()


def on_gpu(*given: object, device: str = "cuda", **more: Any) -> tuple[ArrayView, ...]:
    return check_call("gemm", GPU, given, device, NOWHERE, **more)


def pair(torch: Any, **of_a: Any) -> tuple[Any, Any]:
    return torch.Tensor(0x1000, (8, 8), torch.float16, **of_a), torch.Tensor(0x2000, (8, 8), torch.float32)


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_a_torch_tensor_on_a_gpu_is_read_by_its_attributes(torch_on_gpu, dtype):
    tensor = torch_on_gpu.Tensor(0x1000, (4, 6), getattr(torch_on_gpu, dtype.numpy.name), 3, (1, 8))
    size = dtype.bytes
    assert view(tensor) == ArrayView(0x1000, (4, 6), (size, 8 * size), dtype, "cuda:3", False, tensor)
    assert view(tensor).owner is tensor


def test_torch_on_amd_is_rocm(monkeypatch):
    torch = install_torch(monkeypatch, hip="6.4.1")
    assert view(torch.Tensor(0x1000, (8,), number=1)).device == "rocm:1"
    forget_guests()


def test_a_parameter_of_torchs_is_a_tensor_and_another_subclass_is_asked_by_dlpack(torch_on_gpu):
    class Wrapped(torch_on_gpu.Tensor):
        pass

    assert view(torch_on_gpu.nn.Parameter(0x1000, (8,))).device == "cuda:0"
    assert refusal(lambda: view(Wrapped(0x1000, (8,)))).startswith("view: array is a")


def test_torch_tensors_on_a_gpu_that_are_no_plain_memory(torch_on_gpu):
    torch = torch_on_gpu
    for refused, text in (
        (
            torch.Tensor(0, (8,), requires_grad=True),
            "requires grad, which a kernel does not compute\n  pass array.detach()",
        ),
        (torch.Tensor(0, (8,), layout=torch.sparse_coo), "is laid out as torch.sparse_coo, not as rows and columns\n"),
        (torch.Tensor(0, (8,), negated=True), "is stored with its signs negated\n  pass array.resolve_neg()"),
        (torch.Tensor(0, (8,), torch.complex64), "is complex64, which no kernel takes"),
    ):
        assert refusal(lambda refused=refused: view(refused)).startswith(f"view: array {text}")


def test_a_cupy_array_is_read_by_its_attributes(cupy_on_gpu):
    array = cupy_on_gpu.ndarray(0x1000, (4, 6), np.dtype(np.float16), 1, (-12, 2))
    assert view(array) == ArrayView(0x1000, (4, 6), (-12, 2), F16, "cuda:1", False, array)
    assert view(cupy_on_gpu.ndarray(0x1000, (4,), cupy_on_gpu.bfloat16)).dtype is BF16
    assert refusal(lambda: view(cupy_on_gpu.ndarray(0, (4,), np.dtype(np.complex64)))).startswith(
        "view: array is complex64"
    )


def test_arrays_on_any_one_gpu_fit(torch_on_gpu):
    for number in (0, 1):
        given = [torch_on_gpu.Tensor(0x1000, (8, 8), torch_on_gpu.float16, number)]
        given.append(torch_on_gpu.Tensor(0x2000, (8, 8), torch_on_gpu.float32, number))
        views = on_gpu(*given)
        assert views == tuple(view(tensor) for tensor in given)
        assert device_number(views) == number
        assert on_gpu(*given, device=f"cuda:{number}") == views
        assert type(views[0].shape) is tuple


def test_the_quick_look_and_the_slow_one_agree(torch_on_gpu, monkeypatch):
    cases = [
        *({}, {"strides": (16, 1)}, {"strides": (1, 8)}, {"strides": (0, 1)}, {"strides": (3, 5)}, {"number": 1}),
        *({"requires_grad": True}, {"negated": True}, {"layout": torch_on_gpu.sparse_coo}, {"is_cuda": False}),
    ]

    def outcome(case: dict[str, Any]) -> object:
        try:
            return on_gpu(*pair(torch_on_gpu, **case))
        except CallError as error:
            return str(error)
        except AttributeError as error:  # the stand-in for torch has no DLPack
            return str(error)

    quick = [outcome(case) for case in cases]
    assert [isinstance(result, tuple) for result in quick] == [True] * 5 + [False] * 5
    monkeypatch.setattr(call_checks, "_quick_guests", lambda *given: None)
    assert [outcome(case) for case in cases] == quick


def test_arrays_on_two_gpus(torch_on_gpu):
    a, c = pair(torch_on_gpu, number=1)
    assert refusal(lambda: on_gpu(a, c)) == (
        'gemm: c is on cuda:0, but a is on cuda:1\n  pass torch.empty((8, 8), dtype=torch.float32, device="cuda:1")'
    )
    assert refusal(lambda: on_gpu(a, c, device="cuda:0")) == (
        'gemm: a is on cuda:1, but the kernel runs on cuda:0\n  pass a.to("cuda:0")'
    )


def test_the_device_of_an_address_is_asked_for(torch_on_gpu):
    a, _ = pair(torch_on_gpu)
    c = cuda_array(shape=(8, 8), typestr="<f4", data=(0x2000, False))
    asked: list[int] = []

    def device_of(pointer: int) -> int:
        asked.append(pointer)
        return 1

    assert device_number(on_gpu(a, c)) == 0
    assert refusal(lambda: on_gpu(a, c, device_of=device_of)) == (
        "gemm: c is on cuda:1, but a is on cuda:0\n  pass a new f32 array of shape (8, 8) on cuda:0"
    )
    assert asked == [0x2000]
    assert device_number([view(c)]) == 0


def test_arrays_on_the_cpu_for_a_gpu_kernel():
    given = np.ones((8, 8), np.float16), np.ones((8, 8), np.float32)
    assert refusal(lambda: on_gpu(*given)) == (
        "gemm: a is on cpu, but the kernel runs on cuda\n  pass a copy of a on cuda"
    )
    assert all((array == 1).all() for array in given)


def test_an_array_that_runs_backwards_is_refused_on_a_gpu_alone(cupy_on_gpu):
    cupy = cupy_on_gpu
    a = cupy.ndarray(0x1000, (8, 8), np.dtype(np.float16), 0, (16, -2))
    c = cupy.ndarray(0x2000, (8, 8))
    assert refusal(lambda: on_gpu(a, c)) == (
        "gemm: a has negative strides (16, -2), which a kernel on cuda does not take\n  pass a.copy()"
    )
    back = cupy.ndarray(0x2100, (8, 8), np.dtype(np.float32), 0, (-32, 4))
    assert refusal(lambda: on_gpu(cupy.ndarray(0x1000, (8, 8), np.dtype(np.float16)), back)).endswith(
        "\n  pass cupy.empty((8, 8), np.float32)"
    )
    row = Parameter("a", (1, 8), F16, False)
    single = cupy.ndarray(0x1000, (1, 8), np.dtype(np.float16), 0, (-16, 2))
    assert len(check_call("gemm", (row,), (single,), "cuda", NOWHERE)) == 1
    single = cuda_array(shape=(1, 8), strides=(-16, 2))
    assert len(check_call("gemm", (row,), (single,), "cuda", NOWHERE)) == 1
    assert len(gemm(np.ones((32, 64), np.float32)[::-1], parameters=(Parameter("x", (32, 64), F32, False),))) == 1


def test_an_array_between_addresses_on_a_gpu(torch_on_gpu, cupy_on_gpu):
    a, c = torch_on_gpu.Tensor(0x1001, (8, 8), torch_on_gpu.float16), cupy_on_gpu.ndarray(0x2000, (8, 8))
    assert refusal(lambda: on_gpu(a, c)) == (
        "gemm: a has elements at addresses that are no multiples of 2 bytes\n  pass a.clone()"
    )
    a, c = torch_on_gpu.Tensor(0x1000, (8, 8), torch_on_gpu.float16), cupy_on_gpu.ndarray(0x2002, (8, 8))
    assert refusal(lambda: on_gpu(a, c)).endswith("\n  pass cupy.empty((8, 8), np.float32)")


def test_overlaps_of_guests_are_found(torch_on_gpu):
    a, c = pair(torch_on_gpu)
    c.pointer = 0x1000 + 127
    c.pointer -= c.pointer % 4
    assert refusal(lambda: on_gpu(a, c)).startswith("gemm: c overlaps a, but the kernel writes c")
    c.pointer = 0x1000 + 128
    assert len(on_gpu(a, c)) == 2
    c.strides = (0, 1)
    assert "c has several elements at one address" in refusal(lambda: on_gpu(a, c))


def test_a_wrong_dtype_on_a_gpu_is_answered_for_that_gpu(torch_on_gpu):
    a, c = pair(torch_on_gpu)
    c.dtype = torch_on_gpu.float16
    assert refusal(lambda: on_gpu(a, c, device="cuda:0")) == (
        "gemm: c is f16, but the kernel writes f32\n"
        '  pass torch.empty((8, 8), dtype=torch.float32, device="cuda:0"), or compile with Memory[..., f16]'
    )


# torch ----------------------------------------------------------------------------------------------------------------

TORCH = "torch is an optional guest; install it to check its tensors"


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_torch_tensors_of_every_dtype(dtype):
    torch = pytest.importorskip("torch", reason=TORCH)
    tensor = torch.ones((4, 6), dtype=torch.float32).to(getattr(torch, dtype.numpy.name))
    v = view(tensor)
    size = dtype.bytes
    assert v == ArrayView(tensor.data_ptr(), (4, 6), (6 * size, size), dtype, "cpu", False, None)
    v.numpy()[1, 2] = 0
    assert tensor.to(torch.float32)[1].tolist() == [1, 1, 0, 1, 1, 1]


def test_torch_strides_and_offsets():
    torch = pytest.importorskip("torch", reason=TORCH)
    tensor = torch.arange(24.0).reshape(4, 6)
    for other in (tensor.T, tensor[1:, ::2], tensor[0].expand(3, 6), tensor[2:2], tensor[1, 1]):
        v = view(other)
        assert v.pointer == other.data_ptr()
        assert v.shape == tuple(other.shape)
        # DLPack lets a producer write any stride for an axis of length 1 or an empty tensor, and torch does.
        if math.prod(other.shape) > 1:
            assert v.strides == tuple(4 * stride for stride in other.stride())
        np.testing.assert_array_equal(v.numpy(), other.numpy())


def test_torch_memory_outlives_the_tensor():
    torch = pytest.importorskip("torch", reason=TORCH)
    tensor = torch.arange(1000.0)
    back = view(tensor).numpy()
    del tensor
    gc.collect()
    assert back[999] == 999


def test_torch_views_do_not_leak():
    torch = pytest.importorskip("torch", reason=TORCH)
    tensor = torch.zeros(1000)
    before = sys.getrefcount(tensor)
    views = [view(tensor) for _ in range(10)]
    assert sys.getrefcount(tensor) == before + 10
    del views
    assert sys.getrefcount(tensor) == before


def test_torch_tensors_that_export_nothing():
    torch = pytest.importorskip("torch", reason=TORCH)
    trained = torch.ones(3, requires_grad=True)
    assert refusal(lambda: view(trained)) == (
        "view: array requires grad, which a kernel does not compute\n  pass array.detach()"
    )
    assert view(trained.detach()).pointer == trained.data_ptr()
    assert refusal(lambda: view(torch.ones(2, 2).to_sparse())) == (
        "view: array is laid out as torch.sparse_coo, not as rows and columns\n  pass array.to_dense()"
    )
    assert refusal(lambda: view(torch.ones(2, dtype=torch.complex64))).startswith("view: array is complex64, which")


def test_torch_tensors_through_a_call():
    torch = pytest.importorskip("torch", reason=TORCH)
    a, b, c = torch.ones(64, 32).half(), torch.ones(32, 64).half(), torch.ones(64, 64)
    assert [v.pointer for v in gemm(a, b, c)] == [a.data_ptr(), b.data_ptr(), c.data_ptr()]
    assert refusal(lambda: gemm(a, b, c.half())) == (
        "gemm: c is f16, but the kernel writes f32\n"
        "  pass torch.empty((64, 64), dtype=torch.float32), or compile with Memory[..., f16]"
    )
    parameters = (Parameter("a", (64, 64), F32, False), C)
    assert refusal(lambda: gemm(c.numpy(), c, parameters=parameters)) == (
        "gemm: c overlaps a, but the kernel writes c\n  pass torch.empty((64, 64), dtype=torch.float32) as c"
    )


# Arrays with false attributes ---------------------------------------------------------------------------------------


class Lying(np.ndarray):
    """One row of four that says something else of itself."""

    shape = property(lambda self: (1 << 40, 4))  # type: ignore[assignment]
    strides = property(lambda self: (1 << 40, 4))  # type: ignore[assignment]
    dtype = property(lambda self: np.dtype(np.float64))  # type: ignore[assignment]
    flags = property(lambda self: np.zeros(1).flags)  # type: ignore[assignment]
    ctypes = property(lambda self: 0)  # type: ignore[assignment]


def test_a_derived_class_is_taken_as_it_lies_not_as_it_says():
    plain = np.zeros((1, 4), np.float32)
    plain.flags.writeable = False
    assert view(plain.view(Lying)) == view(plain)
    assert view(plain.view(Lying)).readonly


def test_a_class_that_says_it_is_numpy_s_is_not():
    class Pretender:
        __class__ = np.ndarray  # type: ignore[assignment]

    with pytest.raises(CallError, match=r"array is a test_arrays.Pretender, not an array"):
        view(Pretender())


class Damaged(Producer):
    """A capsule whose tensor is changed without its producer's knowledge."""

    def __dlpack__(self, **arguments: object) -> object:
        capsule = super().__dlpack__(**arguments)
        address = pointer_of(id(capsule), b"dltensor_versioned")
        for name, value in self.damage.items():
            setattr(Versioned.from_address(address).tensor, name, value)
        return capsule


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ({"shape": None}, "exports a DLPack capsule that describes no array"),
        ({"ndim": -1}, "exports a DLPack capsule that describes no array"),
        ({"ndim": 33}, "exports a DLPack capsule that describes no array"),
        ({"device_type": 2, "device_id": -1}, "exports a DLPack capsule that describes no array"),
        ({"data": None}, "has elements, but no address"),
        ({"data": None, "byte_offset": 1 << 63}, "is larger than any memory (shape (4, 8) at 0x8000000000000000)"),
    ],
)
def test_a_damaged_tensor_is_refused(damage, what):
    producer = Damaged()
    producer.damage = damage
    with pytest.raises(CallError) as caught:
        view(producer)
    assert caught.value.what == f"view: array {what}"


@pytest.mark.parametrize(
    ("shape", "strides", "what"),
    [
        ((4, -8), (8, 1), "has a negative size (shape (4, -8))"),
        ((4, 8), (1 << 60, 1), "reaches beyond all memory (shape (4, 8), strides (4611686018427387904, 4))"),
        ((4, 8), (-(1 << 62), 1), "reaches beyond all memory (shape (4, 8), strides (-18446744073709551616, 4))"),
        ((1 << 62, 8), (8, 1), "is larger than any memory"),
    ],
)
def test_what_lies_nowhere_is_refused(shape, strides, what):
    with pytest.raises(CallError) as caught:
        view(Producer(shape=shape, strides=strides))
    assert caught.value.what.startswith(f"view: array {what}")


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"typestr": None}, "describes no array: TypeError: None is no dtype"),
        ({"typestr": "<f9"}, "describes no array: TypeError: data type '<f9' not understood"),
        ({"shape": None}, "describes no array: TypeError: None is no tuple"),
        ({"shape": (2.5,)}, "describes no array: TypeError: 'float' object cannot be interpreted as an integer"),
        ({"data": 5}, "describes no array: TypeError: cannot unpack non-iterable int object"),
        ({"data": (1, 2, 3)}, "describes no array: ValueError: too many values to unpack (expected 2)"),
        ({"data": None, "shape": 4}, "describes no array: TypeError: 4 is no tuple"),
    ],
)
def test_a_malformed_interface_is_refused(changed, what):
    class Described:
        __cuda_array_interface__: ClassVar = {
            "shape": (4,),
            "typestr": "<f4",
            "data": (4096, False),
            "version": 3,
            **changed,
        }

    with pytest.raises(CallError) as caught:
        view(Described())
    assert caught.value.what == f"view: array has a __cuda_array_interface__ that {what}"


@pytest.mark.parametrize("missing", ["shape", "typestr", "data"])
def test_an_interface_without_a_field_is_refused(missing):
    class Described:
        __cuda_array_interface__: ClassVar = {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3}

    fields = dict(Described.__cuda_array_interface__)
    del fields[missing]
    Described.__cuda_array_interface__ = fields
    with pytest.raises(CallError, match=f"describes no array: KeyError: '{missing}'"):
        view(Described())


@pytest.mark.parametrize("stream", ["x", 1.5, -1, 1 << 64, [0]])
def test_a_stream_that_is_none_is_refused(stream):
    class Described:
        __cuda_array_interface__: ClassVar = {"stream": stream}

    with pytest.raises(Refused) as caught:
        stream_of([Described()], ["a"], 0)
    assert caught.value.what == f"an array names the stream {stream!r}, which is none"
