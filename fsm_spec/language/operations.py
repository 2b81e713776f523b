"""The pydantic models of operators, as a person writes them under `ops`; what each gives is in `operators.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from fsm_spec.language import expression
from fsm_spec.language.fields import IntExpr, NameText, Node, PieceText


class Sample(Node):
    """Draw one token for each row."""

    op: Literal["sample"] = Field(description="draw one token for each row")
    rows: NameText | list[NameText] = Field(description="segments whose logits are read")
    rule: Literal["law", "argmax", "argmax_of_law"] = Field(
        default="law",
        description="law: draw from the processed distribution; argmax: its most likely token; "
        "argmax_of_law: that token beside the law it was not drawn from (not lossless with rejection)",
    )
    head: Literal["markov"] | None = Field(
        default=None,
        description="markov: a context_head's head over the token before, which draws from left to right",
    )
    out: NameText | Annotated[list[NameText], Field(min_length=1, max_length=3)] = Field(
        description="tokens, or [tokens, law]; with a head also the chance that each draft survives"
    )


class Capture(Node):
    """Give the hidden states of rows."""

    op: Literal["capture"] = Field(description="give the hidden states of rows")
    rows: NameText | list[NameText] = Field(
        description="rows of the target, for its draft models to read, or of a draft model for its own next rows"
    )
    path: NameText | None = Field(
        default=None, description="result of a walk: the states of its rows, in its order"
    )
    out: NameText = Field(description="the hidden states, one a row")


class Budget(Node):
    """Decide how many drafts of each request are worth verifying, over all requests of a launch."""

    op: Literal["budget"] = Field(description="decide how many drafts are verified, over a whole launch")
    rule: Literal["early_stop", "earlier"] = Field(
        description="early_stop: grant drafts while each raises the expected throughput; "
        "earlier: a total from the chances of earlier rounds, shared out by those of this one"
    )
    from_: NameText = Field(alias="from", description="result: the chance that each draft survives")
    earlier: NameText | None = Field(
        default=None, description="earlier: carry with the chances of an earlier round"
    )
    size: IntExpr = Field(description="drafts of a request, which it may verify at most")
    out: NameText = Field(description="drafts granted, 0 to size")


class Accept(Node):
    """Judge drafts from left to right and give the token that follows the accepted run."""

    op: Literal["accept"] = Field(description="judge drafts from left to right")
    rule: Literal["greedy", "match", "rejection", "topk", "threshold", "always"] = Field(
        description="greedy: equals the argmax; match: equals the target's own sample; "
        "rejection: min(1, p/q) with the residual; topk, threshold, always: not lossless"
    )
    drafts: PieceText = Field(description="the drafts judged")
    q: NameText | None = Field(
        default=None, description="carry with the drafts' law; without it a draft is a point mass"
    )
    top: IntExpr | None = Field(default=None, description="topk: how many most likely tokens are accepted")
    threshold: IntExpr | None = Field(
        default=None, description="threshold: least probability, in thousandths"
    )
    rows: NameText | list[NameText] = Field(
        description="row i judges draft i; the last live row gives the bonus token"
    )
    out: Annotated[list[NameText], Field(min_length=2, max_length=2)] = Field(
        description="[accepted count, next token]"
    )


class Lookup(Node):
    """Propose the tokens that followed the newest words where they stood before (prompt lookup)."""

    op: Literal["lookup"] = Field(description="propose what followed the newest tokens before")
    size: IntExpr = Field(description="most tokens proposed")
    min: IntExpr = Field(
        default=expression.Const(1), description="shortest run of newest tokens that must be found"
    )
    max: IntExpr = Field(description="longest run tried first")
    out: Annotated[list[NameText], Field(min_length=2, max_length=2)] = Field(
        description="[drafts, count found]"
    )
    from_: Literal["text"] = Field(
        default="text", alias="from", description="where to look: prompt and emitted tokens"
    )


class Unmask(Node):
    """Fill some of a block's masks with the tokens that the model is surest of."""

    op: Literal["unmask"] = Field(description="fill some of a block's masks")
    rule: Literal["threshold", "above", "schedule", "dynamic", "sequential", "entropy"] = Field(
        description="which masks are filled; one at least"
    )
    block: NameText = Field(description="carry with the block's tokens, masks among them")
    rows: NameText | list[NameText] = Field(description="the block's rows; logits: own")
    left: IntExpr = Field(description="masks left in the block before this step")
    steps: IntExpr | None = Field(
        default=None, description="steps left, this one included; the last fills every mask"
    )
    threshold: IntExpr | None = Field(default=None, description="least probability, in thousandths")
    bound: IntExpr | None = Field(
        default=None, description="entropy: most that the sum may be, in thousandths of a nat"
    )
    quota: IntExpr | None = Field(default=None, description="schedule, dynamic, sequential: masks to fill")
    start: IntExpr | None = Field(
        default=None, description="first row that is not of the prompt; 0 by default"
    )
    freeze: Literal["stop"] | None = Field(
        default=None, description="stop: masks behind a generated stop token become that token"
    )
    out: Annotated[list[NameText], Field(min_length=2, max_length=2)] = Field(
        description="[masks left after it, the block's tokens]"
    )


class Grow(Node):
    """Grow a tree of drafts from the rows' laws."""

    op: Literal["grow"] = Field(description="grow a tree of drafts")
    rule: Literal["best", "level"] = Field(
        description="best: likeliest edge first, row d being the law of depth d; level: add the likeliest children of "
        "the newest nodes, which the rows stand for"
    )
    rows: NameText | list[NameText] = Field(
        description="best: one row a depth, from depth 1 on; level: one row for each of the newest nodes"
    )
    root: NameText | None = Field(
        default=None, description="token of the root: a result, or for the first level a carry"
    )
    tree: NameText | None = Field(default=None, description="level: carry with the tree so far")
    top: IntExpr = Field(description="children a node has at most; nodes of a level")
    size: IntExpr = Field(description="nodes that the tree holds at most, the root included")
    out: NameText | Annotated[list[NameText], Field(min_length=1, max_length=2)] = Field(
        description="the tree; by level also the row that each new node hangs on"
    )


class Prune(Node):
    """Keep the best nodes of a tree."""

    op: Literal["prune"] = Field(description="keep the best nodes of a tree")
    tree: NameText = Field(description="result with the tree")
    size: IntExpr = Field(description="nodes that stay, the root included")
    out: NameText = Field(description="the tree of these nodes")


class Walk(Node):
    """Walk a tree of drafts from its root as far as the target agrees."""

    op: Literal["walk"] = Field(description="walk a tree as far as the target agrees")
    rule: Literal["match", "residual"] = Field(
        description="match: follow the target's own samples; residual: try children against p, mass removed"
    )
    tree: NameText = Field(description="carry with the tree")
    depth: IntExpr = Field(description="edges of its longest path")
    rows: NameText = Field(description="its nodes")
    out: Annotated[list[NameText], Field(min_length=4, max_length=4)] = Field(
        description="[edges walked, rows of the path, its tokens with the root, next token]"
    )


def _kind(value: Any) -> str | None:
    kind = value.get("op") if isinstance(value, dict) else getattr(value, "op", None)
    return kind if isinstance(kind, str) else None


Operation = Annotated[
    Annotated[Sample, Tag("sample")]
    | Annotated[Capture, Tag("capture")]
    | Annotated[Budget, Tag("budget")]
    | Annotated[Accept, Tag("accept")]
    | Annotated[Unmask, Tag("unmask")]
    | Annotated[Grow, Tag("grow")]
    | Annotated[Prune, Tag("prune")]
    | Annotated[Walk, Tag("walk")]
    | Annotated[Lookup, Tag("lookup")],
    Discriminator(_kind),
]
