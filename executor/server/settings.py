"""What a server is told at its start; the options of `fsm-spec serve` fill it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Hold names and limits of a server; times in seconds.

    `max_queue` and `max_queue_tokens` bound what waits in front of the engine (tokens: prompt plus limit).
    `max_running` is what the start said of requests in the engine, which holds for policies that are switched to too.
    `timeout` ends requests that take longer, `stall` connections whose client sends no whole headers or body in that
    time, or reads nothing for so long.
    `keys` empty: any key passes. `drain` is how long running requests may go on after SIGTERM.
    `synthetic` names the chances by which drafts stand where that is not the target's judgement.
    `fingerprint` digests what seeded answers depend on and the start fixes; see `Served.fingerprint`.
    """

    names: tuple[str, ...] = ("model",)
    keys: tuple[str, ...] = ()
    max_model_len: int = 4096
    max_running: int | None = None
    max_body: int = 4 * 2**20
    max_queue: int = 512
    max_queue_tokens: int = 2**22
    timeout: float | None = None
    stall: float = 120.0
    drain: float = 30.0
    cors: tuple[str, ...] = ()
    log_prompts: bool = False
    fingerprint: str = ""
    synthetic: Mapping[str, str] | None = None
    otlp_endpoint: str | None = None
