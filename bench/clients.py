"""Record a session of the openai client against every shipped spec, served on SmolLM2.

Each spec gets the same requests: a whole chat, a stream, one that ends at a stop string, a seeded one twice, and where
the spec predicts tokens in their order JSON of a schema, penalties and log-probabilities. Greedy answers are compared
with plain decoding's.
Run: `scripts/bench clients`; `python bench/clients.py --specs ngram isd` records these anew and keeps the others.
Writes bench/results/clients.json; exit code 1 where an answer differs that the spec claims to be equal.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from typing import Any

import openai
import torch
from live import live
from record import read_result, write_result

from fsm_spec.executor.control import judges_all
from fsm_spec.executor.models.load import LoadedModel, load_model
from fsm_spec.load import load, shipped

QUESTION: list[Any] = [{"role": "user", "content": "Count from one to five in words, twice."}]
# Room for the few requests of a session; and a size of blocks.
PAGES, BLOCK = 64, 4
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
    about = {
        "model": "smollm2-135m", "dtype": "float32", "tokens": given.tokens, "openai": openai.__version__,
    }  # fmt: skip
    sessions = _kept(about)
    first = [] if "ar" in sessions and "ar" not in given.specs else ["ar"]
    for spec in [*first, *(name for name in given.specs if name != "ar")]:
        session = sessions[spec] = _recorded(spec, model, given.tokens)
        session["equals_plain"] = session["greedy"] == sessions["ar"]["greedy"]
        print(f"{spec:24} equal {session['equals_plain']!s:6} {session['seconds']:6.1f} s", flush=True)
        # After each: a run over all specs takes a while.
        write_result("clients", {**about, "sessions": list(sessions.values())})
    wrong = [name for name, each in sessions.items() if not _right(each)]
    if wrong:
        print(f"answers differ: {', '.join(wrong)}", file=sys.stderr)
    return int(bool(wrong))


def _kept(about: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Read the sessions recorded before, by spec, where they were recorded in the same way."""
    found = read_result("clients", [*about, "sessions"])
    if any(found.get(name) != value for name, value in about.items()):
        return {}
    return {each["spec"]: each for each in found["sessions"]}


def _right(session: dict[str, Any]) -> bool:
    """Tell whether a session's answers agree with each other, and with plain decoding's where the spec claims so."""
    agree = ("stream_equals_whole", "stop_cuts_whole", "seeded_again_equal")
    return all(session[name] for name in agree) and (session["claim"] == "no" or session["equals_plain"])


def _recorded(spec: str, model: LoadedModel, tokens: int) -> dict[str, Any]:
    """Serve a spec, run a session against it, and say what the spec claims."""
    loaded = load(spec).spec
    # Servers of earlier specs hold their KV in cycles of references until they are looked for.
    gc.collect()
    # No block was trained into this model: of a long one nothing is sure, and every token costs a forward.
    params = {name: min(each.default, BLOCK) for name, each in loaded.params.items() if each.trained}
    with live(spec, model, pages=PAGES, params=params) as (url, parts):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=900)
        controlled = parts.served.in_order and judges_all(parts.served.table)
        found = _session(client, tokens, controlled=controlled)
    claim = loaded.lossless.claim if loaded.lossless else "no"
    table = parts.served.table
    return {"spec": spec, "claim": claim, "params": dict(table.params), "digest": table.digest, **found}


def _session(client: openai.OpenAI, tokens: int, *, controlled: bool) -> dict[str, Any]:
    """Run one session -> what was asked and what came."""
    started = time.perf_counter()
    given: dict[str, Any] = {
        "model": client.models.list().data[0].id,
        "messages": QUESTION,
        "max_tokens": tokens,
    }
    # Called through Any: the client's overloads do not take a dictionary of parameters.
    create: Any = client.chat.completions.create
    # Drafts that start from noise have it from the seed; where nobody judges them, greedy answers depend on it.
    greedy = {**given, "temperature": 0, "seed": 7}
    whole = create(**greedy, extra_body={"speculation_stats": True})
    chunks = list(create(**greedy, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    # Words differ from tokens, so that a stop string may begin and end inside of them.
    stop = _text(whole)[9:14] or " "
    cut = _text(create(**greedy, stop=[stop]))
    seeded = [_text(create(**given, temperature=0.8, seed=7)) for _ in range(2)]
    found: dict[str, Any] = {
        "greedy": _text(whole),
        "finish_reason": whole.choices[0].finish_reason,
        "usage": whole.usage.to_dict() if whole.usage else None,
        "speculation": whole.to_dict()["speculation"],
        "system_fingerprint": whole.system_fingerprint,
        "stream_equals_whole": streamed == _text(whole),
        "chunks": len(chunks),
        "stop_cuts_whole": cut == _text(whole).partition(stop)[0],
        "seeded": seeded[0],
        "seeded_again_equal": seeded[0] == seeded[1],
    }
    if controlled:
        found |= _controlled(client, given)
    else:
        found["refused"] = _refusal(client, given)
    return {"seconds": time.perf_counter() - started, **found}


def _controlled(client: openai.OpenAI, given: dict[str, Any]) -> dict[str, Any]:
    """Ask for JSON of a schema, and for penalties with log-probabilities."""
    form: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    shaped = client.chat.completions.create(
        **{**given, "max_tokens": 60}, temperature=0, response_format=form
    )
    # A lossy spec may take blanks, which the schema allows, until the limit.
    whole = shaped.choices[0].finish_reason == "stop"
    scored = client.chat.completions.create(
        **given, temperature=0, presence_penalty=0.6, logprobs=True, top_logprobs=1
    )
    logprobs = scored.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    return {
        "json": json.loads(_text(shaped)) if whole else _text(shaped),
        "penalised": _text(scored),
        "logprobs": [round(each.logprob, 4) for each in logprobs.content],
    }


def _refusal(client: openai.OpenAI, given: dict[str, Any]) -> str:
    """Ask for what the spec cannot do -> the server's sentence."""
    try:
        client.chat.completions.create(**given, presence_penalty=0.6)
    except openai.BadRequestError as error:
        return str(error.body["message"] if isinstance(error.body, dict) else error)
    raise AssertionError("a penalty was not refused")


def _text(answer: Any) -> str:  # noqa: ANN401 -- a union of the client's types
    return str(answer.choices[0].message.content)


if __name__ == "__main__":
    sys.exit(main())
