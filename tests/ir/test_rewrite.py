"""Rebuilding blocks: which ops a rule sees, in which order, and what takes the place of values."""

import pytest

from tilewave.ir.build import Builder
from tilewave.ir.copies import Copier
from tilewave.ir.core import Block
from tilewave.ir.ops import Add, Const, Loop, Mul
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import (
    Rewriter,
    made_in,
    names,
    rename,
    rename_block,
    renamed,
    rewrite,
    rewrite_blocks,
    rewrite_outermost,
    walk,
)

KERNEL = parse("""
kernel @k {workgroups = 1} (%n: index) {
  %a = const() {value = 1} : index
  %sum = loop(%n, [%a]) : index do (%i: index, %x: index) {
    %b = const() {value = 2} : index
    loop(%b, []) do (%j: index) {
      %c = add(%j, %x) : index
      yield([])
    }
    %d = mul(%x, %b) : index
    yield([%d])
  }
  %e = add(%sum, %a) : index
}
""")
BODY = KERNEL.body
BY_NAME = {v.name: v for v in made_in(BODY)}


def value(name):
    return BY_NAME[name]


def text(block):
    return "\n".join(map(str, block.ops))


def test_made_in_has_arguments_and_results_of_all_blocks():
    assert [v.name for v in made_in(BODY)] == ["n", "a", "sum", "i", "x", "b", "j", "c", "d", "e"]


def test_a_rule_sees_inner_ops_first_and_outermost_rules_do_not_enter_what_they_replace():
    inner_first, outer_first = [], []
    rewrite(KERNEL, lambda op: inner_first.append(op.name))
    assert rewrite_outermost(BODY, lambda op: outer_first.append(op.name)) is BODY
    assert inner_first == ["const", "const", "add", "yield", "loop", "mul", "yield", "loop", "add"]
    assert outer_first == [op.name for op in walk(BODY)]
    seen = []
    rewrite_outermost(BODY, lambda op: seen.append(op.name) or ([op] if isinstance(op, Loop) else None))
    assert seen == ["const", "loop", "add"]


def test_outermost_rules_replace_ops_in_regions_too():
    found = rewrite_outermost(BODY, lambda op: [] if isinstance(op, Mul) else None)
    assert "mul" in text(BODY) and "mul" not in text(found)


def test_blocks_change_from_the_inside_out_and_unchanged_ones_stay():
    seen = []
    assert rewrite_blocks(BODY, lambda block: seen.append(block.ops[0].name) or block) is BODY
    assert seen == ["add", "const", "const"]
    emptied = rewrite_blocks(BODY, lambda block: Block(block.args, tuple(o for o in block.ops if type(o) is not Const)))
    assert not any(isinstance(op, Const) for op in walk(emptied))


def test_names_change_where_values_are_defined_and_where_they_are_used():
    new = {v: Builder(names(KERNEL)).fresh(f"{v.name}_new", v.type) for v in made_in(BODY)}
    found = rename_block(BODY, new)
    assert all(v.name.endswith("_new") for v in made_in(found))
    assert text(found).replace("_new", "") == text(BODY)
    assert renamed(BODY, new.__getitem__) == found


@pytest.mark.parametrize("one, other", [("a", "b"), ("x", "d")])
def test_two_values_may_change_places(one, other):
    """Each value is replaced once: where a becomes b and b becomes a, neither becomes itself again."""
    swapped = {value(one): value(other), value(other): value(one)}
    found = rename_block(BODY, swapped)
    assert found != BODY and rename_block(found, swapped) == BODY


def test_what_no_name_changes_in_is_the_same_object():
    other = {Builder(set()).fresh("other", value("a").type): value("a")}
    assert rename_block(BODY, other) is BODY
    assert rename(BODY.ops[1], other) is BODY.ops[1]


def test_a_rewriter_replaces_an_op_by_several_after_its_regions():
    class Doubling(Rewriter):
        def op(self, old):
            op = self.renamed(old)
            return [op, op] if isinstance(op, Add) else [op]

    counts = [type(op) for op in walk(Doubling().block(BODY))].count(Add)
    assert counts == 4


def test_copies_have_fresh_names_and_later_copies_use_them():
    copier = Copier(Builder(names(KERNEL)), "again")
    copies = [copier.renamed(op) for op in BODY.ops]
    made = [v.name for op in copies for v in op.results]
    assert made == ["a_again", "sum_again", "e_again"]
    assert [str(v) for v in copies[-1].operands] == ["%sum_again", "%a_again"]
    assert not {v.name for v in made_in(Block((), tuple(copies)))} & names(KERNEL)
    assert [str(v) for v in copies[1].operands] == ["%n", "%a_again"]
