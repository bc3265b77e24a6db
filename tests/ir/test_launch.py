"""Sizes that are known at the launch: their text, what a host computes of them, and kernels bound to numbers."""

import random
import time

import numpy as np
import pytest

from tilewave import *
from tilewave.errors import TilewaveError
from tilewave.interp.arithmetic import elementwise
from tilewave.interp.tiles import interpret
from tilewave.ir import ops as ir
from tilewave.ir.core import Value
from tilewave.ir.launch import MEANINGS, HostLaunch, at_launch, bind, is_open, launch_of, open_sizes, skeleton
from tilewave.ir.ops.launch import LaunchOnly, is_launched
from tilewave.ir.parse import parse
from tilewave.ir.types import BOOL, INDEX_SCALAR, Scalar
from tilewave.ir.verify import verify
from tilewave.passes.tile.simplify import simplify

TEXT = """\
kernel @k {workgroups = tiles} (%a: memory<{M}x8xf32, global>, %b: memory<{half}xf32, global>, %M: index) {
  %tiles, %half = launch() : index, index do () {
    %c7 = const() {value = 7} : index
    %sum = add(%M, %c7) : index
    %c8 = const() {value = 8} : index
    %count = floor_div(%sum, %c8) : index
    %c2 = const() {value = 2} : index
    %less = floor_div(%M, %c2) : index
    yield([%count, %less])
  }
  %w = workgroup() : index
  %c8_1 = const() {value = 8} : index
  %zero = const() {value = 0} : index
  %at = mul(%w, %c8_1) : index
  %x = read(%a, [%at, %zero]) {axes = [0, 1]} : tile<8x8xf32>
  write(%x, %a, [%at, %zero]) {axes = [0, 1]}
}
"""


# the text -----------------------------------------------------------------------------------------------------------


def test_named_extents_and_workgroups_read_back_as_they_are_printed():
    kernel = verify(parse(TEXT))
    assert str(kernel) == TEXT and parse(str(kernel)) == kernel
    assert kernel.workgroups == "tiles" and open_sizes(kernel) == ("M",) and is_open(kernel)
    assert [v.type.extents for v in kernel.body.args[:2]] == [("M", 8), ("half",)]
    assert kernel.body.args[0].type.rank == 2 and kernel.body.args[0].type.is_open
    with pytest.raises(NotImplementedError, match=r"memory<\{M\}x8xf32, global> has sizes that are known only at the"):
        print(kernel.body.args[0].type.shape)
    with pytest.raises(NotImplementedError, match="how many workgroups run it is known only at the launch"):
        print(kernel.workgroup_count)


def test_a_host_computes_the_launch_from_its_skeleton_alone():
    known = parse(str(skeleton(verify(parse(TEXT)))))
    host = HostLaunch(known)
    assert host.names == ("M", "tiles", "half")
    for m in (0, 1, 7, 8, 9, 1 << 30):
        found = host([m])
        assert (found.workgroups, found.numbers) == (-(-m // 8), (m, -(-m // 8), m // 2))


def test_binding_puts_numbers_in_the_place_of_names():
    bound = bind(parse(TEXT), {"M": 20})
    assert not is_open(bound) and launch_of(bound) is None and bound.workgroups == 3
    assert [v.type.extents for v in bound.body.args] == [(20, 8), (10,)]
    assert verify(bound) == bound


def lines(*more, old="", new=""):
    assert old in TEXT
    return TEXT.replace(old, new) if old else TEXT.replace("  %w = workgroup", "".join(more) + "  %w = workgroup")


HOSTILE = {
    "an extent nobody knows": (lines(old="memory<{M}x8", new="memory<{Q}x8"), "%Q is no index argument"),
    "workgroups nobody knows": (lines(old="workgroups = tiles", new="workgroups = many"), "%many is no index"),
    "an extent of the body": (lines(old="memory<{half}", new="memory<{at}"), "%at is no index argument"),
    "an extent that is an array": (lines(old="memory<{half}", new="memory<{a}"), "%a is no index argument"),
    "workgroups inside the launch": (lines(old="workgroups = tiles", new="workgroups = count"), "%count is no index"),
    "a second launch": (
        lines("  %more = launch() : index do () {\n    yield([%M])\n  }\n"),
        "must be the first op of a kernel",
    ),
    "a launch in a loop": (
        lines("  loop(%M, []) do (%i: index) {\n    %more = launch() : index do () {\n      yield([%M])\n    }\n"
              "    yield([])\n  }\n"),
        "must be the first op of a kernel",
    ),
    "a launch that needs itself": (lines(old="add(%M, %c7)", new="add(%M, %tiles)"), "%tiles is used before it is"),
    "a launch that needs the body": (lines(old="add(%M, %c7)", new="add(%M, %at)"), "%at is used before it is defined"),
    "a launch that reads": (
        lines(old="%less = floor_div(%M, %c2) : index", new="%less = workgroup() : index"),
        "workgroup cannot be computed at the launch",
    ),
    "a launch that gives too little": (lines(old="yield([%count, %less])", new="yield([%count])"), "yield"),
    "a launch that gives truth": (
        lines(old="%less = floor_div(%M, %c2) : index", new="%less = less(%M, %c2) : bool"), "yield",
    ),
    "a launch with arguments": (lines(old="index, index do () {", new="index, index do (%q: index) {"), "block takes"),
    "a tile of a named length": (
        lines(old="{axes = [0, 1]} : tile<8x8xf32>", new="{axes = [0, 1]} : tile<{M}x8xf32>"),
        "the sizes of a tile are numbers; only a memory's are known at the launch",
    ),
    "shared memory of a named length": (
        lines("  %s = allocate() : memory<{M}x8xf32, shared>\n"), "the sizes of a shared memory are numbers",
    ),
    "a name that is none": (lines(old="memory<{M}x8", new="memory<{}x8"), ""),
    "a name in two pieces": (lines(old="memory<{M}x8", new="memory<{M N}x8"), ""),
    "workgroups in words": (lines(old="workgroups = tiles", new='workgroups = "two words"'), "%two words is no index"),
    "workgroups by a list": (lines(old="workgroups = tiles", new="workgroups = [tiles]"), ""),
    "too many axes": (lines(old="memory<{M}x8", new="memory<" + "{M}x" * 13 + "8"), "more than 12 axes"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_that_names_what_is_not_known_is_refused(name):
    text, reason = HOSTILE[name]
    with pytest.raises(TilewaveError) as raised:
        verify(parse(text))
    assert reason in raised.value.what


def chained(count):
    """A launch of so many sums, each of the one before."""
    made = "".join(f"    %v{i} = add(%{f'v{i - 1}' if i else 'M'}, %M) : index\n" for i in range(count))
    results = ", ".join(f"%r{i}" for i in range(count))
    given = ", ".join(f"%v{i}" for i in range(count))
    return (
        f"kernel @k {{workgroups = r{count - 1}}} (%M: index) {{\n  {results} = launch() : "
        f"{', '.join(['index'] * count)} do () {{\n{made}    yield([{given}])\n  }}\n}}\n"
    )


def test_a_launch_of_very_many_numbers_is_read_and_computed_without_recursion():
    count = 4_000
    begin = time.process_time()
    kernel = verify(parse(chained(count)))
    assert HostLaunch(kernel)([1]).workgroups == count + 1
    with pytest.raises(TilewaveError, match="a list has more than 4096 items"):
        parse(chained(100_000))
    assert time.process_time() - begin < 60, "it grows faster than the text"


# what a host computes -----------------------------------------------------------------------------------------------

OF_TRUTH = {ir.And, ir.Or, ir.Not}
NUMBERS = [-(1 << 40), -17, -5, -2, -1, 0, 1, 2, 3, 7, 64, 1 << 31, (1 << 40) + 1]


def made(op, operands):
    truth = issubclass(op, ir.Comparison) or op in OF_TRUTH
    values = tuple(
        Value(f"v{i}", Scalar(BOOL) if isinstance(x, bool) else INDEX_SCALAR) for i, x in enumerate(operands)
    )
    return op(*values, results=(Value("r", Scalar(BOOL) if truth else INDEX_SCALAR),))


def drawn(rng, op):
    count = {ir.Neg: 1, ir.Abs: 1, ir.Not: 1, ir.Cast: 1, ir.Select: 3}.get(op, 2)
    truths, numbers = ([rng.choice(kind) for _ in range(count)] for kind in ([True, False], NUMBERS))
    return truths if op in OF_TRUTH else [truths[0], *numbers[1:]] if op is ir.Select else numbers


ON_BOTH_SIDES = [op for op in MEANINGS if not issubclass(op, LaunchOnly)]
"""What a kernel may compute as well."""


@pytest.mark.parametrize("op", ON_BOTH_SIDES, ids=lambda op: op.__name__)
def test_a_host_means_what_the_interpreter_means(op):
    rng = random.Random(op.__name__)
    for _ in range(300):
        operands = drawn(rng, op)
        one = made(op, operands)
        assert is_launched(one)
        if op is ir.Mul and abs(operands[0] * operands[1]) >= 1 << 63:
            continue  # an index that does not fit is an error of the kernel's
        found, wanted = MEANINGS[op](*operands), elementwise(one, operands)
        assert found == wanted, (op, operands)


def test_a_host_knows_every_op_that_may_stand_in_a_launch():
    launched = {op for op in ir.VOCABULARY.values() if issubclass(op, ir.launch.LAUNCHED) and op is not ir.Const}
    whole = {op for op in launched if not issubclass(op, ir.Div)} - MEANINGS.keys()
    assert not any(issubclass(op, LaunchOnly) for op in whole)
    missing = {op for op in whole if is_launched(made(op, drawn(random.Random(0), op)))}
    assert not missing


# moving and binding keep the meaning --------------------------------------------------------------------------------

BINARY = ("add", "sub", "mul", "floor_div", "mod", "min", "max", "xor")


def random_program(seed):
    """Return random index arithmetic on two sizes, a workgroup's number and loop indices; its results become data."""
    rng = random.Random(seed)
    known = ["M", "N", "S"]
    text = ["kernel @k {workgroups = M} (%c: memory<{M}x{N}xi32, global>, %M: index, %N: index, %S: index) {"]

    def some(count, indent):
        for _ in range(count):
            name = f"v{len(text)}"
            match rng.randrange(6):
                case 0:
                    text.append(f"{indent}%{name} = const() {{value = {rng.randrange(-3, 9)}}} : index")
                case 1:
                    a, b, c, d = (rng.choice(known) for _ in range(4))
                    test = rng.choice(("less", "less_equal", "equal", "not_equal"))
                    text.append(f"{indent}%{name}_is = {test}(%{a}, %{b}) : bool")
                    text.append(f"{indent}%{name} = select(%{name}_is, %{c}, %{d}) : index")
                case _:
                    a, b = rng.choice(known[-8:]), rng.choice(known)
                    text.append(f"{indent}%{name}_wide = {rng.choice(BINARY)}(%{a}, %{b}) : index")
                    text.append(f"{indent}%{name}_most = const() {{value = 9973}} : index")
                    text.append(f"{indent}%{name} = mod(%{name}_wide, %{name}_most) : index")
            known.append(name)

    some(8, "  ")
    text.append("  %w = workgroup() : index")
    known.append("w")
    some(8, "  ")
    text.append("  loop(%N, []) do (%i: index) {")
    known.append("i")
    some(8, "    ")
    text.append(f"    %number = cast(%{known[-1]}) : i32")
    text.append("    %tile = broadcast(%number) {axes = []} : tile<1x1xi32>")
    text.append("    write(%tile, %c, [%w, %i]) {axes = [0, 1]}")
    text += ["    yield([])", "  }", "}", ""]
    return "\n".join(text)


def result_of(kernel, values):
    c = np.full((values["M"], values["N"]), -7, np.int32)
    bound = bind(kernel, values)
    verify(bound)
    interpret(bound, [c], values)
    return c


@pytest.mark.share(6)
@pytest.mark.parametrize("seed", range(60))
def test_what_moves_to_the_launch_means_what_it_meant(seed):
    kernel = verify(parse(random_program(seed)))
    moved = verify(at_launch(kernel))
    again = verify(at_launch(simplify(moved)))
    assert launch_of(kernel) is None and launch_of(moved) is not None
    assert verify(at_launch(moved)) == moved, "once moved, nothing is left to move"
    inside = [op for op in moved.body.ops[1:] if is_launched(op) and op.operands and op.result.type == INDEX_SCALAR]
    assert not any(set(op.operands) <= {*moved.body.args, *launch_of(moved).results} for op in inside)
    for values in ({"M": 1, "N": 1, "S": 1}, {"M": 3, "N": 5, "S": 2}, {"M": 4, "N": 2, "S": 64}):
        wanted = result_of(kernel, values)
        for other in (moved, again, simplify(bind(moved, values))):
            np.testing.assert_array_equal(result_of(other, values), wanted)
