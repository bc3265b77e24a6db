"""Unaligned arrays, which TMA cannot load: what a call launches, and the array addresses of each launch."""

from __future__ import annotations

import struct
import time
from threading import Thread

import kernels
import pytest
from ptx_code import half_gemm

from tilewave import *
from tilewave.backend.nvidia import make
from tilewave.backend.nvidia.build import build_with, copying_passes
from tilewave.backend.nvidia.code import ALIGNED, Specialization
from tilewave.ir.constraint_locations import Places
from tilewave.machine.chips import SM_90A

OPEN = (kernels.M, kernels.N, kernels.K)
ON_LINES, UNALIGNED_LINES = ALIGNED, Specialization(16)
AT = (0x10000, 0x40000000, 0x80000000)
COPY, BACK = "pack_rows", "unpack_rows"


def compiled(sizes=None):
    m, n, k = sizes or (1, 1, 1)
    subs = kernels.sizes(m, n, k, block_m=128, block_n=256, block_k=64)
    if sizes is None:
        subs = {name: value for name, value in subs.items() if name not in OPEN}
    return wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), half_gemm())


@pytest.fixture
def gemm():
    return compiled()


def tensors(torch, shape, at=AT, strides=(None, None, None)):
    m, n, k = shape
    shapes = ((m, k), (n, k), (m, n))
    given = zip(at, shapes, strides, strict=True)
    return [torch.Tensor(p, s, dtype="torch.float16", strides=stride or ()) for p, s, stride in given]


def functions(fake):
    return [launch.function for launch in fake.launches]


def private(fake):
    """Return the address of the packed copies: no other memory is as large."""
    return max(fake.memory, key=lambda at: len(fake.memory[at].content))


def test_odd_operands_are_copied_and_odd_results_come_back(gemm, fake, torch):
    gemm(*tensors(torch, (4097, 4099, 4101)))
    assert functions(fake) == [COPY, "gemm", BACK]
    memory = private(fake)
    both, product, back = fake.launches
    a, b, c = memory, memory + 4097 * 8320 + 128, memory + (4097 + 4099) * 8320 + 256
    assert both.words[:12] == (AT[0], 4101, 1, a, 4160, 1, AT[1], 4101, 1, b, 4160, 1)
    assert both.words[12:18] == (4097, 4101, 4104, 4099, 4101, 4104)
    assert back.words[:6] == (AT[2], 4099, 1, c, 4160, 1)
    maps = [fake.map_of(x) for x in product.arguments if len(x) == 128]
    assert {m.pointer: (m.sizes, m.strides) for m in maps} == {
        a: ((4101, 4097), (8320,)),
        b: ((4101, 4099), (8320,)),
        c: ((4104, 4097), (8320,)),  # stores are cut off in grains of 16 bytes
    }
    assert gemm.build.program.programs.keys() == {ON_LINES}


def test_what_lies_well_is_not_copied(gemm, fake, torch):
    gemm(*tensors(torch, (2048, 2056, 2051)))
    assert functions(fake) == [COPY, "gemm"]
    fake.launches.clear()
    gemm(*tensors(torch, (2047, 2049, 2048)))
    assert functions(fake) == ["gemm", BACK]
    fake.launches.clear()
    gemm(*tensors(torch, (2047, 2056, 2051), strides=((2064, 1), None, None)))
    assert functions(fake) == [COPY, "gemm"], "a's own rows begin on 16 bytes"
    assert set(gemm.build.program.programs) == {ON_LINES, UNALIGNED_LINES}, "and they decide which code is taken"


def test_an_address_alone_is_reason_enough(gemm, fake, torch):
    gemm(*tensors(torch, (2048, 2048, 2048), at=(AT[0] + 2, AT[1], AT[2])))
    assert functions(fake) == [COPY, "gemm"]
    assert fake.launches[0].words[0] == AT[0] + 2


@pytest.mark.parametrize(
    ("shape", "copied"),
    [((128, 255, 439), False), ((128, 255, 639), True), ((4097, 33, 15), False), ((4, 9001, 4101), False)],
)
def test_small_products_keep_their_lanes(gemm, fake, torch, shape, copied):
    gemm(*tensors(torch, shape))
    assert (COPY in functions(fake)) == copied
    assert ("contiguous rows" in gemm.binaries) == (not copied)


def test_classes_may_change_from_call_to_call(gemm, fake, torch):
    shapes = [
        (2047, 2049, 2051),
        (2048, 2048, 2048),
        (2047, 2049, 2051),
        (65, 33, 17),
        (2047, 2049, 2051),
        (2000, 1000, 1000),
    ]
    for shape in shapes:
        gemm(*tensors(torch, shape))
    odd = [COPY, "gemm", BACK]
    assert functions(fake) == [*odd, "gemm", *odd, "gemm", *odd, "gemm"]
    assert len(gemm.binaries) == 3, "the ordinary ones"


def test_calls_that_lie_alike_are_prepared_once(gemm, fake, torch):
    gemm(*tensors(torch, (2047, 2049, 2051)))
    had = len(fake.memory)
    for far in (0, 1 << 12, 3 << 12):
        fake.launches.clear()
        at = tuple(p + far for p in AT)
        gemm(*tensors(torch, (2047, 2049, 2051), at=at))
        both, _, back = fake.launches
        assert (both.words[0], both.words[6], back.words[0]) == at
    assert len(fake.memory) == had


@pytest.mark.parametrize("behind", [2, 6, 14])
def test_the_way_back_is_told_where_chunks_begin(gemm, fake, torch, behind):
    gemm(*tensors(torch, (2047, 2049, 2051), at=(*AT[:2], AT[2] + 32 + behind)))
    *_, begin, apart = fake.launches[-1].words[6:10]
    assert (begin, apart) == (behind // 2, 2049 % 8)


def test_private_memory_grows_and_is_shared_by_a_stream(gemm, fake, torch):
    gemm(*tensors(torch, (2047, 2049, 2051)))
    first = private(fake)
    gemm(*tensors(torch, (1025, 1027, 1029)))
    assert private(fake) == first and fake.launches[-1].words[3] > first
    gemm(*tensors(torch, (2500, 2501, 2503)))
    assert private(fake) != first


def test_other_streams_and_graphs_have_memory_of_their_own(gemm, fake, torch):
    shape = (2047, 2049, 2051)
    gemm(*tensors(torch, shape))
    torch.streams[0] = 0x77
    gemm(*tensors(torch, shape))
    for recording in (1, 1, 2):
        fake.capturing = {0x77: recording}
        gemm(*tensors(torch, shape))
    legacy, stream, *recorded = (x.words[3] for x in fake.launches if x.function == COPY)
    assert recorded[0] == recorded[1] and len({legacy, stream, *recorded}) == 4
    assert fake.capture_mode == 0, "memory was had beside the graph"


def test_what_is_prepared_loads_nothing_later(gemm, fake, torch):
    given = tensors(torch, (2047, 2049, 2051))
    gemm.build.prepare(given, gemm.sizes.of_call(given, {}).parameters)
    loaded = fake.calls.count("cuModuleLoadDataEx")
    gemm(*given)
    assert functions(fake) == [COPY, "gemm", BACK] and fake.calls.count("cuModuleLoadDataEx") == loaded == 3


def launched(fake):
    """Return the addresses of the first packed copy of each call."""
    return [x.words[3] for x in fake.launches if x.function == COPY]


def test_kernels_share_the_private_memory_of_a_stream(fake, torch):
    shape = (2047, 2049, 2051)
    for made in (compiled(), compiled(shape), compiled()):
        made(*tensors(torch, shape))
    assert len({*launched(fake)}) == 1
    assert [loaded.name for loaded in fake.functions.values()].count(COPY) == 1, "and its copies, loaded once"


def test_kernels_that_a_graph_records_share_its_memory(fake, torch):
    kernels_ = [compiled() for _ in range(3)]
    torch.streams[0] = 0x77
    for made in kernels_:
        made(*tensors(torch, (2047, 2049, 2051)))
    fake.launches.clear()
    fake.capturing = {0x77: 1}
    for made in kernels_:
        made(*tensors(torch, (2047, 2049, 2051)))
    kernels_[0](*tensors(torch, (2500, 2501, 2503)))
    kernels_[1](*tensors(torch, (1025, 1027, 1029)))
    first, second, third, large, small = launched(fake)
    assert first == second == third and large == small != first, "the piece that fits serves what follows"


def test_launches_of_a_call_stay_together_on_a_stream_of_several_threads(fake, torch):
    shape = (2047, 2049, 2051)
    kernels_ = [compiled(), compiled()]
    for made in kernels_:
        made(*tensors(torch, shape))
    fake.launches.clear()
    launch = fake.do_cuLaunchKernelEx

    def slowly(*arguments):
        launch(*arguments)
        time.sleep(0.001)

    fake.do_cuLaunchKernelEx = slowly
    threads = [Thread(target=lambda made=made: [made(*given) for _ in range(10)]) for made in kernels_]
    given = tensors(torch, shape)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert functions(fake) == [COPY, "gemm", BACK] * 20


def test_sizes_that_are_known_are_repacked_too(fake, torch):
    shape = (2047, 2049, 2051)
    made = compiled(shape)
    assert "global, pad(61)>" in str(made.build.lanes)
    made(*tensors(torch, shape))
    assert functions(fake) == [COPY, "gemm"], "lanes store odd rows themselves"
    padded = [(2112, 1), (2112, 1), None]
    fake.launches.clear()
    made(*tensors(torch, shape, strides=padded))
    assert functions(fake) == ["gemm"]


def test_known_sizes_that_are_small_keep_their_lanes(fake, torch):
    made = compiled((100, 101, 103))
    made(*tensors(torch, (100, 101, 103)))
    assert functions(fake) == ["gemm"] and "global, pad(" not in str(made.build.lanes)


def test_why_tells_what_is_copied(gemm, fake, torch):
    told = gemm.why(*tensors(torch, (2047, 2049, 2051)))
    apart = "has rows 4102 bytes apart, and TMA needs a multiple of 16"
    stored = "has rows of 4098 bytes, and TMA stores need a multiple of 16"
    assert [row.what for row in told if row.step == "call"] == [
        f"a {apart}, so it is copied into rows of 4224 bytes before each launch",
        f"b {apart}, so it is copied into rows of 4224 bytes before each launch",
        f"c {stored}, so it is copied back from rows of 4224 bytes after each launch",
    ]


def test_weights_are_prepacked_once(gemm, fake, torch, monkeypatch):
    a, b, c = tensors(torch, (2047, 2056, 2051))
    made = []

    def new_empty(tensor, shape):
        made.append(shape)
        return Rows(torch.Tensor(0xC0000000, shape, dtype=tensor.dtype))

    class Rows:
        """What torch calls a view, and copies into."""

        def __init__(self, whole):
            self.whole = whole

        def __getitem__(self, where):
            assert where[0] is Ellipsis
            rows, _ = self.whole.shape
            return Rows(torch.Tensor(0xC0000000, (rows, where[1].stop), dtype=b.dtype, strides=self.whole.strides))

        def copy_(self, tensor):
            assert tensor is b
            return self

        def permute(self, *order):
            assert order == (0, 1)
            return self.whole

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty, raising=False)
    monkeypatch.setattr(torch.Tensor, "detach", lambda tensor: tensor, raising=False)
    monkeypatch.setattr(torch.Tensor, "permute", lambda tensor, *order: tensor, raising=False)
    packed = gemm.prepack(b)
    assert made == [(2056, 2112)] and packed.strides == (2112, 1)
    gemm(a, packed, c)
    assert functions(fake) == [COPY, "gemm"]
    assert AT[0] in fake.launches[0].words and AT[1] not in fake.launches[0].words
    well = tensors(torch, (2048, 2048, 2048))[1]
    assert gemm.prepack(packed) is packed and gemm.prepack(well) is well


def test_passes_of_ones_own_repack_too(fake, torch):
    shape = (2047, 2049, 2051)
    made = compiled(shape)
    passes = copying_passes(SM_90A, Places())
    own = build_with(made.kernel, SM_90A, passes)
    own.run(tensors(torch, shape), (), made.parameters)
    assert functions(fake) == [COPY, "gemm"]


@pytest.mark.parametrize("sizes", [None, (2047, 2049, 2051)])
def test_a_saved_kernel_brings_its_copies(fake, torch, tmp_path, monkeypatch, sizes):
    made, shape = compiled(sizes), (2047, 2049, 2051)
    made.save(tmp_path / "gemm.tw")
    made(*tensors(torch, shape))
    wanted = [(x.function, x.grid, len(x.arguments)) for x in fake.launches]
    fake.launches.clear()
    monkeypatch.setattr(make, "compiler", None)
    loaded = load(tmp_path / "gemm.tw")
    loaded(*tensors(torch, shape))
    assert [(x.function, x.grid, len(x.arguments)) for x in fake.launches] == wanted


def test_sizes_decide_anew_where_arrays_lie_alike(gemm, fake, torch):
    """All rows are odd: what was prepared for large arrays serves small ones too, and the other way round."""
    for size in (101, 2049, 103, 2051, 105):
        fake.launches.clear()
        gemm(*tensors(torch, (size, size, size)))
        assert (COPY in functions(fake)) == (size > 2000)


def test_numbers_of_a_call_reach_a_repacked_product(fake, torch):
    made = wave_compile(WaveCompileOptions(target="sm_90a"), scaled)
    arrays = tensors(torch, (2047, 2049, 2051))
    for alpha in (0.5, 0.5, 2.0, 0.25):
        fake.launches.clear()
        made(*arrays, alpha)
        assert functions(fake) == [COPY, "scaled", BACK]
        assert float32(alpha) in fake.launches[1].words


def float32(number):
    return int.from_bytes(struct.pack("<f", number), "little")


M, N, K = kernels.M, kernels.N, kernels.K


@wave([WorkgroupConstraint(M, 128, 0), WorkgroupConstraint(N, 128, 1), TilingConstraint(K, 64)])
def scaled(
    a: Memory[M, K, SHARED_ADDRESS_SPACE, f16],
    b: Memory[N, K, SHARED_ADDRESS_SPACE, f16],
    c: Memory[M, N, GLOBAL_ADDRESS_SPACE, f16],
    alpha: f32,
):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(cast(total * alpha, f16), c)
