"""`tilewave warm`: a process after it compiles nothing that it has compiled."""

import json

import numpy as np
import pytest

from tilewave import ops
from tilewave.cli import warm
from tilewave.errors import TilewaveError
from tilewave.ir.types import F32
from tilewave.kernels.linear import product_kernel
from tilewave.kernels.products import K, M, N
from tilewave.ops import products

SIZES = {M: 96, N: 80, K: 64}


def of_the_call(tasks):
    """Return the task whose config the model takes for SIZES, with both operands in rows."""
    maker = warm.maker_of("cpu", "f32", 1)
    best, texts = maker.tiles.predicted(SIZES)[0].text, [one.text for one in warm.configs_of(maker)]
    return next(one for one in tasks if one.layout == 1 and texts[one.config] == best)


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWAVE_BACKGROUND", "0")
    monkeypatch.setattr(products.matmul, "kept", {})  # plans of tests before have their kernels compiled
    product_kernel.cache_clear()
    yield tmp_path / "cache"
    product_kernel.cache_clear()


def entries(directory):
    return {path.name for path in directory.rglob("*.entry")}


def test_calls_take_from_the_disk_what_warm_has_compiled(directory):
    assert warm.warm(of_the_call([*warm.tasks_of("cpu", F32)])) == ""
    made = entries(directory)
    assert made
    product_kernel.cache_clear()
    a, b = np.ones((96, 64), np.float32), np.ones((64, 80), np.float32)
    assert (ops.matmul(a, b) == 64).all()
    assert entries(directory) == made
    assert (ops.matmul(a.T.copy().T, b) == 64).all()  # of another layout, which nothing has compiled
    assert entries(directory) > made


def test_every_config_of_every_layout_is_a_task():
    tasks = [*warm.tasks_of("sm_90a", F32)]
    assert {one.layout for one in tasks} == {0, 1, 2, 3} and len({*tasks}) == len(tasks) > 64


@pytest.mark.parametrize("target", ["sm_90a", "gfx942"])
def test_a_chip_that_is_not_here_is_compiled_for(directory, target):
    assert warm.warm(next(warm.tasks_of(target, warm.DTYPES["bf16"]))) == "" and len(entries(directory)) >= 1


def test_the_command_says_what_it_made(directory, monkeypatch, capsys):
    monkeypatch.setattr(warm, "tasks_of", lambda target, dtype: [warm.WarmTask(target, dtype.name, 0, 0)])
    warm.warm_command(target="cpu", dtypes="f32,f16", workers=1, as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert (said["target"], said["kernels"], said["refused"]) == ("cpu", 2, []) and said["directory"] == str(directory)
    warm.warm_command(target="cpu", dtypes="f32", workers=1, as_json=False)
    assert capsys.readouterr().out.startswith(f"1 kernels for cpu in {directory}: ")


def test_mistakes_are_told(directory, monkeypatch):
    with pytest.raises(TilewaveError, match="--dtypes: unknown dtype 'half'"):
        warm.warm_command(target="cpu", dtypes="half", workers=1, as_json=False)
    with pytest.raises(TilewaveError, match="nothing to tune: the interpreter"):
        warm.warm_command(target="numpy", dtypes="f32", workers=1, as_json=False)
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", "off")
    with pytest.raises(TilewaveError, match="the cache is switched off"):
        warm.warm_command(target="cpu", dtypes="f32", workers=1, as_json=False)
