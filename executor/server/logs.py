"""Structured logs: one JSON object a line, with the request's id; no text of prompts or answers unless asked for."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

LOGGER = logging.getLogger("fsm_spec.server")
# What uvicorn says of connections, such as bytes that are no HTTP.
_UVICORN = logging.getLogger("uvicorn.error")
LOGGERS = {LOGGER: logging.INFO, _UVICORN: logging.WARNING}


class JsonLines(logging.Formatter):
    """Write a record and its fields as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Give the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class PlainLines(logging.Formatter):
    """Write a record for a person."""

    def format(self, record: logging.LogRecord) -> str:
        """Give the line."""
        fields = " ".join(f"{name}={value}" for name, value in getattr(record, "fields", {}).items())
        line = f"{record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up(*, as_json: bool) -> None:
    """Write the server's log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else PlainLines())
    for logger, level in LOGGERS.items():
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False


@contextmanager
def timed(begun: str, done: str, **fields: object) -> Iterator[dict[str, object]]:
    """Log that something has begun and, unless it fails, that it is done, in how many seconds; fields may be added."""
    log(begun, **fields)
    since = time.perf_counter()
    yield fields
    log(done, **fields, seconds=round(time.perf_counter() - since, 1))


def log(event: str, **fields: object) -> None:
    """Log an event with its fields; those without a value are left out."""
    LOGGER.info(event, extra={"fields": {name: value for name, value in fields.items() if value is not None}})


def warn(event: str, **fields: object) -> None:
    """Log what a person should know before they believe what they see."""
    LOGGER.warning(event, extra={"fields": fields})
