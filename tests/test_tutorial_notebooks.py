"""The notebooks of docs/notebooks: each matches its tutorial, and all its cells run in order."""

import contextlib
import importlib.util
import io
import json
import linecache
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tilewave.errors import TilewaveError

ROOT = Path(__file__).parents[1]


def module_of_the_notebooks():
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "docs/site/notebooks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["notebooks"] = module  # dataclasses look it up there
    spec.loader.exec_module(module)
    return module


notebooks = module_of_the_notebooks()
each_notebook = pytest.mark.parametrize("name", notebooks.TUTORIALS)


@each_notebook
def test_a_committed_notebook_matches_its_tutorial(name):
    committed = notebooks.path_of(name).read_text(encoding="utf-8")
    assert committed == notebooks.written(name), "run python docs/site/notebooks.py"


def test_no_notebook_is_left_over():
    committed = {path.name for path in (ROOT / "docs/notebooks").iterdir()}
    assert committed == {notebooks.path_of(name).name for name in notebooks.TUTORIALS}


@each_notebook
def test_links_of_a_notebook_lead_to_files(name):
    cells = json.loads(notebooks.path_of(name).read_text(encoding="utf-8"))["cells"]
    prose = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    for target in re.findall(r"\]\((?!\w+:)([^)\s#]+)", re.sub(r"`[^`\n]*`", "", prose)):
        assert (ROOT / "docs/notebooks" / target).exists(), f"{name} links to {target}, which does not exist"


@each_notebook
def test_every_cell_of_a_notebook_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for cell in json.loads(notebooks.path_of(name).read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            run_cell(cell, names, tmp_path)


def run_cell(cell, names, directory):
    source = "".join(cell["source"])
    if source.startswith("!"):
        for line in source.splitlines():
            run_command(line.removeprefix("!"), directory)
        return
    path = directory / f"{cell['id']}.py"  # where errors find the source of a kernel
    path.write_text(source)
    linecache.checkcache(str(path))
    printed = io.StringIO()
    raises = "raises-exception" in cell["metadata"].get("tags", [])
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(source, str(path), "exec", dont_inherit=True), names)
        assert not raises, f"{cell['id']} raises nothing"
    except TilewaveError as error:
        assert raises, f"{cell['id']}: {error}"
        assert str(error).splitlines()[0] == cell["outputs"][0]["evalue"].splitlines()[0]
        return
    shown = "".join("".join(output["text"]) for output in cell["outputs"])
    assert not shown or printed.getvalue().rstrip() == shown.rstrip(), f"{cell['id']} prints something else"


def run_command(line, directory):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(["bash", "-c", line], cwd=directory, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
