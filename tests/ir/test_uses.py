"""The def-use index of kernels and blocks: what it says, and that nothing else of a kernel sees it."""

import pickle
from collections import defaultdict
from dataclasses import replace

import pytest

from tilewave.ir.core import Kernel
from tilewave.ir.ops import Loop, Mma, Yield
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import walk

TEXT = """
kernel @k {workgroups = 1} (%a: memory<32x8xf32, global>, %c: memory<8x8xf32, global>) {
  %n = const() {value = 4} : index
  %o = const() {value = 0} : index
  %zero = const() {value = 0.0} : tile<8x8xf32>
  %unused = add(%n, %n) : index
  %sum = loop(%n, [%zero]) : tile<8x8xf32> do (%i: index, %acc: tile<8x8xf32>) {
    %m = mul(%i, %n) : index
    %x = read(%a, [%m, %o]) {axes = [0, 1]} : tile<8x8xf32>
    %z = mma(%x, %x, %acc) : tile<8x8xf32>
    yield([%z])
  }
  write(%sum, %c, [%o, %o]) {axes = [0, 1]}
}
"""


@pytest.fixture
def kernel():
    return parse(TEXT)


def named(table):
    return {v.name: ops for v, ops in table.items()}


def test_each_result_has_the_op_that_makes_it_and_arguments_have_none(kernel):
    defs = named(kernel.defs)
    assert list(defs) == ["n", "o", "zero", "unused", "sum", "m", "x", "z"]
    assert all(v in kernel.defs[v].results for v in kernel.defs)
    assert isinstance(defs["sum"], Loop) and isinstance(defs["z"], Mma)


def test_users_are_ops_in_program_order_and_each_is_there_once(kernel):
    users = named(kernel.users)
    assert [op.name for op in users["n"]] == ["add", "loop", "mul"]
    assert [op.name for op in users["x"]] == ["mma"]
    assert [op.name for op in users["o"]] == ["read", "write"]


def test_a_yield_and_a_memory_s_accesses_are_uses(kernel):
    users = named(kernel.users)
    assert [type(op) for op in users["z"]] == [Yield]
    assert [op.name for op in users["a"]] == ["read"] and [op.name for op in users["c"]] == ["write"]


def test_a_value_that_no_op_uses_has_no_users_and_is_not_added(kernel):
    (unused,) = (v for v in kernel.defs if v.name == "unused")
    assert kernel.users[unused] == () and unused not in kernel.users


def test_both_agree_with_a_walk(kernel):
    users = defaultdict(list)
    for op in walk(kernel.body):
        for v in dict.fromkeys(op.operands):
            users[v].append(op)
    assert kernel.defs == {v: op for op in walk(kernel.body) for v in op.results}
    assert {v: list(ops) for v, ops in kernel.users.items()} == users


def test_a_block_knows_its_own_ops_alone(kernel):
    loop = next(op for op in kernel.body.ops if isinstance(op, Loop))
    assert list(named(loop.body.defs)) == ["m", "x", "z"]
    assert [op.name for op in named(loop.body.users)["n"]] == ["mul"]


def test_the_index_is_built_once_and_kept_by_kernels_with_the_same_body(kernel):
    other = replace(kernel, workgroups=2)
    assert kernel.defs is kernel.defs is other.defs and kernel.users is other.users
    assert replace(kernel, body=replace(kernel.body, ops=kernel.body.ops[:1])).defs is not kernel.defs


def test_equality_hash_text_and_pickle_do_not_see_it(kernel):
    fresh: Kernel = parse(TEXT)
    before = str(kernel), hash(kernel)
    assert kernel.defs and kernel.users
    assert kernel == fresh and (str(kernel), hash(kernel)) == before == (str(fresh), hash(fresh))
    copy = pickle.loads(pickle.dumps(kernel))
    assert copy == kernel and copy.defs == kernel.defs
    assert not {"defs", "users"} & pickle.loads(pickle.dumps(kernel)).body.__dict__.keys()
