"""Refusals: every error a client can cause is one OpenAI-shaped object that names the parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsm_spec.errors import FsmSpecError

# The error types that OpenAI's clients know, by status; of other requests that are wrong it is the first.
INVALID = "invalid_request_error"
# The client has left; the status that nginx logs then.
LEFT = 499
_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    LEFT: "request_cancelled",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class Refusal(FsmSpecError):
    """Refuse a request with a status, one sentence, the parameter it is about, and a code that programs read."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        *,
        status: int = 400,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.headers = dict(headers or {})

    def content(self) -> dict[str, Any]:
        """Give the error object."""
        return error_content(self.status, self.message, self.param, self.code)


def going_down(code: str) -> Refusal:
    """Refuse what comes while the server ends, or what still ran then."""
    headers = {"Retry-After": "30", "Connection": "close"}
    return Refusal("the server is going down; send it again later", code=code, status=503, headers=headers)


def error_content(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Lay out an error as OpenAI does."""
    kind = _TYPES.get(status, INVALID if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
