"""Arrays that a kernel has seen are not checked again, as long as nothing that decides has changed."""

import threading

import numpy as np
import pytest
from kernels import G, M, N, compiled

from tilewave import *
from tilewave.errors import CallError

SHAPE = (20, 30)


@wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)])
def copy(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
    write(read(a), c)


@wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)])
def shifted(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32], by: f32):
    write(read(a) + by, c)


@pytest.fixture
def kernel():
    return compiled(copy, target="cpu", subs={M: SHAPE[0], N: SHAPE[1]})


@pytest.fixture
def seen(kernel):
    """Arrays that the kernel was called with twice."""
    a, c = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32), np.zeros(SHAPE, np.float32)
    for _ in range(2):
        kernel(a, c)
        assert np.array_equal(a, c)
        c.fill(0)
    return a, c


def refused(kernel, what, *arrays):
    before = [np.array(x) for x in arrays]
    with pytest.raises(CallError, match=what):
        kernel(*arrays)
    assert all(np.array_equal(x, y) for x, y in zip(before, arrays, strict=True))


def test_what_is_seen_again_is_checked_once(kernel, seen, monkeypatch):
    def looked_again(*_):
        raise AssertionError("it was looked at again")

    monkeypatch.setattr("tilewave.backend.cpu.build.check_host_call", looked_again)
    a, c = seen
    a += 1
    kernel(a, c)
    assert np.array_equal(a, c)


def test_an_output_that_became_read_only_is_refused(kernel, seen):
    a, c = seen
    c.flags.writeable = False
    refused(kernel, "c is read-only", a, c)
    c.flags.writeable = True
    kernel(a, c)
    assert np.array_equal(a, c)


def test_an_input_may_become_read_only(kernel, seen):
    a, c = seen
    a.flags.writeable = False
    kernel(a, c)
    assert np.array_equal(a, c)


def test_an_array_of_another_shape_or_dtype_since_then_is_refused(kernel, seen):
    a, c = seen
    a.shape = SHAPE[::-1]
    refused(kernel, "a is 30x20, but the kernel was compiled for 20x30", a, c)
    a.shape = SHAPE
    c.dtype = np.int32
    refused(kernel, "c is i32, but the kernel writes f32", a, c)


def test_an_array_that_moved_is_found(kernel):
    a, c = np.ones(SHAPE, np.float32), np.zeros(SHAPE, np.float32)
    kernel(a, c)
    c.resize((20, 3000), refcheck=False)
    refused(kernel, "c is 20x3000", a, c)
    c.resize(SHAPE, refcheck=False)
    c.fill(0)
    kernel(a, c)
    assert (c == 1).all()


def test_other_strides_at_the_same_address_are_seen(kernel, seen):
    a, _ = seen
    memory = np.zeros((20, 60), np.float32)
    c = memory.reshape(-1)[: 20 * 30].reshape(SHAPE)
    kernel(a, c)
    assert np.array_equal(c, a)
    memory.fill(0)
    kernel(a, memory[:, ::2])
    assert np.array_equal(memory[:, ::2], a) and not memory[:, 1::2].any()


def test_arrays_that_meet_are_refused_though_each_was_seen(kernel):
    memory = np.zeros(2 * 20 * 30, np.float32)
    first, second = memory[:600].reshape(SHAPE), memory[600:].reshape(SHAPE)
    kernel(first, second)
    refused(kernel, "c overlaps a", first, first)
    refused(kernel, "c overlaps a", memory[300:900].reshape(SHAPE), second)


def test_the_addresses_of_two_shapes_do_not_stand_for_each_other():
    memory = np.zeros(4000, np.float32)
    for shape in ((20, 30), (40, 30), (20, 30)):
        n = shape[0] * shape[1]
        a, c = memory[:n].reshape(shape), memory[2000 : 2000 + n].reshape(shape)
        a[:] = np.arange(n).reshape(shape)
        c.fill(-1)
        copy(a, c)
        assert np.array_equal(a, c)


def test_numbers_come_to_their_own_call(monkeypatch):
    kernel = compiled(shifted, target="cpu", subs={M: SHAPE[0], N: SHAPE[1]})
    sets = [(np.full(SHAPE, i, np.float32), np.empty(SHAPE, np.float32)) for i in range(3)]
    for by in (0.0, 1.0, 1.0, -2.0):
        for i, (a, c) in enumerate(sets):
            kernel(a, c, by)
            assert (c == i + by).all()


def test_threads_that_call_one_kernel_get_their_own_results(kernel):
    wrong = []

    def calls(number):
        a, c = np.full(SHAPE, number, np.float32), np.empty(SHAPE, np.float32)
        for _ in range(300):
            c.fill(-1)
            kernel(a, c)
            if not (c == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=calls, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_many_sets_of_arrays_in_turn_stay_right_and_are_forgotten(kernel, monkeypatch):
    monkeypatch.setattr("tilewave.backend.cpu.build.KEPT_CALLS", 5)
    sets = [(np.full(SHAPE, i, np.float32), np.empty(SHAPE, np.float32)) for i in range(12)]
    for _ in range(2):
        for i, (a, c) in enumerate(sets):
            c.fill(-1)
            kernel(a, c)
            assert (c == i).all()
    assert len(kernel.build.known) <= 5


def test_another_number_is_no_other_size():
    """What the launch computes of open sizes is computed once for all numbers of the call."""
    sets = [(np.full((m, 30), m, np.float32), np.empty((m, 30), np.float32)) for m in (20, 33)]
    for by in (0.0, 1.0, -2.0):
        for a, c in sets:
            shifted(a, c, by)
            assert (c == a + by).all()
    (made,) = shifted.kept["call"]._kernels.values()
    assert len(made.build.program._opening._kept) == 2


def test_where_arrays_are_is_all_that_later_calls_ask(monkeypatch):
    kernel = wave(shifted.constraints)(shifted.function)
    a, c = np.ones(SHAPE, np.float32), np.empty(SHAPE, np.float32)
    kernel(a, c, 1.0)

    def looked_again(*_):
        raise AssertionError("it was looked at again")

    monkeypatch.setattr("tilewave.call.place_of", looked_again)
    kernel(a, by=2.0, c=c)
    assert (c == 3).all()
    wide = np.ones((5, 7), np.float32), np.empty((5, 7), np.float32)
    kernel(*wide, 4.0)
    assert (wide[1] == 5).all()
    with pytest.raises(CallError, match="M is 20 by a, but 5 by c"):
        kernel(a, wide[1], 1.0)


# -- replayed launches, for arrays of the same layout


def arrays(count=2):
    return [np.random.default_rng(i).standard_normal(SHAPE).astype(np.float32) for i in range(count)]


def test_a_call_is_made_again_with_other_arrays_and_numbers():
    a, c = arrays()
    shifted(a, c, 0.5)
    again = shifted.replay((a, c, 0.5), [1])
    there, to = a * 2, np.empty_like(c)
    assert again((there, to)) == 0
    assert np.array_equal(to, there + np.float32(0.5))
    assert again((a, to), shifted.words((-2.0,))) == 0
    assert np.array_equal(to, a - np.float32(2.0))
    assert again((a, to)) == 0
    assert np.array_equal(to, a + np.float32(0.5))


def test_what_a_call_writes_is_written_unseen_where_it_is_nobody_elses_or_apart_from_all():
    a, c = arrays()
    shifted(a, c, 0.5)
    memory = np.zeros(3 * a.size, np.float32)
    from_, to = (memory[start : start + a.size].reshape(SHAPE) for start in (0, a.size))
    from_[...] = a
    for fresh in ([], [0]):
        again = shifted.replay((a, c, 0.5), fresh)
        assert again((from_, to)) == 0 and np.array_equal(to, a + np.float32(0.5))
    near = memory[a.size - 1 : 2 * a.size - 1].reshape(SHAPE)
    before = memory.copy()
    assert shifted.replay((a, c, 0.5), [])((from_, near)) == 1, "one element is in both"
    assert np.array_equal(memory, before)
    assert shifted.replay((a, c, 0.5), [1])((a, c)) == 0


def test_a_number_that_is_none_is_told_for_a_call_again():
    with pytest.raises(CallError, match=r"by is 3 \(int\), but the kernel takes a float"):
        shifted.words((3,))


def test_a_number_that_decides_what_is_read_is_looked_at_again():
    column = sym.COLUMN
    first, second = (IndexMapping.iterator(i) for i in range(2))
    moved = IndexMapping(2, inputs={M: first, N: second + column}, outputs={M: first, N: second})

    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)])
    def copied(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32], by: i32):
        set_symbol(column, by)
        write(read(a, mapping=moved), c)

    a, c = arrays()
    copied(a, c, 1)
    again = copied.replay((a, c, 1), [1])
    c.fill(7)
    assert again((a, c), copied.words((100,))) == 0 and not c.any()  # wholly outside: zeros
    assert again((a, c), copied.words((1,))) == 0 and np.array_equal(c[:, 0], a[:, 1])
