"""The way to one replica: what reaches it, the jobs there, and what it is still to be told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Protocol

from fsm_spec.executor.server.job import Delta, Job
from fsm_spec.executor.server.replica import Message


class ReplicaLostError(Exception):
    """Say that a replica's process has ended, or does not answer."""


class Link(Protocol):
    """Reach one replica; every call raises ReplicaLostError where it is gone."""

    async def call(self, method: str, *given: object) -> Any:  # noqa: ANN401 -- what the method gives
        """Call a method of `Replica`."""

    def follow(self, life: str) -> AsyncGenerator[list[tuple[int, Delta]]]:
        """Listen to what jobs give, as `Replica.follow`."""


@dataclass
class Lane:
    """Hold the way to one replica: the jobs there, what it is still to be told, and its life while it is up."""

    number: int
    link: Link
    life: str | None = None
    process: int | None = None
    up: asyncio.Event = field(default_factory=asyncio.Event)
    jobs: dict[int, Job] = field(default_factory=dict)
    outbox: list[Message] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)
    losses: int = 0
    # Why it could not be reached at the last try.
    trouble: str = ""

    def tell(self, message: Message) -> None:
        """Put a message on its way; all that gather meanwhile travel together, in order."""
        self.outbox.append(message)
        self.told.set()

    def describe(self) -> dict[str, Any]:
        """Say whether the replica is up, in which process and life, and how much runs there."""
        return {
            "replica": self.number,
            "up": self.life is not None,
            "process": self.process,
            "life": self.losses + 1,
            "losses": self.losses,
            "running": len(self.jobs),
        }
