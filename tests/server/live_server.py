"""A server that runs: in this process or as one of its own, always on a real socket; and what must hold at its end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import httpx
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel

from fsm_spec.executor.models.gguf_tokenizer import build_tokenizer
from fsm_spec.executor.models.random import random_weights, tiny_config
from fsm_spec.executor.server.address import bound
from fsm_spec.executor.server.app import Server
from fsm_spec.executor.server.command import Serving, build
from fsm_spec.executor.server.listen import Listener
from fsm_spec.executor.server.settings import Settings
from fsm_spec.load import load

TOKENS = [*sorted(ByteLevel.alphabet()), "he", "hel", "<|pad|>", "<|end|>"]
END = len(TOKENS) - 1
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [1] * (len(TOKENS) - 2) + [3, 3],
    "tokenizer.ggml.merges": ["h e", "he l"],
}
TEMPLATE = """{%- if tools %}{{ 'Tools: ' + tools|tojson + '\n<tool_call>{...}</tool_call> calls one.\n' }}{%- endif %}
{%- for message in messages %}
    {{- message.role + ': ' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}{{ '<tool_call>' + call.function|tojson + '</tool_call>' }}{%- endfor %}
    {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'assistant: ' }}{%- endif %}"""
CONTEXT = 1024
# Generous: on a loaded machine everything takes ten times as long.
START_SECONDS = SETTLE_SECONDS = 180
SERVING: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 0,
    "adapter": None,
    "mask_id": None,
    "dtype": "float32",
    "params": {},
    "policy": "holdback",
    # Left to itself a server takes up to 4 GiB, and a few of them in one process all memory of the machine.
    "pages": 800,
    "page_size": 4,
    "max_model_len": None,
    "max_running": None,
    "threads": 1,
    "unproved": False,
    "log_json": True,
}


def make_model(made: Path) -> None:
    """Write a tiny random model whose chat template knows tools into a folder."""
    config = tiny_config(vocab=len(TOKENS), hidden=32, heads=2, kv_heads=1, context=CONTEXT)
    published = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": config.rms_eps,
        "eos_token_id": END,
    }
    (made / "config.json").write_text(json.dumps(published))
    (made / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    build_tokenizer(METADATA, "tiny.gguf").save(str(made / "tokenizer.json"))
    weights = {name: tensor.float().contiguous() for name, tensor in random_weights(config, 0).items()}
    save_file(weights, made / "model.safetensors")


@dataclass
class Running:
    """Hold a server that runs: its address, a plain client, its process or its parts in this process."""

    url: str
    http: httpx.Client
    process: subprocess.Popen[bytes] | None = None
    parts: Server | None = None
    loop: asyncio.AbstractEventLoop | None = None
    listener: Listener | None = None

    def post(self, path: str, **body: Any) -> httpx.Response:  # noqa: ANN401 -- what a request holds
        """Send a request as it is."""
        return self.http.post(path, json=body)

    JSON: ClassVar = {"content-type": "application/json"}

    @staticmethod
    def encode(body: object) -> bytes:
        """Write JSON with everything escaped, so that half characters get through."""
        return json.dumps(body).encode()

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:  # noqa: ANN401 -- what a request holds
        """Read a whole stream; its last event must be the end mark."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def complete(self, **body: Any) -> dict[str, Any]:  # noqa: ANN401 -- what a request holds
        """Ask for a completion that must succeed."""
        return _succeeded(self.post("/v1/completions", **body))

    def chat(self, **body: Any) -> dict[str, Any]:  # noqa: ANN401 -- what a request holds
        """Ask for a chat turn that must succeed."""
        return _succeeded(self.post("/v1/chat/completions", **body))

    def metrics(self) -> dict[str, float]:
        """Read all metrics, by name and by name and labels besides the model's and an only engine's."""
        found: dict[str, float] = {}
        page = self.http.get("/metrics").text
        unsaid = ["model_name"] if 'engine="front"' in page else ["model_name", "engine"]
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                labels = [value for name, value in sorted(sample.labels.items()) if name not in unsaid]
                found["/".join([sample.name, *labels])] = sample.value
                if labels:
                    found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found

    def settled(self) -> dict[str, float]:
        """Wait until nothing runs; then pages free = pool, nobody is left, and the metrics are those of the end."""
        until = time.monotonic() + SETTLE_SECONDS
        while True:
            state = self.http.get("/v1/fsm/requests").json()
            if not (state["live"] or state["waiting"] or state["preempted"]):
                break
            assert time.monotonic() < until, state
            time.sleep(0.05)
        pool = self.http.get("/v1/fsm").json()["pool"]
        assert 0 == state["pages"]["committed"] == state["pages"]["tentative"]
        assert pool["pages"] == state["pages"]["cached"] + state["pages"]["free"]
        found = self.metrics()
        assert 0 == found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"]
        return found

    def settled_replicas(self, pages: int) -> dict[str, float]:
        """Wait until nothing runs on any replica; `pages` are those of all pools together."""
        until = time.monotonic() + SETTLE_SECONDS
        while True:
            state = self.http.get("/v1/fsm/requests").json()
            if not (state["live"] or state["waiting"] or state["preempted"]):
                break
            assert time.monotonic() < until, state
            time.sleep(0.05)
        assert pages == state["pages"]["cached"] + state["pages"]["free"]
        return self.metrics()

    def tasks(self) -> int:
        """Count the tasks of the event loop besides the server's own."""
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(_count_tasks(), self.loop).result(10)

    def connections(self) -> int:
        """Count the connections that the server holds."""
        assert self.listener is not None
        return len(self.listener.server_state.connections)

    def stop(self, sign: signal.Signals = signal.SIGTERM, seconds: float = 30) -> int:
        """Send a signal to the process and wait for its end; give the exit code."""
        assert self.process is not None
        self.process.send_signal(sign)
        return self.process.wait(seconds)


async def _count_tasks() -> int:
    return len(asyncio.all_tasks())


def _succeeded(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


Serve = Callable[..., AbstractContextManager[Running]]


@contextmanager
def in_process(folder: Path, spec: str, options: dict[str, Any]) -> Iterator[Running]:
    """Run a server in a thread of this process, on a socket of its own."""
    names = {field.name for field in fields(Settings)} - set(SERVING)
    given = {name: value for name, value in options.items() if name in names}
    chosen = {name: value for name, value in options.items() if name not in names}
    run = Serving(**{**SERVING, "spec": spec, "model": str(folder), **chosen})
    with in_thread(build(run, {"names": ("tiny",), **given}, load(spec))) as running:
        yield running


@contextmanager
def in_thread(parts: Server) -> Iterator[Running]:
    """Run a server that is put together already in a thread of this process."""
    listener = Listener(parts)
    loop = asyncio.new_event_loop()
    with bound("127.0.0.1", 0) as sockets:
        # Else the system holds some megabytes for a client that reads nothing, and the server never feels it.
        sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        thread = threading.Thread(target=lambda: loop.run_until_complete(listener.serve(sockets)))
        thread.start()
        try:
            with httpx.Client(base_url=url, timeout=180) as http:
                running = Running(url, http, parts=parts, loop=loop, listener=listener)
                _wait(running, thread.is_alive)
                yield running
        finally:
            listener.should_exit = True
            thread.join(60)
            loop.close()
    assert not thread.is_alive()


@contextmanager
def process(folder: Path, log: Path, spec: str, *options: str) -> Iterator[Running]:
    """Run `fsm-spec serve` as a process of its own, and end it."""
    command = [sys.executable, "-c", "from fsm_spec.cli import main; main()", "serve", spec]
    command += ["--model", str(folder), "--port", "0", "--log-format", "json", *options]
    with log.open("wb") as errors, subprocess.Popen(command, stderr=errors) as started:
        try:
            url = _address(log, started)
            with httpx.Client(base_url=url, timeout=180) as http:
                running = Running(url, http, process=started)
                _wait(running, lambda: started.poll() is None)
                yield running
        finally:
            if started.poll() is None:
                started.terminate()
                try:
                    started.wait(60)
                except subprocess.TimeoutExpired:
                    started.kill()


def _address(log: Path, started: subprocess.Popen[bytes]) -> str:
    """Wait for the line of the log that says where a server listens: a port chosen here could be taken by then."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        lines = log.read_text().split("\n")[:-1]  # the last one may be half written
        for line in lines:
            if line.startswith("{") and "url" in (found := json.loads(line)):
                return str(found["url"]).removesuffix("/v1")
        assert started.poll() is None, "the server ended"
        time.sleep(0.02)
    raise AssertionError(f"no server within {START_SECONDS} s")


def _wait(running: Running, alive: Callable[[], bool]) -> None:
    """Wait until a server answers."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        assert alive(), "the server ended"
        try:
            if running.http.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.02)
    raise AssertionError(f"no server within {START_SECONDS} s")


def texts(events: Sequence[dict[str, Any]], index: int = 0) -> str:
    """Join the text of a choice from the chunks of a stream."""
    found = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(
        choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in found
    )
