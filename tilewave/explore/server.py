"""The explorer on the loopback address: one page, and JSON for what is chosen on it.

Only this machine can reach it, and only by names of this machine: a page of another site whose name was made to point
here (DNS rebinding) sends its own name as Host, and is refused. There are no files to ask for, and nothing to write.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tilewave.errors import TilewaveError
from tilewave.explore.explorer import QUESTIONS, Explorer
from tilewave.explore.page import Page

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")
"""What a browser on this machine may call it."""
LONGEST_ADDRESS = 4096
MOST_FIELDS = 32
SECONDS = 30.0
"""How long a connection may say nothing."""

HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class ExplorerServer(ThreadingHTTPServer):
    """Serves one explorer; `port` 0 takes one that is free."""

    daemon_threads = True

    def __init__(self, explorer: Explorer, port: int = 0) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.explorer, self.page = explorer, Page.served(explorer)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: ExplorerServer
    server_version, sys_version = "tilewave", ""
    timeout = SECONDS

    def do_GET(self) -> None:
        if not self._is_ours():
            self._send_error(HTTPStatus.FORBIDDEN, "this page answers to its own address alone")
            return
        if len(self.path) > LONGEST_ADDRESS:
            self._send_error(HTTPStatus.REQUEST_URI_TOO_LONG, "the address is too long")
            return
        asked = urlsplit(self.path)
        if asked.path == "/" and not asked.query:
            page = self.server.page
            self._send(HTTPStatus.OK, "text/html", page.html, {"Content-Security-Policy": page.policy})
        elif asked.path.startswith("/api/") and asked.path[5:] in QUESTIONS:
            self._answer(asked.path[5:], asked.query)
        else:
            self._send_error(HTTPStatus.NOT_FOUND, "there is nothing of that name")

    def _is_ours(self) -> bool:
        """Return whether the request was sent to a name of this machine, by this page or without a referring site."""
        hosts = {f"{name}:{self.server.server_port}" for name in NAMES}
        from_here = self.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
        return self.headers.get_all("Host", []) in [[host] for host in hosts] and (from_here or self.path == "/")

    def _answer(self, question: str, query: str) -> None:
        explorer = self.server.explorer
        try:
            given = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=MOST_FIELDS)
            answer = explorer.answer(question, explorer.start.asked(dict(given)))
        except TilewaveError as error:
            self._send_error(HTTPStatus.BAD_REQUEST, str(error))
        except ValueError:
            self._send_error(HTTPStatus.BAD_REQUEST, "the address cannot be read")
        else:
            self._send(HTTPStatus.OK, "application/json", json.dumps(answer, allow_nan=False))

    def _send_error(self, status: HTTPStatus, words: str) -> None:
        self._send(status, "application/json", json.dumps({"error": words}))

    def _send(self, status: HTTPStatus, kind: str, text: str, more: Mapping[str, str] | None = None) -> None:
        content = text.encode()
        self.send_response(status)
        facts = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        for name, value in {**facts, **HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
