"""Tool calls: what a model's chat template is told of tools, and how calls are read out of its text.

Two ways of writing calls are known, told apart by the model's own template: `<tool_call>` around a JSON object with
`name` and `arguments` (Hermes, Qwen, SmolLM), and a bare JSON object with `name` and `parameters` (Llama 3).
A call that a request forces is forced by a grammar, so that it is well-formed whatever the model.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any

from fsm_spec.executor.server.protocol import ChatRequest, NamedTool, Tool
from fsm_spec.executor.server.refusal import Refusal
from fsm_spec.executor.tokenizer import Tokenizer

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class ToolFormat:
    """Say how this answer's calls look; `grammar` forces one (Lark), `described` is what the template is given."""

    tagged: bool
    described: list[dict[str, Any]]
    names: tuple[str, ...]
    grammar: str | None

    @property
    def opening(self) -> str:
        """Give the text that a call begins with."""
        return OPEN if self.tagged else "{"

    def read(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Part a whole text into what is said and the calls; text that is no call of a known tool is said."""
        if not self.tagged:
            call = self._call(text.strip())
            return ("", [call]) if call else (text, [])
        said, rest = "", text
        calls: list[dict[str, Any]] = []
        while OPEN in rest:
            before, _, behind = rest.partition(OPEN)
            inner, closed, after = behind.partition(CLOSE)
            call = self._call(inner.strip())
            if call is None:
                return text, []
            said += before if not calls else ""
            calls.append(call)
            rest = after if closed else ""
        return (said.rstrip() if calls else text), calls

    def _call(self, text: str) -> dict[str, Any] | None:
        """Read one call; None where the text is none."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):  # a model that repeats itself opens a thousand brackets
            return None
        if not isinstance(value, dict) or value.get("name") not in self.names:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        function = {"name": value["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def tools_of(request: ChatRequest, tokenizer: Tokenizer) -> ToolFormat | None:
    """Read the tools of a chat and the choice among them; None where no tool may be called."""
    choice = request.tool_choice
    if not request.tools:
        if choice not in (None, "none"):
            raise Refusal("tool_choice needs tools", "tool_choice", "invalid_value")
        return None
    template = tokenizer.chat_template
    if template is None or "tools" not in template:
        raise Refusal(
            "this model's chat template knows no tools; serve a model whose template does, or leave tools out",
            "tools",
            "unsupported_parameter",
        )
    if choice == "none":
        return None
    names = [tool.function.name for tool in request.tools]
    forced = request.tools
    if isinstance(choice, NamedTool):
        forced = [tool for tool in request.tools if tool.function.name == choice.function.name]
        if not forced:
            raise Refusal(f"no tool is called {choice.function.name!r}", "tool_choice", "invalid_value")
    tagged = OPEN in template
    grammar = None
    if choice == "required" or isinstance(choice, NamedTool):
        grammar = _forcing(forced, tagged=tagged, several=request.parallel_tool_calls is True)
    described = [tool.model_dump(exclude_none=True) for tool in request.tools]
    return ToolFormat(tagged, described, tuple(names), grammar)


def _forcing(tools: list[Tool], *, tagged: bool, several: bool) -> str:
    """Write the grammar of one call, or of several tagged ones."""
    key = "arguments" if tagged else "parameters"
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                key: tool.function.parameters or {"type": "object"},
            },
            "required": ["name", key],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    schema = json.dumps(calls[0] if len(calls) == 1 else {"anyOf": calls})
    if not tagged:
        return f"start: %json {schema}"
    return (
        f'start: call{" call*" if several else ""}\ncall: "{OPEN}\\n" body "\\n{CLOSE}"\nbody: %json {schema}'
    )
