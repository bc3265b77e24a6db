"""What ops declare about themselves is consistent, the verifier enforces it, and no declaration is safe."""

from dataclasses import dataclass

import pytest

from tilewave.analysis.axes import Axes
from tilewave.analysis.coverage import checked_schedule
from tilewave.analysis.positions import BlockScalars
from tilewave.analysis.reads import judged_schedule
from tilewave.errors import Loc
from tilewave.ir import ops
from tilewave.ir.core import Block, Kernel, Op, Value, field_type, part_names
from tilewave.ir.faults import CannotCompile
from tilewave.ir.rules import GLOBAL, ON_TILES, places
from tilewave.ir.types import F32, INDEX_SCALAR, Memory, Tile, Vector
from tilewave.ir.verify import VerifyError, verify
from tilewave.passes.lanes.slice_epilogue import SliceEpilogue
from tilewave.passes.tile.simplify import simplify

WORDS = sorted(ops.VOCABULARY)
ARRAY = Value("a", Memory((8, 8), F32, "global"))
NUMBER = Value("n", INDEX_SCALAR)


def kernel_of(*body, level="tile"):
    return Kernel("k", Block((ARRAY, NUMBER), body), 1, level, (1,) if level == "lane" else (), 64)


def refused(op):
    with pytest.raises(VerifyError) as raised:
        verify(kernel_of(op))
    assert raised.value.loc == op.loc
    return raised.value.what


@pytest.mark.parametrize("word", WORDS)
def test_what_an_op_says_hangs_together(word):
    cls = ops.VOCABULARY[word]
    assert cls.word() == word and cls.levels
    assert cls.check is not Op.check
    touched = {*cls.reads, *cls.writes, *cls.hands_on}
    assert touched <= {name for name in part_names(cls) if field_type(cls, name) == "Value"}
    if cls.is_pure:
        assert not cls.has_effect and cls.gives
        assert not touched or cls is ops.ReadIndexed, "another memory may change between two reads"
    assert not cls.writes or cls.has_effect


def test_an_op_that_does_not_say_what_it_does_to_a_memory_is_refused():
    @dataclass(frozen=True)
    class Peek(Op):
        levels = ON_TILES

        memory: Value

        def check(self, want):
            pass

    assert refused(Peek(ARRAY)) == ("peek: does not say whether it reads or writes %a, memory<8x8xf32, global>")

    class Look(Peek):
        reads = places(memory=("shared",))

    assert refused(Look(ARRAY)) == "look: memory must be in shared, and %a is memory<8x8xf32, global>"

    class Read(Peek):
        reads = places(memory=GLOBAL)

    verify(kernel_of(Read(ARRAY)))


@pytest.mark.parametrize("axis", [-1, 2])
def test_an_axis_that_is_not_there_is_refused_from_what_the_op_says_of_its_axes(axis):
    @dataclass(frozen=True)
    class SumAlong(ops.Computed):
        levels = ON_TILES

        x: Value
        along: int

        def check(self, want):
            pass

        def corresponding(self):
            return (((self.x, self.along), (self.result, 0)),)

    x = Value("x", Tile((8, 4), F32))
    zero = ops.Const(0.0, results=(x,))
    op = SumAlong(x, axis, results=(Value("y", Tile((4,), F32)),), loc=Loc("<text>", 3))
    with pytest.raises(VerifyError) as raised:
        verify(kernel_of(zero, op))
    assert raised.value.what.startswith(f"sum_along: axis {axis} of %x")
    assert raised.value.loc.line == 3
    verify(kernel_of(zero, SumAlong(x, 1, results=(Value("y", Tile((4,), F32)),))))


def test_a_field_that_the_text_cannot_hold_is_refused():
    @dataclass(frozen=True)
    class Told(Op):
        levels = ON_TILES

        names: dict

        def check(self, want):
            pass

    assert refused(Told({})).startswith("told: names is a dict, and a field holds one of")


def test_an_op_on_no_level_is_refused():
    class Nowhere(Op):
        pass

    assert refused(Nowhere()) == "nowhere: the tile level has no such op"


def test_results_that_an_op_does_not_give_are_refused():
    assert refused(ops.Barrier(results=(Value("x", INDEX_SCALAR),))) == "barrier: has 0 results, not 1"


# -- silence is safe


class Silent(Op):
    levels = ON_TILES
    gives = 1

    def check(self, want):
        pass


def test_what_says_nothing_stays_and_is_not_merged():
    silent = [Silent(results=(Value(name, INDEX_SCALAR),)) for name in "xy"]
    kernel = verify(kernel_of(*silent))
    assert simplify(kernel) == kernel


def test_what_says_nothing_of_its_axes_ties_none():
    silent = Silent(results=(Value("x", Tile((4,), F32)),))
    assert silent.corresponding() is None
    assert Axes([silent]).of(silent.result) == (("x", 0),)


@dataclass(frozen=True)
class Shifted(ops.Unary):
    by: int


def shifted():
    """Return one number, shifted by one and by two."""
    return [Shifted(NUMBER, by, results=(Value(f"by{by}", INDEX_SCALAR),)) for by in (1, 2)]


def test_ops_that_differ_in_an_attribute_alone_are_two():
    positions = BlockScalars(Block((NUMBER,), tuple(shifted())))
    one, two = (positions.formula(op.result) for op in shifted())
    assert one != two
    sums = ops.Add(*(op.result for op in shifted()), results=(Value("z", INDEX_SCALAR),))
    stays = Silent(results=(Value("q", INDEX_SCALAR),))
    loop = ops.Loop(sums.result, (), Block((Value("i", INDEX_SCALAR),), (stays, ops.Yield(()))))
    kernel = simplify(verify(kernel_of(*shifted(), sums, loop)))
    assert [op.by for op in kernel.body.ops if isinstance(op, Shifted)] == [1, 2]


def test_a_part_of_what_is_computed_element_by_element_is_computed_from_parts():
    """An elementwise op with a new attribute is sliced as any other."""
    whole, part = Vector((4, 2), F32), Vector((2, 2), F32)
    x = ops.Const(1.0, results=(Value("x", whole),))
    y = Shifted(x.result, 3, results=(Value("y", whole),))
    z = ops.ExtractSlice(y.result, 0, 2, results=(Value("z", part),))
    zero = ops.Const(0, results=(Value("zero", INDEX_SCALAR),))
    at = (zero.result, zero.result)
    store = ops.Store(z.result, ARRAY, at, (), ((1, 0), (0, 1)))
    cut = SliceEpilogue()(verify(kernel_of(x, y, z, zero, store, level="lane")))
    shapes = [op.result.type.shape for op in verify(cut).body.ops if isinstance(op, Shifted)]
    assert (2, 2) in shapes


@dataclass(frozen=True)
class Poke(Op):
    levels = ON_TILES
    writes = places(memory=GLOBAL)

    memory: Value

    def check(self, want):
        pass


@dataclass(frozen=True)
class Peek(Poke):
    reads, writes = places(memory=GLOBAL), places()


@pytest.mark.parametrize("asked, kind", [(checked_schedule, Poke), (judged_schedule, Poke), (judged_schedule, Peek)])
def test_an_op_that_touches_an_array_nobody_knows_where_is_refused(asked, kind):
    """What workgroups write decides whether tiles are lost, what they read whether they may: such an op is named."""
    kernel = verify(kernel_of(kind(ARRAY, loc=Loc("<text>", 5))))
    with pytest.raises(CannotCompile) as raised:
        asked(kernel, {})
    assert raised.value.what == f"k: it is not known which elements {kind.word()} touches"
    assert raised.value.loc.line == 5
