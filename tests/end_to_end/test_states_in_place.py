"""States that a kernel updates in place, at rows that an array of unique slots names: caches of recurrent layers."""

import numpy as np
import pytest

import tilewave
from tilewave import *
from tilewave.errors import AccessError, CoverageError

pytestmark = pytest.mark.share(4)
G = GLOBAL_ADDRESS_SPACE
B, S, H, D, E, T, K = sym.B, sym.S, sym.H, sym.D, sym.E, sym.T, sym.K
TARGETS = ("numpy", "cpu", "gfx942", "gfx950", "sm_90a")
Slots = Memory[B, G, i32, Indices(unique=True)]
BY_SLOT = [WorkgroupConstraint(B, 1, 0), WorkgroupConstraint(D, 64, 1)]


def run(kernel, target, subs, *arrays):
    """Run a kernel for a target in every way there is here; all must give the same."""
    made = kernel.compile(target="cpu" if target == "numpy" else target, subs=subs)
    ways = [made.interpret]
    if target == "cpu":
        ways.append(made)
    if made.build.lanes:
        ways += [lambda *a, s=s: made.interpret(*a, level="lane", order="random", seed=s) for s in (0, 1)]
    if made.build.emulated:
        ways.append(lambda *a: made.emulate(*a, order="random", seed=1))
    results = []
    for way in ways:
        results.append([a.copy() for a in arrays])
        way(*results[-1])
    for found in results[1:]:
        for x, wanted in zip(found, results[0], strict=True):
            np.testing.assert_array_equal(x, wanted)
    return results[0], made


def slots_of(count, end):
    found = np.random.default_rng(0).permutation(end)[:count].astype(np.int32)
    found[1::4] = -1
    found[2] = end + 3  # no place, either
    return found


def numbers(rng, *shape):
    return rng.integers(-4, 5, shape).astype(np.float32)


open_and_known = pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])


@open_and_known
@pytest.mark.parametrize("target", TARGETS)
def test_a_row_is_read_changed_and_written(target, is_open):
    @wave(BY_SLOT)
    def update(slots: Slots, x: Memory[B, D, G, f32], state: Memory[S, D, G, f32], y: Memory[B, D, G, f32]):
        slot = read(slots, at={B: first_index(B)})
        new = read(state, at={S: slot}) * 0.5 + read(x)
        write(new, state, at={S: slot})
        write(new * 2.0, y)

    rng = np.random.default_rng(1)
    slots, x, state = slots_of(7, 12), numbers(rng, 7, 72), numbers(rng, 12, 72)
    found, made = run(update, target, {} if is_open else {B: 7, S: 12, D: 72}, slots, x, state, np.zeros_like(x))
    inside = (slots >= 0) & (slots < 12)
    new = np.where(inside[:, None], state[np.where(inside, slots, 0)], 0) * 0.5 + x
    np.testing.assert_array_equal(found[3], new * 2)
    state[slots[inside]] = new[inside]
    np.testing.assert_array_equal(found[2], state)
    assert "by the contract of slots" in str(made.proof)


@open_and_known
@pytest.mark.parametrize("target", TARGETS)
def test_a_window_of_a_state_is_carried_through_tokens(target, is_open):
    """As in a selective state space: h = a h + x bᵀ, y = h c, for the tokens of a sequence."""

    @wave([WorkgroupConstraint(B, 1, 0), WorkgroupConstraint(H, 1, 1), TilingConstraint(T, 1)])
    def scanned(
        slots: Slots,
        x: Memory[B, T, H, D, G, f32],
        keys: Memory[B, T, H, E, G, f32],
        state: Memory[S, H, D, E, G, f32],
        y: Memory[B, T, H, D, G, f32],
    ):
        slot = read(slots, at={B: first_index(B)})
        one = {B: first_index(B), H: first_index(H)}

        @iterate(T, init_args=[read(state, at={S: slot, H: one[H]})])
        def last(h):
            at = {**one, T: first_index(T)}
            key = read(keys, at=at)
            new = h * 0.5 + read(x, at=at) * key
            write(tilewave.sum(new * key, dim=E), y, at=at)
            return new

        write(last, state, at={S: slot, H: one[H]})

    rng = np.random.default_rng(2)
    slots, state = slots_of(5, 8), numbers(rng, 8, 2, 16, 8)
    x, keys, y = numbers(rng, 5, 3, 2, 16), numbers(rng, 5, 3, 2, 8), np.zeros((5, 3, 2, 16), np.float32)
    sizes = {D: 16, E: 8} if is_open else {B: 5, S: 8, H: 2, T: 3, D: 16, E: 8}
    found, _ = run(scanned, target, sizes, slots, x, keys, state, y)
    for b, slot in enumerate(slots):
        h = state[slot] if 0 <= slot < 8 else np.zeros((2, 16, 8), np.float32)
        for t in range(3):
            h = h * 0.5 + x[b, t, :, :, None] * keys[b, t, :, None, :]
            np.testing.assert_array_equal(found[4][b, t], (h * keys[b, t, :, None, :]).sum(axis=-1))
        if 0 <= slot < 8:
            state[slot] = h
    np.testing.assert_array_equal(found[3], state)


@pytest.mark.parametrize("target", TARGETS)
def test_a_state_is_written_and_read_again_in_each_step(target):
    """What a step stores, the next one loads: by the same workgroup, and maybe by other lanes."""

    @wave(
        [
            WorkgroupConstraint(B, 1, 0),
            WorkgroupConstraint(D, 64, 1),
            WorkgroupConstraint(E, 64, 2),
            TilingConstraint(T, 1),
        ]
    )
    def steps(slots: Slots, x: Memory[B, T, D, E, G, f32], state: Memory[S, D, E, G, f32]):
        slot = read(slots, at={B: first_index(B)})

        @iterate(T)
        def step():
            new = read(state, at={S: slot}) * 0.5 + read(x, at={B: first_index(B), T: first_index(T)})
            write(new, state, at={S: slot})

    rng = np.random.default_rng(3)
    slots, x, state = slots_of(4, 6), numbers(rng, 4, 3, 70, 66), numbers(rng, 6, 70, 66)
    found, _ = run(steps, target, {B: 4, S: 6, T: 3, D: 70, E: 66}, slots, x, state)
    for b, slot in enumerate(slots):
        if 0 <= slot < 6:
            for t in range(3):
                state[slot] = state[slot] * 0.5 + x[b, t]
    np.testing.assert_array_equal(found[2], state)


@pytest.mark.parametrize("target", TARGETS)
def test_a_state_is_an_operand_of_products(target):
    """Loaded through shared memory, by TMA on Hopper, and stored from accumulators: a delta rule's chunk."""

    @wave([WorkgroupConstraint(B, 1, 0), WorkgroupConstraint(D, 64, 1), TilingConstraint(T, 16)])
    def chunk(
        slots: Slots,
        values: Memory[B, D, T, G, f16],
        keys: Memory[B, E, T, G, f16],
        queries: Memory[B, K, E, G, f16],
        state: Memory[S, D, E, G, f16],
        y: Memory[B, D, K, G, f32],
    ):
        b = first_index(B)
        slot = read(slots, at={B: b})
        old = read(state, at={S: slot})
        write(mma(old, read(queries, at={B: b}), Register[D, K, f32](0.0)), y, at={B: b})

        @iterate(T, init_args=[cast(old, f32)])
        def total(acc):
            return mma(read(values, at={B: b}), read(keys, at={B: b}), acc)

        write(cast(total, f16), state, at={S: slot})

    rng = np.random.default_rng(4)
    slots, state = slots_of(4, 6), numbers(rng, 6, 70, 32).astype(np.float16)
    values, keys, queries = (numbers(rng, *s).astype(np.float16) for s in ((4, 70, 40), (4, 32, 40), (4, 16, 32)))
    y = np.zeros((4, 70, 16), np.float32)
    sizes = {B: 4, S: 6, D: 70, E: 32, K: 16, T: 40}
    found, _ = run(chunk, target, sizes, slots, values, keys, queries, state, y)
    for b, slot in enumerate(slots):
        old = state[slot].astype(np.float64) if 0 <= slot < 6 else np.zeros((70, 32))
        np.testing.assert_array_equal(found[5][b], old @ queries[b].astype(np.float64).T)
        if 0 <= slot < 6:
            state[slot] = old + values[b].astype(np.float64) @ keys[b].astype(np.float64).T
    np.testing.assert_array_equal(found[4], state)


@open_and_known
@pytest.mark.parametrize("target", TARGETS)
def test_a_state_is_an_operand_in_each_step_of_a_loop_with_loaded_bounds(target, is_open):
    """What lanes store in one step, TMA may load in the next."""

    @wave([WorkgroupConstraint(B, 1, 0), WorkgroupConstraint(D, 64, 1), TilingConstraint(T, 16)])
    def chunks(
        slots: Slots,
        lengths: Memory[B, G, i32],
        values: Memory[B, D, T, G, f16],
        keys: Memory[B, E, T, G, f16],
        queries: Memory[B, T, E, G, f16],
        state: Memory[S, D, E, G, f16],
        y: Memory[B, D, T, G, f32],
    ):
        b = {B: first_index(B)}
        slot = read(slots, at=b)

        @iterate(T, stop=read(lengths, at=b))
        def step():
            old = read(state, at={S: slot})
            write(mma(old, read(queries, at=b), Register[D, T, f32](0.0)), y, at=b)
            new = mma(read(values, at=b), read(keys, at=b), cast(old, f32) * 0.5)
            write(cast(new, f16), state, at={S: slot})

    rng = np.random.default_rng(5)
    slots, lengths = slots_of(4, 6), np.array([48, 33, 48, 17], np.int32)
    state = numbers(rng, 6, 70, 32).astype(np.float16)
    shapes = (4, 70, 48), (4, 32, 48), (4, 48, 32)
    values, keys, queries = (rng.integers(-1, 2, shape).astype(np.float16) for shape in shapes)
    y = np.zeros((4, 70, 48), np.float32)
    sizes = {E: 32} if is_open else {B: 4, S: 6, D: 70, E: 32, T: 48}
    found, _ = run(chunks, target, sizes, slots, lengths, values, keys, queries, state, y)
    for b, slot in enumerate(slots):
        old = state[slot].astype(np.float64) if 0 <= slot < 6 else np.zeros((70, 32))
        for first in range(0, lengths[b], 16):
            part = slice(first, first + 16)
            np.testing.assert_array_equal(found[6][b, :, part], old @ queries[b, part].astype(np.float64).T)
            if 0 <= slot < 6:
                old = old * 0.5 + values[b, :, part].astype(np.float64) @ keys[b, :, part].astype(np.float64).T
        if 0 <= slot < 6:
            state[slot] = old
    np.testing.assert_array_equal(found[5], state)


def refused(body, contract=True):
    """Return the error of a kernel that reads and writes `state` as `body` says."""
    slots_kind = Slots if contract else Memory[B, G, i32]

    @wave(BY_SLOT)
    def update(slots: slots_kind, others: Slots, x: Memory[B, D, G, f32], state: Memory[S, D, G, f32]):
        slot, other = (read(a, at={B: first_index(B)}) for a in (slots, others))
        body(slot, other, x, state)

    with pytest.raises((AccessError, CoverageError)) as error:
        update.compile(target="cpu", subs={B: 7, S: 7, D: 72})
    return str(error.value)


def test_a_state_at_another_slot_is_refused():
    """Another workgroup may write it."""
    said = refused(lambda slot, other, x, state: write(read(state, at={S: other}), state, at={S: slot}))
    assert "update reads state, and writes it at indices, or by atomics" in said
    assert "A state that is updated in place is read and written at one number of the workgroup" in said


def test_a_state_at_a_neighbouring_slot_is_refused():
    said = refused(lambda slot, other, x, state: write(read(state, at={S: slot + 1}), state, at={S: slot}))
    assert "update reads state, and writes it at indices" in said


def test_a_state_without_a_contract_is_refused():
    said = refused(lambda slot, other, x, state: write(read(state, at={S: slot}), state, at={S: slot}), False)
    assert "update writes state at indices from slots, of which two may be equal" in said


def test_two_states_of_which_one_is_read_are_refused():
    def both(slot, other, x, state):
        old = read(state, at={S: slot})
        write(old, state, at={S: slot})
        write(read(x), state, at={S: other})

    assert "update reads state, and writes it at indices" in refused(both)


def test_a_state_of_the_grid_that_is_read_at_a_slot_is_refused():
    @wave(BY_SLOT)
    def shifted(slots: Slots, state: Memory[B, D, G, f32]):
        slot = read(slots, at={B: first_index(B)})
        write(read(state, at={B: slot}), state)

    with pytest.raises(TilewaveError, match="state"):
        shifted.compile(target="cpu", subs={B: 7, D: 72})


def test_the_same_slot_may_be_read_twice():
    @wave(BY_SLOT)
    def update(slots: Slots, state: Memory[S, D, G, f32]):
        def slot():
            return read(slots, at={B: first_index(B)})

        write(read(state, at={S: slot()}) + 1.0, state, at={S: slot()})

    state = np.zeros((9, 72), np.float32)
    update(np.array([3, -1, 8], np.int32), state)
    assert (state.sum(axis=1) == np.array([0, 0, 0, 72, 0, 0, 0, 0, 72])).all()


def test_slots_that_are_not_distinct_are_found():
    @wave(BY_SLOT)
    def update(slots: Slots, state: Memory[S, D, G, f32]):
        slot = read(slots, at={B: first_index(B)})
        write(read(state, at={S: slot}) + 1.0, state, at={S: slot})

    state, slots = np.zeros((9, 72), np.float32), np.array([3, 5, 3], np.int32)
    for call in (update.compile(target="cpu").interpret, lambda *a: update(*a, check=True)):
        with pytest.raises(AccessError, match=r"slots\[0\] and \[2\] are both 3"):
            call(slots, state)
    assert not state.any()
