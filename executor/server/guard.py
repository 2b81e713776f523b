"""What stands in front of all routes: request ids, API keys, limits, draining, the access log, and all errors."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fsm_spec.executor.server import logs
from fsm_spec.executor.server.refusal import Refusal, going_down
from fsm_spec.executor.server.settings import Settings
from fsm_spec.executor.server.stream import encode

# Routes that monitors and load balancers ask, and the page itself, which holds nothing.
OPEN = ("/", "/favicon.ico", "/health", "/ready", "/metrics", "/version", "/openapi.json")
_ID_LENGTH = 128
# As much of an address as other servers take.
_MOST_PATH = 8192


class Guard:
    """Wrap the application; `running` requests are not answered to their end yet."""

    def __init__(self, app: ASGIApp, settings: Settings, refused: Callable[[str], None]) -> None:
        self.app = app
        self.settings = settings
        self.refused = refused
        self.draining = False
        self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self.running += 1
        try:
            await _Exchange(self, scope, receive, send).run()
        finally:
            self.running -= 1

    def client_of(self, headers: Mapping[bytes, bytes], scope: Scope) -> str:
        """Name whom a request is for: its key where keys are asked for, else its address; raises Refusal for 401."""
        if not self.settings.keys:
            return str((scope.get("client") or ("local", 0))[0])
        kind, _, key = headers.get(b"authorization", b"").partition(b" ")
        given = key.strip() if kind.lower() == b"bearer" else b""
        matches = [
            index for index, own in enumerate(self.settings.keys) if hmac.compare_digest(own.encode(), given)
        ]
        if not matches:
            raise Refusal(
                "the API key is missing or wrong; send Authorization: Bearer KEY",
                code="invalid_api_key",
                status=401,
                headers={"WWW-Authenticate": "Bearer"},
            )
        return f"key {matches[0]}"


class _Exchange:
    """Hold one request and its answer."""

    def __init__(self, guard: Guard, scope: Scope, receive: Receive, send: Send) -> None:
        self.guard = guard
        self.scope = scope
        self.receive = receive
        self.send = send
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self.request_id = _request_id(self.headers)
        # Who writes a slash at the end means the same.
        self.path: str = scope["path"].rstrip("/") or "/"
        self.status = 0
        self.read = 0
        self.whole = False
        # All of the body must be there by then: parts that trickle in could keep a connection for ever.
        self.until = asyncio.get_running_loop().time() + guard.settings.stall

    async def run(self) -> None:
        """Answer, whatever happens, and write the access log."""
        begun = time.perf_counter()
        state = self.scope.setdefault("state", {})
        state["request_id"] = self.request_id
        try:
            self._admit(state)
            # What GET gives, HEAD gives without the body, which the HTTP server leaves out by itself.
            head = self.scope["method"] == "HEAD"
            scope = {**self.scope, "path": self.path, "method": "GET" if head else self.scope["method"]}
            await self.guard.app(scope, self._receive, self._send)
        except Refusal as refusal:
            self.guard.refused(refusal.code or str(refusal.status))
            await self._refuse(refusal)
        except Exception:  # noqa: BLE001 -- whatever it is, the client gets an error object
            logs.LOGGER.exception("request failed", extra={"fields": {"request_id": self.request_id}})
            await self._refuse(
                Refusal("the server failed; its log says more", code="internal_error", status=500)
            )
        if self.path not in {"/health", "/ready", "/metrics"}:
            logs.log(
                "request",
                request_id=self.request_id,
                method=self.scope["method"],
                path=self.path[:_ID_LENGTH],
                status=self.status,
                seconds=round(time.perf_counter() - begun, 4),
                **state.get("log", {}),
                **state.get("outcome", dict)(),
            )

    def _admit(self, state: dict[str, object]) -> None:
        if len(self.path) > _MOST_PATH:
            raise Refusal(
                f"the address has more than {_MOST_PATH} characters", code="uri_too_long", status=414
            )
        if self.path not in OPEN and not self.path.startswith("/page/"):
            state["client"] = self.guard.client_of(self.headers, self.scope)
            if self.guard.draining:
                raise going_down("draining")
        declared = self.headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.guard.settings.max_body:
            raise self._too_large()
        coding = self.headers.get(b"content-encoding", b"identity").decode("latin-1")
        if coding.casefold() != "identity":
            raise Refusal(
                f"bodies are not read in the encoding {coding[:_ID_LENGTH]!r}; send the body as it is",
                code="unsupported_encoding",
                status=415,
                headers={"Accept-Encoding": "identity"},
            )

    def _too_large(self) -> Refusal:
        most = self.guard.settings.max_body
        return Refusal(f"the body is larger than {most} bytes", code="request_too_large", status=413)

    async def _receive(self) -> Message:
        if self.whole:
            return await self.receive()
        try:
            async with asyncio.timeout_at(self.until):
                message = await self.receive()
        except TimeoutError:
            said = f"the body did not come whole within {self.guard.settings.stall:g} seconds"
            headers = {"Connection": "close"}
            raise Refusal(said, code="body_timeout", status=408, headers=headers) from None
        self.whole = not message.get("more_body", False)
        self.read += len(message.get("body", b""))
        if self.read > self.guard.settings.max_body:
            raise self._too_large()
        return message

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            names = {name.lower() for name, _ in message["headers"]}
            if b"x-request-id" not in names:
                message["headers"] = [*message["headers"], (b"x-request-id", self.request_id.encode())]
        await self.send(message)

    async def _refuse(self, refusal: Refusal) -> None:
        """Send an error object, unless an answer has begun already."""
        if self.status:
            return
        body = encode(refusal.content())
        headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
        listed = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": refusal.status, "headers": listed})
        is_head = self.scope["method"] == "HEAD"
        await self.send({"type": "http.response.body", "body": b"" if is_head else body})


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    """Take the client's own id where it is harmless, else make one."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    harmless = given.isascii() and given.replace("-", "").replace("_", "").isalnum()
    return given if harmless and len(given) <= _ID_LENGTH else secrets.token_hex(12)
