"""What a first call needs is loaded in the background: part after part, until the process ends."""

import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from tilewave import ops
from tilewave.ops import preload
from tilewave.ops.preload import Preload

SECONDS = 30
"""How long a test waits for something that takes moments."""


def test_the_end_waits_for_the_part_that_is_loaded_and_begins_no_other():
    begun, held, loaded = threading.Event(), threading.Event(), []

    def first():
        begun.set()
        assert held.wait(SECONDS)
        loaded.append("first")

    found = Preload((first, lambda: loaded.append("second")))
    found.start()
    assert begun.wait(SECONDS)
    ending = threading.Thread(target=found.end)
    ending.start()
    while not found.is_over:
        pass
    held.set()
    ending.join(SECONDS)
    assert loaded == ["first"]


def test_what_cannot_be_loaded_is_left_to_the_first_call():
    loaded = []

    def missing():
        raise ImportError("no such library")

    found = Preload((missing, lambda: loaded.append("second")))
    found.start()
    found.thread.join(SECONDS)
    assert loaded == []


@pytest.mark.parametrize(("torch", "background", "starts"), [(True, None, 1), (True, "0", 0), (False, None, 0)])
def test_it_begins_with_torch_where_nothing_forbids_the_background(monkeypatch, torch, background, starts):
    begun = []
    monkeypatch.setattr(Preload, "start", lambda self: begun.append(self.parts))
    if torch:
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(compile=None))
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delenv("TILEWAVE_BACKGROUND", raising=False)
    if background:
        monkeypatch.setenv("TILEWAVE_BACKGROUND", background)
    preload.start()
    assert len(begun) == starts


def test_a_call_ends_it(monkeypatch):
    begun, held, loaded = threading.Event(), threading.Event(), []

    def first():
        begun.set()
        assert held.wait(SECONDS)

    found = Preload((first, lambda: loaded.append("second")))
    monkeypatch.setattr(preload._Started, "preload", found)
    found.start()
    assert begun.wait(SECONDS)
    ops.softmax(np.ones((2, 3), np.float32))
    held.set()
    found.thread.join(SECONDS)
    assert not loaded


def test_passes_are_loaded_where_nothing_is_in_the_cache(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(hip=None, cuda="13.0")))
    monkeypatch.setattr(preload, "targets_on", lambda kind: asked.append(kind) or ())
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(tmp_path))
    preload._passes()
    (tmp_path / "an.entry").write_bytes(b"code")
    preload._passes()
    assert asked == ["cuda"]
