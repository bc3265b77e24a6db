"""An explorer that runs while a test does."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tilewave.explore.choice import ExplorerChoice
from tilewave.explore.explorer import Explorer
from tilewave.explore.kernels import ExploredGemm
from tilewave.explore.server import ExplorerServer

SMALL = ExplorerChoice(
    shape="1024x2048x256", tile="128x128x64", map="xcd_contiguous(8) >> grouped(2)", beside="linear()"
)


@pytest.fixture(scope="session")
def explorer() -> Explorer:
    return Explorer(ExploredGemm(), SMALL)


@pytest.fixture(scope="session")
def server(explorer: Explorer) -> Iterator[ExplorerServer]:
    server = ExplorerServer(explorer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def get(server: ExplorerServer) -> Any:
    """Ask for a path; status, headers and text."""

    def get(path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": f"127.0.0.1:{server.server_port}", **headers}.items():
            if value:
                connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        response = connection.getresponse()
        found = response.status, dict(response.getheaders()), response.read().decode()
        connection.close()
        return found

    return get
