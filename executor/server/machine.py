"""`/v1/fsm`: the spec that runs, its diagram, requests as they walk through its states, and the policy in force."""

from __future__ import annotations

import time
from typing import Any

from pydantic import ValidationError

from fsm_spec.decision import ADMISSIONS
from fsm_spec.drawing.state_drawing import svg
from fsm_spec.errors import FsmSpecError
from fsm_spec.executor.generate import Session
from fsm_spec.executor.server.meter import Meter
from fsm_spec.executor.server.refusal import Refusal
from fsm_spec.executor.server.served import Served
from fsm_spec.executor.server.validation import refusal_of
from fsm_spec.executor.server.worker import Worker
from fsm_spec.policy import Policy
from fsm_spec.policy_file import load_policy, shipped_policies

# Seconds for which ways of requests are kept after somebody looked.
_WATCHED = 10.0


def describe(served: Served) -> dict[str, Any]:
    """Describe the spec, model and policy that run."""
    table, session = served.table, served.session
    return {
        "spec": table.name,
        "about": served.loaded.spec.about.strip(),
        "lossless": served.loaded.spec.lossless.claim if served.loaded.spec.lossless else None,
        "verdict": served.verdict,
        "synthetic": served.settings.synthetic,
        "digest": table.digest,
        "params": dict(table.params),
        "states": [
            {"name": state.name, "phase": state.phase, "round": state.round} for state in table.states
        ],
        "model": served.name,
        "system_fingerprint": served.fingerprint,
        "pool": session.pool._asdict(),
        "policy": session.policy.model_dump(),
        "policies": [*(name for name in ADMISSIONS if name != "greedy"), *shipped_policies()],
    }


def diagram(served: Served) -> str:
    """Draw the state machine as SVG."""
    return svg(served.table)


def snapshot(served: Served, worker: Worker, meter: Meter) -> dict[str, Any]:
    """Say where every request is; called in the engine's thread."""
    meter.watched_until = time.monotonic() + _WATCHED
    engine, table = worker.session.engine, served.table
    live = []
    for slot in engine.live.tolist():
        number = int(engine.requests[slot])
        job = worker.jobs.get(number)
        if job is None:
            continue
        request = worker.session.request(number)
        state = table.states[int(engine.columns["state"][slot])].name
        live.append(
            {
                "id": job.request_id,
                "index": job.index,
                "state": state,
                "columns": {
                    name: int(values[slot]) for name, values in engine.columns.items() if name != "state"
                },
                "pages": int(engine.pages[slot]),
                "path": list(meter.paths.get(number, (state,))),
                "rounds": request.rounds,
                "acceptance_length": request.emitted / request.rounds if request.rounds else None,
                "seconds": round(time.perf_counter() - job.arrived, 3),
            }
        )
    return {
        "iterations": engine.iterations,
        "live": live,
        "preempted": len(engine.waiting),
        "waiting": len(worker.queue),
        "pages": worker.session.pages_by_kind(),
        "policy": engine.policy.policy,
    }


def switch_policy(session: Session, wanted: str | dict[str, Any], most: int | None) -> Policy:
    """Put another policy in force; called in the engine's thread. Raises Refusal for one that cannot run here.

    `most` requests run under one that a client did not describe with a number of its own.
    """
    # Names only: a path would let clients read the server's files.
    known = (*ADMISSIONS, *shipped_policies())
    if isinstance(wanted, str) and wanted not in known:
        raise Refusal(f"no policy is called {wanted!r}; known: {', '.join(known)}", "policy", "invalid_value")
    try:
        policy = load_policy(wanted) if isinstance(wanted, str) else Policy.model_validate(wanted)
    except ValidationError as error:
        faults = [{**each, "loc": ("policy", *each["loc"])} for each in error.errors()]
        found = refusal_of(faults, list(Policy.model_fields))
        raise Refusal(found.message, "policy", found.code) from None
    except FsmSpecError as error:
        raise Refusal(" ".join(str(error).split()), "policy", "invalid_value") from None
    if most is not None and (isinstance(wanted, str) or "max_running" not in wanted):
        policy = policy.model_copy(update={"max_running": most})
    try:
        policy.require_live()
        session.switch(policy)
    except FsmSpecError as error:
        raise Refusal(str(error), "policy", "invalid_value") from None
    return policy
