"""Calls of any sizes by machine code launch what the full path launches; what a guard excludes goes the full path."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

from tilewave.errors import CallError
from tilewave.ir.types import F16, F32
from tilewave.kernels.linear import product_kernel
from tilewave.ops import products
from tilewave.ops.digits import Digits
from tilewave.ops.plans import Operated
from tilewave.runtime.dlpack import dtype_word
from tilewave.runtime.dynamic_calls import Allocation, DynamicCalls, heads_of
from tilewave.runtime.foreign_arrays import machine_reader
from tilewave.tune import configs

SAID = (Digits.ALL,)
FEW = "64x64x64/6 16x64x128/4 8x64x64/10:2 1x64x64"
DTYPES = {"torch.float16": F16, "torch.float32": F32}


@pytest.fixture(autouse=True)
def _few_configs(monkeypatch):
    monkeypatch.setitem(configs.SETS, "nvidia", FEW)
    for known in (configs.kernel_set, products._kernel_of, product_kernel):
        known.cache_clear()
    yield
    for known in (configs.kernel_set, products._kernel_of, product_kernel):
        known.cache_clear()


def with_views(torch):
    """Give the fake tensors the views that operations take."""

    def view(tensor, shape, strides):
        return torch.Tensor(tensor.pointer, tuple(shape), tensor.dtype, tensor.number, tuple(strides))

    def swapaxes(tensor, one, other):
        order = [*range(len(tensor.shape))]
        order[one], order[other] = order[other], order[one]
        return view(tensor, [tensor.shape[i] for i in order], [tensor.strides[i] for i in order])

    def reshape(tensor, rows, cols):
        return view(tensor, (rows, cols), (tensor.strides[-2], tensor.strides[-1]))

    torch.Tensor.swapaxes, torch.Tensor.reshape = swapaxes, reshape


class Library:
    """The `ArrayLibrary` of fake tensors on a fake GPU; every allocation is at a new address."""

    def __init__(self, torch):
        self.torch, self.at, self.allocated, self.device_of_next = torch, 1 << 32, 0, 0

    def new(self, shape, dtype="torch.float16", strides=(), offset=0):
        self.at += 1 << 32
        return self.torch.Tensor(self.at + offset, tuple(shape), dtype, 0, tuple(strides))

    def allocate(self, shape, strides, dtype):
        self.allocated += 1
        found = self.new(shape, dtype, strides)
        found.number = self.device_of_next
        return found

    def dtype(self, caller, name, array):
        return DTYPES[array.dtype]

    def steps(self, array):
        return array.strides

    def device(self, array):
        return f"cuda:{array.number}"

    def empty(self, shape, dtype, like):
        return self.new(shape, f"torch.{dtype.numpy.name}")

    def address(self, array):
        return array.pointer

    def layout(self, arrays):
        return (
            None if any(x is not None and x.requires_grad for x in arrays) else object()
        )  # no call has another's plan

    def allocation(self, like):
        raise AssertionError("a call is never repeated")

    def bare(self, arrays):
        return arrays

    def dynamic_calls(self):
        return DynamicCalls(machine_reader())

    def heads(self, arrays):
        return heads_of([None if x is None else (len(x.shape), dtype_word(DTYPES[x.dtype])) for x in arrays], 0)

    def result_allocation(self, like):
        return Allocation(self.allocate, like.dtype, None, None)

    def digits(self):
        return Digits.ALL


@pytest.fixture
def lib(fake, torch):
    with_views(torch)
    return Library(torch)


@pytest.fixture
def op(monkeypatch):
    monkeypatch.setattr("tilewave.ops.plans.MOST_NEW", 0)
    return Operated("matmul", ("a", "b", "out?"), products._matmul)


def operands(lib, m, n, k, transposed=True):
    return lib.new((m, k)), lib.new((k, n), strides=(1, k)) if transposed else lib.new((k, n)), None


def seen(fake, at=-1):
    """What a launch is, without addresses that every call has anew."""
    one = fake.launches[at]
    maps = [fake.map_of(argument) for argument in one.arguments if len(argument) == 128]
    words = [argument for argument in one.arguments if len(argument) not in (8, 128)]
    return one.function, one.grid, one.block, one.shared_bytes, one.attributes, words, [m.sizes for m in maps]


def replayed(op, lib, arrays, grad=True):
    return op.replay(arrays, SAID, grad)


SIZES = [(100, 512, 256), (1, 512, 256), (16, 64, 1024), (33, 512, 128), (7, 1024, 512), (640, 640, 64)]


def settled(op, lib):
    """Call the operation until machine code has a plan, and has launched every config that these sizes choose."""
    for _ in range(3):
        for m, n, k in SIZES:
            op(lib, operands(lib, m, n, k), *SAID)


def test_new_sizes_launch_what_the_full_path_launches(fake, lib, op):
    settled(op, lib)
    grids, misses = set(), 0
    for m, n, k in [*SIZES, *((m, 8 * n, 64 * k) for m, n, k in SIZES), (5, 24, 8), (129, 8, 72)]:
        arrays = operands(lib, m, n, k)
        if replayed(op, lib, arrays) is None:  # the first call of a config
            misses += 1
            op(lib, arrays, *SAID)
        count = len(fake.launches)
        found = replayed(op, lib, arrays)
        assert found is not None and (found.shape, found.strides) == ((m, n), (n, 1)), (m, n, k)
        op(lib, arrays, *SAID)
        assert len(fake.launches) == count + 2 and seen(fake, -2) == seen(fake), (m, n, k)
        pointers = {fake.map_of(x).pointer for x in fake.launches[-2].arguments if len(x) == 128}
        assert pointers <= {arrays[0].pointer, arrays[1].pointer, found.pointer}
        grids.add(fake.launches[-1].grid)
    assert len(grids) > 4 and misses < len(FEW.split()) and len(op.dynamic[SAID].calls.plans) == 1


def test_what_a_guard_excludes_goes_the_full_path(fake, lib, op):
    settled(op, lib)
    allocated = lib.allocated
    a, b, _ = operands(lib, 100, 512, 256)
    others = {
        "other layout": operands(lib, 100, 512, 256, transposed=False),
        "unequal sizes": (a, lib.new((128, 512), strides=(1, 128)), None),
        "no rows": (lib.new((0, 256)), b, None),
        "unaligned rows": operands(lib, 100, 512, 250),
        "odd address": (lib.new((100, 256), offset=2), b, None),
        "dtype": (lib.new((100, 256), "torch.float32"), lib.new((256, 512), "torch.float32", (1, 256)), None),
        "out": (a, b, lib.new((100, 512))),
        "more axes": (lib.new((2, 50, 256)), b, None),
        "on the CPU": (SimpleNamespace(shape=(100, 256)), b, None),
        "fewer arguments": (a, b),
    }
    for name, arrays in others.items():
        assert replayed(op, lib, arrays) is None, name
    assert lib.allocated == allocated
    assert replayed(op, lib, (a, b, None)) is not None
    with pytest.raises(CallError, match="a has 256 columns, but b 128 rows"):
        op(lib, others["unequal sizes"], *SAID)


def test_other_layouts_and_batches_get_plans_of_their_own(fake, lib, op):
    settled(op, lib)

    def batched(m, n, k):
        return lib.new((2, m // 2, k)), lib.new((k, n), strides=(1, k)), None

    for given in (partial(operands, lib, transposed=False), batched):
        arrays = given(100, 512, 256)
        assert replayed(op, lib, arrays) is None
        for m in (100, 50, 64, 100, 100):
            op(lib, given(m, 512, 256), *SAID)
        found = replayed(op, lib, arrays)
        assert found is not None and found.shape == (*arrays[0].shape[:-1], 512)
    assert len(op.dynamic[SAID].calls.plans) == 3


def test_arrays_that_require_gradients_are_left_to_python(fake, lib, op):
    settled(op, lib)
    a, b, _ = operands(lib, 100, 512, 256)
    a.requires_grad = True
    assert replayed(op, lib, (a, b, None)) is None
    assert replayed(op, lib, (a, b, None), False) is not None
    a.requires_grad, a.negated = False, True
    assert replayed(op, lib, (a, b, None), False) is None


def test_a_result_on_another_device_is_dropped(fake, lib, op):
    """Where torch's current device is another one."""
    settled(op, lib)
    lib.device_of_next, count = 1, len(fake.launches)
    assert replayed(op, lib, operands(lib, 100, 512, 256)) is None
    assert len(fake.launches) == count
    lib.device_of_next = 0
    assert replayed(op, lib, operands(lib, 100, 512, 256)) is not None


def test_a_failed_allocation_is_left_to_python(fake, lib, op):
    settled(op, lib)
    allocate, lib.new = lib.new, None  # the function raises a TypeError
    arrays = allocate((100, 256)), allocate((256, 512), strides=(1, 256)), None
    assert replayed(op, lib, arrays) is None
    lib.new = allocate
    assert replayed(op, lib, arrays) is not None


def test_configs_that_cannot_be_compiled_are_not_chosen(fake, lib, op):
    settled(op, lib)
    arrays = operands(lib, 100, 512, 256)
    replayed(op, lib, arrays)
    before = seen(fake)
    (plan,) = op.dynamic[SAID].calls.plans
    kernels = plan.kernel.kernels
    best = kernels.native((100, 256, 512))
    kernels.refused.add(kernels.by_size[100, 256, 512].choice.text)
    plan.refresh()
    kernels.by_size.clear()
    for _ in range(2):
        op(lib, operands(lib, 100, 512, 256), *SAID)
    assert replayed(op, lib, arrays) is not None and seen(fake) != before and best
