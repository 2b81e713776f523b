"""The pydantic models of a spec as a person writes it; cross references are in `rules/`, meaning in `table.py`.

Every model refuses unknown keys. Expressions and pieces are parsed while the file is read, so that a fault of
spelling is reported at its place; field descriptions become the hover texts of `schema.json`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fsm_spec.language import expression
from fsm_spec.language.fields import (
    MAX_ITEMS,
    Assignment,
    BoolExpr,
    Flag,
    IntExpr,
    NameText,
    Node,
    PieceText,
    Small,
    SourceText,
)
from fsm_spec.language.operations import Operation


class Lossless(Node):
    """Say what the spec claims about its output law; tests hold it to that."""

    claim: Literal["greedy", "sampling", "no"] = Field(
        description="greedy: equals greedy AR decoding; sampling: the output law equals the target's; no: neither"
    )
    why: str = Field(description="the reason, in a few words")


class Param(Node):
    """Declare a parameter with its range, its default, and the small value the checker uses."""

    range: tuple[Small, Small] = Field(description="smallest and largest value")
    default: Small = Field(description="value when none is given")
    check: Small = Field(description="small value that the checker uses")
    tiered: Flag = Field(default=False, description="a tier policy may change it between rounds")
    trained: Literal["block", "block + 1"] | None = Field(
        default=None,
        description="what it is for a model whose configuration names the block_size it was trained on",
    )
    about: str = Field(default="", description="what it means")


class Column(Node):
    """Declare a bounded integer that every request carries and that guards, counts and traces read."""

    init: IntExpr = Field(description="value where a request enters the start state")
    max: IntExpr = Field(description="largest value; the smallest is 0")
    about: str = Field(default="", description="what it counts")


class Carry(Node):
    """Declare a device tensor that lives across forwards of a request."""

    shape: list[IntExpr | Literal["vocab"]] = Field(
        description="sizes; vocab stands for the vocabulary", max_length=3
    )
    type: Literal["token", "law", "tree", "feature", "real"] = Field(
        description="token: ids; law: float32 distributions over the vocabulary; "
        "tree: nodes with token, parent and depth, parents before children; "
        "feature: hidden states of a model; real: numbers"
    )
    init: list[PieceText] | None = Field(
        default=None,
        description="value where a request enters the start state: text (the tokens behind kv) and mask; "
        "features (what draft models read of the last prefilled row) for a carry of type feature; certain "
        "(chances of 1) for one of type real",
        max_length=MAX_ITEMS,
    )
    about: str = Field(default="", description="what it holds")


class DraftModel(Node):
    """Declare a model beside the target, with a KV cache of its own in slots of the same numbers."""

    kind: Literal["language_model", "context_head", "feature_head", "token_heads"] = Field(
        description="language_model: reads tokens; context_head: reads the target's hidden states as rows without "
        "queries; feature_head, token_heads: read a hidden state beside each token"
    )
    behind: IntExpr = Field(
        description="rows that its cache has less than the target's: it has kv - behind committed ones"
    )
    about: str = Field(default="", description="what it does")


class Segment(Node):
    """Describe a run of rows of a forward's block that share source, weights, logits use and KV fate."""

    name: NameText = Field(description="name by which operators refer to these rows")
    source: SourceText = Field(
        description="text of the rows: mask, noise, or a carry, whole or sliced; "
        "in groups a list, whose token j stands in group j; hidden states where query is false"
    )
    count: IntExpr = Field(
        default=expression.Const(1), description="number of rows; ragged where it reads a column"
    )
    at: IntExpr | None = Field(
        default=None, description="position of the first row; kv plus the rows before by default"
    )
    slot: IntExpr | None = Field(
        default=None, description="cache slot of the first row; its position by default"
    )
    weights: Literal["base", "adapter"] = Field(
        default="base", description="adapter adds the low-rank draft adapter on these rows"
    )
    logits: Literal["none", "shifted", "own"] = Field(
        default="none", description="shifted: a row predicts the next position; own: its own position"
    )
    features: PieceText | None = Field(
        default=None, description="hidden states that the rows of a feature_head or of token_heads read"
    )
    query: Flag = Field(
        default=True, description="false: the rows of a context_head whose K and V alone are written"
    )
    kv: Literal["keep", "provisional", "open", "scratch"] = Field(
        description="keep: stays; provisional: stays up to the accepted count; open: a draft model's later forwards "
        "of the round see it; scratch: read by no other forward"
    )


class Groups(Node):
    """Repeat rows in groups: the rows with lasting KV are heads, and every group hangs on the heads up to its own."""

    count: IntExpr = Field(description="number of groups, over parameters")
    inside: Literal["causal", "bidirectional"] = Field(
        default="bidirectional", description="which rows of its group a row that is no head sees"
    )
    rows: list[Segment] = Field(description="segments of one group, its head first", max_length=MAX_ITEMS)


class Forward(Node):
    """Describe one pass of a model: its rows in segments, and the operators on its logits, in order."""

    about: str = Field(default="", description="what it does")
    model: NameText | None = Field(
        default=None, description="the draft model that runs, with its own cache; the target by default"
    )
    attention: Literal["causal", "bidirectional", "block-causal", "groups", "tree"] = Field(
        default="causal",
        description="which rows of its block a row sees (committed KV is always seen); block-causal: all, and prefill "
        "runs in such blocks; groups: heads and its own group; tree: its ancestors",
    )
    rows: list[Segment] = Field(
        default_factory=list,
        description="segments in row order; none for operators that need no model",
        max_length=MAX_ITEMS,
    )
    groups: Groups | None = Field(default=None, description="rows in groups; instead of rows")
    ops: list[Operation] = Field(
        default_factory=list, description="operators, in order", max_length=MAX_ITEMS
    )

    @property
    def segments(self) -> list[Segment]:
        """List the segments, those of one group where rows are in groups."""
        return self.rows if self.groups is None else self.groups.rows

    @property
    def segments_key(self) -> tuple[str, ...]:
        """Lead from the forward to its segments."""
        return ("rows",) if self.groups is None else ("groups", "rows")


class Holding(Node):
    """State the KV slots that a state holds, by kind."""

    committed: IntExpr = Field(default=expression.Const(0), description="slots of verified tokens")
    provisional: IntExpr = Field(
        default=expression.Const(0), description="slots kept up to the accepted count"
    )
    scratch: IntExpr = Field(default=expression.Const(0), description="slots that no other forward reads")


class State(Node):
    """Describe a state of a request; wait, prefill and end are built in."""

    about: str = Field(default="", description="what the request does here")
    phase: Literal["draft", "verify", "commit", "refresh"] = Field(
        description="label for diagrams and reports"
    )
    forward: NameText | None = Field(default=None, description="the forward that runs here")
    round: Flag = Field(default=False, description="pages, preemption and policies act here only")
    start: Flag = Field(default=False, description="the state after prefill; exactly one, and a round state")
    kv: Holding | None = Field(
        default=None, description="asserted holding; required in a state without a forward"
    )
    ignore: list[NameText] = Field(
        default_factory=list, description="declared events that do nothing here", max_length=MAX_ITEMS
    )


class EventArg(Node):
    """Bound an event's argument."""

    range: tuple[IntExpr, IntExpr] = Field(
        description="smallest and largest value, over parameters and columns"
    )


class Event(Node):
    """Declare an event of an abstract model; forwards declare theirs by their operators."""

    about: str = Field(default="", description="when it happens")
    args: dict[NameText, EventArg] = Field(
        default_factory=dict, description="arguments by name", max_length=MAX_ITEMS
    )


class Transition(Node):
    """Say what one event does to a request; all right-hand sides read the values before it."""

    from_: NameText | list[NameText] = Field(alias="from", description="state, or list of states")
    on: NameText | None = Field(
        default=None, description="declared event; completion of the forward by default"
    )
    when: BoolExpr = Field(
        default=expression.Const(1, boolean=True),
        description="guard; guards of one state and event are disjoint and complete",
    )
    to: NameText = Field(description="target state; end where the cut ends the request")
    keep: IntExpr = Field(
        default=expression.Const(0), description="first rows of the forward whose KV becomes committed"
    )
    keep_rows: NameText | None = Field(
        default=None, description="result of a walk: its first rows are kept, and moved together"
    )
    keep_stride: IntExpr | None = Field(
        default=None, description="every such row is kept, from the first on, and moved together"
    )
    emit: list[PieceText] = Field(
        default_factory=list, description="tokens that become final, in order", max_length=MAX_ITEMS
    )
    set: dict[NameText, Assignment] = Field(
        default_factory=dict, description="columns and carries written, all at once", max_length=MAX_ITEMS
    )
    progress: Flag = Field(
        default=False, description="asserts that the transition brings the request nearer to its end"
    )


class Check(Node):
    """List the properties that `fsm-spec check` decides, each under a sentence."""

    always: dict[str, BoolExpr] = Field(
        default_factory=dict, description="holds at every round point", max_length=MAX_ITEMS
    )
    sometimes: dict[str, BoolExpr] = Field(
        default_factory=dict,
        description="happens on some way: guards against specs in which nothing happens",
        max_length=MAX_ITEMS,
    )
    eventually: str = Field(default="end", description="state that every request reaches")


class BlockContract(Node):
    """Hold KV to whole blocks where a round starts; what is left of the text enters the spec's block."""

    block: IntExpr = Field(description="tokens of a block, over parameters")


class Spec(Node):
    """Hold one decode algorithm as a state machine of one request."""

    spec: NameText = Field(description="name of the algorithm")
    about: str = Field(default="", description="the algorithm in a few sentences")
    source: str = Field(default="", description="paper or implementation it follows")
    lossless: Lossless | None = Field(
        default=None, description="claim about the output law; required where a forward runs"
    )
    params: dict[NameText, Param] = Field(
        default_factory=dict, description="integers fixed for a run", max_length=MAX_ITEMS
    )
    require: list[BoolExpr] = Field(
        default_factory=list, description="conditions that parameters satisfy together", max_length=MAX_ITEMS
    )
    contract: Literal["pending", "full"] | BlockContract | None = Field(
        default=None,
        description="pending: KV = prompt + emitted - 1 where a round starts; full: KV = prompt + emitted; "
        "{block: B}: KV = prompt + emitted, rounded down to whole blocks",
    )
    models: dict[NameText, DraftModel] = Field(
        default_factory=dict, description="draft models beside the target", max_length=MAX_ITEMS
    )
    columns: dict[NameText, Column] = Field(
        default_factory=dict,
        description="integers of each request; prompt, limit, emitted and kv are built in",
        max_length=MAX_ITEMS,
    )
    carry: dict[NameText, Carry] = Field(
        default_factory=dict,
        description="tensors of each request; pending, the newest token, is built in",
        max_length=MAX_ITEMS,
    )
    forwards: dict[NameText, Forward] = Field(
        default_factory=dict, description="passes of the model", max_length=MAX_ITEMS
    )
    states: dict[NameText, State] = Field(description="states of a round", min_length=1, max_length=MAX_ITEMS)
    events: dict[NameText, Event] = Field(
        default_factory=dict, description="events of an abstract model without forwards", max_length=MAX_ITEMS
    )
    transitions: list[Transition] = Field(description="what each event does", max_length=MAX_ITEMS)
    check: Check = Field(default_factory=Check, description="properties to check")
