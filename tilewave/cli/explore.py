"""`tilewave explore`: one page on which shape, tile, order and chip are chosen, on this machine alone."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping
from pathlib import Path

import typer

from tilewave.backend.names import INTERPRETER
from tilewave.cli.asked import refuse_given
from tilewave.cli.diff import fixed_in, named_kernels, parse_sizes
from tilewave.compiled import Compiled
from tilewave.errors import TilewaveError
from tilewave.explore.choice import ExplorerChoice
from tilewave.explore.explorer import Explorer
from tilewave.explore.kernels import Explored, ExploredFile, ExploredGemm
from tilewave.explore.page import Page
from tilewave.explore.server import ExplorerServer
from tilewave.machine import MACHINES, find_or_load
from tilewave.view.save import save

OF_A_GEMM = ("shape", "tile", "dtype", "workgroups")
ITS_OWN = "the kernel's file and --set decide it; leave it out"


def explore_command(
    *,
    context: typer.Context,
    file: Path | None,
    sizes: list[str] | None,
    kernel: str,
    shape: str,
    tile: str,
    dtype: str,
    workgroups: int | None,
    mapping: str,
    compare: str,
    machine: str,
    port: int,
    browser: bool,
    html: Path | None,
) -> None:
    chip = find_or_load(machine)
    facts = {"map": mapping, "beside": compare, "machine": chip.name}
    machines = {**MACHINES, chip.name: chip}
    if file is not None:
        refuse_given(context, OF_A_GEMM, "has no effect on a kernel from a file", ITS_OWN)
        start = ExplorerChoice(kernel=kernel, sizes=",".join(sizes or ()), **facts)
        explorer = Explorer(_of_file(file, start), start, machines, lambda: file.stat().st_mtime_ns)
    else:
        refuse_given(
            context, ("sizes", "kernel"), "has no effect without a file", "write --shape MxNxK and --tile MxNxK"
        )
        start = ExplorerChoice(shape=shape, tile=tile, dtype=dtype, workgroups=str(workgroups or ""), **facts)
        explorer = Explorer(ExploredGemm(), start, machines)
    if html is not None:
        save(html, Page.alone(explorer).html)
        print(f"wrote {html}")
        return
    explorer.answer("launch", start)  # what cannot be shown is reported here, and not on the page
    _serve(explorer, port, browser)


def _of_file(file: Path, start: ExplorerChoice) -> Explored:
    def load(sizes: str, order: str, target: str) -> Mapping[str, Compiled]:
        try:
            return named_kernels(fixed_in(file, parse_sizes([sizes]), "--set", target, order=order), "")
        except typer.Exit:  # its traceback was printed where the explorer was started
            raise TilewaveError(f"{file} cannot be run", remedy="see the terminal") from None

    found = tuple(load(start.sizes, start.map, INTERPRETER))
    if not found or start.kernel not in ("", *found):
        raise TilewaveError(f"{file} defines no kernel" + (f" {start.kernel!r}" if start.kernel else ""))
    return ExploredFile(found, load)


def _serve(explorer: Explorer, port: int, browser: bool) -> None:
    try:
        server = ExplorerServer(explorer, port)
    except OSError as error:
        remedy = "another explorer may run there; write --port 0 for one that is free"
        raise TilewaveError(f"port {port} is not available: {error.strerror}", remedy=remedy) from None
    print(f"exploring on {server.address} (local only; Ctrl-C stops it)", flush=True)
    if browser:
        webbrowser.open(server.address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    finally:
        server.server_close()
