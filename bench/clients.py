"""Record a session of the openai client against every shipped spec, served on SmolLM2.

Each spec gets the same requests: a whole chat, a stream, a seeded one twice, and where the spec predicts tokens in
their order JSON of a schema, penalties and log-probabilities. Greedy answers are compared with plain decoding's.
Run: `scripts/bench clients`; `python bench/clients.py --specs ngram isd` records these alone.
Writes bench/results/clients.json; exit code 1 where an answer differs that the spec claims to be equal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import openai
import torch
from live import live
from record import write_result

from fsm_spec.compile import compile_table
from fsm_spec.executor.models.load import LoadedModel, load_model
from fsm_spec.load import load, shipped

QUESTION: list[Any] = [{"role": "user", "content": "Count from one to five in words, twice."}]
SCHEMA = {
    "type": "object",
    "properties": {"word": {"enum": ["one", "two", "three"]}, "last": {"type": "boolean"}},
    "required": ["word", "last"],
    "additionalProperties": False,
}


def main() -> int:
    """Record all sessions and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--specs", nargs="*", default=list(shipped()), help="specs to record")
    parser.add_argument("--tokens", type=int, default=24, help="tokens of an answer")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = load_model("smollm2-135m", torch.float32)
    sessions: list[dict[str, Any]] = []
    for spec in ["ar", *(name for name in given.specs if name != "ar")]:
        sessions.append(_recorded(spec, model, given.tokens))
        sessions[-1]["equals_plain"] = sessions[-1]["greedy"] == sessions[0]["greedy"]
        print(
            f"{spec:24} equal {sessions[-1]['equals_plain']!s:6} {sessions[-1]['seconds']:6.1f} s", flush=True
        )
        # After each: a run over all specs takes a while.
        about = {"model": "smollm2-135m", "dtype": "float32", "openai": openai.__version__}
        write_result("clients", {**about, "sessions": sessions})
    wrong = [each["spec"] for each in sessions if each["claim"] != "no" and not each["equals_plain"]]
    if wrong:
        print(f"greedy answers differ: {', '.join(wrong)}", file=sys.stderr)
    return int(bool(wrong))


def _recorded(spec: str, model: LoadedModel, tokens: int) -> dict[str, Any]:
    """Serve a spec, run a session against it, and say what the spec claims."""
    loaded = load(spec).spec
    with live(spec, model) as (url, parts):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=900)
        found = _session(client, tokens, in_order=parts.served.in_order)
    claim = loaded.lossless.claim if loaded.lossless else "no"
    return {"spec": spec, "claim": claim, "digest": compile_table(loaded).digest, **found}


def _session(client: openai.OpenAI, tokens: int, *, in_order: bool) -> dict[str, Any]:
    """Run one session -> what was asked and what came."""
    started = time.perf_counter()
    given: dict[str, Any] = {
        "model": client.models.list().data[0].id,
        "messages": QUESTION,
        "max_tokens": tokens,
    }
    # Called through Any: the client's overloads do not take a dictionary of parameters.
    create: Any = client.chat.completions.create
    whole = create(**given, temperature=0, extra_body={"speculation_stats": True})
    chunks = list(create(**given, temperature=0, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    seeded = [_text(create(**given, temperature=0.8, seed=7)) for _ in range(2)]
    found: dict[str, Any] = {
        "greedy": _text(whole),
        "finish_reason": whole.choices[0].finish_reason,
        "usage": whole.usage.to_dict() if whole.usage else None,
        "speculation": whole.to_dict()["speculation"],
        "system_fingerprint": whole.system_fingerprint,
        "stream_equals_whole": streamed == _text(whole),
        "chunks": len(chunks),
        "seeded": seeded[0],
        "seeded_again_equal": seeded[0] == seeded[1],
    }
    if in_order:
        found |= _controlled(client, given)
    else:
        found["refused"] = _refusal(client, given)
    return {"seconds": time.perf_counter() - started, **found}


def _controlled(client: openai.OpenAI, given: dict[str, Any]) -> dict[str, Any]:
    """Ask for JSON of a schema, and for penalties with log-probabilities."""
    form: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    shaped = _text(
        client.chat.completions.create(**{**given, "max_tokens": 60}, temperature=0, response_format=form)
    )
    scored = client.chat.completions.create(
        **given, temperature=0, presence_penalty=0.6, logprobs=True, top_logprobs=1
    )
    logprobs = scored.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    return {
        "json": json.loads(shaped),
        "penalised": _text(scored),
        "logprobs": [round(each.logprob, 4) for each in logprobs.content],
    }


def _refusal(client: openai.OpenAI, given: dict[str, Any]) -> str:
    """Ask for what the spec cannot do -> the server's sentence."""
    try:
        client.chat.completions.create(**given, logprobs=True)
    except openai.BadRequestError as error:
        return str(error.body["message"] if isinstance(error.body, dict) else error)
    raise AssertionError("log-probabilities were not refused")


def _text(answer: Any) -> str:  # noqa: ANN401 -- a union of the client's types
    return str(answer.choices[0].message.content)


if __name__ == "__main__":
    sys.exit(main())
