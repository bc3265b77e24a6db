"""Wave's ops in addition to ours: what they mean, at every level and on every target."""

import numpy as np
import pytest
from kernels import UNIT
from test_vocabulary import everywhere, floats, poisoned, run

import tilewave as tkl
import tilewave as tkw
from tilewave import *
from tilewave.cli.main import main
from tilewave.errors import ConstraintError, CoverageError, DimensionError, SymbolError
from tilewave.lang.wave_words import HINTS

M, N, K, K2, U = sym.M, sym.N, sym.K, sym.K2, sym.U
H_Q, H_KV, BLOCK_K2 = sym.H_Q, sym.H_KV, sym.BLOCK_K2
m, n = sym.m, sym.n
G = GLOBAL_ADDRESS_SPACE
TILED = [WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 16, 1)]


DOUBLE = """
from tilewave import *
M = sym.M

@wave([WorkgroupConstraint(M, 32, 0)])
def double(a: Memory[M, GLOBAL_ADDRESS_SPACE, f32], c: Memory[M, GLOBAL_ADDRESS_SPACE, f32]):
    write(read(a) * 2.0, c)
"""


def rng_integers(*shape):
    """Whole numbers, whose sums are exact."""
    return np.random.default_rng(7).integers(-9, 10, shape).astype(np.float32)


def made(kernel, subs, **options):
    return wave_compile(WaveCompileOptions(subs=subs, target="numpy", **options), kernel)


# -- tags -----------------------------------------------------------------------------------------------------------


def tagged(name):
    """A product whose every word may be tagged, and is where `name` is there."""
    more = {"tag": name} if name else {}
    named = (lambda x: tkw.tag(x, name)) if name else (lambda x: x)

    @tkw.wave([*TILED, tkw.TilingConstraint(K, 16)])
    def product(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, G, f32]):
        begin = tkw.register((M, N), tkl.f32, 0.0, **more)

        @tkw.iterate(K, init_args=[begin], **more)
        def total(acc):
            return tkw.mma(tkw.read(a, **more), tkw.read(b, **more), acc, **more)

        scaled = named(total * 0.5)
        place = tkw.broadcast(tkw.self_index(N, tkl.i32, **more), target_shape=[M, N], **more)
        kept = tkw.select(tkw.apply_expr(place, lambda x: x < N, **more), scaled, tkl.Register[M, N, f32](0.0), **more)
        soft = tkw.exp2(tkw.minimum(tkw.permute(kept, target_shape=[N, M], **more), 1.0, **more), **more)
        write(tkw.cast(tkw.max(tkw.reciprocal(soft, **more), dim=N, **more), f32, **more), c, **more)

    return product


def test_tags_change_nothing():
    plain, named = (made(tagged(name), {M: 40, N: 16, K: 24}) for name in ("", "scores"))
    assert str(plain.kernel) == str(named.kernel)


# -- functions ------------------------------------------------------------------------------------------------------


@everywhere
def test_softsign_and_tanh_approx(way):
    @wave(TILED)
    def capped(x: Memory[M, N, G, f32], c: Memory[M, N, G, f32], d: Memory[M, N, G, f32], e: Memory[M, N, G, f32]):
        write(tkw.softsign(read(x)), c)
        write(tkw.softsign(read(x), logit_cap=8.0, apply_scaling=True, head_dim=64), d)
        write(tkw.tanh_approx(read(x)), e)

    x = floats(50, 41) * 20
    outputs = [poisoned(50, 41) for _ in range(3)]
    run(way, capped, {M: 50, N: 41}, x, *outputs)
    exact = x.astype(float)
    # x, 1 / cap, its product, the sum and the quotient are each rounded once
    for found, cap in zip(outputs[:2], (30.0, 1.0), strict=True):
        np.testing.assert_allclose(found, exact / (1 + np.abs(exact) / cap), rtol=5 * UNIT)
    np.testing.assert_allclose(outputs[2], np.tanh(exact), rtol=6 * UNIT)  # tanh is off by 3 units at most


# -- positions of tiles ------------------------------------------------------------------------------------------------


@everywhere
def test_source_and_target_name_places_by_bound_iterators(way):
    @wave([*TILED, tkw.IteratorBindings({m: M, n: N})])
    def turned(a: Memory[M, N, G, f32], b: Memory[N, G, f32], c: Memory[N, M, G, f32]):
        upside_down = tkw.read(a, source=(M - 1 - m, n), target=(m, n), bounds={})
        tkw.write(upside_down + read(b, source=(n,), target=(n,)), c, source=(m, n), target=(n, m))

    a, b, c = floats(50, 41), floats(41), poisoned(41, 50)
    run(way, turned, {M: 50, N: 41}, a, b, c)
    np.testing.assert_array_equal(c, (a[::-1] + b).T)


def parts(per_part):
    """The largest of each part of every row; the parts are an alias of the rows' length."""

    @wave([
        WorkgroupConstraint(M, 8, 0),
        WorkgroupConstraint(K2, BLOCK_K2, 1),
        tkw.SymbolicAlias(U, K2, lambda x: ceiling(x / per_part)),
    ])  # fmt: skip
    def largest(a: Memory[M, K2, G, f32], c: Memory[M, U, G, f32]):
        write(broadcast(tkw.max(read(a), dim=K2), target_shape=[M, U]), c)

    return largest


@everywhere
@pytest.mark.parametrize("length", [64, 70, 1])
def test_an_alias_is_cut_as_its_target_is(way, length):
    a, c = floats(20, length), poisoned(20, -(-length // 16))
    run(way, parts(16), {M: 20, K2: length, U: -(-length // 16), BLOCK_K2: 16}, a, c)
    padded = np.pad(a, ((0, 0), (0, -length % 16)), constant_values=-np.inf)
    np.testing.assert_array_equal(c, padded.reshape(20, -1, 16).max(2))


def test_an_alias_says_how_long_it_is():
    with pytest.raises(ConstraintError, match="U is 3, but its alias makes 4 of K2"):
        made(parts(16), {M: 20, K2: 64, U: 3, BLOCK_K2: 16})
    with pytest.raises(ConstraintError, match="U is to be cut as K2 is, but K2 is not cut over the grid"):
        made(wave([WorkgroupConstraint(M, 8, 0), TilingConstraint(K2, 16), parts(16).constraints[-1]])(
            parts(16).function), {M: 20, K2: 64, U: 4})  # fmt: skip


def of_its_head(ratio, block):
    """Each query's head times the head of keys that it shares with others: several blocks of queries a head."""

    @wave([
        WorkgroupConstraint(H_KV, 1, 1, apply_fn=lambda wg: wg // (ratio // block), iters=sym.BLOCKS),
        WorkgroupConstraint(H_Q, block, 1, primary=False),
        WorkgroupConstraint(N, 16, 0),
    ])  # fmt: skip
    def scaled(q: Memory[H_Q, N, G, f32], k: Memory[H_KV, N, G, f32], c: Memory[H_Q, N, G, f32]):
        shared = read(k).sum(dim=H_KV)  # of one head
        write(read(q) * shared, c)

    return scaled


@everywhere
def test_blocks_of_queries_find_the_head_that_they_share(way):
    q, k, c = floats(24, 40), floats(3, 40), poisoned(24, 40)
    run(way, of_its_head(8, 4), {H_Q: 24, H_KV: 3, N: 40, sym.BLOCKS: 6}, q, k, c)
    np.testing.assert_array_equal(c, q * np.repeat(k, 8, axis=0))


def test_too_few_blocks_lose_tiles_and_are_refused():
    with pytest.raises(CoverageError, match="is computed by none"):
        made(of_its_head(8, 4), {H_Q: 24, H_KV: 3, N: 40, sym.BLOCKS: 5})


# -- memories -------------------------------------------------------------------------------------------------------


def copied(*shape):
    @wave(TILED)
    def copied(a: Memory[M, N, G, f32, tkl.MemoryLayout(shape=shape)], c: Memory[M, N, G, f32]):
        write(read(a), c)

    return copied


@pytest.mark.parametrize("shape", [(50, 41), (None, 41), (None, None), (M, N)], ids=str)
def test_a_layout_that_says_what_the_dims_say(shape):
    a, c = floats(50, 41), poisoned(50, 41)
    made(copied(*shape), {M: 50, N: 41}).interpret(a, c)
    np.testing.assert_array_equal(c, a)
    made(copied(*shape), {N: 41}).interpret(a, c)


def test_a_layout_has_a_size_for_each_dim():
    with pytest.raises(DimensionError, match="a: its layout has 1 sizes, and it has 2 dims"):
        made(copied(50), {M: 50, N: 41})


# -- whole kernels --------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("shape", [(3, 256), (2, 100)], ids=str)
def test_a_softmax_as_its_users_type_it(way, shape):
    """A row a wave, with the hardware's shapes of vectors and broadcasts that are not needed here."""
    space = tkl.sym.ADDRESS_SPACE
    one_row = [
        tkw.HardwareConstraint(threads_per_wave=64, vector_shapes={M: 1, N: N}),
        tkw.WorkgroupConstraint(M, 1, 1),
        tkw.WaveConstraint(M, 1),
    ]

    @tkw.wave(one_row)
    def softmax(a: tkl.Memory[M, N, space, tkl.f32], b: tkl.Memory[M, N, space, tkl.f32]):
        row = tkw.read(a)
        row -= tkw.broadcast(tkw.max(row, dim=N), [M, N])
        row = tkw.exp(row)
        total = tkw.broadcast(tkw.sum(row, dim=N), [M, N])
        row = row / total
        tkw.write(row, b)

    a, b = floats(*shape), poisoned(*shape)
    run(way, softmax, {M: shape[0], N: shape[1], space: GLOBAL_ADDRESS_SPACE}, a, b)
    weights = np.exp(a.astype(float) - a.max(1, keepdims=True))
    # the difference and exp of it, off by 4 units at most on any target; a sum that is 9 additions deep; a quotient
    np.testing.assert_allclose(b, weights / weights.sum(1, keepdims=True), rtol=(2 * (8 + 16) + 9 + 1) * UNIT)


@everywhere
def test_attention_with_tags_a_window_and_heads_within_a_row(way):
    """Queries as [B, M, H, K1], scaled before the product, with heads that share keys; every step is tagged."""
    heads, kv = tkl.sym.H, tkl.sym.H_KV
    a, b, c, d = (tkw.IndexMapping.iterator(at) for at in range(4))

    def places(*pairs, of=None):
        named = dict(pairs)
        return tkw.IndexMapping(num_iterators=4, inputs={**named, **(of or {})}, outputs=named)

    batch = tkl.sym.B
    q_places = places((batch, a), (heads, b), (M, c), (K, d))
    k_places = places((batch, a), (kv, b), (K2, c), (K, d), of={kv: b // 2})
    v_places = places((batch, a), (kv, b), (N, c), (K2, d), of={kv: b // 2})
    c_places = tkw.IndexMapping(4, inputs={batch: a, heads: b, N: c, M: d}, outputs={batch: a, M: d, heads: b, N: c})
    cuts = [
        tkw.WorkgroupConstraint(M, 32, 0),
        tkw.WorkgroupConstraint(N, 16, 1),
        tkw.WorkgroupConstraint(batch, 1, 2),
        tkw.WorkgroupConstraint(heads, 1, 3),
        tkw.WorkgroupConstraint(kv, 1, 3, primary=False),
        tkw.TilingConstraint(K2, 16),
        tkw.WaveConstraint(M, 16),
        tkw.HardwareConstraint(threads_per_wave=64, mma_type=MMAType.F32_16x16x16_F16),
    ]

    @tkw.wave(cuts)
    def attention(
        q: tkl.Memory[batch, M, heads, K, GLOBAL_ADDRESS_SPACE, tkl.f16],
        k: tkl.Memory[batch, K2, kv, K, SHARED_ADDRESS_SPACE, tkl.f16],
        v: tkl.Memory[batch, K2, kv, N, SHARED_ADDRESS_SPACE, tkl.f16],
        o: tkl.Memory[batch, M, heads, N, GLOBAL_ADDRESS_SPACE, tkl.f32],
    ):
        begin = tkl.Register[batch, heads, M, tkl.f32](-1e6), tkl.Register[batch, heads, M, tkl.f32](0.0)
        inside, outside = tkl.Register[M, K2, tkl.f32](0.0), tkl.Register[M, K2, tkl.f32](-1e6)

        @tkw.iterate(K2, init_args=[*begin, tkl.Register[batch, heads, N, M, tkl.f32](0.0)], tag="keys")
        def blocks(old_max, old_sum, acc):
            zero = tkw.register((batch, heads, K2, M), tkl.f32, 0.0, tag="scores_begin")
            rows = tkw.tag(
                tkw.read(q, mapping=q_places, tag="q") * tkl.Register[batch, heads, M, K, f16](0.25), "scaled"
            )
            scores = tkw.mma(tkw.read(k, mapping=k_places, tag="k"), rows, zero, tag="scores")
            x = tkw.permute(scores, target_shape=[batch, heads, M, K2], tag="turned")
            key = tkw.self_index(K2, tkl.i32, tag="key")
            mask = tkw.broadcast(tkw.apply_expr(key, lambda n: n < K2, tag="end"), target_shape=[M, K2], tag="wide")
            row = tkw.broadcast(tkw.self_index(M, tkl.i32, tag="row"), target_shape=[M, K2], tag="wide")
            mask = tkw.tag((row >= key) & mask, "causal")
            mask = (row - key <= tkl.Register[M, K2, tkl.i32](5)) & mask
            x = x + tkw.select(tkw.cast(mask, tkw.i1, tag="truth"), inside, outside, tag="bias")
            new_max = tkw.max(x, old_max, dim=K2, tag="max")
            shrink, p = tkw.exp2(old_max - new_max, tag="shrink"), tkw.exp2(x - new_max, tag="p")
            new_sum = tkw.sum(p, old_sum * shrink, dim=K2, tag="sum")
            values = tkw.read(v, mapping=v_places, tag="v")
            return new_max, new_sum, tkw.mma(values, tkw.cast(p, tkl.f16, tag="p16"), acc * shrink, tag="o")

        _, total, weighted = blocks
        tkw.write(weighted * tkw.reciprocal(total, tag="last"), o, mapping=c_places, tag="out")

    sizes = {batch: 1, M: 40, heads: 4, kv: 2, K: 16, K2: 40, N: 16}
    q, k, v = floats(1, 40, 4, 16).astype(np.float16), *(floats(1, 40, 2, 16).astype(np.float16) for _ in range(2))
    o = poisoned(1, 40, 4, 16)
    run(way, attention, sizes, q, k, v, o)
    wide_k, wide_v = (np.repeat(x.astype(float), 2, axis=2) for x in (k, v))
    scores = np.einsum("bmhk,bnhk->bhmn", q.astype(float) * 0.25, wide_k)
    apart = np.arange(40)[:, None] - np.arange(40)
    hidden = (apart < 0) | (apart > 5)
    weights = np.exp2(np.where(hidden, -np.inf, scores - scores.max(-1, keepdims=True)))
    weights /= weights.sum(-1, keepdims=True)
    # p is rounded to f16, by half of its least number at least; scores are sums of 16 products below 2^6 in f32
    largest = np.abs(wide_v).max()
    bound = (
        np.einsum("bhmn,bnhd->bmhd", weights, np.abs(wide_v)) * (2.0**-11 + 17 * 2**6 * UNIT) + 6 * 2.0**-25 * largest
    )
    assert (np.abs(o - np.einsum("bhmn,bnhd->bmhd", weights, wide_v)) <= bound).all()


@everywhere
def test_a_tile_may_lack_dims_of_one_element(way):
    """A part of a sum for each workgroup: what it writes has one element along U, and does not name it."""
    batch = tkl.sym.B

    @tkw.wave([
        tkw.WorkgroupConstraint(M, 32, 0),
        tkw.WorkgroupConstraint(K2, BLOCK_K2, 1),
        tkw.WorkgroupConstraint(batch, 1, 2),
        tkw.SymbolicAlias(U, K2, lambda x: ceiling(x / BLOCK_K2)),
    ])  # fmt: skip
    def summed(a: Memory[batch, M, K2, G, f32], c: Memory[U, batch, M, G, f32]):
        tkw.write(tkw.sum(tkw.read(a), dim=K2), c)

    a, c = rng_integers(2, 50, 40), poisoned(3, 2, 50)
    run(way, summed, {batch: 2, M: 50, K2: 40, U: 3, BLOCK_K2: 16}, a, c)
    padded = np.pad(a, ((0, 0), (0, 0), (0, 8))).reshape(2, 50, 3, 16)
    np.testing.assert_array_equal(c, padded.sum(3).transpose(2, 0, 1))


# -- options and names of Wave's --------------------------------------------------------------------------------------


def test_options_that_say_how_wave_compiles_change_nothing_and_why_says_so():
    subs = {M: 40, N: 16, K: 24}
    hints = {"canonicalize": True, "waves_per_eu": 2, "use_scheduling_barriers": True, "print_ir_after": ["all"]}
    plain, hinted = made(tagged(""), subs), made(tagged(""), subs, **hints)
    assert str(plain.kernel) == str(hinted.kernel)
    said = str(hinted.why())
    assert all(f"the option {name} of Wave's has no effect" in said for name in hints)
    assert "of Wave's" not in str(plain.why())


def test_the_remedy_of_an_option_without_effect_fits_it(tmp_path, monkeypatch, capsys):
    """What prints is answered with a command that prints, what is scheduled with what there is to schedule."""
    subs, names = {M: 40, N: 16, K: 24}, ["print_ir_after", "run_bench", "canonicalize", "multi_buffer_count"]
    said = " ".join(str(made(tagged(""), subs, **dict.fromkeys(names, 1)).why()).split())
    printed, timed, simplified, buffered = said.split("of Wave's has no effect")[1:]
    assert "`tilewave diff FILE` prints" in printed and "tilewave bench FILE" in timed
    assert "simplified" in simplified and "tilewave" not in simplified
    assert "num_stages" in buffered
    assert "simplify" in [step.name for step in made(tagged(""), subs).steps]
    WaveCompileOptions(subs=subs, num_stages=2, schedule=SchedulingType.PREFETCH)
    (tmp_path / "double.py").write_text(DOUBLE)
    for command in (
        ["diff", "double.py"],
        ["bench", "double.py", "--sizes", "M=64", "--target", "cpu", "--rounds", "2"],
    ):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["tilewave", *command])
        with pytest.raises(SystemExit) as leave:
            main()
        assert not leave.value.code, capsys.readouterr().err
    assert all(remedy.startswith("leave it out") for remedy in HINTS.values())


def test_hints_are_kept_when_options_are_filled_in():
    options = tkw.set_default_run_config(WaveCompileOptions(subs={}, waves_per_eu=2))
    assert options.without_effect == ("waves_per_eu",) and options.target


def test_names_of_waves_host_code():
    assert tkw.reduction is tkw.iterate
    assert tkl.index_symbol("BLOCK_M") == sym.BLOCK_M
    assert [index_symbol(f"$WG{n}") for n in range(3)] == [WORKGROUP_0, WORKGROUP_1, WORKGROUP_2]
    assert [index_symbol(f"$T{n}") for n in range(3)] == [THREAD_0, THREAD_1, THREAD_2]
    assert isinstance(M, tkl.IndexSymbol) and isinstance(M + 1, tkl.IndexExpr) and isinstance(f16, tkl.DataType)
    assert tkl.AddressSpace.SHARED_MEMORY is SHARED_ADDRESS_SPACE
    HardwareConstraint(mma_type=tkw.ScaledMMAType.F32_16x16x128_F8F6F4)
    with pytest.raises(ConstraintError, match="no MMAType"):
        HardwareConstraint(mma_type="F32_16x16x128_F8F6F4")
    HardwareConstraint(threads_per_wave=64, n_service_waves=2, max_bits_per_load=64)


# -- symbols that Python cannot read ----------------------------------------------------------------------------------


def reordered(*formulas, **given):
    """A copy of an array whose workgroups are reordered."""

    @wave([*TILED, *formulas], **given)
    def copied(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        write(read(a), c)

    return copied


def test_waves_own_symbols_of_workgroups_are_those_here():
    wg0, wg1 = index_symbol("$WG0"), index_symbol("$WG1")
    swapped = reordered(ReorderingConstraint(wg1, 0), ReorderingConstraint(wg0, 1))
    table = made(swapped, {M: 3 * 32, N: 3 * 16}).schedule.table()
    assert table.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    with pytest.raises(SymbolError, match="the order of tiles depends on THREAD_0"):
        made(reordered(ReorderingConstraint(index_symbol("$T0"), 0)), {M: 96, N: 48})


def test_a_symbol_without_a_value_is_named_in_code_that_can_be_typed():
    strange = reordered(ReorderingConstraint(WORKGROUP_0 + index_symbol("$SHIFT"), 0))
    given = 'subs={index_symbol("$SHIFT"): …'
    a, c = rng_integers(96, 48), poisoned(96, 48)
    with pytest.raises(SymbolError, match=r"^\$SHIFT has no value\n") as raised:
        made(strange, {M: 96, N: 48})
    assert given in raised.value.remedy and "dynamic_symbols" not in raised.value.remedy
    with pytest.raises(SymbolError, match=r"\$SHIFT has no value, and no array gives it") as called:
        strange(a, c)
    assert given in called.value.remedy and "test_wave_words.py" in called.value.remedy
    with pytest.raises(SymbolError, match=r"ReorderingConstraint depends on \$SHIFT, which is left dynamic") as left:
        made(strange, {M: 96, N: 48}, dynamic_symbols=[index_symbol("$SHIFT")])
    assert given in left.value.remedy and "sym.SHIFT" in left.value.remedy
    assert "ReorderingConstraint(" in "".join(left.value.loc.excerpt())
    strange(a, c, subs={index_symbol("$SHIFT"): 0})
    np.testing.assert_array_equal(c, a)
    reordered(ReorderingConstraint(WORKGROUP_0 + index_symbol("$SHIFT"), 0), subs={index_symbol("$SHIFT"): 0})(a, c)
    renamed = reordered(ReorderingConstraint(WORKGROUP_0 + sym.SHIFT, 0))
    assert made(renamed, {M: 96, N: 48}, dynamic_symbols=[sym.SHIFT]).schedule_for(SHIFT=0).table()[2, 0] == 2


def test_the_symbol_of_an_address_space_wants_one():
    @wave(TILED)
    def copied(a: Memory[M, N, sym.SPACE, f32], c: Memory[M, N, G, f32]):
        write(read(a), c)

    with pytest.raises(SymbolError, match="a: SPACE is 1, no address space") as raised:
        made(copied, {M: 96, N: 48, sym.SPACE: 1})
    assert "subs={SPACE: SHARED_ADDRESS_SPACE}, or GLOBAL_ADDRESS_SPACE" in raised.value.remedy
    a, c = rng_integers(96, 48), poisoned(96, 48)
    with pytest.raises(SymbolError, match="SPACE is in the place of the address space, and has no value") as called:
        copied(a, c)
    assert "give it a value: subs={SPACE: SHARED_ADDRESS_SPACE, …}" in called.value.remedy
    copied(a, c, subs={sym.SPACE: SHARED_ADDRESS_SPACE})
    np.testing.assert_array_equal(c, a)


@pytest.mark.parametrize("name", ["scatter_add", "gather", "scatter", "rand", "randn", "f6e2m3fn", "sigmoid"])
def test_a_name_that_is_not_there_says_what_to_write(name):
    with pytest.raises(TilewaveError, match=f"tilewave has no {name}\n") as raised:
        getattr(tkw, name)
    assert isinstance(raised.value, AttributeError) and raised.value.remedy
    assert not hasattr(tkw, name)
    with pytest.raises(AttributeError, match="module 'tilewave' has no attribute 'no_such_word'"):
        tkw.no_such_word  # noqa: B018


def test_the_remedies_for_sigmoid_and_topk_work():
    @wave([WorkgroupConstraint(M, 8, 0)])
    def both(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32], second: Memory[M, G, f32]):
        v = read(x)
        write(1 / (1 + exp(-v)), y)
        first = argmax(v, dim=N)
        rest = select(self_index(N, i32) == first, -1e30, v)
        write(rest.max(dim=N), second)

    x = np.random.default_rng(1).standard_normal((11, 13)).astype(np.float32)
    y, second = np.full_like(x, np.nan), np.full(11, np.nan, np.float32)
    both(x, y, second)
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-x.astype(float))), rtol=2**-20)
    np.testing.assert_array_equal(second, np.sort(x, axis=1)[:, -2])


@everywhere
def test_steps_begin_where_the_constraint_says(way):
    """A part of a sum, as Wave's split-K kernels take it: so many steps from an offset on."""
    sizes = {M: 32, N: 16, K: 80}

    @wave([*TILED, TilingConstraint(K, 16, iters=2, start=32)])
    def part(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)

    a, b = rng_integers(32, 80).astype(np.float16), rng_integers(16, 80).astype(np.float16)
    c = poisoned(32, 16)
    run(way, part, sizes, a, b, c)
    np.testing.assert_array_equal(c, a[:, 32:64].astype(float) @ b[:, 32:64].astype(float).T)


def test_an_assumption_made_by_sympy():
    sympy = pytest.importorskip("sympy")
    assert Assumption(sympy.Eq(M, 2 * N)).expr == Assumption(Eq(M, 2 * N)).expr
