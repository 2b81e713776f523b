"""Replicas under Ray Serve, on this machine: one application each, watched and restarted by Serve's controller.

HTTP does not go through Ray: the front is this process, so that refusals, fairness and draining are the same as
without replicas, and Serve's handles carry jobs and what they gave.
"""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsm_spec.errors import UserError
from fsm_spec.executor.server.job import Delta
from fsm_spec.executor.server.lane import Link, ReplicaLostError
from fsm_spec.executor.server.replica import Replica
from fsm_spec.executor.server.replicas import Replicas

if TYPE_CHECKING:
    from fsm_spec.executor.server.app import Server
    from fsm_spec.executor.server.command import Serving
    from fsm_spec.load import Loaded

# Calls that one replica takes at once; batches make a handful of them.
_CALLS = 1000
# Limits of the queue, which is in front of the replicas.
_LIMITS = ("max_queue", "max_queue_tokens")
_QUIET = {"log_level": "WARNING", "enable_access_log": False}


def require_ray() -> None:
    """Raise UserError where the layer is not installed."""
    for name, value in _environment().items():
        os.environ.setdefault(name, value)
    try:
        import ray.serve  # type: ignore[import-not-found]  # noqa: F401 -- looked for
    except ImportError:
        raise UserError(
            "--replicas needs Ray Serve, which is not installed; run: pip install 'fsm-spec[ray]'"
        ) from None


def _environment() -> dict[str, str]:
    """Give what Ray reads from the environment, where nobody has said otherwise."""
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_COLOR_PREFIX": "0",
        # Ray listens on all addresses, so that nobody may talk to it without the token of this run.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # An engine's thread may keep its process busy for longer than the tenth of a second that Serve waits.
        "RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "5",
    }


@contextmanager
def replicated(run: Serving, settings: dict[str, Any], loaded: Loaded, verdict: str) -> Iterator[Server]:
    """Start replicas and put the server in front of them together; Ray is stopped at the end.

    Raises UserError for what a replica refuses.
    """
    from fsm_spec.executor.models.load import folder_of
    from fsm_spec.executor.server.app import Server
    from fsm_spec.executor.server.served import Served
    from fsm_spec.executor.tokenizer import Tokenizer

    # Once, before several processes would convert the same file.
    folder = folder_of(run.model)
    names = settings.get("names") or (Path(run.model).name,)
    unlimited = {**settings, "names": names, **dict.fromkeys(_LIMITS, 2**62)}
    limits = {name: settings[name] for name in _LIMITS}
    with _ray():
        links = _deploy(replace(run, model=str(folder)), unlimited, verdict)
        hello = links[0].handle.hello.remote().result()
        if isinstance(hello, str):
            raise UserError(hello)
        session = replace(hello.session, tokenizer=Tokenizer.from_folder(folder))
        own = replace(hello.settings, **limits)
        served = Served(session, loaded, own, verdict, int(time.time()))
        yield Server(served, Replicas(served, session, links))


@contextmanager
def _ray() -> Iterator[None]:
    """Run Ray and Serve without their own HTTP; their logs lie in a folder that is removed at the end."""
    import ray
    from ray import serve

    with tempfile.TemporaryDirectory(prefix="fsm-ray-", ignore_cleanup_errors=True) as scratch:
        try:
            logging.getLogger("ray.serve").setLevel(logging.WARNING)
            with _said("Ray does not start"):
                ray.init(
                    address="local",
                    include_dashboard=False,
                    logging_level="warning",
                    namespace="fsm-spec",
                    _temp_dir=scratch,
                )
                serve.start(http_options={"location": "NoServer"}, logging_config=_QUIET)
            yield
        finally:
            try:
                serve.shutdown()
            finally:
                ray.shutdown()


def _deploy(run: Serving, settings: dict[str, Any], verdict: str) -> list[ServeLink]:
    """Start all replicas at once and wait until they are there; an application each, so that each can be named."""
    from ray import serve

    options: dict[str, Any] = {
        "num_replicas": 1,
        "max_ongoing_requests": _CALLS,
        "health_check_period_s": 1,
        "health_check_timeout_s": 30,
        "graceful_shutdown_wait_loop_s": 0.1,
        "graceful_shutdown_timeout_s": 2,
        "logging_config": _QUIET,
        # Threads are counted by torch, not by Ray, which would not start what cores do not allow.
        "ray_actor_options": {"num_cpus": 0, "num_gpus": _gpus(run)},
    }
    deployment = serve.deployment(**options)(Replica)
    targets = [
        serve.RunTarget(deployment.bind(run, settings, verdict), name=f"replica-{number}", route_prefix=None)
        for number in range(run.replicas)
    ]
    with _said("the replicas do not start"):
        return [ServeLink(handle) for handle in serve.run_many(targets)]


@contextmanager
def _said(what: str) -> Iterator[None]:
    """Turn what Ray raises into one sentence, with the last line of its own reason."""
    try:
        yield
    except (RuntimeError, ConnectionError, OSError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise UserError(f"{what}: {lines[-1]}; look above for more, or serve without --replicas") from error


def _gpus(run: Serving) -> int:
    """Count the GPUs of a replica."""
    import torch

    wanted = run.device == "cuda" or (run.device == "auto" and torch.cuda.is_available())
    return run.tensor_parallel if wanted else 0


class ServeLink(Link):
    """Reach a replica by Serve's handle; what Serve raises of a lost one becomes ReplicaLostError."""

    def __init__(self, handle: Any) -> None:  # noqa: ANN401 -- Serve's own type
        self.handle = handle

    async def call(self, method: str, *given: object) -> Any:  # noqa: ANN401 -- what the method gives
        """Call a method of `Replica`."""
        with _losses():
            return await getattr(self.handle, method).remote(*given)

    async def follow(self, life: str) -> AsyncGenerator[list[tuple[int, Delta]]]:
        """Listen to what jobs give."""
        with _losses():
            async for batch in self.handle.follow.options(stream=True).remote(life):
                yield batch


@contextmanager
def _losses() -> Iterator[None]:
    from ray.exceptions import RayError  # type: ignore[import-not-found]
    from ray.serve.exceptions import RayServeException  # type: ignore[import-not-found]

    try:
        yield
    except (RayError, RayServeException) as error:
        raise ReplicaLostError(str(error).strip().partition("\n")[0]) from error
