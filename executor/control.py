"""What a request asks of its laws beyond sampling parameters, applied to every row of logits in one place.

Each row predicts the token after some text: what was emitted, and the drafts of its block that the row sees. Penalties,
bias, grammar and `min_tokens` are applied for that very text, to rows of drafts and of targets alike, so that every
operator, of every spec, sees the logits that its law is taken from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fsm_spec.errors import UserError
from fsm_spec.executor.block import Block, ReadRows
from fsm_spec.executor.request import Request, Tokens
from fsm_spec.kernels.adjust import adjust
from fsm_spec.table import Table


def reads_in_order(table: Table) -> bool:
    """Tell whether every token is predicted after all tokens before it; specs that unmask fill places in any order."""
    return not any(op.op == "unmask" for plan in table.forwards.values() for op in plan.operators)


def judges_all(table: Table) -> bool:
    """Tell whether every token is drawn or judged where all before it are known; drafts that always stand are not."""
    return not any(
        op.op == "accept" and op.rule == "always" for plan in table.forwards.values() for op in plan.operators
    )


def shape_block(
    block: Block, rows: ReadRows, logits: torch.Tensor, *, draft: bool, mask_id: int
) -> torch.Tensor:
    """Give the logits [m, V] of one operator's rows as their requests want them; those given stay as they are.

    `draft` rows may come before tokens that are not known yet; `mask_id` cannot be drafted. The target's logits are
    noted for requests that want log-probabilities.
    """
    if not any(request.controlled for request in block.scope.requests):
        return logits
    shaped = logits
    at = first = 0
    for member, (request, count) in enumerate(zip(block.scope.requests, rows.counts.tolist(), strict=True)):
        if request.controlled:
            for index in range(at, at + count):
                row, position = int(rows.numbers[index]) - first, int(rows.positions[index])
                ahead = _ahead(block, member, row, request.length, position)
                complete = request.length + len(ahead) == position
                if not (complete or draft):
                    raise UserError(
                        f"{block.layout.table.name} judges a token before it knows the ones in front of it; "
                        "leave penalties, grammar and logprobs out"
                    )
                if request.scores is not None and not draft:
                    request.scores.see(position, tuple(ahead), logits[index])
                if not request.controls.neutral:
                    shaped = shaped.clone() if shaped is logits else shaped
                    allowed = allowed_at(
                        request, ahead, position, shaped.shape[1], mask_id if draft else None
                    )
                    _adjust(shaped[index], request, ahead, allowed)
        at += count
        first += int(block.shape.counts[member])
    return shaped


def shape_first(requests: Sequence[Request], logits: torch.Tensor) -> torch.Tensor:
    """Give the logits [n, V] after the prefills of requests as these want them; those given stay as they are."""
    if not any(request.controlled for request in requests):
        return logits
    shaped = logits
    for index, request in enumerate(requests):
        if request.scores is not None:
            request.scores.see(request.length, (), logits[index])
        if not request.controls.neutral:
            shaped = shaped.clone() if shaped is logits else shaped
            allowed = allowed_at(request, [], request.length, shaped.shape[1])
            _adjust(shaped[index], request, [], allowed)
    return shaped


def _ahead(block: Block, member: int, row: int, length: int, position: int) -> list[int]:
    """List the tokens between the emitted text and a row's prediction, as far as they are known without a gap."""
    live = np.flatnonzero(block.shape.live[member])
    seen = live[block.masks[member][row].numpy()[-len(live) :]]
    seen = seen[block.layout.known[seen] & (block.ids[member, seen] >= 0)]
    tokens = dict(zip(block.positions[member, seen].tolist(), block.ids[member, seen].tolist(), strict=True))
    ahead: list[int] = []
    while length + len(ahead) < position and length + len(ahead) in tokens:
        ahead.append(tokens[length + len(ahead)])
    return ahead


def allowed_at(
    request: Request, ahead: list[int], position: int, vocabulary: int, undrafted: int | None = None
) -> torch.Tensor | None:
    """Tell which tokens may stand at a position, bool [V]; None where all may, or where it does not matter.

    `ahead` are the tokens between the text and the position, as far as they are known. `undrafted` is the token that
    cannot be drafted, where a draft is asked for: one that would leave no other is asked of nobody.
    """
    controls = request.controls
    allowed = None
    if controls.grammar is not None and request.length + len(ahead) == position:
        allowed = controls.grammar.allowed(request.text[request.prompt :], ahead)
    if position - request.prompt < controls.min_tokens and request.stop_ids:
        if allowed is None:
            allowed = torch.ones(vocabulary, dtype=torch.bool)
        stops = torch.tensor(sorted(request.stop_ids))
        if bool(allowed.sum() > allowed[stops].sum()):
            # A grammar that is complete leaves nothing but the end: then the text ends early.
            allowed[stops] = False
    if undrafted is not None and allowed is not None and not _can_draft(allowed, undrafted):
        return None
    return allowed


def _can_draft(allowed: torch.Tensor, mask_id: int) -> bool:
    return bool(allowed[:mask_id].any() or allowed[mask_id + 1 :].any())


def _adjust(row: torch.Tensor, request: Request, ahead: list[int], allowed: torch.Tensor | None) -> None:
    text: Tokens = request.text
    output = text[request.prompt :]
    if ahead and request.controls.adjustment.reads_text:
        output = np.concatenate([output, np.array(ahead, np.int64)])
    adjust(row, request.controls.adjustment, text[: request.prompt], output, allowed)
