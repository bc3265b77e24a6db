"""`tilewave.torch.op`: an operator of torch's of any kernel."""

import pytest

import tilewave
from tilewave import *
from tilewave.errors import CallError, DTypeError, SymbolError, TraceError

torch = pytest.importorskip("torch", reason="these operators are torch's; it is not installed")
testing = pytest.importorskip("torch._dynamo.testing")
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by opcheck

M, N, K, BLOCK, FACTOR = sym.M, sym.N, sym.K, sym.BLOCK, sym.FACTOR
GLOBAL = GLOBAL_ADDRESS_SPACE
elements = [WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)]


@wave([WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 32, 1), TilingConstraint(K, BLOCK)], subs={BLOCK: 32})
def gemm(a: Memory[M, K, GLOBAL, f64], b: Memory[N, K, GLOBAL, f64], alpha: f64, c: Memory[M, N, GLOBAL, f64]):
    @iterate(K, init_args=[Register[M, N, f64](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total * alpha, c)


@wave(elements)
def square(x: Memory[M, N, GLOBAL, f64], y: Memory[M, N, GLOBAL, f64]):
    write(read(x) * read(x), y)


@wave(elements)
def square_backward(x: Memory[M, N, GLOBAL, f64], grad_y: Memory[M, N, GLOBAL, f64], grad_x: Memory[M, N, GLOBAL, f64]):
    write(2.0 * read(x) * read(grad_y), grad_x)


@wave(elements)
def add_to(x: Memory[M, N, GLOBAL, f32], y: Memory[M, N, GLOBAL, f32]):
    write(read(y) + read(x), y)


@wave(elements)
def both(x: Memory[M, N, GLOBAL, f32], up: Memory[M, N, GLOBAL, f32], whole: Memory[N, M, GLOBAL, i32]):
    tile = read(x)
    write(tile + 1.0, up)
    write(cast(permute(tile, target_shape=[N, M]), i32), whole)


@wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)])
def spread(x: Memory[M, GLOBAL, f32], y: Memory[M, N, GLOBAL, f32]):
    write(read(x) + Register[M, N, f32](0.0), y)


@wave([WorkgroupConstraint(M, 16, 0)])
def soft(x: Memory[M, N, GLOBAL, f32], y: Memory[M, N, GLOBAL, f32]):
    row = read(x)
    e = exp(row - row.max(dim=N))
    write(e / e.sum(dim=N), y)


def gemm_backward(grad_c, a, b, alpha):
    return {"a": grad_c @ b * alpha, "b": grad_c.mT @ a * alpha}


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _the_same_numbers_every_time():
    torch.manual_seed(0)


op = tilewave.torch.op


def test_what_a_kernel_writes_and_does_not_read_is_allocated():
    multiply = op(gemm)
    assert repr(multiply) == "<operator tilewave::gemm(Tensor a, Tensor b, float alpha) -> Tensor>"
    a, b = doubles(5, 7), doubles(3, 7)
    torch.testing.assert_close(multiply(a, b, 0.5), 0.5 * a @ b.T)
    torch.testing.assert_close(multiply(a, alpha=2.0, b=b), 2 * a @ b.T)
    torch.testing.assert_close(torch.ops.tilewave.gemm(a, b, 1.0), a @ b.T)


def test_several_results_each_of_its_own_shape_and_dtype():
    up, whole = op(both)(torch.full((3, 5), 2.5))
    assert (up == 3.5).all() and up.shape == (3, 5)
    assert (whole == 2).all() and whole.shape == (5, 3) and whole.dtype == torch.int32


def test_what_is_read_as_well_is_changed_in_place():
    add = op(add_to)
    assert add.signature.schema == "(Tensor x, Tensor(a0!) y) -> ()"
    y = torch.ones(3, 5)
    version = y._version
    assert add(torch.full((3, 5), 2.0), y) is None
    assert (y == 3).all() and y._version > version


def test_results_may_be_left_to_the_caller():
    into = op(square, results=())
    y = torch.empty(3, 5, dtype=torch.float64)
    into(torch.full((3, 5), 3.0, dtype=torch.float64), y)
    assert (y == 9).all()


def test_a_size_that_only_a_result_has_is_an_argument():
    repeat = op(spread)
    assert repeat.signature.schema == "(Tensor x, SymInt N) -> Tensor"
    assert repeat(torch.arange(3.0), N=4).tolist() == [[0.0] * 4, [1.0] * 4, [2.0] * 4]


def test_whole_dimensions_are_taken_as_calls_take_them():
    x = torch.randn(3, 100)
    torch.testing.assert_close(op(soft)(x), x.softmax(1))


def test_a_kernel_s_symbols_are_given_once():
    @wave([WorkgroupConstraint(M, 8, 0)])
    def times(x: Memory[M, GLOBAL, f32], y: Memory[M, GLOBAL, f32]):
        write(read(x) * cast(scalar(FACTOR, i32), f32), y)

    with pytest.raises(SymbolError, match="FACTOR"):
        op(times)
    assert op(times, subs={FACTOR: 2})(torch.ones(11)).sum() == 22
    assert op(times, subs={FACTOR: 3})(torch.ones(11)).sum() == 33


def test_tiles_that_nobody_gives_are_chosen_as_for_any_call():
    @wave([WorkgroupConstraint(M, BLOCK, 0)])
    def twice(x: Memory[M, GLOBAL, f32], y: Memory[M, GLOBAL, f32]):
        write(read(x) * 2.0, y)

    assert op(twice)(torch.ones(11)).sum() == op(twice, subs={BLOCK: 8})(torch.ones(11)).sum() == 22


def test_one_kernel_makes_one_operator_and_another_of_that_name_a_second():
    assert op(square) is op(square)

    @wave(elements)
    def square_of_two(x: Memory[M, N, GLOBAL, f32], y: Memory[M, N, GLOBAL, f32]):
        write(read(x) * 0.0 + 4.0, y)

    first, second = op(square_of_two), op(wave(elements)(square_of_two.function))
    assert (first.name, second.name) == ("square_of_two", "square_of_two_2")
    assert op(square_of_two, name="fours").name == "fours"


# -- gradients -------------------------------------------------------------------------------------------------------


def test_a_kernel_is_the_backward_pass():
    squared = op(square, backward=square_backward, name="squared")
    assert torch.autograd.gradcheck(squared, (doubles(3, 5).requires_grad_(),))


def test_a_function_is_the_backward_pass():
    multiply = op(gemm, backward=gemm_backward, name="multiply")
    a, b = doubles(3, 5).requires_grad_(), doubles(2, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: multiply(a, b, 0.5), (a, b))


def test_without_a_backward_pass_it_is_said_what_to_name():
    y = op(square)(doubles(3, 5).requires_grad_())
    with pytest.raises(CallError, match=r"square has no backward pass[^$]*op\(square, backward=…\)"):
        y.sum().backward()


def test_a_backward_pass_of_other_names_is_refused():
    @wave(elements)
    def other(x: Memory[M, N, GLOBAL, f64], grad: Memory[M, N, GLOBAL, f64], grad_x: Memory[M, N, GLOBAL, f64]):
        write(read(x) * read(grad), grad_x)

    with pytest.raises(TraceError, match="other wants grad, which is nothing of square"):
        op(square, backward=other)
    with pytest.raises(TraceError, match="square gives y, which is the gradient of no argument"):
        op(square, backward=square)
    with pytest.raises(TraceError, match="changes y in place"):
        op(add_to, backward=lambda x: {"x": x})


# -- torch's machinery -----------------------------------------------------------------------------------------------


def test_operators_are_what_torch_wants():
    squared = op(square, backward=square_backward, name="squared")
    torch.library.opcheck(squared.operator.default, (doubles(3, 5).requires_grad_(),))
    torch.library.opcheck(op(add_to).operator.default, (torch.randn(3, 5), torch.randn(3, 5)))
    torch.library.opcheck(op(both).operator.default, (torch.randn(3, 5),))
    torch.library.opcheck(op(spread).operator.default, (torch.randn(3), 4))


def test_one_graph_and_one_compilation_serve_every_size():
    squared, add = op(square, backward=square_backward, name="squared"), op(add_to)

    def network(x):
        y = torch.ones_like(x, dtype=torch.float32)
        add(x.detach().float(), y)
        return squared(x) + y

    counter = testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(network, fullgraph=True, backend=counter)
    for rows in range(2, 12):
        x = doubles(rows, 5).requires_grad_()
        torch._dynamo.mark_dynamic(x, 0)
        y = compiled(x)
        torch.testing.assert_close(y, network(x))
        y.sum().backward()
        torch.testing.assert_close(x.grad, 2 * x)
    assert counter.frame_count == 1


def test_meta_tensors_have_shapes_alone():
    a, b = (torch.empty(n, 7, dtype=torch.float64, device="meta") for n in (5, 3))
    assert op(gemm)(a, b, 1.0).shape == (5, 3)


def test_autocast_gives_the_kernel_its_dtype():
    x = torch.randn(3, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert op(square)(x.bfloat16()).dtype == torch.float64


@pytest.mark.parametrize(
    "call, error, what",
    [
        (lambda: op(square)(torch.ones(3, 5)), DTypeError, "x is float32, but the kernel takes f64"),
        (lambda: op(square)(doubles(3)), CallError, r"x has 1 axes, but the kernel takes \[M, N\]"),
        (lambda: op(gemm)(doubles(3, 5), doubles(3, 4), 1.0), CallError, "K is 5 by a, but 4 by b"),
        (lambda: op(gemm)(doubles(3, 5), alpha=1.0), CallError, "takes a, b, alpha, but got a tensor, alpha"),
        (lambda: op(add_to)(*torch.ones(2, 3, 5).requires_grad_()), CallError, "an argument requires gradients"),
        (lambda: op(square, results=["x"]), TraceError, "square writes no array x"),
        (lambda: op(add_to, results=["y"]), TraceError, "reads y, so that it cannot be allocated"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_does_not_fit_is_refused_with_the_author_s_line(call, error, what):
    with pytest.raises(error, match=what) as raised:
        call()
    assert raised.value.loc.file == __file__


# -- what is no kernel, name or tensor -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"results": 3}, "results is 3, no list of different names"),
        ({"results": "y"}, "results is 'y', no list of different names"),
        ({"results": ["y", "y"]}, "no list of different names"),
        ({"results": [["y"]]}, "no list of different names"),
        ({"backward": 3}, "backward is 3, of int, which computes no gradients"),
        ({"backward": [None]}, "backward is None, of NoneType"),
        ({"name": "a b"}, "an operator cannot be called 'a b'"),
        ({"name": "1x"}, "an operator cannot be called '1x'"),
        ({"name": 3}, "an operator cannot be called 3"),
        ({"name": ""}, "an operator cannot be called ''"),
    ],
)
def test_options_that_say_nothing_are_refused(options, message):
    with pytest.raises(TraceError) as found:
        tilewave.torch.op(square, **options)
    assert message in str(found.value) and found.value.remedy and found.value.loc.file == __file__


def test_the_advice_on_names_can_be_followed():
    assert tilewave.torch.op(square, results=["y"], name="square").signature.results == ("y",)


@pytest.mark.parametrize("given", [None, 3, "x", square.function if hasattr(square, "function") else print])
def test_what_is_no_kernel_is_refused(given):
    with pytest.raises(TraceError, match="is no kernel"):
        tilewave.torch.op(given)


@pytest.mark.parametrize("given", [None, 3.0, "x", [1.0], {}])
@pytest.mark.parametrize("asks", [False, True], ids=["plain", "differentiated"])
def test_what_is_no_tensor_is_refused(given, asks):
    multiply = tilewave.torch.op(gemm)
    b = torch.ones(4, 5, dtype=torch.float64, requires_grad=asks)
    with pytest.raises(CallError, match=r"a is of .*, and no tensor of torch's") as found:
        multiply(given, b, 1.0)
    assert found.value.remedy == "pass torch.as_tensor(a)"
    rows = [[1.0] * 5]
    assert multiply(torch.as_tensor(rows, dtype=torch.float64), b, 1.0).tolist() == [[5.0] * 4]
