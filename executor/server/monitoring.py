"""Routes of monitors and of the status page."""

from __future__ import annotations

from importlib import metadata, resources

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse, Response

from fsm_spec.executor.server.documented import ERRORS
from fsm_spec.executor.server.engines import Engines
from fsm_spec.executor.server.guard import Guard
from fsm_spec.executor.server.refusal import Refusal
from fsm_spec.executor.server.stream import json_response

# The page loads nothing from elsewhere and is shown in no frame.
PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
}


class Svg(Response):
    """Answer with a drawing."""

    media_type = "image/svg+xml"


def add_monitoring(api: FastAPI, engines: Engines, guard: Guard) -> None:
    """Add what monitors ask."""

    @api.get("/health", responses=ERRORS, tags=["monitoring"])
    async def health() -> Response:
        """Answer 200 while the engine can serve."""
        if not engines.alive:
            raise Refusal("the engine is not running", code="engine_down", status=503)
        return json_response({"status": "ok"})

    @api.get("/ready", responses=ERRORS, tags=["monitoring"])
    async def ready() -> Response:
        """Answer 200 while new requests are taken."""
        if guard.draining or not engines.alive:
            code = "draining" if guard.draining else "engine_down"
            raise Refusal("no new requests are taken", code=code, status=503)
        return json_response({"status": "ready"})

    @api.get("/metrics", response_class=PlainTextResponse, tags=["monitoring"])
    async def metrics() -> Response:
        """Give metrics in Prometheus' form."""
        page = await engines.metrics()
        return Response(page, headers={"content-type": CONTENT_TYPE_LATEST})

    @api.get("/version", tags=["monitoring"])
    async def version() -> Response:
        """Give the version of the server."""
        return json_response({"version": metadata.version("fsm-spec")})


def add_page(api: FastAPI) -> None:
    """Add the status page."""
    page = resources.files("fsm_spec.executor.server") / "page"

    @api.get("/", include_in_schema=False)
    async def status() -> Response:
        """Give the status page."""
        return Response((page / "status.html").read_bytes(), headers=PAGE_HEADERS, media_type="text/html")

    @api.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        """Give the page's style or script."""
        kinds = {"status.css": "text/css", "status.js": "text/javascript", "icon.svg": "image/svg+xml"}
        if name not in kinds:
            raise Refusal(f"there is nothing at /page/{name}", status=404)
        return Response((page / name).read_bytes(), media_type=kinds[name])

    @api.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        """Give the page's icon to browsers that look for it where it always was."""
        return await part("icon.svg")
