"""How bodies are read: strict JSON, whose every fault is a refusal with its reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from fsm_spec.executor.server.refusal import Refusal


class JsonRoute(APIRoute):
    """Give routes a request that reads its body as `read_json` does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the route's own handler."""
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handler


class _JsonRequest(Request):
    async def json(self) -> Any:  # noqa: ANN401 -- as overridden
        return read_json(await self.body())


def read_json(body: bytes) -> Any:  # noqa: ANN401 -- whatever JSON holds
    """Read a body; raises Refusal for what is no JSON, or what readers of JSON would read differently."""
    try:
        return json.loads(body, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at line {error.lineno}, column {error.colno}"
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError:  # Python reads no integers of more than 4300 digits
        reason = "a number has too many digits"
    raise Refusal(f"the body is no valid JSON: {reason}", code="invalid_json")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Refusal(f"{twice!r} is given twice in one object; give it once", twice, "invalid_value")
    return found
