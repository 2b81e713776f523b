"""The registry of operators: what each one reads, gives, and in which range; readings and kernels are in `kernels/`.

A new operator is one entry here, one model in `operations.py`, and one reading in `kernels/`; a test compares the sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from fsm_spec.language import expression
from fsm_spec.language.expression import Const, Expr, Op
from fsm_spec.language.piece import Piece

if TYPE_CHECKING:
    from fsm_spec.language.operations import Operation

Kind = Literal["token", "law", "count", "index", "tree", "feature", "real"]
# Counts the rows of segments, or what an earlier result holds; None where one of them is not known.
Rows = Callable[[str | list[str]], Expr | None]
Length = Callable[[Any, Rows], Expr | None]


def _nothing(_: Any, __: Rows) -> Expr:  # noqa: ANN401 -- any operator
    return Const(0)


def _one(_: Any, __: Rows) -> Expr:  # noqa: ANN401 -- any operator
    return Const(1)


@dataclass(frozen=True)
class Output:
    """Describe one output of an operator.

    `kind`: `token` (ids), `law` (float32 distributions, one a token), `index` (rows of the block), `tree` (nodes with
    token, parent and depth), `feature` (hidden states), `real` (numbers) or `count` (an integer that guards and
    effects may read).
    `most` gives the length of the others, or the upper bound of a count; `least` is a count's lower bound.
    Both are over parameters and columns; None where a segment that they ask for is not known.
    """

    kind: Kind
    most: Length
    least: Length = _nothing


@dataclass(frozen=True)
class Operator:
    """Describe an operator: its key in the registry, what it does, where that comes from, and its outputs in order."""

    key: str
    about: str
    source: str
    outputs: tuple[Output, ...]
    # What it reads beside its rows, by key: carries, and results of the operators before it in the forward.
    carries: Mapping[str, Kind] = field(default_factory=dict)
    results: Mapping[str, Kind] = field(default_factory=dict)
    # Whether it looks at all requests of a launch; its reading is in `budget.py` then, and no kernel.
    batch: bool = False


def key_of(op: Operation) -> str:
    """Name an operation's entry in the registry: `accept:match`, `lookup`."""
    rule = getattr(op, "head" if op.op == "sample" else "rule", None)
    return op.op if rule is None else f"{op.op}:{rule}"


def outputs_of(op: Operation) -> tuple[tuple[str, Output], ...]:
    """List the outputs of an operation under the names that its spec gives them."""
    names = [op.out] if isinstance(op.out, str) else op.out
    return tuple(zip(names, OPERATORS[key_of(op)].outputs, strict=False))


def carries_of(op: Operation) -> tuple[tuple[str, Kind, Piece], ...]:
    """List the carries that an operation reads: the key that names each, the kind it must have, and what is read."""
    return _named(op, OPERATORS[key_of(op)].carries)


def results_of(op: Operation) -> tuple[tuple[str, Kind, Piece], ...]:
    """List the results of earlier operators that an operation reads, as `carries_of` lists carries."""
    return _named(op, OPERATORS[key_of(op)].results)


def _named(op: Operation, kinds: Mapping[str, Kind]) -> tuple[tuple[str, Kind, Piece], ...]:
    # `from` is a word of Python, so the model has it under another name.
    given = ((key, kind, getattr(op, "from_" if key == "from" else key)) for key, kind in kinds.items())
    return tuple(
        (key, kind, value if isinstance(value, Piece) else Piece(value))
        for key, kind, value in given
        if value is not None
    )


def _row_count(op: Any, rows: Rows) -> Expr | None:  # noqa: ANN401 -- an operator with rows
    return rows(op.rows)


def _captured(op: Any, rows: Rows) -> Expr | None:  # noqa: ANN401 -- a capture
    return rows(op.rows if op.path is None else op.path)


def _drafts_judged(op: Any, rows: Rows) -> Expr | None:  # noqa: ANN401 -- an accept
    """Row i judges draft i, and the last row gives the token after the last draft."""
    count = rows(op.rows)
    return None if count is None else expression.subtract(count, Const(1))


def _size(op: Any, _: Rows) -> Expr:  # noqa: ANN401 -- an operator with a size
    size: Expr = op.size
    return size


def _top(op: Any, _: Rows) -> Expr:  # noqa: ANN401 -- a grow
    top: Expr = op.top
    return top


def _depth(op: Any, _: Rows) -> Expr:  # noqa: ANN401 -- a walk
    depth: Expr = op.depth
    return depth


def _path(op: Any, _: Rows) -> Expr:  # noqa: ANN401 -- a walk
    return expression.add(op.depth, Const(1))


def _later(op: Any) -> Expr:  # noqa: ANN401 -- an unmask with steps
    """Bound what may be left by the steps to come: nothing after the last one."""
    return Op("*", (Op("max", (expression.subtract(op.steps, Const(1)), Const(0))), op.left))


def _most_left(op: Any, _: Rows) -> Expr:  # noqa: ANN401 -- an unmask
    """One mask at least goes, and all of them in the last step."""
    rest = expression.subtract(op.left, Const(1))
    return rest if op.steps is None else Op("min", (rest, _later(op)))


def _quota_left(op: Any, _: Rows) -> Expr:  # noqa: ANN401 -- an unmask that fills a quota
    """Count what a quota leaves: the rest of the masks, and none in the last step; one mask at least goes."""
    rest = Op("max", (expression.subtract(op.left, Op("max", (op.quota, Const(1)))), Const(0)))
    return rest if op.steps is None else Op("min", (rest, _later(op)))


def _least_left(op: Any, rows: Rows) -> Expr | None:  # noqa: ANN401 -- an unmask that fills a quota
    """Count what may be left at least: a stop token may freeze all masks behind it."""
    return Const(0) if op.freeze is not None else _quota_left(op, rows)


_ACCEPTED: Final = (Output("count", _drafts_judged), Output("token", _one))
_UNMASKED: Final = (Output("count", _most_left), Output("token", _row_count))
_FILLED: Final = (Output("count", _quota_left, _least_left), Output("token", _row_count))
_JUDGED: Final[dict[str, Kind]] = {"drafts": "token", "q": "law"}
_BLOCK: Final[dict[str, Kind]] = {"block": "token"}
_TREE: Final[dict[str, Kind]] = {"tree": "tree"}
_WALKED: Final = (
    Output("count", _depth),
    Output("index", _path),
    Output("token", _path),
    Output("token", _one),
)

OPERATORS: Final[dict[str, Operator]] = {
    operator.key: operator
    for operator in (
        Operator(
            "sample",
            "draw one token for each row from its law (argmax at temperature 0), and give the laws drawn from",
            "inverse of the cumulative law at one counter-based uniform a row",
            (Output("token", _row_count), Output("law", _row_count)),
        ),
        Operator(
            "sample:markov",
            "draw a token for each row from left to right, each under a bias that reads the token before; give the "
            "laws drawn from, and the chance that each draft and all before it are accepted",
            "sequential and confidence heads of deepseek-ai/DeepSpec",
            (Output("token", _row_count), Output("law", _row_count), Output("real", _row_count)),
        ),
        Operator(
            "capture",
            "give the hidden states of rows: the target's, as its draft models read them, or a draft model's own",
            "draft heads of arXiv 2602.06036 and 2503.01840",
            (Output("feature", _captured),),
            results={"path": "index"},
        ),
        Operator(
            "budget:early_stop",
            "grant drafts of a launch, the likeliest first, and stop at the first that does not raise the expected "
            "tokens a second",
            "algorithm 1 of deepseek-ai/DeepSpec's paper",
            (Output("count", _size),),
            batch=True,
            results={"from": "real"},
        ),
        Operator(
            "budget:earlier",
            "take the number of drafts that was best by the chances of an earlier round, and grant as many of the "
            "likeliest of this one",
            "production variant of deepseek-ai/DeepSpec's paper; vllm-project/vllm#47808",
            (Output("count", _size),),
            batch=True,
            carries={"earlier": "real"},
            results={"from": "real"},
        ),
        Operator(
            "accept:greedy",
            "accept drafts while they equal the target's argmax; next is the argmax after the accepted run",
            "Leviathan et al., arXiv 2211.17192, at temperature 0",
            _ACCEPTED,
            carries=_JUDGED,
        ),
        Operator(
            "accept:match",
            "draw the target's own token for each row; accept drafts while they equal it; next is that token",
            "sample-and-match; Nemotron-Labs-Diffusion's linear_spec_generate",
            _ACCEPTED,
            carries=_JUDGED,
        ),
        Operator(
            "accept:rejection",
            "accept draft x with min(1, p(x) / q(x)); after a rejection next is drawn from max(0, p - q), normalised",
            "Leviathan et al., arXiv 2211.17192, theorem 1; without q the draft is a point mass",
            _ACCEPTED,
            carries=_JUDGED,
        ),
        Operator(
            "accept:topk",
            "accept drafts among the target's `top` most likely tokens; next is the argmax; not lossless",
            "I-DLM's fast verify (SGLang's IDLMBlockN)",
            _ACCEPTED,
            carries=_JUDGED,
        ),
        Operator(
            "accept:threshold",
            "accept drafts whose probability p(x) reaches `threshold` thousandths; next is drawn from p; not lossless",
            "typical of confidence-based verification; I-DLM's draft-only variant has the same test on drafts",
            _ACCEPTED,
            carries=_JUDGED,
        ),
        Operator(
            "accept:always",
            "accept every draft; next is drawn from the last row's law; not lossless",
            "verifier off, e.g. use_spec_verify: false of SGLang's IDLMBlockN",
            _ACCEPTED,
            carries=_JUDGED,
        ),
        Operator(
            "unmask:threshold",
            "fill masks whose token's probability reaches `threshold` thousandths, and always the most certain one",
            "Fast-dLLM (arXiv 2505.22618); Nemotron-Labs-Diffusion's generate",
            _UNMASKED,
            carries=_BLOCK,
        ),
        Operator(
            "unmask:above",
            "fill masks whose token's probability exceeds `threshold` thousandths, else the most certain one",
            "SGLang's LowConfidence",
            _UNMASKED,
            carries=_BLOCK,
        ),
        Operator(
            "unmask:schedule",
            "fill the `quota` most certain masks",
            "LLaDA's even schedule (arXiv 2502.09992); SDAR's static rule",
            _FILLED,
            carries=_BLOCK,
        ),
        Operator(
            "unmask:dynamic",
            "fill all masks above `threshold` thousandths if these are `quota` at least, else the `quota` most certain",
            "SDAR (arXiv 2510.06303), dynamic rule",
            _UNMASKED,
            carries=_BLOCK,
        ),
        Operator(
            "unmask:sequential",
            "fill the first `quota` masks from left to right",
            "SDAR (arXiv 2510.06303), sequential rule",
            _FILLED,
            carries=_BLOCK,
        ),
        Operator(
            "unmask:entropy",
            "fill masks of least entropy, one at least, while their sum stays within `bound` thousandths of a nat",
            "SDAR (arXiv 2510.06303), entropy-bounded rule, over the whole law",
            _UNMASKED,
            carries=_BLOCK,
        ),
        Operator(
            "grow:best",
            "grow a tree from `root` by the likeliest edge first, row d giving the `top` tokens of depth d",
            "Uno's tree sampler (arXiv 2609.04010)",
            (Output("tree", _size),),
            results={"root": "token"},
        ),
        Operator(
            "grow:level",
            "add to a tree the `top` likeliest children of its newest level, by the probability of the path; give also "
            "the row that each of them hangs on",
            "dynamic draft trees of arXiv 2406.16858 and 2503.01840",
            (Output("tree", _size), Output("index", _top)),
            carries={"root": "token", "tree": "tree"},
        ),
        Operator(
            "prune",
            "keep the `size` nodes of a tree with the likeliest paths, in its order",
            "dynamic draft trees of arXiv 2406.16858 and 2503.01840",
            (Output("tree", _size),),
            results=_TREE,
        ),
        Operator(
            "walk:match",
            "draw the target's own token at each node, and follow it from the root while a child carries it",
            "target-only tree verification; Uno's tree sampler, SGLang's EAGLE target-only sampling",
            _WALKED,
            carries=_TREE,
        ),
        Operator(
            "walk:residual",
            "try children in order against the target's law; a rejected child's mass is removed before the next",
            "EAGLE-3 (arXiv 2503.01840); SpecInfer's multi-step sampling with point-mass drafts",
            _WALKED,
            carries=_TREE,
        ),
        Operator(
            "lookup",
            "find the longest run of newest tokens, from max down to min, earlier in the text; give what followed it",
            "prompt lookup decoding (Saxena 2023)",
            (Output("token", _size), Output("count", _size)),
        ),
    )
}
