"""`tilewave run` and `bench` of kernels that take scalar arguments: a value is given, or chosen and named."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tilewave import GLOBAL_ADDRESS_SPACE, Memory, WorkgroupConstraint, f32, read, sym, wave, write
from tilewave.errors import CallError

README = Path(__file__).parents[2] / "README.md"
SIZES = "M=64,N=64,K=32"
QUICK = {"run": ("--repeats", "2"), "bench": ("--rounds", "2")}
M = sym.M


def first_kernel():
    """The README's first block without its call."""
    block = re.search(r"```python gemm.py\n(.*?)```", README.read_text(), re.DOTALL)[1]
    return block.partition("\n\na = np.random")[0] + "\n"


@pytest.mark.parametrize("command", QUICK)
def test_the_readme_s_first_kernel_is_measured_with_a_value_that_is_named(command, call):
    words = [command, "k.py", "--sizes", SIZES, *QUICK[command]]
    code, out, err = call(*words, k=first_kernel())
    assert (code, err) == (0, "")
    assert "scalar arguments: alpha = 1\n" in out and "✓ PASS" in out
    code, out, _ = call(*words, "--scalar", "alpha=0.5", k=first_kernel())
    assert code == 0 and "scalar arguments: alpha = 0.5\n" in out
    code, out, _ = call(*words, "--scalar", "alpha=0.5", "--json", k=first_kernel())
    (report,) = json.loads(out)["reports"]
    assert (report["passed"], report["scalars"]) == (True, {"alpha": 0.5})


WRONG = first_kernel().replace("alpha * total", "(alpha + 1.0) * total").replace("def gemm", "def other")


def test_the_value_reaches_the_kernel(call):
    """(alpha + 1) times a product is not alpha times it."""
    _, out, _ = call("run", "k.py", "--sizes", SIZES, "--repeats", "2", "--against", "o.py", "--scalar", "alpha=0.5",
                        k=first_kernel(), o=WRONG)  # fmt: skip
    assert "computes a different result than gemm" in out


@pytest.mark.parametrize("command", QUICK)
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("beta=1", "error: --scalar: no kernel of the file takes a scalar argument 'beta'\n  they take alpha\n"),
        ("alpha", "error: --scalar: 'alpha' gives no number\n  write --scalar alpha=0.5\n"),
        ("alpha=x", "error: --scalar: 'alpha=x' gives no number\n  write --scalar alpha=0.5\n"),
    ],
)
def test_values_that_cannot_be_are_told(command, given, told, call):
    words = [command, "k.py", "--sizes", SIZES, "--scalar", given]
    assert call(*words, k=first_kernel()) == (2, "", told)


@pytest.mark.parametrize("command", QUICK)
def test_gemm_takes_no_scalar(command, call):
    code, _, err = call(command, "gemm", "--scalar", "alpha=1")
    assert code == 2 and err.startswith("error: --scalar has no effect on gemm\n")


@wave([WorkgroupConstraint(M, 64, 0)])
def scaled(a: Memory[M, GLOBAL_ADDRESS_SPACE, f32], b: Memory[M, GLOBAL_ADDRESS_SPACE, f32], alpha: f32):
    write(alpha * read(a), b)


@pytest.mark.parametrize("kernel", [scaled, scaled.compile(target="numpy")], ids=["kernel", "compiled"])
def test_a_grid_in_brackets_says_how_to_call_instead(kernel):
    a, b, alpha = np.arange(100, dtype=np.float32), np.empty(100, np.float32), 0.5
    with pytest.raises(CallError) as error:
        kernel[(4, 4)](a, b, alpha)
    assert error.value.what == (
        "scaled[…]: a launch takes no grid; the kernel's constraints say how many workgroups there are"
    )
    assert error.value.remedy == "call it: scaled(a, b, alpha)"
    assert error.value.loc.excerpt()[0].strip() == "kernel[(4, 4)](a, b, alpha)"
    kernel(a, b, alpha)  # as it says
    assert np.array_equal(b, a / 2)
