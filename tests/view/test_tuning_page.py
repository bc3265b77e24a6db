"""The page of a tuned kernel: every point, in the figure and in the table, and nothing that a name could break."""

import json
import re

import pytest

from tilewave.view.tuning_page import TunedPage, tuning_page
from tilewave.view.tuning_plot import TimeAxis, TuningConfig, seconds_text

POINTS = (
    TuningConfig("BLOCK=64", 1e-5, 1.1e-5, 1e-7, "chosen", "products"),
    TuningConfig("BLOCK=32", 0.9e-5, 1.3e-5, 2e-7, "model", "L2"),
    TuningConfig("BLOCK=16", 2e-5, 4e-5, 2e-7, "timed", "L2"),
    TuningConfig("BLOCK=8", 4e-5, None, 0.0, "untimed", "memory"),
    TuningConfig("BLOCK=<4>", 5e-5, None, 0.0, "untimed", "memory", "its result is wrong & so on"),
)


def page(points=POINTS):
    facts = "measured: 11 µs", "of 9 points 4 are illegal (4 by registers)", 0.09, "rows.csv", ("why </script> not",)
    return tuning_page([TunedPage("product <b> M=8", "H200", "BLOCK=64", *facts, points)])


def test_every_point_stands_in_the_figure_and_in_the_table():
    text = page()
    assert len(re.findall(r"<circle[^>]*class=\"mark", text)) == len(POINTS) + 4  # and one of each kind in the legend
    assert len(re.findall("<tr class=", text)) == len(POINTS)
    assert text.index("BLOCK=64 (chosen)") < text.index("<code>BLOCK=32") < text.index("<code>BLOCK=8")
    assert "<td>1.10</td>" in text and "<td>its result is wrong &amp; so on</td>" in text


def test_names_are_no_markup_and_nothing_is_fetched():
    text = page()
    assert "<b>" not in text and "&lt;b&gt;" in text and "why </script>" not in text
    assert "http" not in re.sub(r'xmlns="[^"]*"|http-equiv', "", text)
    data = re.search(r'id="data">(.*?)</script>', text, re.S).group(1)
    assert [one["text"] for one in json.loads(data)[0]["configs"]] == [p.text for p in POINTS]


def test_a_right_prediction_lies_on_the_diagonal():
    text = page((TuningConfig("a", 1e-5, 1e-5, 0.0, "chosen", ""), TuningConfig("b", 1e-4, 2e-5, 0.0, "timed", "")))
    x, y = map(float, re.search(r'cx="([\d.]+)" cy="([\d.]+)" r="6.5"', text).groups())
    left, bottom, right, top = map(float, re.search(r'd="M(\S+) (\S+)L(\S+) (\S+)"[^>]*class="key"', text).groups())
    assert (x - left) / (right - left) == pytest.approx((bottom - y) / (bottom - top), abs=0.01)


@pytest.mark.parametrize(
    ("seconds", "told"), [(1.5, "1.5 s"), (0.9999e-3, "1 ms"), (9.996e-4, "1 ms"), (9.99e-4, "999 µs"), (2e-9, "2 ns")]
)
def test_times_have_three_digits(seconds, told):
    assert seconds_text(seconds) == told


def test_ticks_are_round_and_inside():
    axis = TimeAxis.of([1e-5, 3e-4])
    assert axis.ticks == pytest.approx([1e-5, 2e-5, 5e-5, 1e-4, 2e-4]) and 0 < axis.at(1e-5) < axis.at(3e-4) < 1
