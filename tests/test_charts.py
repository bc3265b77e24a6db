"""The charts of the benchmark pages: each is drawn from its CSV file, and the committed file is current."""

import importlib.util
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]


def module_of_the_charts():
    spec = importlib.util.spec_from_file_location("charts", ROOT / "benchmarks" / "charts.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["charts"] = module  # dataclasses look it up there
    spec.loader.exec_module(module)
    return module


charts = module_of_the_charts()
each_chart = pytest.mark.parametrize("chart", charts.CHARTS, ids=lambda chart: chart.name)


@each_chart
def test_a_committed_chart_shows_its_data(chart):
    committed = (ROOT / "docs" / "pictures" / chart.name).read_text(encoding="utf-8")
    assert committed == chart.svg(), "run python benchmarks/charts.py"


@each_chart
def test_every_value_is_inside_the_axis(chart):
    values = [float(row[column]) for row in chart.rows for column in chart.series.values() if row[column]]
    assert values and chart.ticks[0] <= min(values) and max(values) <= chart.ticks[-1]


@each_chart
def test_a_chart_has_a_title_an_axis_and_a_caption_with_its_machine(chart):
    written = "".join(ElementTree.fromstring(chart.svg()).itertext())
    assert chart.title in written and chart.axis in written
    assert any(machine in chart.caption for machine in ("H200", "Neoverse", "Xeon", "gfx942"))
