"""What a request asks of its text beyond sampling, under every spec: drafts change the speed, never the answer."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from live_server import END, TOKENS, Running, Serve, texts

from fsm_spec.errors import UserError
from fsm_spec.executor.models.transformer import Transformer
from fsm_spec.executor.server.engines import OneEngine

PROMPT = "hello hello hello hello"
LONG: dict[str, Any] = {"ignore_eos": True}
GREEDY: dict[str, Any] = {"prompt": PROMPT, "temperature": 0}
WISHES: dict[str, dict[str, Any]] = {
    "controls": {
        "presence_penalty": 1.5,
        "repetition_penalty": 1.2,
        "logit_bias": {"70": 2},
        "max_tokens": 40,
        **LONG,
    },
    "regex": {"response_format": {"type": "regex", "pattern": "(ab|cd){4,9}[0-9]{3}"}, "max_tokens": 60},
    "stop ids": {"stop_token_ids": list(range(60, 66)), "max_tokens": 40},
}
WHOLE_SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ann", "bob"]}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def servers(serve: Serve, server: Running) -> Iterator[dict[str, Running]]:
    """Return a server of each shipped spec."""
    with ExitStack() as stack:
        found = {name: stack.enter_context(serve(name, pages=400)) for name in ("ar", "isd", "uno_tree")}
        yield {**found, "ngram": server}
        for each in found.values():
            each.settled()


# A lookup, masks behind a block, a tree; tests/conformance has the others.
@pytest.fixture(params=["ngram", "isd", "uno_tree"])
def spec(request: pytest.FixtureRequest) -> str:
    """Return the name of a spec that drafts."""
    return str(request.param)


@pytest.mark.parametrize("wish", WISHES)
def test_greedy_answers_equal_plain_decoding(servers: dict[str, Running], spec: str, wish: str) -> None:
    """Penalties, bias and grammar hold inside blocks as they do token by token."""
    body = {**GREEDY, **WISHES[wish]}
    plain, drafted = (servers[name].complete(**body) for name in ("ar", spec))
    assert plain["choices"] == drafted["choices"]
    counts = [{k: v for k, v in each["usage"].items() if k.endswith("_tokens")} for each in (plain, drafted)]
    assert counts[0] == counts[1]
    assert plain["usage"]["completion_tokens"] > 1


def test_logprobs_are_the_targets(servers: dict[str, Running], spec: str) -> None:
    """Each emitted token has its own, whatever row of a block vouched for it."""
    body = {**GREEDY, **LONG, "max_tokens": 40, "logprobs": 3, "echo": True, "presence_penalty": 0.5}
    plain, drafted = (servers[name].complete(**body)["choices"][0]["logprobs"] for name in ("ar", spec))
    assert plain["tokens"] == drafted["tokens"]
    assert plain["token_logprobs"][0] is None
    assert plain["token_logprobs"][1:] == pytest.approx(drafted["token_logprobs"][1:], abs=1e-4)
    for one, other in zip(plain["top_logprobs"][1:], drafted["top_logprobs"][1:], strict=True):
        assert set(one) == set(other)
        assert one == pytest.approx(other, abs=1e-4)


def test_seeded_answers_with_controls_are_the_same_again(servers: dict[str, Running], spec: str) -> None:
    """Sampling under a grammar and penalties is as repeatable as without."""
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": WHOLE_SCHEMA}}
    body = {"prompt": PROMPT, "temperature": 1.0, "seed": 5, "max_tokens": 200, "presence_penalty": 0.3}
    one, two = (servers[spec].complete(**body, response_format=schema) for _ in range(2))
    assert one["choices"] == two["choices"]
    found = json.loads(one["choices"][0]["text"])
    assert found["name"] in {"ann", "bob"}
    assert 1 <= found["age"] <= 99
    assert one["choices"][0]["finish_reason"] == "stop"


def test_regex_in_a_stream(server: Running) -> None:
    """The form holds for the whole text, piece by piece."""
    form = {"type": "regex", "pattern": "[a-f]{5} = [0-9]{4}"}
    body = {"prompt": PROMPT, "temperature": 1.3, "max_tokens": 60, "response_format": form}
    assert re.fullmatch(form["pattern"], texts(server.stream("/v1/completions", **body)))


def test_min_tokens_holds_back_end_and_stops(server: Running) -> None:
    """Before min_tokens neither the end token nor a stop string ends a text."""
    bias = {str(END): 100}
    assert server.complete(**GREEDY, logit_bias=bias)["usage"]["completion_tokens"] == 1
    done = server.complete(**GREEDY, logit_bias=bias, min_tokens=7)
    assert (done["usage"]["completion_tokens"], done["choices"][0]["finish_reason"]) == (8, "stop")


@pytest.mark.parametrize("size", [1, 3, 9])
def test_stop_strings_across_tokens_and_rounds(servers: dict[str, Running], spec: str, size: int) -> None:
    """A stop string is found wherever rounds and chunks cut it; text, counts and logprobs end together."""
    running = servers[spec]
    whole = running.complete(**GREEDY, **LONG, max_tokens=40)["choices"][0]["text"]
    stop = whole[12 : 12 + size]
    expected = whole[: whole.index(stop)]
    body = {**GREEDY, **LONG, "max_tokens": 40, "stop": [stop, "never"], "logprobs": 0}
    done = running.complete(**body)
    choice = done["choices"][0]
    assert (expected, "stop", stop) == (choice["text"], choice["finish_reason"], choice["stop_reason"])
    assert done["usage"]["completion_tokens"] == len(choice["logprobs"]["tokens"])
    events = running.stream("/v1/completions", **body)
    assert expected == texts(events)
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    kept = running.complete(**body, include_stop_str_in_output=True)["choices"][0]["text"]
    assert expected + stop == kept


def test_a_stop_token_is_named_and_not_shown(server: Running) -> None:
    """The reason tells a stop token from the model's own end; its text is shown only on request."""
    token = TOKENS.index("x")
    body = {**GREEDY, "logit_bias": {str(token): 100}, "stop_token_ids": [token], "max_tokens": 5}
    choice = server.complete(**body)["choices"][0]
    assert ("", "stop", token) == (choice["text"], choice["finish_reason"], choice["stop_reason"])
    assert server.complete(**body, include_stop_str_in_output=True)["choices"][0]["text"] == "x"


def test_characters_are_never_cut(server: Running) -> None:
    """Bytes of one character come in several tokens; no piece of a stream holds half of it."""
    form = {"type": "regex", "pattern": "(🙂|世|é){8}"}
    body = {"prompt": "🙂", "temperature": 1.0, "seed": 3, "max_tokens": 60, "response_format": form}
    events = server.stream("/v1/completions", **body, logprobs=0)
    assert re.fullmatch(form["pattern"], texts(events))
    assert not any("\ufffd" in choice["text"] for event in events for choice in event["choices"])
    chat = server.chat(
        messages=[{"role": "user", "content": "x"}],
        logprobs=True,
        **{key: value for key, value in body.items() if key != "prompt"},
    )["choices"][0]
    said = bytes(byte for each in chat["logprobs"]["content"] for byte in each["bytes"])
    assert said.decode().startswith(chat["message"]["content"])


TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Do {name}.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Paris", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("weather", "time")
]


def test_forced_tool_calls(server: Running) -> None:
    """A required call is one of the tools, a named one is that tool; both with arguments of its schema."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
    given: dict[str, Any] = {
        "model": "tiny",
        "tools": TOOLS,
        "max_tokens": 200,
        "temperature": 1.0,
        "seed": 1,
    }
    messages: list[Any] = [{"role": "user", "content": "Weather?"}]
    choice = client.chat.completions.create(messages=messages, tool_choice="required", **given).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    call: Any = choice.message.tool_calls[0]
    assert call.function.name in {"weather", "time"}
    assert json.loads(call.function.arguments)["city"] in {"Paris", "Rome"}
    named: Any = {"type": "function", "function": {"name": "time"}}
    chunks = list(client.chat.completions.create(messages=messages, tool_choice=named, stream=True, **given))
    parts: list[Any] = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]
    assert [part.function.name for part in parts if part.function.name] == ["time"]
    assert json.loads("".join(part.function.arguments for part in parts))["city"] in {"Paris", "Rome"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert texts([chunk.to_dict() for chunk in chunks]) == ""
    several = list(
        client.chat.completions.create(messages=messages, tool_choice=named, stream=True, n=2, **given)
    )
    for index in range(2):
        own: Any = [each for chunk in several for each in chunk.choices if each.index == index]
        assert own[-1].finish_reason == "tool_calls"
        assert ["time"] == [part.function.name for each in own for part in each.delta.tool_calls or []]
    # The call goes back with its result, as agents do.
    answer = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    again = [*messages, choice.message.to_dict(), answer]
    assert client.chat.completions.create(messages=again, **given).choices[0].message


CALL = '<tool_call>\n{"name": "time", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.mark.parametrize("choice", [None, "auto"])
def test_a_free_choice_of_tools(server: Running, choice: str | None) -> None:
    """What the model says is text, and what it calls is a call, whole and in a stream, in one answer too."""
    given: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Time?"}],
        "tools": TOOLS,
        "max_tokens": 150,
        "temperature": 0,
        **({} if choice is None else {"tool_choice": choice}),
    }
    other = CALL.replace("time", "dance")
    wishes = {
        f"It is (noon|late). {CALL}": "said and called",
        CALL: "called",
        "<tool>": "said",
        other: "said",
    }
    for written, what in wishes.items():
        pattern = written.replace("{", r"\{").replace("}", r"\}").replace(".", r"\.").replace("\n", r"\n")
        form = {"type": "regex", "pattern": pattern}
        choices = server.chat(**given, response_format=form)["choices"][0]
        events = server.stream("/v1/chat/completions", **given, response_format=form)
        calls = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", ())]
        message = choices["message"]
        assert (message["content"] or "") == texts(events)
        assert [each["function"] for each in message.get("tool_calls", ())] == [
            each["function"] for each in calls
        ]
        assert bool(calls) == ("called" in what)
        assert bool(texts(events)) == ("said" in what)
        assert {choices["finish_reason"], events[-1]["choices"][0]["finish_reason"]} == {
            "tool_calls" if calls else "stop"
        }
        assert "tool_call>" not in texts(events) or not calls


def test_grammars_and_stop_tokens_on_a_device(serve: Serve) -> None:
    """A pattern and a forced call are followed there too; more stop tokens than there is room for are refused."""
    form = {"type": "regex", "pattern": "yes|no, never"}
    with serve("ar", pages=200, device="cpu", resident=True) as running:
        refused = running.post("/v1/completions", prompt="a", max_tokens=9, stop_token_ids=list(range(20)))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stop_token_ids")
        found = running.complete(prompt="a", max_tokens=40, temperature=0, response_format=form)
        assert found["choices"][0]["text"] in {"yes", "no, never"}
        chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
        called = running.chat(**chat, temperature=0, tools=TOOLS, tool_choice="required")
        assert called["usage"]["completion_tokens"] == 5
        done = running.complete(prompt="a", max_tokens=9, temperature=0, **LONG)
        assert done["usage"]["completion_tokens"] == 9
        running.settled()


def test_tools_that_cannot_be_called_are_refused(server: Running) -> None:
    """A tool that nobody gave, and arguments that are no schema, are refused by name."""
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
    choice = {"type": "function", "function": {"name": "other"}}
    refused = server.post("/v1/chat/completions", **body, tool_choice=choice)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")
    broken = [{"type": "function", "function": {"name": "a", "parameters": {"type": 5}}}]
    refused = server.post("/v1/chat/completions", **{**body, "tools": broken}, tool_choice="required")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")


def test_specs_that_fill_places_in_any_order_refuse(serve: Serve) -> None:
    """They say by name what they cannot do, and serve the rest."""
    asked: dict[str, Any] = {
        "response_format": {"type": "json_object"},
        "presence_penalty": 1.0,
        "logprobs": 1,
    }
    with serve("block_diffusion", pages=400) as running:
        for name, value in asked.items():
            refused = running.post("/v1/completions", prompt="a", **{name: value})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
        done = running.complete(prompt="a", max_tokens=9, temperature=0, logit_bias={"70": 5}, **LONG)
        assert done["usage"]["completion_tokens"] == 9
        running.settled()


def test_a_spec_that_takes_drafts_unread_refuses_forms(serve: Serve) -> None:
    """Nobody would see that a draft breaks the form; scores and the rest are served."""
    asked: dict[str, Any] = {"response_format": {"type": "json_object"}, "presence_penalty": 1.0}
    with serve("uno_unverified", pages=400) as running:
        for name, value in asked.items():
            refused = running.post("/v1/completions", prompt="a", **{name: value})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
            assert "takes drafts unread" in refused.json()["error"]["message"]
        done = running.complete(prompt="a", max_tokens=9, temperature=0, logprobs=1, **LONG)
        assert len(done["choices"][0]["logprobs"]["tokens"]) == 9


def test_unknown_grammars_are_refused(server: Running) -> None:
    """What the library cannot compile is a 400 with its reason."""
    for schema in ({"type": 5}, {"$ref": "#/none"}):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        refused = server.post("/v1/completions", prompt="a", response_format=form)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "response_format")
    refused = server.post(
        "/v1/completions", prompt="a", response_format={"type": "json_object"}, ignore_eos=True
    )
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "ignore_eos")


@pytest.mark.parametrize("more", [{}, {"device": "cpu", "resident": True}], ids=["host", "resident"])
def test_grammars_that_leave_no_token_end_their_own_request(
    serve: Serve, folder: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    """Where no text matches, or the model lacks a letter, one client gets a sentence, and nobody else an error."""
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    tokens = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(tokens.replace('"z":', '"zqzq":'))
    with serve("ngram", model=other, pages=400, params={"shortest": 1}, **more) as running:
        before = running.complete(**GREEDY, max_tokens=8)
        for temperature in (0, 1.0):
            body: dict[str, Any] = {"prompt": PROMPT, "temperature": temperature, "max_tokens": 20}
            nothing = {"type": "regex", "pattern": r"a[^\s\S]"}
            refused = running.post("/v1/completions", **body, response_format=nothing)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "response_format")
            body["response_format"] = {"type": "regex", "pattern": "hz|hhz"}
            refused = running.post("/v1/completions", **body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "grammar_broken_off")
            assert running.stream("/v1/completions", **body)[-1]["error"]["code"] == "grammar_broken_off"
        assert before["choices"] == running.complete(**GREEDY, max_tokens=8)["choices"]
        running.settled()


def test_specs_with_draft_models(serve: Serve, servers: dict[str, Running]) -> None:
    """A draft model is named at the start; its answers are plain decoding's, with penalties too."""
    body = {**GREEDY, **LONG, "max_tokens": 20, "presence_penalty": 1.0}
    with serve("draft_lm", pages=400, drafters={"draft": "layers:1"}) as running:
        assert servers["ar"].complete(**body)["choices"] == running.complete(**body)["choices"]
        running.settled()
    for drafters, sentence in (
        ({}, "--draft draft=FOLDER"),
        ({"other": "x"}, "no draft model"),
        ({"draft": "layers:x"}, "layers:4"),
    ):
        with pytest.raises(UserError, match=sentence), serve("draft_lm", drafters=drafters):
            pass


def test_numbers_that_overflow_are_the_requests_own_error(serve: Serve) -> None:
    """Logits that are NaN give one client an error object of status 500, streamed or not; the server goes on."""
    with serve("ngram", pages=400) as running:
        assert running.parts is not None
        assert isinstance(running.parts.engines, OneEngine)
        model = running.parts.engines.session.model
        assert isinstance(model, Transformer)
        before = running.complete(**GREEDY, max_tokens=8)
        bad = TOKENS.index("~")
        model.embedding[bad] = torch.nan
        answer = running.post("/v1/completions", prompt=[bad], max_tokens=8, temperature=0)
        assert answer.status_code == 500
        assert {"type": "server_error", "code": "not_finite", "param": None} == {
            key: answer.json()["error"][key] for key in ("type", "code", "param")
        }
        assert "--dtype float32" in answer.json()["error"]["message"]
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="any", max_retries=0)
        with pytest.raises(openai.APIError, match="became NaN"):
            list(client.completions.create(model="tiny", prompt=[bad], max_tokens=8, stream=True))
        assert before["choices"] == running.complete(**GREEDY, max_tokens=8)["choices"]
        running.settled()
