"""Patterns of ops: what they find, in which order, and what they leave."""

import pytest

from tilewave.ir.match import ANY, constant, either, made, of_type, source
from tilewave.ir.ops import Add, Broadcast, Cast, Const, Exp, Exp2, Max, Mul, Permute, Reduce, Sub
from tilewave.ir.parse import parse
from tilewave.ir.types import F16, F32, Tile

KERNEL = parse("""
kernel @k {workgroups = 1} (%x: tile<8x8xf32>, %old: tile<8xf32>) {
  %largest = reduce(%x) {axes = [1], how = max} : tile<8xf32>
  %larger = max(%largest, %old) : tile<8xf32>
  %wide = broadcast(%larger) {axes = [0]} : tile<8x8xf32>
  %far = sub(%x, %wide) : tile<8x8xf32>
  %scale = const() {value = 1.5} : tile<8x8xf32>
  %scaled = mul(%far, %scale) : tile<8x8xf32>
  %p = exp2(%scaled) : tile<8x8xf32>
  %square = mul(%far, %far) : tile<8x8xf32>
  %half = const() {value = 0.5} : tile<8xf16>
  %single = cast(%half) : tile<8xf32>
  %halves = broadcast(%single) {axes = [1]} : tile<8x8xf32>
  %turned = permute(%halves) {axes = [1, 0]} : tile<8x8xf32>
}
""")
BY_NAME = {v.name: v for v in (*KERNEL.body.args, *KERNEL.defs)}
FAR = made(Sub, "x", made(Broadcast, "m"))


def found(pattern, name, **known):
    captures = pattern.match(BY_NAME[name], KERNEL.defs, {k: BY_NAME[v] for k, v in known.items()})
    return None if captures is None else {k: v.name for k, v in captures.items()}


def test_a_chain_of_ops_is_one_pattern_and_gives_the_values_names():
    assert found(made(Exp2, made(Mul, FAR, "scale")), "p") == {"x": "x", "m": "larger", "scale": "scale"}


@pytest.mark.parametrize("pattern", [made(Exp, ANY), made(Exp2, FAR), made(Exp2, made(Mul, ANY, FAR))], ids=repr)
def test_another_op_at_any_depth_is_no_match(pattern):
    assert found(pattern, "p") is None


def test_a_match_without_names_is_empty_and_an_argument_is_made_by_nothing():
    assert found(made(Exp2, ANY), "p") == {}
    assert found(made((Exp, Exp2), ANY), "x") is None


def test_one_of_several_classes_is_enough():
    assert found(made((Exp, Exp2), "y"), "p") == {"y": "scaled"}


def test_a_name_that_comes_again_is_the_same_value():
    assert found(made(Mul, "x", "x"), "square") == {"x": "far"}
    assert found(made(Mul, "x", "x"), "scaled") is None


def test_names_may_be_given_before():
    assert found(FAR, "far", m="larger") == {"x": "x", "m": "larger"}
    assert found(FAR, "far", m="old") is None


def test_either_order_is_tried_and_the_written_one_first():
    assert found(either(Max, "a", "b"), "larger") == {"a": "largest", "b": "old"}
    assert found(either(Max, "a", "b"), "larger", a="old") == {"a": "old", "b": "largest"}


def test_what_matches_in_one_order_is_tried_in_the_other_where_the_rest_does_not_match():
    """The first way in which a part matches may not be the one with which the parts after it do."""
    larger = either(Max, "m", ANY)
    assert found(made(Sub, "x", made(Broadcast, larger)), "far") == {"x": "x", "m": "largest"}
    both = made(Mul, made(Sub, ANY, made(Broadcast, larger)), made(Sub, ANY, made(Broadcast, either(Max, ANY, "m"))))
    assert found(both, "square") == {"m": "largest"}
    other = made(Mul, made(Sub, ANY, made(Broadcast, larger)), made(Sub, ANY, made(Broadcast, made(Max, ANY, "m"))))
    assert found(other, "square") == {"m": "old"}


def test_alternatives_are_tried_in_order():
    scaled = made(Mul, FAR.named("far"), "scale") | FAR.named("far")
    assert found(scaled, "scaled") == {"far": "far", "x": "x", "m": "larger", "scale": "scale"}
    assert found(scaled, "far") == {"far": "far", "x": "x", "m": "larger"}
    assert found(made(Add, ANY, ANY) | "v", "far") == {"v": "far"}


def test_attributes_are_compared():
    assert found(made(Reduce, "x", ANY, "max"), "largest") == {"x": "x"}
    assert found(made(Reduce, "x", (1,)), "largest") == {"x": "x"}
    assert found(made(Reduce, "x", (0,)), "largest") is None
    assert found(made(Const, 1.5), "scale") == {} and found(made(Const, 0), "scale") is None


def test_a_type_may_be_asked_for():
    assert found(made(Cast, of_type(Tile((8,), F16), "x")), "single") == {"x": "half"}
    assert found(made(Cast, of_type(Tile((8,), F32), "x")), "single") is None


def test_the_source_is_found_through_ops_of_the_classes_that_are_named():
    turned = BY_NAME["turned"]
    assert source(turned, KERNEL.defs, Permute).name == "halves"
    assert source(turned, KERNEL.defs, Permute, Broadcast).name == "single"
    assert source(BY_NAME["x"], KERNEL.defs, Permute).name == "x"


def test_a_constant_is_found_through_ops_of_the_classes_that_are_named():
    turned = BY_NAME["turned"]
    assert constant(BY_NAME["scale"], KERNEL.defs) == 1.5
    assert constant(turned, KERNEL.defs, Permute, Broadcast) is None
    assert constant(turned, KERNEL.defs, Permute, Broadcast, Cast) == 0.5
    assert constant(BY_NAME["x"], KERNEL.defs, Broadcast) is None
