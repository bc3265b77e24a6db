"""The page as a person meets it: in a real browser, from a file."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewave.mapping import Grid, Index
from tilewave.sim import Gemm
from tilewave.sim.simulate import run
from tilewave.view import show
from tilewave.view.drawn import Drawn
from tilewave.view.traffic_page import traffic_page

GROUPED = "xcd_contiguous(8) >> grouped(2)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "map.html"
    show(GROUPED, "8x8", compare=["linear()"]).save(path)
    return path


def test_page_opens_without_a_complaint_and_asks_for_nothing_else(browser: Any, page: Path) -> None:
    browser.open(page)
    assert browser.complaints() == []
    assert browser.requested() == [page.as_uri()]


def test_every_tile_is_drawn_exactly_once_in_every_figure(browser: Any, page: Path) -> None:
    browser.open(page)
    for article in (1, 2):
        for kind in ("order", "xcds", "reads"):
            places = browser.run(
                f"return Array.from(document.querySelectorAll('article:nth-child({article}) .{kind} .tile'))"
                ".map(e => [e.getAttribute('x'), e.getAttribute('y')].join())"
            )
            assert len(places) == len(set(places)) == 64


def test_drawn_tiles_stand_where_the_mapping_puts_them(browser: Any, page: Path) -> None:
    browser.open(page)
    drawn = browser.run(
        "return Array.from(document.querySelectorAll('article:first-child .xcds .tile'))"
        ".map(e => [Number(e.dataset.turn), Number(e.getAttribute('y')), Number(e.getAttribute('x'))])"
    )
    tiles = show(GROUPED, "8x8").placements[0].tiles
    rows = sorted({y for _, y, _ in drawn})
    cols = sorted({x for _, _, x in drawn})
    assert all((rows.index(y), cols.index(x)) == tuple(tiles[turn]) for turn, y, x in drawn)


def test_launch_can_be_stepped_and_slid_through(browser: Any, page: Path) -> None:
    browser.open(page)
    assert browser.text("#now") == "64 of 64 tiles launched"
    browser.click("#first")
    assert browser.count(".xcds .tile.later") == 2 * 64
    browser.click("#step")
    browser.click("#step")
    browser.click("#step")
    browser.click("#back")
    assert browser.text("#now") == "2 of 64 tiles launched"
    assert browser.count(".order .tile:not(.later)") == browser.count(".xcds .tile:not(.later)") == 2 * 2
    assert browser.count(".order .label:not(.later)") == 2 * 2
    browser.run("const s = document.getElementById('turn'); s.value = 40; s.dispatchEvent(new Event('input'))")
    assert browser.count(".xcds .tile:not(.later)") == 2 * 40
    assert browser.run("return document.querySelector('.xcds .tile.now').dataset.turn") == "39"


def test_path_grows_with_the_launch(browser: Any, page: Path) -> None:
    browser.open(page, "#turn=11")
    points = browser.run("return document.querySelector('article:nth-child(2) .path').getAttribute('points')")
    assert len(points.split()) == 11


def test_launch_plays_pauses_and_ends(browser: Any, page: Path) -> None:
    browser.open(page)
    browser.run("document.getElementById('lasts').value = '60'")  # a minute: it cannot end before it is paused
    browser.click("#play")
    _soon(lambda: browser.text("#play"), "⏸ Pause")
    _soon(lambda: 1 <= _launched(browser) < 64, True)
    browser.click("#play")
    _soon(lambda: browser.text("#play"), "▶ Play")
    paused = _launched(browser)
    browser.run("document.getElementById('lasts').innerHTML = '<option value=0.1>'")
    browser.wait_for_frames(5)  # in each, a launch that went on would be some tiles further
    assert _launched(browser) == paused
    browser.click("#play")
    _soon(lambda: browser.text("#now"), "64 of 64 tiles launched")
    _soon(lambda: browser.text("#play"), "▶ Play")


def test_choosing_an_xcd_shows_what_it_reads(browser: Any, page: Path) -> None:
    browser.open(page)
    browser.click(".chooser label:nth-of-type(6)")
    first, second = "article:nth-child(1) ", "article:nth-child(2) "
    assert browser.text(first + ".reads > text") == "Blocks of A and B that XCD 5 reads"
    assert browser.text(first + ".sum") == "16 blocks of A + 32 of B = 48 for 8 tiles of C"
    assert browser.text(second + ".sum") == "8 blocks of A + 64 of B = 72 for 8 tiles of C"
    read = "return Array.from(document.querySelectorAll('{}[data-{}].used')).map(e => Number(e.dataset.{}))"
    assert browser.run(read.format(first, "row", "row")) == [4, 5]
    assert browser.run(read.format(first, "col", "col")) == [4, 5, 6, 7]
    assert browser.run(read.format(second, "row", "row")) == [5]
    assert browser.count(first + ".xcds .tile.chosen") == 8


def test_highlighted_blocks_take_the_colour_of_the_xcd(browser: Any, page: Path) -> None:
    browser.open(page, "#xcd=2")
    colours = browser.run(
        "return ['.reads .tile.used', '[data-row].used', '[data-col].used', '.xcds .tile.chosen']"
        ".map(s => getComputedStyle(document.querySelector(s)).fill)"
    )
    assert colours == ["rgb(238, 136, 102)"] * 4


def test_pointer_on_a_tile_tells_what_it_is(browser: Any, page: Path) -> None:
    browser.open(page)
    _point_at(browser, ".xcds .tile[data-turn='11']")
    said = "tile (3, 4)\nworkgroup 11 · XCD 3 · wave 1\nreads 8 blocks of A in row 3\nreads 8 blocks of B in column 4"
    _soon(lambda: browser.text("#hint"), said)
    _point_at(browser, "h1")
    _soon(lambda: browser.count("#hint:not([hidden])"), 0)


def test_click_on_a_tile_chooses_its_xcd(browser: Any, page: Path) -> None:
    browser.open(page)
    _point_at(browser, ".xcds .tile[data-turn='14']").click().perform()
    _soon(lambda: browser.text(".reads > text"), "Blocks of A and B that XCD 6 reads")
    assert browser.run("return document.querySelector('.chooser input:checked').value") == "6"


def test_tiles_can_be_walked_with_the_keyboard(browser: Any, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelectorAll('figure svg')[1].focus()")
    keys = _actions(browser)
    for _ in range(3):
        keys = keys.send_keys("\ue014")  # right
    keys.send_keys("\ue015").perform()  # down
    _soon(lambda: browser.text("#said").splitlines()[:2], ["tile (1, 3)", "workgroup 56 · XCD 0 · wave 1"])


def test_space_plays_when_nothing_has_the_focus(browser: Any, page: Path) -> None:
    browser.open(page)
    _actions(browser).send_keys(" ").perform()
    _soon(lambda: browser.text("#play"), "⏸ Pause")


def test_everything_that_can_be_pressed_has_a_name(browser: Any, page: Path) -> None:
    browser.open(page)
    nameless = browser.run(
        "return Array.from(document.querySelectorAll('button, input, select'))"
        ".filter(e => !e.getAttribute('aria-label') && !e.closest('label')).map(e => e.outerHTML)"
    )
    assert nameless == []
    assert browser.count("svg[role=img] > title") == 6


def test_theme_switches_and_text_stays_legible(browser: Any, page: Path) -> None:
    browser.open(page, "#theme=light")
    light = _paper_and_ink(browser)
    browser.click("#theme")
    dark = _paper_and_ink(browser)
    assert light == ["rgb(255, 255, 255)", "rgb(31, 35, 40)"]
    assert dark == ["rgb(22, 27, 34)", "rgb(230, 237, 243)"]


def test_persistent_launch_tells_its_rounds(browser: Any, tmp_path: Path) -> None:
    show("xcd_contiguous(8) >> grouped(2)", "6x8", workgroups=20).save(tmp_path / "map.html")
    browser.open(tmp_path / "map.html", "#turn=41")
    assert browser.text("#now") == "41 of 48 tiles launched, wave 3 of 3"
    _point_at(browser, ".xcds .tile[data-turn='40']")
    _soon(lambda: "workgroup 0 · XCD 0 · wave 3" in browser.text("#hint"), True)


def test_large_grid_is_walked_in_cells(browser: Any, tmp_path: Path) -> None:
    show("xcd_contiguous(8) >> grouped(2)", "20x1100").save(tmp_path / "map.html")
    browser.open(tmp_path / "map.html", "#xcd=3")
    assert browser.complaints() == []
    assert browser.text("#now") == "5500 of 5500 cells launched"
    assert browser.count(".order .tile") == 10 * 550
    assert browser.text(".note").startswith("Each cell is 2×2 tiles and shows the first of them.")
    row, col = Drawn.of(show(GROUPED, "20x1100").placements[0]).cells[5499].tolist()
    _point_at(browser, ".xcds .tile[data-turn='5499']")
    _soon(lambda: browser.text("#hint").splitlines()[0], f"tile ({2 * row}, {2 * col})")


def test_name_of_a_formula_cannot_break_out_of_the_page(browser: Any, tmp_path: Path) -> None:
    def column_by_column(w: Index, grid: Grid) -> tuple[Index, Index]:
        return w % grid.rows, w // grid.rows

    column_by_column.__name__ = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"
    show(column_by_column, "3x5").save(tmp_path / "map.html")
    browser.open(tmp_path / "map.html")
    assert browser.complaints() == []
    assert browser.run("return window.broken") is None
    assert browser.text("h2") == column_by_column.__name__
    assert browser.count("img") == 0


def test_notebook_runs_the_page_in_its_frame(browser: Any, tmp_path: Path) -> None:
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><meta charset=utf-8>{show(GROUPED, '8x8')._repr_html_()}", encoding="utf-8")
    browser.open(notebook)
    browser.driver.switch_to.frame(0)
    browser.click("#first")
    browser.click("#step")
    assert browser.text("#now") == "1 of 64 tiles launched"
    browser.driver.switch_to.default_content()
    assert browser.complaints() == []


@pytest.mark.parametrize("grid", ["1x1", "1x40", "40x1", "3x5", "16x16", "40x40"])
def test_numbers_do_not_leave_their_tiles(browser: Any, tmp_path: Path, grid: str) -> None:
    show("xcd_contiguous(8) >> hilbert()", grid).save(tmp_path / "map.html")
    browser.open(tmp_path / "map.html")
    assert browser.complaints() == []
    assert browser.run(OVERHANGING) == []


@pytest.mark.parametrize("grid", ["1x1", "1x40", "3x5", "8x8", "40x40"])
def test_texts_of_a_figure_do_not_overlap(browser: Any, tmp_path: Path, grid: str) -> None:
    show("xcd_contiguous(8) >> grouped(2)", grid, k_blocks=1).save(tmp_path / "map.html")
    browser.open(tmp_path / "map.html")
    assert browser.run(OVERLAPPING) == []


@pytest.mark.parametrize("width", [400, 1280, 1920])
def test_pages_fit_the_screen_and_their_captions_can_be_read(browser: Any, tmp_path: Path, width: int) -> None:
    show(GROUPED, "8x8", compare=["linear()"]).save(tmp_path / "map.html")
    runs = tuple(run(Gemm(1024, 2048, 256, (128, 128, 64)), "MI300X", order) for order in (GROUPED, "linear()"))
    (tmp_path / "sim.html").write_text(traffic_page(runs), encoding="utf-8")
    for page in ("map.html", "sim.html"):
        with browser.of_width(width):
            browser.open(tmp_path / page)
            assert browser.run(STICKING_OUT) == []
            assert browser.run(SMALLEST_TEXT) >= 7.5
            columns = browser.run(FIGURES_BEGIN)
            assert len(columns) == {400: 1, 1280: 2, 1920: 4}[width]


def test_captions_that_name_symbols_and_values_stay_in_their_figures(browser: Any, tmp_path: Path) -> None:
    """Capitals are wider than prose: a line of as many letters was cut off."""
    config = "gemm, BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, grouped(16), chosen for sm_90a"
    found = run(Gemm(1024, 2048, 256, (128, 128, 64)), "H200", "linear()")
    named = replace(found, report=replace(found.report, problem=config))
    (tmp_path / "sim.html").write_text(traffic_page((named,)), encoding="utf-8")
    browser.open(tmp_path / "sim.html")
    assert browser.count("figure svg text.soft") > 10
    assert browser.run(CUT_OFF) == []


CUT_OFF = """
const texts = [...document.querySelectorAll('figure svg text')];
return texts.filter(t => t.getBoundingClientRect().right > t.closest('svg').getBoundingClientRect().right)
  .map(t => t.textContent);
"""
STICKING_OUT = """
const wide = document.documentElement.clientWidth;
const all = document.querySelectorAll('header, section, article, article > *, article p, figure');
return [...all].filter(e => e.getBoundingClientRect().right > wide + 1).map(e => e.outerHTML.slice(0, 80));
"""
FIGURES_BEGIN = """
const figures = [...document.querySelectorAll('article figure')];
return [...new Set(figures.map(f => Math.round(f.getBoundingClientRect().left)))];
"""
SMALLEST_TEXT = """
const drawings = [...document.querySelectorAll('figure svg')];
return 12 * Math.min(...drawings.map(s => s.getBoundingClientRect().width / s.getAttribute('width')));
"""

OVERHANGING = """
const found = [];
for (const label of document.querySelectorAll('[data-label]')) {
  const figure = label.closest('.figure');
  const tile = figure.querySelector(`.tile[data-turn="${label.dataset.label}"]`).getBoundingClientRect();
  const box = label.getBoundingClientRect();
  if (box.left < tile.left || box.right > tile.right) found.push(figure.getAttribute('class') + label.textContent);
}
return found;
"""

OVERLAPPING = """
const found = [];
for (const figure of document.querySelectorAll('.figure')) {
  const texts = Array.from(figure.querySelectorAll('text:not([data-label])'));
  const boxes = texts.map(t => t.getBoundingClientRect());
  for (let i = 0; i < texts.length; i++) for (let j = 0; j < i; j++) {
    const [a, b] = [boxes[i], boxes[j]];
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 4) found.push(texts[i].textContent + ' | ' + texts[j].textContent);
  }
}
return found;
"""


def _launched(browser: Any) -> int:
    return int(browser.text("#now").split()[0])


def _soon(ask: Callable[[], object], expected: object) -> None:
    """The browser answers when it has time to: ask until it says so, or until it has had more than enough."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and ask() != expected:
        time.sleep(0.02)
    assert ask() == expected


def _actions(browser: Any) -> Any:
    from selenium.webdriver import ActionChains

    return ActionChains(browser.driver, duration=20)


def _point_at(browser: Any, selector: str) -> Any:
    element = browser.driver.find_element("css selector", selector)
    browser.driver.execute_script('arguments[0].scrollIntoView({block: "center"})', element)
    actions = _actions(browser).move_to_element(element)
    actions.perform()
    return _actions(browser)


def _paper_and_ink(browser: Any) -> list[str]:
    colours = browser.run(
        "return ['.paper', '.ink'].map(s => getComputedStyle(document.querySelector('figure ' + s)).fill)"
    )
    return list(colours)
