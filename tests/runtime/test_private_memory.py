"""Private memory is shared by all calls that run one after another, and by no others."""

import pytest
from fake_cuda import FakeCuda, Gpu

from tilewave.runtime.cuda_driver import CudaDriver
from tilewave.runtime.graph_memory import _semaphores
from tilewave.runtime.private_memory import PrivateMemory


@pytest.fixture
def fake():
    fake = FakeCuda(Gpu(), Gpu())
    yield fake
    assert fake.faults == [] and fake.capture_mode == 0


@pytest.fixture
def memory(fake):
    _semaphores.cache_clear()  # another test's fake library may have none
    return PrivateMemory(CudaDriver(fake))


def sizes(fake):
    return [len(memory.content) for memory in fake.memory.values()]


def test_memory_that_suffices_serves_all_kernels(fake, memory):
    first = memory.at_least(1000, 0, 0x2, "one")
    assert memory.at_least(900, 0, 0x2, "other") == first
    assert memory.at_least(1001, 0, 0x2, "other") != first
    assert sizes(fake) == [1000, 1500]


def test_all_pieces_are_at_most_three_times_the_last(fake, memory):
    for size in range(100, 10000, 37):
        memory.at_least(size, 0, 0x2, "gemm")
    assert sum(sizes(fake)) <= 3 * max(sizes(fake))


def test_devices_and_streams_have_different_memory(fake, memory):
    places = [(0, 0x2), (0, 0x3), (1, 0x2)]
    assert len({memory.at_least(100, *place, "gemm") for place in places}) == 3


def test_graphs_share_memory_with_nothing_else(fake, memory):
    found = [memory.at_least(100, 0, 0x2, "gemm")]
    for recording in (1, 2):
        fake.capturing = {0x2: recording, 0x3: recording}
        found += [memory.at_least(100, 0, stream, "gemm") for stream in (0x2, 0x3)]
    assert len({*found}) == 5


def test_a_graph_takes_memory_that_suffices_and_keeps_it_until_its_end(fake, memory):
    fake.capturing = {0x2: 1}
    small, large = memory.at_least(1000, 0, 0x2, "gemm"), memory.at_least(5000, 0, 0x2, "gemm")
    assert memory.at_least(900, 0, 0x2, "gemm") == large != small
    fake.capturing = {0x2: 2}
    assert memory.at_least(5000, 0, 0x2, "gemm") != large
    fake.destroy_graph(1)
    fake.capturing = {0x2: 3}
    assert memory.at_least(5000, 0, 0x2, "gemm") == large
