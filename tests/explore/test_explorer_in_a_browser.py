"""The explorer as a person meets it: in a real browser."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewave.explore.page import Page

LEFT, RIGHT, DOWN, HOME, TAB = "\ue012", "\ue014", "\ue015", "\ue011", "\ue004"


@pytest.fixture
def page(browser: Any, server: Any) -> Any:
    """Opened in some state; the browser, once the answer is shown."""

    def open_page(state: str = "") -> Any:
        browser.visit(server.address, state)
        _soon(lambda: browser.run("return document.getElementById('main').getAttribute('aria-busy')"), "false")
        return browser

    return open_page


def test_page_opens_without_a_complaint_and_asks_nobody_but_itself(page: Any, server: Any) -> None:
    browser = page()
    assert browser.complaints() == []
    asked = browser.requested()
    assert asked[:2] == [server.address, f"{server.address}api/launch?"]
    assert all(address.startswith(server.address) for address in asked)
    assert browser.text("#problem") == "1024×2048×256 f16, tiles of 128×128×64 on MI300X"


def test_the_title_names_kernel_tiles_sizes_and_target(page: Any) -> None:
    assert page("#tab=passes").text("#problem") == "gemm, tiles of 128×128×64; 1024x2048x256, compiled for gfx942"


def test_both_orders_are_drawn_and_every_tile_has_its_xcds_colour(page: Any) -> None:
    browser = page("#theme=light")
    assert browser.count("#grids .grid") == 2
    assert browser.run("return Array.from(document.querySelectorAll('#grids code')).map(e => e.textContent)") == [
        "xcd_contiguous(8) >> grouped(2)",
        "linear()",
    ]
    # linear() goes down the columns of 8 tiles, so that row r belongs to XCD r
    assert browser.run(PIXELS.format(at=1, x=5)) == [
        [119, 170, 221, 255],
        [238, 221, 136, 255],
        [238, 136, 102, 255],
        [153, 221, 255, 255],
    ]


PIXELS = """
const cells = document.querySelectorAll('.cells')[{at}].getContext('2d');
return [0, 1, 2, 3].map(row => Array.from(cells.getImageData({x}, row, 1, 1).data));
"""


def test_launch_is_stepped_slid_and_remembered_in_the_address(page: Any) -> None:
    browser = page()
    assert browser.text("#now") == "128 of 128 tiles launched"
    browser.click("#first")
    browser.click("#step")
    browser.click("#step")
    assert browser.text("#now") == "2 of 128 tiles launched"
    assert browser.run("return location.hash") == "#turn=2"
    browser.run("const s = document.getElementById('turn'); s.value = 40; s.dispatchEvent(new Event('input'))")
    assert browser.run("return location.hash") == "#turn=40"
    launched = "return Array.from(document.querySelectorAll('.cells')).map(c => {const d = c.getContext('2d').getImageData(0, 0, 16, 8).data; let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] === 255; return n})"  # noqa: E501
    assert browser.run(launched) == [40, 40]
    assert page("#turn=40").text("#now") == "40 of 128 tiles launched"


def test_launch_plays_pauses_and_ends(page: Any) -> None:
    browser = page()
    browser.run("document.getElementById('lasts').value = '40'")
    _keys(browser).send_keys(" ").perform()
    _soon(lambda: browser.text("#play"), "⏸ Pause")
    _soon(lambda: 1 <= int(browser.text("#now").split()[0]) < 128, True)
    browser.click("#play")
    assert browser.text("#play") == "▶ Play"
    browser.run("document.getElementById('lasts').innerHTML = '<option value=0.2>'")
    browser.click("#play")
    _soon(lambda: browser.text("#now"), "128 of 128 tiles launched")
    _soon(lambda: browser.text("#play"), "▶ Play")


def test_less_motion_is_ten_pictures(page: Any) -> None:
    browser = page()
    calm = {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", calm)
    try:
        browser.run(
            "window.seen = new Set(); new MutationObserver(() => seen.add(document.getElementById('now').textContent))"
            ".observe(document.getElementById('now'), {childList: true, characterData: true, subtree: true});"
            "document.getElementById('lasts').innerHTML = '<option value=0.5>'"
        )
        browser.click("#play")
        _soon(lambda: browser.text("#now"), "128 of 128 tiles launched")
        assert browser.run("return window.seen.size") <= 11
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_bytes_are_a_heat_map_with_a_scale_and_a_difference(page: Any) -> None:
    browser = page("#mode=hbm")
    assert browser.count("#grids .grid") == 3
    assert browser.count("#grids .ramp") == 3
    assert browser.text("#grids .key").endswith("bytes from HBM, each tile")
    assert "second minus first" in browser.text("#grids > :nth-child(3) .key")


def test_tiles_are_walked_with_the_keyboard(page: Any) -> None:
    browser = page()
    browser.run("document.querySelector('.cells').focus()")
    _keys(browser).send_keys(DOWN).send_keys(RIGHT).send_keys(RIGHT).send_keys(DOWN).perform()
    said = browser.text("#said").splitlines()
    assert said[:2] == ["tile (1, 2)", "workgroup 40 · XCD 0 · wave 1"]
    assert said[2].startswith("requests 131 kB, ")


def test_tabs_are_walked_with_the_keyboard(page: Any) -> None:
    browser = page()
    browser.run("document.getElementById('tab-tiles').focus()")
    _keys(browser).send_keys(RIGHT).perform()
    _soon(lambda: browser.count("#traffic:not([hidden]) figure"), 6)
    assert browser.run("return location.hash") == "#tab=traffic"
    _keys(browser).send_keys(LEFT).perform()
    assert browser.count("#tiles:not([hidden])") == 1


def test_time_and_traffic_stand_side_by_side(page: Any) -> None:
    browser = page("#tab=traffic")
    rows = browser.run("return Array.from(document.querySelectorAll('#difference tr')).map(r => r.innerText)")
    assert rows[0].split("\t")[1:] == ["xcd_contiguous(8) >> grouped(2)", "linear()", "difference"]
    assert rows[1].startswith("time\t")
    assert browser.count("#figures .part") > 4 and browser.count("#figures .launch") == 2
    assert "HBM" in browser.text("#articles table") and "100.0 %" not in browser.text("#articles table")


def test_passes_show_what_each_did(page: Any) -> None:
    browser = page("#tab=passes&pass=map_workgroups&target=gfx942")
    assert browser.text("#step-name") == "map_workgroups"
    assert browser.count("#diff .added") > 10
    assert "tile_of(%workgroup)" in browser.text("#diff .removed")
    browser.run("document.querySelector('#steps [aria-current=true]').focus()")
    _keys(browser).send_keys(DOWN).perform()
    assert browser.text("#step-name") != "map_workgroups"
    assert f"pass={browser.text('#step-name')}" in browser.run("return location.hash")


def test_assembly_goes_with_the_authors_lines(page: Any) -> None:
    browser = page("#tab=code&target=gfx942")
    line = browser.run(
        "const b = Array.from(document.querySelectorAll('#source button')).find(b => b.innerText.includes('mma('));"
        "b.click(); return b.dataset.line"
    )
    meant = browser.run("return Array.from(document.querySelectorAll('#assembly .meant')).map(e => e.textContent)")
    assert any("v_mfma" in text for text in meant)
    assert browser.run("return location.hash").endswith(f"line={line}")


def test_cycles_of_the_k_loop_are_shown_with_what_is_not_known(page: Any) -> None:
    browser = page("#tab=code&target=gfx942")
    said = browser.run("return document.getElementById('figures-of-code').textContent")
    assert "Cycles of the K loop" in said and "utilization" in said and "A model, not a measurement" in said
    assert "s_waitcnt" in said


def test_a_choice_is_shown_and_shared_by_its_address(page: Any) -> None:
    browser = page()
    browser.run(
        "const f = document.getElementById('chooser').elements; f.machine.value = 'H200'; f.map.value = 'hilbert()';"
        "f.beside.value = ''; document.getElementById('chooser').requestSubmit()"
    )
    _soon(lambda: browser.text("#grids code"), "hilbert()")
    address = browser.run("return location.hash")
    assert "machine=H200" in address and "map=hilbert%28%29" in address
    again = page(address)
    assert again.text("#problem").endswith("on H200")
    assert again.run("return document.getElementById('chooser').elements.map.value") == "hilbert()"


def test_a_wrong_choice_is_said_in_the_commands_words(page: Any) -> None:
    browser = page("#map=grouped(0)")
    said = browser.text("#fault")
    assert said.startswith("error: ") and "grouped(0)" in said
    browser.complaints()  # the browser logs the refusal


@pytest.mark.parametrize("state", ["#map=%3Cimg%20src%3Dx%20onerror%3D%22window.broken%3D1%22%3E", "#tab=%3Cscript%3E&mode=constructor&turn=NaN&line=%22%5D", "#__proto__=x&theme=%22%3E%3Cscript%3E"])  # fmt: skip  # noqa: E501
def test_an_address_runs_nothing(page: Any, state: str) -> None:
    browser = page(state)
    browser.wait_for_frames(3)
    assert browser.run("return window.broken") is None
    assert browser.count("img") == 0
    assert not [words for words in browser.complaints() if "Failed to load resource" not in words]


def test_theme_follows_the_system_and_can_be_switched(page: Any) -> None:
    browser = page("#theme=light")
    paper = "return getComputedStyle(document.body).backgroundColor"
    assert browser.run(paper) == "rgb(245, 247, 249)"
    browser.click("#theme")
    assert browser.run(paper) == "rgb(13, 17, 23)"
    assert browser.run("return location.hash") == "#theme=dark"


def test_everything_that_can_be_pressed_has_a_name(page: Any) -> None:
    for tab in ("tiles", "passes", "code"):
        browser = page(f"#tab={tab}&target=gfx942")
        nameless = browser.run(
            "return Array.from(document.querySelectorAll('button, input, select, [tabindex=\"0\"]'))"
            ".filter(e => !e.getAttribute('aria-label') && !e.closest('label') && !e.innerText.trim() && !e.hidden"
            " && e.offsetParent).map(e => e.outerHTML)"
        )
        assert nameless == []


def test_a_narrow_window_scrolls_down_and_not_sideways(page: Any) -> None:
    browser = page()
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for tab in ("tiles", "traffic", "passes", "code"):
            page(f"#tab={tab}")
            assert browser.run("const e = document.documentElement; return e.scrollWidth - e.clientWidth") == 0
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_page_in_a_file_holds_its_choice_and_asks_nobody(browser: Any, explorer: Any, tmp_path: Path) -> None:
    (tmp_path / "explorer.html").write_text(Page.alone(explorer).html, encoding="utf-8")
    browser.open(tmp_path / "explorer.html")
    _soon(lambda: browser.count("#grids .grid"), 2)
    assert browser.requested() == [(tmp_path / "explorer.html").as_uri()]
    assert browser.run("return document.getElementById('chooser').elements.map.disabled") is True
    for tab, shown in (("traffic", "#difference tr"), ("passes", "#diff .added"), ("code", "#assembly span")):
        browser.click(f"#tab-{tab}")
        _soon(lambda shown=shown: browser.count(shown) > 3, True)
    assert browser.complaints() == []


def _soon(ask: Callable[[], object], expected: object) -> None:
    """The browser answers when it has time to: ask until it says so, or until it has had more than enough."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and ask() != expected:
        time.sleep(0.02)
    assert ask() == expected


def _keys(browser: Any) -> Any:
    from selenium.webdriver import ActionChains

    return ActionChains(browser.driver, duration=20)
