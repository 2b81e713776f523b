"""The application: routes, error objects, and what starts and ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp

from fsm_spec.executor.server import machine
from fsm_spec.executor.server.body import JsonRoute
from fsm_spec.executor.server.documented import ANSWERS, ERRORS, document
from fsm_spec.executor.server.engines import Engines
from fsm_spec.executor.server.generation import answer
from fsm_spec.executor.server.guard import Guard
from fsm_spec.executor.server.intake import chat_order, chat_tokens, completion_order, require_tokens
from fsm_spec.executor.server.monitoring import Svg, add_monitoring, add_page
from fsm_spec.executor.server.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    PolicyRequest,
    TokenizeRequest,
)
from fsm_spec.executor.server.refusal import LEFT, Refusal, error_content
from fsm_spec.executor.server.served import Served
from fsm_spec.executor.server.stream import EventStream, json_response
from fsm_spec.executor.server.validation import refusal_of

# Bodies above this are read into orders outside the event loop: tokenizing 64 kB takes some 10 ms.
_SMALL_BODY = 16 * 1024


class Server:
    """Hold the parts of a server; `app` is what uvicorn runs."""

    def __init__(self, served: Served, engines: Engines) -> None:
        self.served = served
        self.engines = engines
        settings = served.settings
        self.api = FastAPI(
            title="fsm-spec serve",
            version=metadata.version("fsm-spec"),
            description="OpenAI-compatible server of a decode algorithm that is one table.",
            lifespan=self._lifespan,
            redoc_url=None,
            docs_url=None,
        )
        self.api.router.route_class = JsonRoute
        self.guard = Guard(self.api, settings, engines.refused)
        self.app: ASGIApp = self.guard
        if settings.cors:
            self.app = CORSMiddleware(
                self.guard, allow_origins=list(settings.cors), allow_methods=["*"], allow_headers=["*"]
            )
        _add_errors(self.api, engines)
        _add_generation(self)
        _add_tokens(self)
        add_monitoring(self.api, engines, self.guard)
        add_page(self.api)
        _add_machine(self)
        document(self.api, keyed=bool(settings.keys))

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        del app  # the protocol's
        await self.engines.start()
        try:
            yield
        finally:
            await self.engines.stop()


def _add_errors(api: FastAPI, engines: Engines) -> None:
    """Turn every way a request can fail into an error object."""

    def refused(refusal: Refusal) -> Response:
        if refusal.status != LEFT:
            engines.refused(refusal.code or str(refusal.status))
        return json_response(refusal.content(), refusal.status, refusal.headers)

    async def on_refusal(_: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        return refused(error)

    async def on_invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return refused(refusal_of(error.errors()))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return refused(_refusal_of(request, error))

    async def on_fault(_: Request, __: Exception) -> Response:
        return json_response(
            error_content(500, "the server failed; its log says more", code="internal_error"), 500
        )

    api.add_exception_handler(Refusal, on_refusal)
    api.add_exception_handler(RequestValidationError, on_invalid)
    api.add_exception_handler(HTTPException, on_http)
    api.add_exception_handler(Exception, on_fault)


def _refusal_of(request: Request, error: HTTPException) -> Refusal:
    """Say in words why there is no route, or what went wrong while a body was read."""
    if isinstance(error.__cause__, Refusal):
        return error.__cause__
    if isinstance(error.__cause__, ClientDisconnect):
        return Refusal("the client has left", status=LEFT)
    message = str(error.detail)
    if error.status_code == 404:
        message = f"there is nothing at {request.url.path}"
    elif error.status_code == 405:
        message = f"{request.method} is not allowed at {request.url.path}"
    return Refusal(message, status=error.status_code, headers=error.headers)


def _add_generation(server: Server) -> None:
    """Add completions and chats."""
    served, engines = server.served, server.engines

    async def run(make: Any, body: Any, request: Request, kind: str) -> Response | EventStream:  # noqa: ANN401 -- two pairs of types
        state = request.state
        state.log = {"user": body.user, "client": state.client}
        request_id = f"{kind}-{state.request_id}"
        heavy = body.response_format is not None or getattr(body, "tools", None)
        if heavy or len(await request.body()) > _SMALL_BODY:
            order = await asyncio.to_thread(make, body, served, request_id, state.client)
        else:
            order = make(body, served, request_id, state.client)
        for job in order.jobs:
            job.parent = request.headers.get("traceparent", "")
        state.log |= {"prompt_tokens": order.prompt_tokens, "choices": len(order.jobs)}
        if served.settings.log_prompts:
            state.log["prompts"] = [served.tokenizer.decode(job.prompt) for job in order.jobs]
        return await answer(order, served, engines, request)

    @server.api.post("/v1/completions", responses=ANSWERS, response_model=None, tags=["generation"])
    async def completions(body: CompletionRequest, request: Request) -> Response | EventStream:
        """Continue a prompt, or several."""
        return await run(completion_order, body, request, "cmpl")

    @server.api.post("/v1/chat/completions", responses=ANSWERS, response_model=None, tags=["generation"])
    async def chat_completions(body: ChatRequest, request: Request) -> Response | EventStream:
        """Give the next turn of a chat."""
        return await run(chat_order, body, request, "chatcmpl")


def _add_tokens(server: Server) -> None:
    """Add models, tokenize and detokenize."""
    served = server.served

    @server.api.get("/v1/models", responses=ERRORS, tags=["models"])
    async def models() -> Response:
        """List the served names of the model."""
        return json_response(
            {"object": "list", "data": [_card(served, name) for name in served.settings.names]}
        )

    @server.api.get("/v1/models/{model:path}", responses=ERRORS, tags=["models"])
    async def model(model: str) -> Response:
        """Describe the model under one of its names."""
        served.require_model(model)
        return json_response(_card(served, model))

    @server.api.post("/tokenize", responses=ERRORS, tags=["tokens"])
    async def tokenize(body: TokenizeRequest) -> Response:
        """Give the tokens of a text or of a chat."""
        served.require_model(body.model)
        if body.messages is not None:
            tokens = await asyncio.to_thread(chat_tokens, body.messages, served)
        else:
            encoded = served.tokenizer.encode
            tokens = await asyncio.to_thread(encoded, body.prompt or "", special=body.add_special_tokens)
        return json_response(
            {"count": len(tokens), "max_model_len": served.settings.max_model_len, "tokens": tokens}
        )

    @server.api.post("/detokenize", responses=ERRORS, tags=["tokens"])
    async def detokenize(body: DetokenizeRequest) -> Response:
        """Give the text of tokens."""
        served.require_model(body.model)
        require_tokens(body.tokens, served.config.vocab, "tokens")
        return json_response({"prompt": served.tokenizer.decode(body.tokens, skip_special=False)})


def _card(served: Served, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": served.created,
        "owned_by": "fsm-spec",
        "root": served.name,
        "max_model_len": served.settings.max_model_len,
        **({} if served.settings.synthetic is None else {"synthetic": served.settings.synthetic}),
    }


def _add_machine(server: Server) -> None:
    """Add what shows and steers the state machine."""
    served, engines = server.served, server.engines

    @server.api.get("/v1/fsm", responses=ERRORS, tags=["state machine"])
    async def describe() -> Response:
        """Describe spec, model, pool and policy."""
        return json_response({**machine.describe(served), **engines.describe()})

    @server.api.get("/v1/fsm/diagram", responses=ERRORS, response_class=Svg, tags=["state machine"])
    async def diagram() -> Response:
        """Draw the state machine as SVG."""
        return Svg(machine.diagram(served))

    @server.api.get("/v1/fsm/requests", responses=ERRORS, tags=["state machine"])
    async def requests() -> Response:
        """Say in which state every request is."""
        return json_response(await engines.requests())

    @server.api.put("/v1/fsm/policy", responses=ERRORS, tags=["state machine"])
    async def policy(body: PolicyRequest) -> Response:
        """Put another scheduling policy in force, between two iterations."""
        return json_response(await engines.switch(body.policy))
