"""A seeded share of the nets of damaged inputs; `make fuzz` runs them for as long as one likes."""

import pytest

from . import cache_files, machine_files, saved_files, texts

SHARE = {texts: 150, saved_files: 60, cache_files: 40, machine_files: 150}


@pytest.mark.parametrize("net", SHARE, ids=lambda net: net.__name__.rpartition(".")[2])
def test_damaged_inputs_give_errors_of_ours_alone(net):
    found = {seed: said for seed in range(SHARE[net]) if (said := net.case(seed))}
    assert not found


@pytest.mark.parametrize(
    ("net", "broken"),
    [(texts, "parse"), (saved_files, "load"), (machine_files, "load"), (cache_files, "_damage")],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_net_tells_what_is_no_error_of_ours(net, broken, monkeypatch):
    def raises(*given):
        raise KeyError("not foreseen")

    monkeypatch.setattr(net, broken, raises)
    assert any("KeyError: 'not foreseen'" in (net.case(seed) or "") for seed in range(5))
