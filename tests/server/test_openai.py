"""What a client of OpenAI's API sees: answers, streams, usage and errors, with the openai client over a real socket."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from live_server import CONTEXT, END, Running, Serve, texts

CHAT: list[Any] = [{"role": "user", "content": "hello world"}]
PROMPT = "hello hello hello"
# A random model may draw its end token at any time.
LONG: dict[str, Any] = {"ignore_eos": True}


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    """Return the openai client of the shared server."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)


def test_completion_and_usage(client: openai.OpenAI) -> None:
    """A text comes with its reason and with counts that add up."""
    done = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=9, temperature=0, extra_body=LONG
    )
    assert done.choices[0].finish_reason == "length"
    assert done.usage is not None
    assert (done.usage.completion_tokens, 9) == (9, done.usage.total_tokens - done.usage.prompt_tokens)
    assert done.system_fingerprint is not None
    assert done.id.startswith("cmpl-")


def test_chat_takes_text_and_parts_alike(client: openai.OpenAI) -> None:
    """Benchmark clients send content as a list of parts; both are the same prompt."""
    parts: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "hello "}, {"type": "text", "text": "world"}]}
    ]
    given: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "temperature": 0}
    one = client.chat.completions.create(messages=CHAT, **given)
    two = client.chat.completions.create(messages=parts, **given)
    assert one.choices[0].message.content == two.choices[0].message.content
    assert one.choices[0].message.role == "assistant"
    assert one.usage is not None
    assert two.usage is not None
    assert one.usage.prompt_tokens == two.usage.prompt_tokens
    assert one.usage.completion_tokens == two.usage.completion_tokens


def test_a_prompt_that_was_there_is_not_computed_again(server: Running, client: openai.OpenAI) -> None:
    """Usage and metrics say how much of a prompt was found: full pages of 4 tokens, and never all of it."""
    prompt = list(range(3, 3 + 40))
    before = server.metrics()
    given: dict[str, Any] = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0}
    one, two = client.completions.create(**given), client.completions.create(**given)
    assert one.choices[0].text == two.choices[0].text
    usages = [answer.usage for answer in (one, two)]
    found = [
        usage.prompt_tokens_details.cached_tokens for usage in usages if usage and usage.prompt_tokens_details
    ]
    assert [0, 36] == found
    after = server.metrics()
    names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    assert [80, 36] == [after[name] - before[name] for name in names]


def test_a_stream_is_the_whole_answer_in_pieces(client: openai.OpenAI) -> None:
    """One id, one reason at the end, the usage in a last chunk without choices."""
    given: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": 24,
        "temperature": 0.9,
        "seed": 4,
        "extra_body": LONG,
    }
    whole = client.chat.completions.create(messages=CHAT, **given)
    chunks = list(
        client.chat.completions.create(
            messages=CHAT, stream=True, stream_options={"include_usage": True}, **given
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert whole.choices[0].message.content == texts([chunk.to_dict() for chunk in chunks])
    assert [None] * (len(chunks) - 2) + ["length"] == [
        chunk.choices[0].finish_reason for chunk in chunks[:-1]
    ]
    assert [] == chunks[-1].choices
    # The second one may find the first one's pages, and says so.
    counts = [
        (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
        for usage in (whole.usage, chunks[-1].usage)
        if usage is not None
    ]
    assert 2 == len(counts)
    assert counts[0] == counts[1]
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_usage_in_every_chunk(server: Running) -> None:
    """Clients that meter as they go ask for continuous usage; it grows to the whole."""
    body = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, **LONG}
    events = server.stream("/v1/completions", **body, stream_options={"continuous_usage_stats": True})
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert sorted(counts) == counts
    assert counts[-1] == 6


def test_choices_and_prompts(client: openai.OpenAI) -> None:
    """Choices of one prompt differ, the same request gives the same again, and prompts keep their order."""
    given: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": 12,
        "temperature": 1.2,
        "seed": 7,
        "extra_body": LONG,
    }
    several = client.completions.create(prompt=[PROMPT, "world"], n=3, **given)
    again = client.completions.create(prompt=[PROMPT, "world"], n=3, **given)
    assert list(range(6)) == [choice.index for choice in several.choices]
    assert [choice.text for choice in several.choices] == [choice.text for choice in again.choices]
    assert len({choice.text for choice in several.choices[:3]}) == 3
    alone = client.completions.create(prompt="world", **given)
    assert alone.choices[0].text == several.choices[3].text


def test_unseeded_choices_differ(client: openai.OpenAI) -> None:
    """Requests without a seed must not share one stream of random numbers."""
    given: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": 12,
        "temperature": 1.5,
        "prompt": PROMPT,
        "extra_body": LONG,
    }
    found = {client.completions.create(**given).choices[0].text for _ in range(3)}
    assert len(found) == 3


def test_token_prompts(server: Running, client: openai.OpenAI) -> None:
    """A prompt of token ids, alone or in a list, is the text it stands for."""
    ids = server.post("/tokenize", prompt=PROMPT).json()["tokens"]
    given: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "temperature": 0}
    found = [client.completions.create(prompt=each, **given).choices[0].text for each in (PROMPT, ids, [ids])]
    assert len(set(found)) == 1
    assert server.post("/detokenize", tokens=ids).json() == {"prompt": PROMPT}


def test_async_client_in_a_crowd(server: Running) -> None:
    """Seeded answers are the same alone and among others, streamed or whole."""

    async def crowd() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            asked = [
                client.completions.create(
                    model="tiny", prompt=f"hello {seed}", max_tokens=16, temperature=0.8, seed=seed
                )
                for seed in range(12)
            ]
            return [done.choices[0].text for done in await asyncio.gather(*asked)]

    found = asyncio.run(crowd())
    alone = [
        server.complete(prompt=f"hello {seed}", max_tokens=16, temperature=0.8, seed=seed)["choices"][0][
            "text"
        ]
        for seed in range(12)
    ]
    assert alone == found


def test_echo_and_no_tokens(server: Running) -> None:
    """The prompt comes back in front of the text; no tokens are none."""
    done = server.complete(prompt=PROMPT, echo=True, max_tokens=0)
    assert done["choices"][0]["text"] == PROMPT
    assert done["usage"]["completion_tokens"] == 0
    more = server.complete(prompt=PROMPT, echo=True, max_tokens=3, temperature=0)
    assert more["choices"][0]["text"].startswith(PROMPT)


def test_statistics_on_request(server: Running) -> None:
    """The answer says how well drafts served it, for who asks."""
    done = server.complete(prompt=PROMPT, max_tokens=20, temperature=0, speculation_stats=True, **LONG)
    (found,) = done["speculation"]
    assert found["acceptance_length"] == pytest.approx(19 / found["rounds"])
    assert found["tokens_per_forward"] == pytest.approx(19 / found["forwards"])
    assert "speculation" not in server.complete(prompt=PROMPT, max_tokens=2)


@pytest.mark.parametrize(
    ("body", "param", "status"),
    [
        ({}, "prompt", 400),
        ({"prompt": ""}, "prompt", 400),
        ({"prompt": []}, "prompt", 400),
        ({"prompt": [[]]}, "prompt", 400),
        ({"prompt": [1, -1]}, "prompt", 400),
        ({"prompt": [10**30]}, "prompt", 400),
        ({"prompt": 5}, "prompt", 400),
        ({"prompt": "\ud800"}, "prompt", 400),
        ({"prompt": "a" * (CONTEXT + 1)}, "prompt", 400),
        ({"prompt": "a", "max_tokens": CONTEXT}, "max_tokens", 400),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens", 400),
        ({"prompt": "a", "max_tokens": "5"}, "max_tokens", 400),
        ({"prompt": "a", "temperature": -1}, "temperature", 400),
        ({"prompt": "a", "temperature": True}, "temperature", 400),
        ({"prompt": "a", "top_p": 0}, "top_p", 400),
        ({"prompt": "a", "n": 129}, "n", 400),
        ({"prompt": "a", "n": 0}, "n", 400),
        ({"prompt": "a", "stop": ["x"] * 17}, "stop", 400),
        ({"prompt": "a", "stop": ""}, "stop", 400),
        ({"prompt": "a", "stop_token_ids": [END + 1]}, "stop_token_ids", 400),
        ({"prompt": "a", "logprobs": 21}, "logprobs", 400),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias", 400),
        ({"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias", 400),
        ({"prompt": "a", "seed": 2**63}, "seed", 400),
        ({"prompt": "a", "suffix": "x"}, "suffix", 400),
        ({"prompt": "a", "temperatur": 1}, "temperatur", 400),
        ({"prompt": "a", "best_of": 2}, "best_of", 400),
        ({"prompt": "a", "stop": ["x", ""]}, "stop", 400),
        ({"prompt": "a", "max_tokens": 10**400}, "max_tokens", 400),
        ({"prompt": "a", "timeout": 0}, "timeout", 400),
        ({"prompt": "a", "repetition_penalty": 5e-324}, "repetition_penalty", 400),
        ({"prompt": "a", "n": True}, "n", 400),
        ({"prompt": "a", "store": True}, "store", 400),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options", 400),
        ({"prompt": "a", "min_tokens": 20}, "min_tokens", 400),
        ({"prompt": "a", "response_format": {"type": "json_schema"}}, "response_format", 400),
        ({"prompt": "a", "response_format": {"type": "regex", "pattern": "("}}, "response_format", 400),
        ({"prompt": "a", "model": "other"}, "model", 404),
    ],
)
def test_refusals_name_the_parameter(
    server: Running, body: dict[str, Any], param: str | None, status: int
) -> None:
    """What is wrong is named, in OpenAI's shape, and is never a 422 or a 500."""
    response = server.http.post("/v1/completions", content=server.encode(body), headers=server.JSON)
    assert status == response.status_code, response.text
    error = response.json()["error"]
    assert {"message", "type", "param", "code"} == set(error)
    assert param == (error["param"] or "").partition(".")[0].partition("[")[0] or param is None
    assert error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": CHAT, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": CHAT, "tool_choice": "required"}, "tool_choice"),
        ({"messages": CHAT, "max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"messages": CHAT, "logit_bias": {"9": None}}, "logit_bias"),
        ({"messages": CHAT, "audio": {}}, "audio"),
        ({"messages": CHAT, "metadata": {"a": "b"}}, "metadata"),
        ({"messages": CHAT, "service_tier": "flex"}, "service_tier"),
        ({"messages": CHAT, "suffix": ""}, "suffix"),
        ({"messages": CHAT, "response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_chat_refusals_name_the_parameter(server: Running, body: dict[str, Any], param: str) -> None:
    """Chats are as strict as completions."""
    response = server.post("/v1/chat/completions", **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param)


def test_arguments_that_nobody_can_read_are_text(server: Running) -> None:
    """A call that another model made comes back as it was, however deep its brackets are; here it is too long."""
    function = {"name": "a", "arguments": "[" * 100_000}
    said = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    answer = {"role": "tool", "tool_call_id": "1", "content": "done"}
    refused = server.post("/v1/chat/completions", messages=[said, answer])
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_neutral_values_of_unsupported_parameters_pass(client: openai.OpenAI) -> None:
    """Clients send defaults along; at these values they ask for nothing."""
    extra: dict[str, Any] = {
        "audio": None,
        "best_of": 1,
        "chat_template_kwargs": {},
        "function_call": "none",
        "length_penalty": 1.0,
        "logit_bias": {},
        "metadata": {},
        "reasoning_effort": None,
        "service_tier": "auto",
        "skip_special_tokens": True,
        "store": False,
        "use_beam_search": False,
    }
    done = client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=1, extra_body=extra)
    assert 1 == len(done.choices)
    # As a chat's history has it that keeps the client's own objects.
    message: Any = {**done.choices[0].message.model_dump(), "annotations": []}
    assert client.chat.completions.create(
        model="tiny", messages=[*CHAT, message, *CHAT], max_tokens=1
    ).choices


def test_a_way_out_of_what_is_not_supported(server: Running) -> None:
    """The sentence says what to give instead, and suggests no other parameter."""
    for name, value, way_out in [
        ("service_tier", "flex", 'leave it out, or give "auto" or "default"'),
        ("audio", {}, "leave it out"),
        ("skip_special_tokens", False, "leave it out, or give true"),
        ("prompt", "a", "not supported here"),
        ("temperatur", 1, 'did you mean "temperature"?'),
        ("zzz", 1, "tool_choice, parallel_tool_calls"),
    ]:
        refused = server.post("/v1/chat/completions", messages=CHAT, **{name: value}).json()["error"]
        assert refused["message"].endswith(way_out)
        assert (refused["param"], refused["code"]) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"stop": ["x"] * 30}, "stop: at most 16 strings; got 30"),
        ({"stream_options": {"foo": 1}}, "parameter 'stream_options.foo' is not supported; leave it out"),
        (
            {"response_format": {"type": "regex", "pattern": "a(b"}},
            'the grammar is refused: at 1(8): invalid regex "a(b" (in regex): regex parse error: unclosed group',
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            'messages[0].content[0].type: only parts of type text are read; got "image_url"',
        ),
    ],
)
def test_a_sentence_says_what_is_wrong(server: Running, body: dict[str, Any], sentence: str) -> None:
    """Of several readings of a value the one that a client meant is told, to its end."""
    refused = server.post("/v1/chat/completions", **{"messages": CHAT, **body}).json()["error"]
    assert sentence == refused["message"]


@pytest.mark.parametrize(
    ("content", "kind", "sentence"),
    [
        (b"[]", "application/json", "the body must be a JSON object; got []"),
        (
            b'{"prompt": "a"}',
            "application/x-www-form-urlencoded",
            "the body does not say that it is JSON; send it with the header Content-Type: application/json",
        ),
    ],
)
def test_a_body_that_is_no_object(server: Running, content: bytes, kind: str, sentence: str) -> None:
    """Who sent a list must not look for a header, nor who forgot the header for a fault of the body."""
    answer = server.http.post("/v1/completions", content=content, headers={"content-type": kind})
    assert (400, sentence) == (answer.status_code, answer.json()["error"]["message"])


def test_usage_of_several_choices(client: openai.OpenAI) -> None:
    """A prompt counts once however many choices it has, and no more of it is cached than there is."""
    given: dict[str, Any] = {
        "model": "tiny",
        "prompt": "counted once " * 3,
        "max_tokens": 3,
        "extra_body": LONG,
    }
    whole = client.completions.create(n=3, **given).usage
    last = list(client.completions.create(n=3, stream=True, stream_options={"include_usage": True}, **given))[
        -1
    ]
    assert whole is not None
    assert last.usage is not None
    assert last.choices == []
    assert (39, 9) == (whole.prompt_tokens, whole.completion_tokens)
    assert (39, 9) == (last.usage.prompt_tokens, last.usage.completion_tokens)
    assert last.usage.prompt_tokens_details is not None
    assert 36 == last.usage.prompt_tokens_details.cached_tokens


def test_most_choices(server: Running) -> None:
    """The limit on choices is one that works."""
    done = server.complete(prompt="a", n=128, max_tokens=1)
    assert [*range(128)] == [choice["index"] for choice in done["choices"]]


def test_errors_reach_the_client_as_its_own(client: openai.OpenAI) -> None:
    """The openai client raises the exception that fits."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt="a", max_tokens=2, top_p=3)
    assert refused.value.param == "top_p"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"prompt": "a"', b"\xff\xfe", b'{"prompt": NaN}', b"[" * 5000]
)
def test_malformed_bodies(server: Running, content: bytes) -> None:
    """A body that is no JSON object is refused."""
    response = server.http.post("/v1/completions", content=content, headers=server.JSON)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"]


def test_models_and_monitoring(server: Running, client: openai.OpenAI) -> None:
    """Models are listed; monitors get what they ask for, also by HEAD."""
    assert ["tiny"] == [model.id for model in client.models.list()]
    assert client.models.retrieve("tiny").id == "tiny"
    for path in ("/health", "/ready", "/metrics", "/version", "/v1/models", "/v1/fsm"):
        assert server.http.get(path).status_code == 200
        head = server.http.head(path)
        assert (head.status_code, head.content) == (200, b"")
    # No web page of another origin may ask, unless it was allowed at the start.
    asked = {"origin": "http://page", "access-control-request-method": "POST"}
    for response in (
        server.http.options("/v1/completions", headers=asked),
        server.http.get("/v1/models", headers=asked),
    ):
        assert not [name for name in response.headers if name.startswith("access-control")]
    assert server.http.options("/v1/completions", headers=asked).status_code == 405
    assert server.http.get("/nothing").json()["error"]["type"] == "not_found_error"
    assert server.http.get("/v1/completions").status_code == 405


def test_the_document_names_every_type_of_answer(server: Running) -> None:
    """Clients are generated from it: a stream, a drawing or a page of metrics is not announced as JSON."""
    paths = server.http.get("/openapi.json").json()["paths"]
    for path in (
        "/health",
        "/metrics",
        "/version",
        "/v1/models",
        "/v1/fsm",
        "/v1/fsm/diagram",
        "/v1/fsm/requests",
    ):
        kind = server.http.get(path).headers["content-type"].partition(";")[0]
        assert [kind] == list(paths[path]["get"]["responses"]["200"]["content"]), path
    for path in ("/v1/completions", "/v1/chat/completions"):
        kinds = paths[path]["post"]["responses"]["200"]["content"]
        assert {"application/json", "text/event-stream"} == set(kinds)


def test_keys_limits_and_ids(serve: Serve) -> None:
    """With keys set others are refused; bodies have a limit; a request's id comes back."""
    with serve("ar", keys=("one", "two", "schlüssel"), max_body=2000, cors=("http://page",)) as running:
        assert running.http.get("/health").status_code == 200
        assert running.http.get("/v1/models").status_code == 401
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="two", max_retries=0)
        assert client.completions.create(model="tiny", prompt="a", max_tokens=1).choices
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{running.url}/v1", api_key="three").models.list()
        beyond = {b"authorization": "Bearer schlüssel".encode()}
        assert running.http.get("/v1/models", headers=beyond).status_code == 200
        headers = {"authorization": "Bearer one", "x-request-id": "my-id"}
        body = {"prompt": "a" * 3000}
        refused = running.http.post("/v1/completions", json=body, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")
        assert refused.headers["x-request-id"] == "my-id"
        parts = iter([b'{"prompt": "', b"a" * 3000, b'"}'])
        chunked = running.http.post(
            "/v1/completions", content=parts, headers={**headers, "content-type": "application/json"}
        )
        assert chunked.status_code == 413
        asked = {"origin": "http://page", "access-control-request-method": "POST"}
        assert running.http.options("/v1/models", headers=asked).status_code == 200
    document = running.parts.api.openapi() if running.parts else {}
    assert "security" in document["paths"]["/v1/completions"]["post"]
