"""DSpark's sequential head: a bias on each draft row's logits that reads the token drafted before it.

Plain: bias = W2 W1[x]. Gated: W1[x] times a sigmoid of hidden state and embedding. RNN: gate, candidate and output
from one projection of state, embedding and hidden state.
Names and formulas: `deepspec/modeling/dspark/markov_head.py` of deepseek-ai/DeepSpec (read in its copies).
"""

from __future__ import annotations

from typing import Final

import torch

from fsm_spec.executor.models.transformer import linear
from fsm_spec.executor.models.weights import WeightReader

Tensor = torch.Tensor

KINDS: Final = ("vanilla", "gated", "rnn")


class MarkovHead:
    """Correct draft logits by the token before, from the first draft to the last."""

    def __init__(self, kind: str, rank: int, hidden: int, vocab: int, reader: WeightReader) -> None:
        self.kind = kind
        self.rank = rank
        self.dtype = reader.dtype
        self.embedding = reader.matrix("markov_head.markov_w1.weight", vocab, rank)
        self.output = reader.matrix("markov_head.markov_w2.weight", vocab, rank)
        self.mix: Tensor | None = None
        self.mix_bias: Tensor | None = None
        if kind == "gated":
            self.mix = reader.matrix("markov_head.gate_proj.weight", rank, hidden + rank)
            self.mix_bias = reader.bias("markov_head.gate_proj", rank)
        elif kind == "rnn":
            self.mix = reader.matrix("markov_head.joint_proj.weight", 3 * rank, 2 * rank + hidden)
            self.mix_bias = reader.bias("markov_head.joint_proj", 3 * rank)

    def start(self, requests: int) -> Tensor:
        """Give the state before the first draft, [n, rank]."""
        return torch.zeros(requests, self.rank, dtype=self.dtype, device=self.embedding.device)

    def embed(self, tokens: Tensor) -> Tensor:
        """Look up W1 of tokens [...] -> [..., rank]."""
        return self.embedding[tokens]

    @torch.inference_mode()
    def step(self, state: Tensor, previous: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Give the bias [n, vocab] float32 of the next draft, and the state after it.

        `previous` [n] are the tokens before that draft, `hidden` [n, hidden] the draft rows' normed states.
        """
        embedded = self.embed(previous)
        latent = embedded
        if self.mix is not None:
            hidden = hidden.to(self.dtype)
            read = (hidden, embedded) if self.kind == "gated" else (state, embedded, hidden)
            mixed = linear(torch.cat(read, 1), self.mix, self.mix_bias)
            if self.kind == "gated":
                latent = mixed.sigmoid() * embedded
            else:
                gate, candidate, out = mixed.chunk(3, 1)
                gate = gate.sigmoid()
                state = gate * state + (1 - gate) * candidate.tanh()
                latent = out.tanh()
        return linear(latent, self.output).float(), state
