"""What HTTP itself can bring: bodies that are read in two ways or never come, odd addresses, old clients."""

from __future__ import annotations

import gzip
import json
import socket
import time
from typing import Any

import pytest
from live_server import Running, Serve

BODY = {"prompt": "a", "max_tokens": 2, "ignore_eos": True}


def send(server: Running, head: str, body: bytes = b"", seconds: float = 20) -> bytes:
    """Send bytes over a socket of their own, and read all that comes until the server closes."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=seconds) as own:
        own.sendall(head.replace("\n", "\r\n").encode() + b"\r\n" + body)
        parts = []
        while part := own.recv(65536):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    ("content", "headers", "status", "param"),
    [
        (b'{"prompt": "a", "max_tokens": 1, "max_tokens": 2}', {}, 400, "max_tokens"),
        (b'{"prompt": "a", "stream_options": {"x": 1, "x": 2}}', {}, 400, "x"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", {}, 400, None),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", {}, 400, None),
        (b'{"prompt": "\xff"}', {}, 400, None),
        (b'{"prompt": "a"}', {"content-type": "text/plain"}, 400, None),
        (b'{"prompt": "a"}', {"content-type": ""}, 400, None),
        (gzip.compress(b'{"prompt": "a"}', mtime=0), {"content-encoding": "gzip"}, 415, None),
        (b'{"prompt": "a", "max_tokens": 1}', {"content-encoding": "identity"}, 200, None),
        (b'{"prompt": "a", "max_tokens": 1}', {"content-type": "application/json; charset=utf-8"}, 200, None),
    ],
)
def test_bodies_are_read_one_way_or_not(
    server: Running, content: bytes, headers: dict[str, str], status: int, param: str | None
) -> None:
    """Two readers must not see two requests in one body; what cannot be read is refused with its reason."""
    before = server.metrics().get("fsm_spec:requests_rejected_total", 0)
    answer = server.http.post("/v1/completions", content=content, headers={**server.JSON, **headers})
    assert status == answer.status_code, answer.text
    if status != 200:
        error = answer.json()["error"]
        assert (param, "invalid_request_error") == (error["param"], error["type"])
        assert "parsing the body" not in error["message"]
        assert before + 1 == server.metrics().get("fsm_spec:requests_rejected_total", 0)


def test_addresses(server: Running) -> None:
    """A slash at the end means the same; what is too long is refused; the icon is there for whoever looks."""
    assert server.http.post("/v1/completions/", json=BODY).status_code == 200
    assert server.http.get("/v1/models/").json()["data"][0]["id"] == "tiny"
    assert server.http.get("/v1/models/tiny/").json()["id"] == "tiny"
    long = server.http.get("/" + "a" * 9000)
    assert (long.status_code, long.json()["error"]["type"]) == (414, "invalid_request_error")
    assert len(long.text) < 300
    for path in ("/favicon.ico", "/page/icon.svg"):
        icon = server.http.get(path)
        assert (icon.status_code, icon.headers["content-type"]) == (200, "image/svg+xml")
    for method in ("HEAD", "OPTIONS", "DELETE", "TRACE", "NONSENSE"):
        assert server.http.request(method, "/v1/completions").status_code == 405


@pytest.mark.parametrize("stream", [False, True])
def test_clients_of_http_1_0(server: Running, stream: bool) -> None:  # noqa: FBT001 -- both ways
    """An old client knows no chunks: the end of the connection ends its answer."""
    body = json.dumps({**BODY, "stream": stream}).encode()
    head = "POST /v1/completions HTTP/1.0\nContent-Type: application/json\n"
    answer = send(server, f"{head}Content-Length: {len(body)}\n", body)
    first, _, said = answer.partition(b"\r\n\r\n")
    assert b" 200 " in first.partition(b"\r\n")[0]
    assert b"chunked" not in first
    assert said.endswith(b"data: [DONE]\n\n") if stream else json.loads(said)["choices"]


def test_a_body_that_never_comes(serve: Serve) -> None:
    """A client that promises a body and falls silent is let go."""
    with serve("ar", stall=0.5) as running:
        begun = time.monotonic()
        head = "POST /v1/completions HTTP/1.1\nHost: x\nContent-Type: application/json\nContent-Length: 100\n"
        answer = send(running, head, b'{"prompt": ')
        assert b" 408 " in answer.partition(b"\r\n")[0]
        refused: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert refused["error"]["code"] == "body_timeout"
        assert time.monotonic() - begun < 60
        assert running.complete(**BODY)["choices"]
