"""Clients that send or read too slowly, or send what is no HTTP: none of them keeps a connection."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from live_server import Running, Serve

STALL = 1.5
POST = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
# Some 200 kB of answer.
LONG: dict[str, Any] = {"prompt": "hello", "max_tokens": 100, "n": 2, "logprobs": 20, "ignore_eos": True}


@pytest.fixture(scope="module")
def hasty(serve: Serve) -> Iterator[Running]:
    """Return a server that has little patience, and keys, so that much is refused before it is read."""
    with serve("ar", stall=STALL, keys=("key",), pages=200) as running:
        yield running


def connected(running: Running) -> socket.socket:
    """Open a connection that holds little."""
    host, port = running.url.removeprefix("http://").split(":")
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    own.settimeout(60)
    own.connect((host, int(port)))
    return own


def rest(own: socket.socket) -> bytes:
    """Read all that comes until the server closes, by whatever way."""
    parts = []
    with suppress(ConnectionError):
        while part := own.recv(65536):
            parts.append(part)
    return b"".join(parts)


def dribble(own: socket.socket, head: str) -> bytes:
    """Send a head and then a byte now and then, until the server has had enough; give all that it said."""
    own.sendall(head.encode())
    own.settimeout(STALL / 6)
    answer, began = b"", time.monotonic()
    while time.monotonic() - began < 60:
        try:
            part = own.recv(65536)
            if not part:
                return answer
            answer += part
        except TimeoutError:
            with suppress(ConnectionError):
                own.sendall(b"1")
        except ConnectionError:
            return answer
    raise AssertionError("the server waits for ever")


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < 60
        time.sleep(0.02)


def error_of(answer: bytes) -> tuple[bytes, dict[str, Any]]:
    """Part an answer into its status and the error object that it holds."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return head.split()[1], json.loads(body)["error"]


@pytest.mark.parametrize("before", ["", "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_headers_that_trickle_in(hasty: Running, before: str) -> None:
    """Headers have a time as a whole, on a new connection and on one that was used; then one sentence ends it."""
    with closing(connected(hasty)) as own:
        if before:
            own.sendall(before.encode())
            assert own.recv(65536).startswith(b"HTTP/1.1 200")
        status, error = error_of(dribble(own, "POST /v1/completions HTTP/1.1\r\nX-Slow: "))
    assert (b"408", "timeout_error", "headers_timeout") == (status, error["type"], error["code"])
    assert error["message"] == "the headers did not come within 1.5 seconds"


def test_a_connection_that_says_nothing(hasty: Running) -> None:
    """It is closed without a word, which a proxy would take for the answer to a request it sends later."""
    with closing(connected(hasty)) as own:
        assert rest(own) == b""


def test_a_body_that_trickles_in(hasty: Running) -> None:
    """Parts that keep coming do not keep the connection: the body has a time as a whole."""
    head = POST + "Authorization: Bearer key\r\nContent-Length: 4000\r\n\r\n"
    with closing(connected(hasty)) as own:
        status, error = error_of(dribble(own, head))
    assert (b"408", "body_timeout") == (status, error["code"])
    assert error["message"] == "the body did not come whole within 1.5 seconds"


def test_a_body_that_was_refused_before_it_came(hasty: Running) -> None:
    """Nobody reads it, and nobody waits for its end."""
    with closing(connected(hasty)) as own:
        answer = dribble(own, f"{POST}Content-Length: 4000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 401")
    until(lambda: hasty.connections() <= 1)


@pytest.mark.parametrize("stream", [True, False])
def test_who_reads_nothing_keeps_nothing(hasty: Running, stream: bool) -> None:  # noqa: FBT001 -- both ways
    """A connection whose client takes nothing of its answer ends, in a stream and behind a whole answer."""
    until(lambda: hasty.connections() <= 1)  # the client of the fixture keeps one
    content = json.dumps({**LONG, "stream": stream}).encode()
    head = f"{POST}Authorization: Bearer key\r\nContent-Length: {len(content)}\r\n\r\n"
    with closing(connected(hasty)) as own:
        own.sendall(head.encode() + content)
        until(lambda: hasty.connections() > 1)
        until(lambda: hasty.connections() <= 1)


def test_a_slow_reader_keeps_its_connection(hasty: Running) -> None:
    """Whoever takes a little now and then, for longer than the time in all, gets the whole answer."""
    content = json.dumps(LONG).encode()
    head = f"{POST}Connection: close\r\nAuthorization: Bearer key\r\nContent-Length: {len(content)}\r\n\r\n"
    with closing(connected(hasty)) as own:
        own.sendall(head.encode() + content)
        parts = [own.recv(1024)]
        began = time.monotonic()
        while time.monotonic() - began < 3 * STALL:
            time.sleep(STALL / 20)
            parts.append(own.recv(2048))
        parts.append(rest(own))
    answer = b"".join(parts)
    assert len(json.loads(answer.partition(b"\r\n\r\n")[2])["choices"]) == 2


def test_bytes_that_are_no_http(hasty: Running, caplog: pytest.LogCaptureFixture) -> None:
    """They get an error object; behind an answer, or in the middle of a body, they leave no traceback."""
    with closing(connected(hasty)) as own:
        own.sendall(b"\x16\x03\x01 what is this\r\n\r\n")
        status, error = error_of(rest(own))
    assert (b"400", "invalid_http") == (status, error["code"])
    chunked = f"{POST}Transfer-Encoding: chunked\r\n"
    with closing(connected(hasty)) as own:
        own.sendall(f"{chunked}\r\n".encode())
        first = own.recv(65536)
        own.sendall(b"no chunk\r\n")
        assert (first + rest(own)).startswith(b"HTTP/1.1 401")
    with closing(connected(hasty)) as own:
        own.sendall(f"{chunked}Authorization: Bearer key\r\n\r\nno chunk\r\n".encode())
        status, error = error_of(rest(own))
    assert (b"400", "invalid_http") == (status, error["code"])
    until(lambda: hasty.connections() <= 1)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
