"""The server's OpenAPI document: the error object of every route, the statuses it comes with, and keys."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

ERRORS: dict[int | str, dict[str, Any]] = {
    code: {
        "description": about,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    for code, about in {
        400: "a parameter is refused, by name",
        401: "the API key is missing or wrong",
        404: "not served here",
        408: "the body did not come, or the request took longer than its own time limit",
        413: "the body is too large",
        415: "the body is compressed",
        429: "too much waits already; see Retry-After",
        500: "the engine failed",
        503: "the server is going down",
        504: "the request took longer than its time limit",
    }.items()
}
ANSWERS: dict[int | str, dict[str, Any]] = {
    **ERRORS,
    200: {"description": "the answer, or a stream of its pieces", "content": {"text/event-stream": {}}},
}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def document(api: FastAPI, *, keyed: bool) -> None:
    """Make the OpenAPI document say what is true: no 422, the error object, keys only where they are asked for."""

    def made_once() -> dict[str, Any]:
        if api.openapi_schema is None:
            made = get_openapi(
                title=api.title, version=api.version, description=api.description, routes=api.routes
            )
            schemas = made.setdefault("components", {}).setdefault("schemas", {})
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            schemas["Error"] = ERROR
            if keyed:
                made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            for path, operations in made["paths"].items():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
                    if keyed and path.startswith(("/v1/", "/tokenize", "/detokenize")):
                        operation["security"] = [{"key": []}]
            api.openapi_schema = made
        return api.openapi_schema

    api.openapi = made_once  # type: ignore[method-assign]
