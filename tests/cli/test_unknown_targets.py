"""One rule for targets and machines: an unknown name is an error with the nearest one, in every command and call."""

import json

import pytest

import tilewave
from tilewave import GLOBAL_ADDRESS_SPACE, Memory, TilewaveError, WorkgroupConstraint, f32, read, sym, wave, write
from tilewave.backend.targets import TARGETS
from tilewave.bench.tuning import timer_for, tune
from tilewave.explore.choice import ExplorerChoice
from tilewave.explore.explorer import Explorer
from tilewave.explore.kernels import ExploredGemm
from tilewave.machine import MACHINES, find, find_or_load
from tilewave.sim import Gemm, simulate
from tilewave.tune.default import machine_of

PRODUCT = """
from tilewave import *

M, N, K = sym.M, sym.N, sym.K
G = GLOBAL_ADDRESS_SPACE
tiles = [WorkgroupConstraint(M, sym.BLOCK_M, 0), WorkgroupConstraint(N, sym.BLOCK_N, 1)]

@wave([*tiles, TilingConstraint(K, sym.BLOCK_K)])
def product(a: Memory[M, K, G, DTYPE], b: Memory[N, K, G, DTYPE], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)
"""
F16, F32 = PRODUCT.replace("DTYPE", "f16"), PRODUCT.replace("DTYPE", "f32")
SIZES = "M=64,N=64,K=64"
M, BLOCK_M = sym.M, sym.BLOCK_M
REST = f"  The targets are {', '.join(TARGETS)}.\n"
MEANT = {
    "h100": "unknown target 'h100'; did you mean 'sm_90a'?",
    "H200": "unknown target 'H200'; did you mean 'sm_90a'?",
    "MI300X": "unknown target 'MI300X'; did you mean 'gfx942'?",
    "MI355X": "unknown target 'MI355X'; did you mean 'gfx950'?",
    "cuda": "unknown target 'cuda'; did you mean 'sm_90a'?",
    "sm90": "unknown target 'sm90'; did you mean 'sm_90a'?",
    "gfx94": "unknown target 'gfx94'; did you mean 'gfx942'?",
    "gfx90a": "unknown target 'gfx90a': there is none for this chip",
    "CPU": "unknown target 'CPU'; did you mean 'cpu'?",
    "foo": "unknown target 'foo'",
    "": "unknown target ''",
}
COMMANDS = {
    "compile": ("k.py", "--set", SIZES, "--target"),
    "diff": ("k.py", "--set", SIZES, "--target"),
    "run": ("k.py", "--sizes", SIZES, "--target"),
    "bench": ("k.py", "--sizes", SIZES, "--target"),
    "tune": ("k.py", "--sizes", SIZES, "--strength", "model", "--target"),
}


@wave([WorkgroupConstraint(M, BLOCK_M, 0)])
def copied(a: Memory[M, GLOBAL_ADDRESS_SPACE, f32], b: Memory[M, GLOBAL_ADDRESS_SPACE, f32]):
    write(read(a), b)


CALLS = {
    "wave_compile": lambda name: tilewave.wave_compile(tilewave.WaveCompileOptions(target=name), copied),
    "kernel.compile": lambda name: copied.compile(target=name),
    "tune": lambda name: tune(copied, {M: 64}, name, "model"),
    "timer_for": lambda name: timer_for(copied, {M: 64}, name),
    "machine_of": machine_of,
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", MEANT)
def test_a_command_refuses_a_name_that_no_target_has(command, name, call, tmp_path):
    code, out, err = call(command, *COMMANDS[command], name, k=F16)
    assert (code, out, err) == (2, "", f"error: {MEANT[name]}\n{REST}")
    assert [path.name for path in tmp_path.iterdir()] == ["k.py"]


@pytest.mark.parametrize("called", CALLS)
@pytest.mark.parametrize("name", MEANT)
def test_a_call_refuses_a_name_that_no_target_has(called, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TilewaveError) as error:
        CALLS[called](name)
    assert error.value.what == MEANT[name]
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", [name for name in MEANT if name])
def test_the_explorer_refuses_a_name_that_no_target_has(name):
    explorer = Explorer(ExploredGemm())
    for question in ("passes", "code"):
        with pytest.raises(TilewaveError) as error:
            explorer.answer(question, ExplorerChoice(target=name))
        assert error.value.what == MEANT[name]


@pytest.mark.parametrize("words", [("doctor",), ("doctor", "--json")])
def test_an_environment_that_names_no_target_is_told(words, call, monkeypatch):
    monkeypatch.setenv("TILEWAVE_TARGET", "h100")
    assert call(*words) == (2, "", f"error: TILEWAVE_TARGET: {MEANT['h100']}\n{REST}")
    with pytest.raises(TilewaveError, match="TILEWAVE_TARGET: unknown target 'h100'; did you mean 'sm_90a'"):
        copied.compile()
    monkeypatch.setenv("TILEWAVE_TARGET", "sm_90a")  # as it says
    code, out, _ = call("doctor", "--json")
    assert (code, json.loads(out)["target"]) == (0, "sm_90a")


@pytest.mark.parametrize("card", MACHINES)
def test_what_stands_for_a_card_compiles(card, call):
    """The remedy, followed."""
    with pytest.raises(TilewaveError, match=f"did you mean '{MACHINES[card].target}'"):
        copied.compile(target=card)
    assert call("compile", "k.py", "--set", SIZES, "--target", MACHINES[card].target, k=F16)[0] == 0


# -- machines ----------------------------------------------------------------------------------------------------------

MACHINE = "unknown machine 'sm_90a'; did you mean 'H200'?"
WHERE_A_MACHINE_IS_ASKED = {
    "sim": ("sim", "--shape", "256x256x64", "--machine", "sm_90a"),
    "sim of a file": ("sim", "k.py", "--set", SIZES, "--machine", "sm_90a"),
    "explore": ("explore", "--html", "page.html", "--machine", "sm_90a"),
    "machines": ("machines", "sm_90a"),
}


@pytest.mark.parametrize("words", WHERE_A_MACHINE_IS_ASKED.values(), ids=WHERE_A_MACHINE_IS_ASKED)
def test_a_command_refuses_a_name_that_no_machine_has(words, call):
    code, out, err = call(*words, k=F16)
    assert (code, out) == (2, "") and err.startswith(f"error: {MACHINE}\n  The machines are {', '.join(MACHINES)}; ")


@pytest.mark.parametrize("ask", [find, find_or_load, lambda name: simulate(Gemm(256, 256, 64), name)])
def test_a_call_refuses_a_name_that_no_machine_has(ask):
    with pytest.raises(TilewaveError) as error:
        ask("sm_90a")
    assert error.value.what == MACHINE


# -- a kernel that cannot be there -------------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", ["model", "measured", "exhaustive"])
def test_a_kernel_that_cannot_compile_for_a_target_is_not_tuned_for_it(strength, call, tmp_path):
    words = ["tune", "k.py", "--sizes", SIZES, "--target", "sm_90a", "--strength", strength]
    code, out, err = call(*words, k=F32)
    assert (code, out) == (2, "")
    assert err.startswith("error: no matrix instruction of sm_90a is used for f32 times f32 into f32")
    assert [path.name for path in tmp_path.iterdir()] == ["k.py"]
    assert call("compile", "k.py", "--set", SIZES, "--target", "sm_90a", k=F32) == (code, out, err)


def test_what_nothing_predicts_is_not_tuned(call, tmp_path):
    words = ["tune", "k.py", "--sizes", SIZES, "--strength", "model"]
    told = "error: nothing to tune: the interpreter (numpy) has no cost model\n  tune for cpu, gfx942, gfx950, sm_90a\n"
    assert call(*words, "--target", "numpy", k=F16) == (2, "", told)
    assert [path.name for path in tmp_path.iterdir()] == ["k.py"]
    chips = {}
    for target in ("cpu", "gfx942", "gfx950", "sm_90a"):  # as it says, and each for itself
        code, out, _ = call(*words, "--target", target, "--json", k=F16)
        assert code == 0
        chips[target] = json.loads(out)[0]["record"]["at"].split(" ")[2]
    assert {target: chip for target, chip in chips.items() if target != "cpu"} == {
        target: machine_of(target).name for target in chips if target != "cpu"
    }
    assert chips["cpu"] not in [*MACHINES, *TARGETS]
