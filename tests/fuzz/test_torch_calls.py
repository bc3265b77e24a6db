"""The net of gradients, patched models and operators: a share of it in every test run, and what it sees."""

from __future__ import annotations

import random

import pytest

from . import torch_calls

torch = pytest.importorskip("torch")
SHARE = [run * torch_calls.RUN + n for run in range(6) for n in range(4)]


def test_random_calls_in_torch_are_right_or_refused():
    found = {seed: text for seed in SHARE if (text := torch_calls.case(seed))}
    assert not found


def test_a_number_that_is_off_is_seen():
    want = torch.randn(5, 7, dtype=torch.float64)
    assert torch_calls.near("x", want.float(), want, 8) is None
    off = want.float()
    off[2, 3] += 0.001
    assert (torch_calls.near("x", off, want, 8) or "").startswith("wrong numbers in x")
    assert torch_calls.near("x", want[:2], want, 8) == "x has another shape: (2, 7), not (5, 7)"


@pytest.mark.parametrize("operation", torch_calls.DIFFERENTIATED)
def test_a_wrong_gradient_is_seen(operation, monkeypatch):
    """The gradient of twice the result, where that of the result is wanted."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    make = torch_calls.DIFFERENTIATED[operation]

    def wrong(theme, r):
        shapes, _, theirs = make(theme, r)
        return shapes, lambda **given: Wrong.apply(theirs(**given)), theirs

    monkeypatch.setattr(torch_calls, "DIFFERENTIATED", {operation: wrong})
    found = [torch_calls.gradients(random.Random("a theme"), random.Random(n)) or "" for n in range(12)]
    assert any(f"{operation}'s gradient of" in text for text in found)


def test_foreign_errors_are_told(monkeypatch):
    monkeypatch.setattr(torch_calls, "viewed", lambda *_: {}["x"])
    assert torch_calls.case(0) == "gradients: raised KeyError: 'x'"
