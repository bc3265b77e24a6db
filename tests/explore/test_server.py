"""The explorer's server: this machine alone, questions alone, nothing run that an address says."""

import json
import socket
from urllib.parse import urlencode

import pytest

from tilewave.explore.server import ExplorerServer


def test_only_the_loopback_address_is_listened_on(server: ExplorerServer):
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_the_page_is_served_with_a_policy_that_allows_its_own_script_alone(get):
    status, headers, text = get("/")
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self'")
    assert "script-src 'sha256-" in policy and "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1]
    assert headers["X-Frame-Options"] == "DENY"
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "[::1]:{port}", ""]
)
def test_another_name_for_this_machine_is_refused(get, server, host):
    """A site whose name was made to point to the loopback address sends that name."""
    for path in ("/", "/api/launch"):
        status, _, text = get(path, Host=host.format(port=server.server_port))
        assert status == 403
        assert "its own address alone" in text


def test_two_hosts_are_no_host(get, server):
    own = f"127.0.0.1:{server.server_port}"
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as s:
        s.sendall(f"GET /api/launch HTTP/1.1\r\nHost: {own}\r\nHost: evil.example\r\n\r\n".encode())
        assert b" 403 " in s.recv(100)


def test_localhost_is_its_name_too(get, server):
    assert get("/", Host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_may_open_the_page_but_not_ask(get, site):
    assert get("/", Sec_Fetch_Site=site)[0] == 200
    assert get("/api/launch", Sec_Fetch_Site=site)[0] == 403
    assert get("/api/launch", Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize(
    "path",
    ["/../etc/passwd", "/%2e%2e/etc/passwd", "/assets/explore.js", "/api/", "/api/../api/launch", "/api/answer",
     "/api/__class__", "//evil.example/", "/?x=1", "/index.html"],
)  # fmt: skip
def test_there_are_no_files(get, path):
    assert get(path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_can_be_written(get, method):
    assert get("/", method=method)[0] == 501


WRONG = {
    "map": "__import__('os').system('true')",
    "beside": "grouped(2); linear()",
    "shape": "9" * 100,
    "tile": "128x128",
    "dtype": "f17",
    "workgroups": "-3",
    "machine": "/etc/passwd",
    "target": "numpy; ls",
    "secret": "x",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_chosen_is_said_and_nothing_is_run(get, name):
    question = "passes" if name == "target" else "launch"
    status, headers, text = get(f"/api/{question}?{urlencode({name: WRONG[name]})}")
    assert status == 400
    assert headers["Content-Type"].startswith("application/json")
    assert json.loads(text)["error"]
    assert "Traceback" not in text


def test_a_machine_is_named_and_no_file_is_read_for_it(get, tmp_path):
    card = tmp_path / "card.toml"
    card.write_text("name = 'X'")
    status, _, text = get(f"/api/launch?{urlencode({'machine': str(card)})}")
    assert (status, json.loads(text)["error"].splitlines()[0]) == (400, f"unknown machine {str(card)!r}")


@pytest.mark.parametrize(
    "query", ["a", "&".join(["map=linear()"] * 40), "map=" + "x" * 5000, "map=%00", "map=" + "x" * 401]
)
def test_addresses_that_cannot_be_read_are_refused(get, query):
    assert get(f"/api/launch?{query}")[0] in (400, 414)


def test_a_taken_port_is_said(call_explore, server):
    code, _, err = call_explore("--port", str(server.server_port))
    assert code == 2
    assert err.startswith(f"error: port {server.server_port} is not available")
    assert "--port 0" in err


@pytest.fixture
def call_explore(monkeypatch, capsys):
    import sys

    from tilewave.cli.main import main

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["tilewave", "explore", "--shape", "256x256x64", *words])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, *capsys.readouterr()

    return run
