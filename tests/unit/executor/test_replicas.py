"""The front of several replicas, where links fail, hang and lie: whoever waits hears of it, and nothing is kept."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import replace
from typing import Any, cast

import pytest

from fsm_spec.compile import compile_table
from fsm_spec.executor.generate import Options
from fsm_spec.executor.models.random import tiny_config
from fsm_spec.executor.server.job import Delta, Job
from fsm_spec.executor.server.refusal import Refusal
from fsm_spec.executor.server.replica import Hello, Start
from fsm_spec.executor.server.replicas import Replicas
from fsm_spec.executor.server.served import Elsewhere, Served
from fsm_spec.executor.server.settings import Settings
from fsm_spec.load import load
from fsm_spec.policy import Policy, Pool


class Wire:
    """Be the way to a replica that does nothing by itself: calls are noted, and answered by `answers`."""

    def __init__(self, life: str, session: Elsewhere) -> None:
        self.life = life
        self.session = session
        self.called: list[tuple[str, tuple[Any, ...]]] = []
        self.said: asyncio.Queue[list[tuple[int, Delta]]] = asyncio.Queue()
        self.answers: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {}

    async def call(self, method: str, *given: object) -> Any:  # noqa: ANN401 -- what the method gives
        """Note a call."""
        self.called.append((method, given))
        if method in self.answers:
            return await self.answers[method](*given)
        if method == "hello":
            return Hello(self.life, 1, self.session, Settings())
        return {"switch": given[0] if given else None, "metrics": b""}.get(method, True)

    async def follow(self, life: str) -> AsyncGenerator[list[tuple[int, Delta]]]:
        """Give what the test says."""
        assert life == self.life
        while True:
            yield await self.said.get()

    def told(self) -> list[Start | int]:
        """List all that was told, in order."""
        return [message for method, given in self.called if method == "tell" for message in given[1]]


def front(number: int = 1, **settings: Any) -> tuple[Replicas, list[Wire]]:  # noqa: ANN401 -- settings of any kind
    """Return a front, and its ways to replicas that have not said a word yet."""
    table = compile_table(load("ar").spec)
    session = Elsewhere(table, tiny_config(), None, Pool(9, 4), Policy(), False, False)  # noqa: FBT003 -- by place
    served = Served.__new__(Served)
    served.session, served.settings = session, Settings(**settings)
    wires = [Wire(f"life {index}", session) for index in range(number)]
    return Replicas(served, session, cast("Any", wires)), wires


async def started(replicas: Replicas, wires: list[Wire]) -> None:
    """Start a front whose replicas are all up."""
    for wire in wires:
        wire.said.put_nowait([])
    await replicas.start()


def job(seconds: float | None = None) -> Job:
    """Return a job of three tokens, with `seconds` to its deadline."""
    made = Job("request", 0, [1, 2, 3], 4, Options(4))
    made.deadline = None if seconds is None else time.perf_counter() + seconds
    return made


async def ended(made: Job) -> Refusal:
    """Wait for the error of a job."""
    async with asyncio.timeout(20):
        await made.ready.get()
    error = made.take().error
    assert error is not None
    return error


async def until(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 -- nothing to wait on
            await asyncio.sleep(0.01)


def test_what_a_replica_could_not_be_told_ends() -> None:
    """One call that fails, however, ends the jobs it held, also there; those that come behind it run."""
    asyncio.run(_fail_to_tell())


async def _fail_to_tell() -> None:
    replicas, (wire,) = front()
    await started(replicas, [wire])

    async def fail(*_: object) -> None:
        del wire.answers["tell"]
        raise ValueError("no way to write this down")

    wire.answers["tell"] = fail
    first, second = job(), job()
    replicas.submit([first])
    assert "replica_lost" == (await ended(first)).code
    replicas.submit([second])
    await until(lambda: len(wire.told()) == 3)
    start, cancel, later = wire.told()
    assert isinstance(start, Start)
    assert isinstance(later, Start)
    assert start.key == cancel
    assert replicas.running == 1
    await replicas.stop()


def test_nobody_is_taken_behind_the_end() -> None:
    """A request that was read while the server went down is refused; nobody would ever answer it."""
    asyncio.run(_submit_behind_the_end())


async def _submit_behind_the_end() -> None:
    replicas, wires = front()
    await started(replicas, wires)
    await replicas.stop()
    assert not replicas.alive
    with pytest.raises(Refusal, match="going down"):
        replicas.submit([job()])


def test_nothing_is_kept_until_a_deadline() -> None:
    """A client that allows a day and gets its answer at once leaves nothing behind for a day."""
    asyncio.run(_end_long_before_a_deadline())


async def _end_long_before_a_deadline() -> None:
    replicas, wires = front()
    await started(replicas, wires)
    made = job(86400)
    seen = weakref.ref(made)
    replicas.submit([made])
    replicas.cancel([made])
    del made
    await until(lambda: len(wires[0].told()) == 2)
    wires[0].called.clear()
    gc.collect()
    assert seen() is None
    await replicas.stop()


def test_deadlines_hold_in_front_and_where_a_replica_is_silent() -> None:
    """The queue's level is what waits, also behind a deadline; and a replica that says nothing holds up nobody."""
    asyncio.run(_pass_deadlines())


async def _pass_deadlines() -> None:
    replicas, (wire,) = front()
    wire.session = replicas.session = replace(replicas.session, policy=Policy(max_running=1))
    await started(replicas, [wire])
    runs, waits = job(0.2), job(0.1)
    replicas.submit([runs, waits])
    assert b'vllm:num_requests_waiting{engine="front",model_name="model"} 1.0' in await replicas.metrics()
    assert "deadline" == (await ended(waits)).code
    assert b'vllm:num_requests_waiting{engine="front",model_name="model"} 0.0' in await replicas.metrics()
    assert "deadline" == (await ended(runs)).code
    await until(lambda: len(wire.told()) == 2)
    assert replicas.running == 0
    await replicas.stop()


def test_a_policy_reaches_who_comes_meanwhile() -> None:
    """A replica that is greeted while a policy is put in force runs that one, not the one before."""
    asyncio.run(_switch_while_one_comes())


async def _switch_while_one_comes() -> None:
    replicas, wires = front(2)
    wires[0].said.put_nowait([])
    starting = asyncio.create_task(replicas.start())
    await until(lambda: replicas.alive and wires[1].called)
    await asyncio.sleep(0.05)  # the second one has been greeted, and says nothing yet
    wanted = Policy(policy="reserve", admit="reserve").model_dump()
    await replicas.switch(wanted)
    wires[1].said.put_nowait([])
    await starting
    assert ("switch", (wanted,)) in wires[1].called
    await replicas.stop()


def test_a_policy_that_one_refuses_is_in_force_nowhere() -> None:
    """What runs at one replica may forbid what the others could do; they go back to the policy that they had."""
    asyncio.run(_refuse_at_one())


async def _refuse_at_one() -> None:
    replicas, wires = front(2)
    await started(replicas, wires)

    async def refuse(_: object) -> Refusal:
        return Refusal("too large for what runs", "policy", "invalid_value")

    wires[1].answers["switch"] = refuse
    before = replicas.session.policy
    with pytest.raises(Refusal, match="too large"):
        await replicas.switch(Policy(policy="reserve", admit="reserve").model_dump())
    assert before == replicas.session.policy
    assert before.model_dump() == wires[0].called[-1][1][0]
    await replicas.stop()
