"""The server: what it shows, and all that it refuses."""

from __future__ import annotations

import http.client
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from campaign_folder import build
from leakscope.audit.cell import CELLS, read_manifest
from leakscope.errors import BadInput
from leakscope.report.serve import Server, host_allowed, is_loopback, make_server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "served" / "deep").mkdir(parents=True)
    (tmp_path / "secret.json").write_text('{"status": "the secret"}')
    build(tmp_path / "served" / "deep" / "one", hostile=True)
    return tmp_path / "served"


@pytest.fixture
def server(root: Path) -> Iterator[Server]:
    with make_server(root, port=0) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def _ask(
    server: Server, path: str, method: str = "GET", host: str | None = None, **headers: str
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host if host is not None else f"127.0.0.1:{server.server_port}")
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def _campaign(server: Server) -> str:
    (one,) = json.loads(_ask(server, "/campaigns.json")[2])
    return f"/c/{one['id']}"


def _tree(root: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_every_page_is_served_safely_and_nothing_is_written(server: Server, root: Path) -> None:
    before = _tree(root)
    home = _campaign(server)
    key = read_manifest(root / "deep" / "one").cells[0].key
    for path in ("/", home, f"{home}/status.json", f"{home}/report", f"{home}/cell/{key}", "/static/serve.js"):
        status, headers, body = _ask(server, path)
        assert status == 200, path
        assert "<script>alert" not in body.replace(r"\"", "") or path.endswith("json")
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"
        assert "Python" not in headers["Server"]
        head = _ask(server, path, "HEAD")
        assert head[0] == 200
        assert head[2] == ""
        assert head[1]["Content-Length"] == headers["Content-Length"] or path.endswith("report")  # it tells the time
    assert _tree(root) == before


def test_the_state_of_a_campaign(server: Server, root: Path) -> None:
    home = _campaign(server)
    folder = root / "deep" / "one"
    cells = read_manifest(folder).cells
    state = json.loads(_ask(server, f"{home}/status.json")[2])
    assert (state["state"], state["done"], state["total"], state["level"]) == ("done", len(cells), len(cells), "exact")
    (folder / CELLS / cells[0].key / "record.json").unlink()
    (folder / CELLS / cells[1].key / "record.json").write_text("half a rec")
    state = json.loads(_ask(server, f"{home}/status.json")[2])
    assert (state["state"], state["done"], state["seconds_left"]) == ("stopped", len(cells) - 1, None)
    assert state["statuses"][cells[0].key] == "not run"
    assert state["statuses"][cells[1].key] == "unreadable"
    running = [{"cell": cells[0].key, "title": "t", "step": 3, "steps": 9}]
    (folder / "progress.json").write_text(json.dumps({"seconds_left": 12.5, "running": running}))
    state = json.loads(_ask(server, f"{home}/status.json")[2])
    assert (state["state"], state["seconds_left"], state["running"]) == ("running", 12.5, running)
    os.utime(folder / "progress.json", (0, 0))  # the runner died long ago
    assert json.loads(_ask(server, f"{home}/status.json")[2])["state"] == "stopped"
    assert _ask(server, f"{home}/cell/{cells[0].key}")[0] == 200


def test_a_campaign_without_verdicts_has_no_report(server: Server, root: Path) -> None:
    home = _campaign(server)
    (root / "deep" / "one" / "findings.json").unlink()
    assert json.loads(_ask(server, f"{home}/status.json")[2])["level"] is None
    status, _, body = _ask(server, f"{home}/report")
    assert status == 404
    assert "no verdicts yet" in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_only_reads(server: Server, method: str) -> None:
    status, headers, _ = _ask(server, "/", method)
    assert status == 405
    assert headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.json",
        "/%2e%2e/secret.json",
        "/static/../../secret.json",
        "/static/report.html.j2",
        "{home}/../../secret.json",
        "{home}/cell/../../../../secret.json",
        "{home}/cell/..%2f..%2f..%2fsecret",
        "{home}/cell/00000000000000000000",
        "{home}/campaign.json",
        "{home}/",
        "/c/deep/one",
        "/c/0000000000000000",
        "//etc/passwd",
        "/\x01",
    ],
)
def test_no_path_leads_out(server: Server, path: str) -> None:
    status, _, body = _ask(server, path.format(home=_campaign(server)).replace("\x01", "%00"))
    assert status == 404
    assert "the secret" not in body


@pytest.mark.parametrize("what", ["record", "cell", "findings", "progress"])
def test_a_link_that_leads_out_is_not_followed(server: Server, root: Path, what: str) -> None:
    home = _campaign(server)
    folder = root / "deep" / "one"
    place = folder / CELLS / read_manifest(folder).cells[0].key
    if what == "cell":
        place.rename(root.parent / "elsewhere")
        place.symlink_to(root.parent / "elsewhere")
    else:
        path = {"record": place / "record.json"}.get(what, folder / f"{what}.json")
        path.unlink(missing_ok=True)
        path.symlink_to(root.parent / "secret.json")
    for path in (home, f"{home}/status.json", f"{home}/report", f"{home}/cell/{place.name}"):
        assert _ask(server, path)[0] == 403
    assert json.loads(_ask(server, "/campaigns.json")[2]) == []


def test_linked_folders_are_not_listed(server: Server, root: Path) -> None:
    build(root.parent / "private")
    (root / "link").symlink_to(root.parent / "private")
    assert [one["folder"] for one in json.loads(_ask(server, "/campaigns.json")[2])] == ["deep/one"]


def test_other_names_for_this_machine_are_refused(server: Server) -> None:
    port = server.server_port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1:1", f"127.0.0.1.evil.example:{port}", "", "[::"):
        status, _, body = _ask(server, "/campaigns.json", host=host)
        assert status == 421, host
        assert "one" not in body.replace("does not go by that name", "")
    assert _ask(server, "/", host=f"localhost:{port}")[0] == 200


def test_other_sites_may_not_read(server: Server) -> None:
    assert _ask(server, "/campaigns.json", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")[0] == 403
    assert _ask(server, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200


@pytest.mark.parametrize(
    ("header", "host", "allowed"),
    [
        ("localhost:80", "127.0.0.1", True),
        ("localhost", "127.0.0.1", True),
        ("[::1]:80", "127.0.0.1", True),
        ("192.168.1.5:80", "127.0.0.1", False),
        ("192.168.1.5:80", "0.0.0.0", True),
        ("rebound.example:80", "0.0.0.0", False),
        ("audit.lan:80", "audit.lan", True),
        ("AUDIT.lan:80", "audit.lan", True),
        ("user@localhost:80", "127.0.0.1", False),
        ("localhost:80/x", "127.0.0.1", False),
        ("localhost:eighty", "127.0.0.1", False),
        (None, "127.0.0.1", False),
    ],
)
def test_hosts(header: str | None, host: str, allowed: bool) -> None:
    assert host_allowed(header, host, 80) == allowed


def test_loopback() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""))


def test_what_cannot_be_served_is_said(tmp_path: Path, server: Server) -> None:
    with pytest.raises(BadInput, match="is no folder"):
        make_server(tmp_path / "nowhere")
    with pytest.raises(BadInput, match=f"Cannot listen on 127.0.0.1, port {server.server_port}"):
        make_server(tmp_path, port=server.server_port)
