"""``leakscope serve``: campaigns in a browser, while they run and after.

Campaign folders hold private pictures, so this is built to be hard to misuse: it listens on the loopback address unless
told otherwise, answers GET and HEAD only, answers only those who call it by its own address (a page elsewhere that
points a name of its own at this machine gets nothing), and takes no path from an address: campaigns and cells are
looked up by id, and pictures are written into the pages.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from leakscope.errors import BadInput
from leakscope.report.album import Album
from leakscope.report.cell_view import CellLine, cell_line, cell_view, kind_of
from leakscope.report.html import asset, content_policy, environment, render
from leakscope.report.load import load, load_cell
from leakscope.report.watching import Campaign, Campaigns

__all__ = ["Server", "host_allowed", "is_loopback", "make_server"]

log = logging.getLogger(__name__)

_POLICY: Final = (
    "default-src 'none'; img-src data:; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_STATIC: Final = {"/static/report.css": "text/css", "/static/serve.js": "text/javascript"}
_CAMPAIGN: Final = re.compile(r"/c/([0-9a-f]{16})(?:/(status\.json|report|cell/([0-9a-f]{20})))?")
_PICTURES: Final = 20_000_000


class Server(ThreadingHTTPServer):
    """Serves the campaigns below ``root``."""

    daemon_threads = True

    def __init__(self, root: Path, host: str, port: int) -> None:
        if not root.is_dir():
            raise BadInput(f"'{root}' is no folder; serve takes the folder of a campaign, or one above several.")
        self.campaigns = Campaigns(root)
        self.host = host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise BadInput(
                f"Cannot listen on {host}, port {port}: {error}. Choose another --port or --host."
            ) from error

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.server_port}/"


def make_server(root: Path, host: str = "127.0.0.1", port: int = 8421) -> Server:
    """A server that listens already, and answers once ``serve_forever`` is called; port 0 takes a free one."""
    return Server(root, host, port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def host_allowed(header: str | None, host: str, port: int) -> bool:
    """Whether a request's Host header is one that this server goes by.

    A name that somebody else pointed here (DNS rebinding) is not. Where the server is open to the network, any plain
    address will do, since no name was involved.
    """
    if not header:
        return False
    try:
        parts = urlsplit(f"//{header}")
        name, given = parts.hostname or "", parts.port
    except ValueError:
        return False
    if (given or 80) != port or parts.username is not None or parts.path or parts.query or parts.fragment:
        return False
    if is_loopback(host):
        return is_loopback(name)
    return name == host.lower() or is_loopback(name) or _address(name) is not None


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


class _Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version = "leakscope"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        if not host_allowed(self.headers.get("Host"), self.server.host, self.server.server_port):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "This server does not go by that name.")
        elif self.headers.get("Sec-Fetch-Site") == "cross-site" and self.headers.get("Sec-Fetch-Mode") != "navigate":
            self._refuse(HTTPStatus.FORBIDDEN, "Other sites may not read this one.")
        else:
            try:
                self._answer(self.path.partition("?")[0])
            except BadInput as error:
                self._refuse(HTTPStatus.NOT_FOUND, str(error))

    do_HEAD = do_GET

    def _only_reading(self) -> None:
        self.close_connection = True  # what they sent along stays unread
        self._send(
            HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", "This server only reads.\n", more={"Allow": "GET, HEAD"}
        )

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _only_reading

    def _answer(self, path: str) -> None:
        match = _CAMPAIGN.fullmatch(path)
        if path == "/":
            self._page("serve_index.html.j2", campaigns=self._listed())
        elif path == "/campaigns.json":
            self._json([_brief(one) for one in self._listed()])
        elif path in _STATIC:
            self._send(HTTPStatus.OK, _STATIC[path], str(asset(path.rpartition("/")[2])))
        elif match is not None and (campaign := self.server.campaigns.get(match[1])) is not None:
            self._campaign(campaign, match[2] or "", match[3])
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is nothing here.")

    def _campaign(self, campaign: Campaign, what: str, key: str | None) -> None:
        if campaign.escapes():
            self._refuse(HTTPStatus.FORBIDDEN, "A link in this campaign's folder leads out of it.")
        elif what == "status.json":
            self._json(campaign.progress())
        elif what == "report":
            self._send(HTTPStatus.OK, "text/html", render(load(campaign.folder)), policy=content_policy())
        elif key is not None:
            audit = load_cell(campaign.folder, key)
            line = cell_line(audit, key, audit.levels().get(key))
            view = cell_view(audit, key, Album(audit, limit=_PICTURES), side=448)
            self._page("serve_cell.html.j2", campaign=campaign, line=line, view=view)
        else:
            progress = campaign.progress()
            lines = [
                CellLine(key=key, cell=cell, status=status, kind=kind_of(status), level=None)
                for cell, key in campaign.cells()
                for status in (progress["statuses"][key],)
            ]
            self._page("serve_campaign.html.j2", campaign=campaign, progress=progress, lines=lines)

    def _listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for campaign in self.server.campaigns.all():
            try:
                if not campaign.escapes():
                    found.append(campaign.progress())
            except BadInput as error:
                log.warning("%s", error)
        return found

    def _page(self, template: str, **context: Any) -> None:
        self._send(HTTPStatus.OK, "text/html", environment().get_template(template).render(context))

    def _json(self, content: object) -> None:
        self._send(HTTPStatus.OK, "application/json", json.dumps(content))

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._send(status, "text/plain", reason + "\n")

    def _send(
        self, status: HTTPStatus, kind: str, text: str, *, policy: str = _POLICY, more: dict[str, str] | None = None
    ) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in {**headers, "Content-Security-Policy": policy, **_HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        log.debug("%s %s", self.address_string(), format % args)


def _brief(progress: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in progress.items() if key not in ("statuses", "running")}
