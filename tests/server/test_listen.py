"""How a server begins and ends: its address is taken first, SIGTERM drains it, a second one ends what runs."""

from __future__ import annotations

import json
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_server import SERVING, Running, process
from typer.testing import CliRunner

from fsm_spec.cli import application
from fsm_spec.errors import UserError
from fsm_spec.executor.server import command
from fsm_spec.executor.server.address import allow_restart, bound
from fsm_spec.executor.server.command import Serving, build
from fsm_spec.executor.server.listen import allow_connections, listen
from fsm_spec.load import load

OPTIONS = ("--pages", "700", "--page-size", "4", "--drain", "300")
BODY: dict[str, Any] = {"prompt": "hello", "max_tokens": 900, "stream": True, "ignore_eos": True}


def events(log: Path) -> list[str]:
    """Read the events of a log, every line of which must be JSON."""
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert not any("hello" in json.dumps(record) or "traceback" in record for record in records)
    return [record["event"] for record in records if not record.get("path", "").startswith("/v1/fsm")]


@contextmanager
def streaming(running: Running, **more: Any) -> Iterator[Iterator[str]]:  # noqa: ANN401 -- what a request holds
    """Begin a stream and hand out its lines once the first one is there."""
    with running.http.stream("POST", "/v1/completions", json={**BODY, **more}) as response:
        lines = response.iter_lines()
        next(lines)
        yield lines


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        ("127.0.0.1", "127.0.0.1:{port} is in use; choose another --port, or 0"),
        ("nobody.invalid", "no address is known for the host 'nobody.invalid'; choose another --host"),
        (
            "192.0.2.1",
            "192.0.2.1:{port} cannot be taken: Cannot assign requested address; choose another --host",
        ),
    ],
)
def test_an_address_that_cannot_be_had_is_told_first(
    monkeypatch: pytest.MonkeyPatch, folder: Path, host: str, sentence: str
) -> None:
    """Nobody waits for the checker and a model to learn that the port is taken."""
    monkeypatch.delattr(command, "judge")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        options = ["--model", str(folder), "--host", host, "--port", str(port)]
        done = CliRunner().invoke(application(), ["serve", "ar", *options])
    assert (done.exit_code, sentence.format(port=port) in done.stderr) == (2, True), done.stderr


def test_an_address_is_taken_once_it_is_bound() -> None:
    """Of two servers that start together the second ends at once, long before the first one listens."""
    with bound("127.0.0.1", 0) as first:
        port = first[0].getsockname()[1]
        with pytest.raises(UserError, match=f"127.0.0.1:{port} is in use"), bound("127.0.0.1", port):
            pass


def test_connections_that_linger_do_not_hold_up_a_restart() -> None:
    """A server that closed connections leaves them in TIME_WAIT, and its successor binds all the same."""
    with bound("127.0.0.1", 0) as sockets:
        allow_restart(sockets)
        sockets[0].listen()
        address = sockets[0].getsockname()
        with socket.create_connection(address) as client:
            sockets[0].accept()[0].close()
            assert client.recv(1) == b""
    with bound(*address) as again:
        allow_restart(again)
        again[0].listen()
        assert again[0].getsockname() == address


def test_who_begins_to_listen_meanwhile_has_the_address(folder: Path) -> None:
    """Two servers may both bind a port in the moment in which one begins to listen; the later one says so as well."""
    run = Serving(**{**SERVING, "spec": "ar", "model": str(folder), "pages": 300})
    with bound("127.0.0.1", 0) as first:
        port = first[0].getsockname()[1]
        allow_restart(first)
        with bound("127.0.0.1", port) as second:
            allow_restart(second)
            first[0].listen()
            with pytest.raises(UserError, match=f"127.0.0.1:{port} is in use"):
                listen(build(run, {"names": ("tiny",)}, load("ar")), second)


def test_connections_are_as_many_as_the_system_allows() -> None:
    """A shell lets a process hold 1024 files; a server that keeps to that turns clients away for no reason."""
    own, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, own), most))
    try:
        allow_connections()
        assert min(most, 65535) == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (own, most))


def test_every_address_of_a_host_is_taken() -> None:
    """A port that is free on one address only is in use; port 0 is the same one on all."""
    with bound("localhost", 0) as sockets:
        assert len({each.getsockname()[1] for each in sockets}) == 1


def end_again(running: Running) -> None:
    """Send a second signal once nobody is listened to any more: the end goes on undisturbed."""
    assert running.process is not None
    with httpx.Client(base_url=running.url, timeout=60) as late, suppress(httpx.TransportError):
        while True:
            late.get("/health")
    time.sleep(0.3)  # by then it frees what is large, unless it is gone already
    running.process.send_signal(signal.SIGTERM)


def test_a_server_drains_on_sigterm(folder: Path, tmp_path: Path) -> None:
    """Until the last stream is done monitors are answered and who comes is told to come later; then it exits with 0."""
    with process(folder, tmp_path / "log", "ar", *OPTIONS) as running:
        assert running.settled()["vllm:generation_tokens_total"] == 0
        with (
            streaming(running, max_tokens=400) as lines,
            httpx.Client(base_url=running.url, timeout=60) as later,
        ):
            assert running.process is not None
            running.process.send_signal(signal.SIGTERM)
            while later.get("/ready").status_code == 200:
                pass
            assert later.get("/health").status_code == 200
            refused = later.post("/v1/completions", json=BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert int(refused.headers["retry-after"]) > 0
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert "error" not in rest[-2]
        end_again(running)
        assert running.process.wait(180) == 0
    found = events(tmp_path / "log")
    assert ["checking", "checked", "loading", "loaded", "serving"] == found[:5]
    assert ["draining", "request", "request"] == sorted(found[5:])


def test_a_second_signal_ends_what_runs(folder: Path, tmp_path: Path) -> None:
    """Clients hear of it by an error in their stream, and the log has a line for it instead of a traceback."""
    with (
        process(folder, tmp_path / "log", "ar", *OPTIONS) as running,
        # One that reads nothing holds nobody up.
        streaming(running, n=4, logprobs=20),
        streaming(running, n=4) as lines,
    ):
        assert running.process is not None
        running.process.send_signal(signal.SIGTERM)
        with httpx.Client(base_url=running.url, timeout=60) as later:
            while later.get("/ready").status_code == 200:
                pass
        running.process.send_signal(signal.SIGTERM)
        *_, last, end = [line for line in lines if line]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_down"
        assert end == "data: [DONE]"
        assert running.process.wait(60) == 0
    assert ["serving", "draining", "ending what runs", "request", "request"] == events(tmp_path / "log")[4:]


def kill_in_the_middle(running: Running) -> None:
    """Kill a server while it streams."""
    with streaming(running) as lines:
        assert running.process is not None
        running.process.kill()
        list(lines)


def test_a_killed_server_comes_back(folder: Path, tmp_path: Path) -> None:
    """After SIGKILL in the middle of a stream the next start on the same port is clean."""
    with (
        process(folder, tmp_path / "log", "ar", *OPTIONS) as running,
        pytest.raises(httpx.TransportError),
    ):
        kill_in_the_middle(running)
    port = int(running.url.rpartition(":")[2])
    with bound("127.0.0.1", port) as sockets:
        allow_restart(sockets)
        sockets[0].listen()
