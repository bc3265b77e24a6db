"""Replayed launches: machine code compares the layout of tensors with an earlier call's, and launches or declines."""

import gc
import struct
import weakref

import pytest
from kernels import G
from kernels import M as M_
from kernels import N as N_

from tilewave import *
from tilewave.runtime.foreign_arrays import machine_layout

SHAPE = (128, 64)


def scaled():
    @wave([WorkgroupConstraint(M_, 64, 0), WorkgroupConstraint(N_, 64, 1)])
    def scaled(a: Memory[M_, N_, G, f32], by: f32, c: Memory[M_, N_, G, f32]):
        write(read(a) * by, c)

    return scaled


def pair(torch, at=0x100000, shape=SHAPE, **others):
    return tuple(torch.Tensor(at * (i + 1), shape, **others) for i in range(2))


@pytest.fixture
def again(torch, fake):
    a, c = pair(torch)
    kernel = scaled()
    kernel(a, 2.0, c)
    found = kernel.replay((a, 2.0, c), [1])
    assert found((a, c)) == 0
    fake.launches.clear()
    return found


def test_tensors_elsewhere_are_launched_without_a_look_of_pythons(fake, torch, again, monkeypatch):
    monkeypatch.setattr("tilewave.runtime.cuda_calls.seen_arrays", None)
    before, there = pair(torch), pair(torch, 0x700000)
    assert again(before) == 0 and again(there) == 0
    one, other = (seen.arguments for seen in fake.launches)
    differing = [(x, y) for x, y in zip(one, other, strict=True) if x != y]
    assert [int.from_bytes(y, "little") for _, y in differing] == [t.pointer for t in there]


def test_tensors_may_have_other_shapes_if_they_begin_where_such_do(fake, torch, again):
    """A view is not needed: shape and strides are those of the call before."""
    flat = tuple(torch.Tensor(0x700000 * (i + 1), (128 * 64,)) for i in range(2))
    assert again(flat) == 0 and again(pair(torch, 0x700000)) == 0
    one, other = fake.launches
    assert one.arguments == other.arguments


def test_other_numbers_are_handed_over(fake, torch, again):
    assert again(pair(torch), scaled().words((-0.5,))) == 0 and again(pair(torch)) == 0
    one, other = (seen.arguments for seen in fake.launches)
    assert [(x, y) for x, y in zip(one, other, strict=True) if x != y] == [
        (struct.pack("<f", -0.5), struct.pack("<f", 2.0))
    ]
    assert again(pair(torch), (1, 2)) and again(pair(torch), ()) and len(fake.launches) == 2


def test_other_alignment_overlaps_and_new_streams_are_left_to_python(fake, torch, again):
    a, c = pair(torch)
    assert again((torch.Tensor(a.pointer + 4, SHAPE), c))
    assert again((a, a))
    assert again((a, torch.Tensor(a.pointer + 4096, SHAPE)))
    torch.streams[0] = 0x5000
    assert again((a, c))
    assert again((a, object()))
    assert fake.launches == []


def test_a_stream_that_the_kernel_was_called_on_is_known(fake, torch):
    a, c = pair(torch)
    kernel = scaled()
    kernel(a, 2.0, c)
    again = kernel.replay((a, 2.0, c), [1])
    torch.streams[0] = 0x5000
    kernel(a, 2.0, c)
    assert again((a, c)) == 0
    assert [seen.stream for seen in fake.launches] == [0, 0x5000, 0x5000]


def test_a_kernel_lives_as_long_as_its_calls(fake, torch):
    """Machine code has addresses of what the kernel holds."""
    a, c = pair(torch)
    kernel = scaled()
    kernel(a, 2.0, c)
    again = kernel.replay((a, 2.0, c), [1])
    (compiled,) = kernel.kept["call"]._kernels.values()
    (program,) = compiled.build.program.programs.values()
    launcher = weakref.ref(program._on(0).launcher)
    del kernel, compiled, program
    gc.collect()
    assert launcher() is not None and again((a, c)) == 0
    del again
    gc.collect()
    assert launcher() is None


def lie(*tensors, grad=True):
    return machine_layout()(tensors, grad)


def test_what_lies_alike_has_one_name(torch):
    a, c = pair(torch)
    there = torch.Tensor(a.pointer + 0x40000, SHAPE)
    assert lie(a) == lie(there) == lie(torch.nn.Parameter(a.pointer, SHAPE))
    assert lie(a, None) == lie(there, None) != lie(a)
    assert lie(a, None, c) != lie(a, c, None)


@pytest.mark.parametrize(
    "other",
    [
        {"shape": (64, 128)},
        {"shape": (128, 64, 1)},
        {"strides": (1, 128)},
        {"dtype": "torch.int32"},
        {"dtype": "torch.float16"},
        {"number": 1},
        {"is_cuda": False},
        {"pointer": 0x100040},
        {"pointer": 0x100004},
    ],
    ids=str,
)
def test_what_lies_otherwise_has_another(torch, other):
    like = {"pointer": 0x100000, "shape": SHAPE}
    assert lie(torch.Tensor(**like)) != lie(torch.Tensor(**like | other))


def test_what_torch_must_look_at_has_none(torch):
    class Derived(torch.Tensor):
        pass

    like = {"pointer": 0x100000, "shape": SHAPE}
    plain = torch.Tensor(**like)
    asking = torch.Tensor(**like, requires_grad=True)
    odd = [{"negated": True}, {"layout": "torch.sparse_coo"}, {"pointer": 0}, {"shape": (1,) * 9}]
    assert [lie(plain, torch.Tensor(**like | other)) for other in odd] == [None] * len(odd)
    assert lie(plain, Derived(**like)) is lie(plain, asking) is lie(plain, 3) is None
    assert lie(*[plain] * 17) is None
    assert lie(plain, asking, grad=False) == lie(plain, plain)
