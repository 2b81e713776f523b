"""Random specs that obey the rules: guards are cut from a decision tree, so they are disjoint and complete."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fsm_spec.language.spec import Spec

MAX_COLUMN = 3


def _conditions(args: list[str], columns: list[str]) -> st.SearchStrategy[str]:
    names = st.sampled_from([*args, *columns]) if args or columns else st.just("kv")
    comparison = st.builds(
        "{} {} {}".format,
        names,
        st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
        st.integers(0, MAX_COLUMN),
    )
    return st.one_of(
        comparison,
        st.builds("not ({})".format, comparison),
        st.builds("({} or {})".format, comparison, comparison),
    )


@st.composite
def guards(draw: st.DrawFn, args: list[str], columns: list[str], depth: int = 2) -> list[str]:
    """Give guards that split all cases: the leaves of a random decision tree."""
    if depth == 0 or draw(st.booleans()):
        return ["true"]
    condition = draw(_conditions(args, columns))
    yes = draw(guards(args, columns, depth - 1))
    no = draw(guards(args, columns, depth - 1))
    return [f"({condition}) and ({leaf})" for leaf in yes] + [
        f"not ({condition}) and ({leaf})" for leaf in no
    ]


def _effects(args: list[str], columns: list[str]) -> st.SearchStrategy[str]:
    column = st.sampled_from(columns)
    plain = st.one_of(
        st.integers(0, MAX_COLUMN).map(str),
        column,
        st.builds("min({} + 1, {})".format, column, st.just(MAX_COLUMN)),
        st.builds("max({} - {}, 0)".format, column, column),
        st.builds("(prompt + {} * 3) % {}".format, column, st.integers(1, MAX_COLUMN + 1)),
        st.builds("ceil(emitted, {}) % 4".format, st.integers(1, 4)),
    )
    if not args:
        return plain
    return st.one_of(plain, st.builds("min({}, {})".format, st.sampled_from(args), st.just(MAX_COLUMN)))


@st.composite
def decode_specs(draw: st.DrawFn) -> Spec:
    """Give a spec with forwards: every state judges drafts, some of them inside a round."""
    states = [f"s{index}" for index in range(draw(st.integers(1, 3)))]
    columns = [f"c{index}" for index in range(draw(st.integers(1, 2)))]
    data: dict[str, Any] = {
        "spec": "drawn",
        "lossless": {"claim": "no", "why": "drawn at random"},
        "contract": draw(st.sampled_from(["pending", "full"])),
        "columns": {
            name: {"init": draw(st.sampled_from(["0", "prompt % 3", "1"])), "max": MAX_COLUMN}
            for name in columns
        },
        "carry": {"drafts": {"shape": [4], "type": "token"}},
        "forwards": {},
        "states": {},
        "transitions": [],
    }
    for index, state in enumerate(states):
        judged = draw(st.integers(1, 4))
        data["forwards"][state] = {
            "rows": [
                {"name": "anchor", "source": "pending", "logits": "shifted", "kv": "keep"},
                {
                    "name": "judged",
                    "source": f"drafts[:{judged}]",
                    "count": judged,
                    "logits": "shifted",
                    "kv": "provisional",
                },
            ],
            "ops": [
                {
                    "op": "accept",
                    "rule": "greedy",
                    "drafts": f"drafts[:{judged}]",
                    "rows": ["anchor", "judged"],
                    "out": ["a", "next"],
                }
            ],
        }
        round_state = index == 0 or draw(st.booleans())
        data["states"][state] = {
            "phase": "verify",
            "forward": state,
            "round": round_state,
            "start": index == 0,
        }
        for guard in draw(guards(["a"], columns)):
            data["transitions"].append(
                {
                    "from": state,
                    "when": guard,
                    "to": draw(st.sampled_from(states)),
                    "keep": "a + 1",
                    "emit": ["drafts[:a]", "next"],
                    "set": {
                        "pending": "next",
                        **{name: draw(_effects(["a"], columns)) for name in columns if draw(st.booleans())},
                    },
                }
            )
    return Spec.model_validate(data)


@st.composite
def abstract_specs(draw: st.DrawFn) -> Spec:
    """Give an abstract model: its own events, holdings and ignored pairs."""
    states = [f"s{index}" for index in range(draw(st.integers(1, 3)))]
    columns = [f"c{index}" for index in range(draw(st.integers(1, 2)))]
    events = ["go", "turn"]
    data: dict[str, Any] = {
        "spec": "drawn",
        "columns": {name: {"init": 0, "max": MAX_COLUMN} for name in columns},
        "states": {},
        "events": {"go": {"args": {"x": {"range": [0, columns[0]]}}}, "turn": {}},
        "transitions": [],
    }
    for index, state in enumerate(states):
        ignored = draw(st.lists(st.sampled_from(events), unique=True))
        data["states"][state] = {
            "phase": "commit",
            "start": index == 0,
            "round": True,
            "kv": {"committed": columns[0], "scratch": draw(st.integers(0, 3))},
            "ignore": ignored,
        }
        for event in events:
            if event in ignored:
                continue
            args = ["x"] if event == "go" else []
            for guard in draw(guards(args, columns)):
                data["transitions"].append(
                    {
                        "from": state,
                        "on": event,
                        "when": guard,
                        "to": draw(st.sampled_from(states)),
                        "set": {
                            name: draw(
                                _effects(args, columns).filter(
                                    lambda text: "prompt" not in text and "emitted" not in text
                                )
                            )
                            for name in columns
                        },
                    }
                )
    return Spec.model_validate(data)
