"""What tests of commands share."""

import sys
import textwrap

import pytest
from played_gpu import bench_call, gpu  # noqa: F401

from tilewave.cli.main import main


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run a command in an empty directory; its exit code, what it printed, and what it said of errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")

    def run(*words, **files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        monkeypatch.setattr(sys, "argv", ["tilewave", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as leave:
            code = leave.code or 0
        return code, *capsys.readouterr()

    return run
