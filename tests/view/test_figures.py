"""Figures, files and notebooks."""

from __future__ import annotations

import errno
import html
import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from kernels import *

from tilewave.errors import TilewaveError
from tilewave.mapping import Grid, MappingError
from tilewave.view import SaveError, palette, show
from tilewave.view.axes import paint
from tilewave.view.coarse import Coarse
from tilewave.view.drawn import Drawn
from tilewave.view.figures import figures
from tilewave.view.page import embedded
from tilewave.view.save import save
from tilewave.view.svg import escaped

SVG = "{http://www.w3.org/2000/svg}"
GROUPED = "xcd_contiguous(8) >> grouped(2)"
GRIDS = ["1x1", "1x40", "40x1", "3x5", "6x8", "8x8", "16x16", "40x40", "128x128"]


def drawn(mapping: object, grid: str, xcds: int = 8, **launch: int):
    (placement,) = show(mapping, grid, xcds, **launch).placements
    return {figure.kind: figure for figure in figures(placement)}


@pytest.mark.parametrize("grid", GRIDS)
def test_every_figure_is_well_formed_and_draws_every_tile_once(grid):
    rows, cols = map(int, grid.split("x"))
    for figure in drawn(GROUPED, grid).values():
        root = ElementTree.fromstring(figure.svg())
        tiles = [r for r in root.iter(f"{SVG}rect") if "tile" in r.get("class", "").split()]
        assert len({(r.get("x"), r.get("y")) for r in tiles}) == len(tiles) == rows * cols
        assert sorted(int(r.get("data-turn")) for r in tiles) == list(range(rows * cols))


def test_every_figure_stands_alone():
    for figure in drawn(GROUPED, "8x8").values():
        words = " ".join("".join(t.itertext()) for t in ElementTree.fromstring(figure.svg()).iter(f"{SVG}text"))
        assert figure.title in words
        assert "M (tile rows)" in words
        assert "N (tile columns)" in words
        assert "xcd_contiguous(8) >> grouped(2) on 8×8 tiles, 64 workgroups, 8 XCDs." in words


def test_the_documents_reads_are_drawn():
    for mapping, rows, cols, said in [
        ("linear()", [0], list(range(8)), "8 blocks of A + 64 of B = 72 for 8 tiles of C"),
        (GROUPED, [0, 1], [0, 1, 2, 3], "16 blocks of A + 32 of B = 48 for 8 tiles of C"),
    ]:
        text = drawn(mapping, "8x8")["reads"].svg()
        used = [r for r in ElementTree.fromstring(text).iter(f"{SVG}rect") if r.get("class") == "used"]
        assert [int(r.get("data-row")) for r in used if r.get("data-row")] == rows
        assert [int(r.get("data-col")) for r in used if r.get("data-col")] == cols
        assert said in text


def test_tiles_of_the_xcd_map_have_the_colour_of_their_xcd():
    root = ElementTree.fromstring(drawn("linear()", "8x8")["xcds"].svg())
    tiles = [r for r in root.iter(f"{SVG}rect") if r.get("class") == "tile"]
    assert all(r.get("fill") == palette.fill(int(r.get("data-turn")) % 8) for r in tiles)


def test_order_that_jumps_gets_a_path_for_each_xcd():
    assert drawn("hilbert()", "16x16")["order"].body.count("<polyline") == 1
    assert drawn(GROUPED, "8x8")["order"].body.count("<polyline") == 8


def test_paths_are_thinned_where_tiles_are_small():
    several = {grid: drawn(GROUPED, grid)["order"] for grid in ("32x32", "64x64", "96x96")}
    assert [figure.body.count("<polyline") for figure in several.values()] == [8, 1, 0]
    assert "The line joins XCD 0's tiles in launch order" in several["64x64"].caption
    assert "Tiles are too small for a line" in several["96x96"].caption


def test_rounds_are_parted_by_lines():
    one, many = drawn("linear()", "16x16")["order"], drawn("linear()", "16x16", workgroups=32)["order"]
    assert 'class="round"' not in one.body
    edges = re.search(r'<path d="([^"]*)"[^>]*class="round"', many.body)
    assert edges is not None
    assert edges[1].count("v") == 7 * 16 and "h" not in edges[1]  # a round is two columns of 16 tiles
    assert "Lines separate the waves" in many.caption
    scattered = drawn("hilbert()", "16x16", workgroups=1)["order"]
    assert 'class="round"' not in scattered.body


def test_a_cell_of_a_large_grid_is_its_first_tile():
    (placement,) = show(GROUPED, "256x130").placements
    whole = Drawn.of(placement)
    assert (whole.coarse.every, whole.grid) == (2, Grid(128, 65))
    table = whole.table(whole.turns)
    assert all(table[row, col] == placement.turns[2 * row, 2 * col] for row, col in ((0, 0), (5, 64), (127, 3)))
    assert np.array_equal(whole.table(whole.xcds), placement.xcds[::2, ::2])
    assert (np.diff(whole.turns) > 0).all()
    rows, cols = whole.read_by(3)
    tiles = np.argwhere(placement.xcds == 3) // 2
    assert (rows, cols) == (np.unique(tiles[:, 0]).tolist(), np.unique(tiles[:, 1]).tolist())


def test_means_of_cells_count_the_tiles_they_have():
    table = np.arange(15.0).reshape(3, 5)
    coarse = Coarse.of(3, 5, 6, 100)
    assert (coarse.every, coarse.rows, coarse.cols) == (2, 2, 3)
    assert coarse.means(table).tolist() == [[3.0, 5.0, 6.5], [10.5, 12.5, 14.0]]


def test_thirty_six_xcds_look_different():
    assert len({paint(xcd) for xcd in range(36)}) == 36


def test_neighbouring_colours_stay_apart_in_grey():
    grey = [sum(w * int(c[i : i + 2], 16) for w, i in zip((0.3, 0.59, 0.11), (1, 3, 5))) for c in palette.FILLS[:8]]  # noqa: B905
    assert all(abs(a - b) > 20 for a, b in zip(grey, grey[1:]))  # noqa: B905, RUF007


def test_labels_are_legible_on_every_colour():
    assert all(contrast(palette.LABEL, colour) > 4.5 for colour in (*palette.FILLS, palette.FIRST, palette.LAST))


def test_long_k_is_drawn_in_part_and_said():
    assert "K is 64 blocks deep, of which 8 are drawn." in drawn("linear()", "8x8", k_blocks=64)["reads"].caption


def test_text_is_escaped_and_stripped_of_what_xml_forbids():
    assert escaped('<a&"\x00\x1b\ud800>') == "&lt;a&amp;&quot;\ufffd\ufffd\ufffd&gt;"


def test_formula_with_a_hostile_name_stays_text():
    def formula(w, grid):
        return w % grid.rows, w // grid.rows

    formula.__name__ = '"><script>alert(1)</script>\x00'
    picture = show(formula, "3x5")
    ElementTree.fromstring(picture.svg())
    assert "<script>alert" not in picture.svg()
    assert "<script>alert" not in picture.html()


def test_embedded_data_cannot_end_its_element():
    assert embedded({"name": "</script><!-- & \u2028"}) == (
        '{"name":"\\u003c/script\\u003e\\u003c!-- \\u0026 \\u2028"}'
    )


def test_page_names_no_other_address():
    page = show(GROUPED, "8x8", compare=["linear()"]).html()
    assert set(re.findall(r"https?://[^\"' <]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe|object|embed)\b|@import|\burl\((?!#)", page)
    assert "default-src 'none'" in page


def test_formula_that_loses_a_tile_is_not_drawn():
    def lost(w, grid):
        return w // 2 % grid.rows, w * 0

    with pytest.raises(MappingError, match=r"lost fails .*: workgroups 0 and 1 both compute tile \(0, 0\)"):
        show(lost, "2x2")


def test_grid_is_given_as_a_grid_a_text_or_a_pair():
    assert len({show("linear()", grid).html() for grid in (Grid(3, 5), "3x5", "3×5", (3, 5))}) == 1


def kernel(mapping=None, workgroups=None, batches=1):
    dims = (M, N) if batches == 1 else (B, M, N)
    tiles = [WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)]
    tiles += [WorkgroupConstraint(B, 1, 2)] if batches > 1 else []
    tiles += [WorkgroupMapping(mapping)] if mapping else []
    tiles += [GridConstraint(workgroups)] if workgroups else []

    def copy(a, c):
        write(read(a), c)

    kind = Memory[(*dims, GLOBAL_ADDRESS_SPACE, f32)]
    copy.__annotations__ = {"a": kind, "c": kind}
    return wave_compile(WaveCompileOptions(subs={M: 96, N: 128, B: batches}, target="numpy"), wave(tiles)(copy))


@pytest.mark.parametrize("workgroups", [None, 20])
def test_a_compiled_kernel_is_drawn_in_its_own_order(workgroups):
    (own,) = show(kernel(GROUPED, workgroups)).placements
    (named,) = show(GROUPED, "6x8", workgroups=workgroups).placements
    assert np.array_equal(own.turns, named.turns) and np.array_equal(own.xcds, named.xcds)
    assert str(own.mapping) == "copy"
    beside = show(kernel(GROUPED, workgroups), compare=["linear()"])
    assert [str(p.mapping) for p in beside.placements] == ["copy", "linear()"]
    assert beside._repr_html_().startswith("<iframe")


def test_batches_of_a_kernel_stand_one_below_the_other():
    (placement,) = show(kernel(batches=3)).placements
    assert placement.launch.grid == Grid(18, 8)


def test_a_mapping_without_a_grid_is_not_drawn():
    with pytest.raises(MappingError, match="a mapping is drawn on a grid"):
        show("grouped(4)")


def test_batches_are_refused():
    with pytest.raises(MappingError, match="a grid of 2×3×4 has 4 batches; a picture shows one"):
        show("linear()", Grid(2, 3, 4))


def test_notebook_shows_the_page_in_a_frame_of_its_own():
    picture = show(GROUPED, "8x8")
    frame = picture._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-scripts"')
    inside = re.search(r'srcdoc="([^"]*)"', frame)
    assert inside is not None
    assert html.unescape(inside[1]) == picture.html()
    assert picture._repr_svg_() == picture.svg()


def test_pictures_of_the_same_thing_are_the_same():
    assert show(GROUPED, "8x8").html() == show(GROUPED, "8x8").html()


def test_picture_is_saved_by_its_suffix(tmp_path):
    picture = show(GROUPED, "2x2")
    picture.save(tmp_path / "map.svg")
    picture.save(tmp_path / "map.html")
    assert (tmp_path / "map.svg").read_text() == picture.svg()
    assert (tmp_path / "map.html").read_text() == picture.html()
    with pytest.raises(MappingError, match=r"a picture is saved as \.svg or \.html, not as \.png"):
        picture.save(tmp_path / "map.png")


def test_full_disk_keeps_the_old_file(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "map.svg"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SaveError) as caught:
        save(path, "new")
    assert str(caught.value) == f"{path} could not be written: No space left on device"
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["map.svg"]


def test_saving_keeps_mode_and_link(tmp_path):
    target, link = tmp_path / "target.svg", tmp_path / "link.svg"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    save(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_directory_without_permission_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(SaveError, match="Permission denied"):
        save(tmp_path / "map.svg", "new")


def test_error_of_saving_is_an_error_of_ours():
    assert issubclass(SaveError, TilewaveError)


def test_view_imports_without_the_terminal():
    code = "import sys, tilewave.view; print('rich' in sys.modules, 'typer' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False False\n"


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)
