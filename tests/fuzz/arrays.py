"""Arrays with false attributes: whatever claims to be an array is used or refused; nothing else is read or written."""

import ctypes
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilewave import *
from tilewave.errors import TilewaveError
from tilewave.runtime.dlpack import Unversioned, Versioned

M, N, G = sym.M, sym.N, GLOBAL_ADDRESS_SPACE
SHAPE = (6, 5)
FAR = (1 << 62, -(1 << 62), (1 << 63) - 1, -(1 << 63), 1 << 58)
JUNK = (None, -1, 0, 1, 1.5, "x", b"", (), (0,), [3], {}, float("nan"), 1 << 64, 1 << 200, -(1 << 63), object())


@dataclass
class Given:
    """What a kernel is called with, and what it is in truth: an array in its place, or nothing that can be used."""

    array: Any
    truth: np.ndarray | None


@lru_cache
def add():
    @wave([WorkgroupConstraint(M, 4, 0), WorkgroupConstraint(N, 8, 1)])
    def add(a: Memory[M, N, G, f32], b: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        write(read(a) + read(b), c)

    return wave_compile(WaveCompileOptions(subs={M: SHAPE[0], N: SHAPE[1]}, target="cpu"), add)


def case(seed: int) -> str | None:
    """Make one call in which an input or the result may be an array with false attributes."""
    choose = random.Random(seed)
    given = choose.choice((subclass, capsule, interface, other))(choose)
    written = choose.random() < 0.5
    a, b, c = (np.full(SHAPE, value, np.float32) for value in (1, 2, 9))
    arrays = [a, b, given.array] if written else [given.array, b, c]
    out = given.truth if written else c
    before = None if out is None else out.copy()
    try:
        add()(*arrays)
    except TilewaveError:
        unchanged = out is None or np.array_equal(out, before, equal_nan=True)
        return None if unchanged else f"seed {seed}: refused, and yet written"
    except Exception as error:
        return f"seed {seed}: {type(error).__name__}: {error}"
    if given.truth is None:
        return f"seed {seed}: {given.array!r} was taken"
    if written and not given.truth.flags.writeable:
        return f"seed {seed}: read-only memory was written"
    expected = (a if written else given.truth) + b
    return None if np.array_equal(out, expected, equal_nan=True) else f"seed {seed}: {out} and not {expected}"


# Layouts ------------------------------------------------------------------------------------------------------------


def laid_out(choose: random.Random) -> np.ndarray:
    """Arrays of numpy's own, of every layout; not all fit the kernel."""
    store = np.arange(1000, dtype=np.float32)
    rows, columns = SHAPE if choose.random() < 0.8 else (choose.randrange(8), choose.randrange(8))
    made = [
        lambda: store[: rows * columns].reshape(rows, columns),
        lambda: store[: rows * columns].reshape(columns, rows).T,
        lambda: store[:400].reshape(20, 20)[1 : 1 + 2 * rows : 2, 3 : 3 + columns],
        lambda: store[: rows * columns].reshape(rows, columns)[::-1, ::-1],
        lambda: np.lib.stride_tricks.as_strided(store, (rows, columns), (0, 4)),
        lambda: np.lib.stride_tricks.as_strided(store, (rows, columns), (4, 4)),
        lambda: np.lib.stride_tricks.as_strided(store, (rows, columns), (choose.choice(FAR), 4)),
        lambda: store.view(np.int8)[1 : 1 + 4 * rows * columns].view(np.float32).reshape(rows, columns),
        lambda: store[: rows * columns].reshape(rows, columns).astype(">f4"),
        lambda: store[: rows * columns].reshape(rows, columns).astype(choose.choice(["f2", "f8", "i4", "O"])),
        lambda: store[:rows],
    ]
    array = choose.choice(made)()
    if choose.random() < 0.2:
        array.flags.writeable = False
    return array


def usable(array: np.ndarray) -> np.ndarray | None:
    """The array where a kernel may read it: elsewhere a test must not, either."""
    far = any(abs(stride) > 1 << 50 for stride in array.strides)
    return array if array.dtype == np.float32 and array.shape == SHAPE and not far else None


def subclass(choose: random.Random) -> Given:
    """Return an instance of a subclass of numpy's array, with attributes that disagree."""
    array = laid_out(choose)
    lies: dict[str, Any] = {}
    for name in ("shape", "strides", "dtype", "flags", "ctypes", "__array_interface__", "size", "ndim", "base", "T"):
        if choose.random() < 0.4:
            lies[name] = lie(choose, array)
    kind = type("Lying", (np.ndarray,), lies)
    return Given(array.view(kind), usable(array))


def lie(choose: random.Random, array: np.ndarray) -> Any:
    def raises(_: object) -> None:
        raise choose.choice([KeyError, ValueError, TypeError, RuntimeError, AttributeError])("no")

    class Writeable:
        writeable = True

    said = choose.choice([SHAPE, (1 << 40, 1 << 40), (20, 4), (-4, 4), np.dtype(np.float32), Writeable(), *JUNK])
    return property(raises if choose.random() < 0.2 else lambda _: said)


# DLPack -------------------------------------------------------------------------------------------------------------

Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
NAMES = {Unversioned: b"dltensor", Versioned: b"dltensor_versioned"}


class Producer:
    """An object that exports one capsule, whatever is in it."""

    def __init__(self, managed: Any, name: bytes, device: Any, keep: tuple[object, ...]) -> None:
        self.managed, self.name, self.device, self.keep = managed, name, device, keep

    def __dlpack_device__(self) -> Any:
        return self.device

    def __dlpack__(self, **_: object) -> object:
        return new_capsule(ctypes.addressof(self.managed), self.name, None)


def capsule(choose: random.Random) -> Given:
    """A right tensor, of which up to two fields are made wrong in a way that can be seen."""
    array = laid_out(choose)
    truth = usable(array)
    if truth is None:
        array = truth = np.arange(30, dtype=np.float32).reshape(SHAPE)
    kind = choose.choice((Unversioned, Versioned)) if array.flags.writeable else Versioned  # which can say so
    managed = kind()
    t = managed.tensor
    sizes, steps = ((ctypes.c_int64 * 2)(*x) for x in (array.shape, (s // 4 for s in array.strides)))
    t.data, t.device_type, t.ndim, t.code, t.bits, t.lanes = array.__array_interface__["data"][0], 1, 2, 2, 32, 1
    t.shape, t.strides = (ctypes.cast(x, ctypes.POINTER(ctypes.c_int64)) for x in (sizes, steps))
    if kind is Versioned:
        managed.major, managed.minor, managed.flags = 1, 1, 0 if array.flags.writeable else 1
    wrong = [
        lambda: setattr(t, "shape", None),
        lambda: setattr(t, "data", None),
        lambda: setattr(t, "ndim", choose.choice([-1, -(1 << 31), 33, (1 << 31) - 1])),
        lambda: setattr(t, "device_type", choose.choice([0, 2, 4, 10, 99, -1])),
        lambda: (setattr(t, "device_type", 2), setattr(t, "device_id", -5)),
        lambda: setattr(t, "code", choose.choice([0, 1, 3, 4, 5, 6, 7, 200])),
        lambda: setattr(t, "bits", choose.choice([0, 1, 7, 8, 16, 64, 255])),
        lambda: setattr(t, "lanes", choose.choice([0, 2, 65535])),
        lambda: setattr(t, "byte_offset", choose.choice([(1 << 64) - 4, (1 << 64) - 1, 1 << 63, 1, 2])),
        lambda: sizes.__setitem__(choose.randrange(2), choose.choice([-1, -5, 7, (1 << 63) - 1, -(1 << 63)])),
        lambda: steps.__setitem__(choose.randrange(2), choose.choice(FAR)),
        lambda: setattr(*((managed, "major", choose.choice([0, 2, 9])) if kind is Versioned else (t, "lanes", 9))),
    ]
    name, device = NAMES[kind], (t.device_type, t.device_id)
    for _ in range(choose.choice([0, 1, 1, 1, 2])):
        choose.choice(wrong)()
        truth = None
    if choose.random() < 0.1:
        name, truth = b"used_dltensor", None
    if choose.random() < 0.1:
        device = choose.choice([*JUNK, (1,), (1, 0, 0), "cpu"])
    return Given(Producer(managed, name, device, (array, sizes, steps)), truth)


# Other things -------------------------------------------------------------------------------------------------------


class Holder:
    """An object that returns the given answers."""


def interface(choose: random.Random) -> Given:
    """A GPU's array by its description, of which anything may be wrong; a kernel for the CPU takes none."""
    said: Any = {
        "shape": SHAPE,
        "typestr": "<f4",
        "data": (1 << 20, False),
        "version": 3,
        "strides": None,
        "stream": None,
        "mask": None,
    }
    for _ in range(choose.randrange(4)):
        name = choose.choice(list(said))
        junk = [*JUNK, "<f9", ">f4", "|V4", (0, False), (None, True), (-8, False), (1 << 70, 1), (5, 4, 3), *FAR]
        said[name] = choose.choice(junk)
        if choose.random() < 0.2:
            del said[choose.choice(list(said))]
    array = Holder()
    array.__cuda_array_interface__ = said  # type: ignore[attr-defined]
    return Given(array, None)


def other(choose: random.Random) -> Given:
    array = np.arange(30, dtype=np.float32).reshape(SHAPE)

    class Pretender:
        __class__ = np.ndarray  # type: ignore[assignment]

    class Raising:
        @property
        def __cuda_array_interface__(self) -> Any:
            raise ValueError("not now")

        def __dlpack_device__(self) -> Any:
            raise OSError("gone")

    class Speechless:
        def __dlpack_device__(self) -> Any:
            return (1, 0)

        def __dlpack__(self, **_: object) -> Any:
            return choose.choice(JUNK)

    things = [memoryview(array), array.tobytes(), array.tolist(), np.float32(1), np.ma.masked_array(array), np.ndarray]
    things += [Pretender(), Raising(), Speechless(), Raising, *JUNK]
    return Given(choose.choice(things), None)
