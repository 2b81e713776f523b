"""The thing that is served: one model under one spec, with what the routes need to know of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from fsm_spec.errors import PoolExhausted
from fsm_spec.executor.control import judges_all, reads_in_order
from fsm_spec.executor.device.state import STOP_IDS
from fsm_spec.executor.grammar import GrammarCompiler
from fsm_spec.executor.models.config import ModelConfig
from fsm_spec.executor.server.refusal import Refusal
from fsm_spec.executor.server.settings import Settings
from fsm_spec.executor.tokenizer import Tokenizer
from fsm_spec.load import Loaded
from fsm_spec.policy import Policy, Pool, refuse_impossible
from fsm_spec.table import Table


class Described(Protocol):
    """Be what the routes must know of a session; one that runs in this process is its own description."""

    @property
    def table(self) -> Table:
        """Give the table that runs."""

    @property
    def config(self) -> ModelConfig:
        """Give the numbers of the model."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Give the model's tokenizer."""

    @property
    def pool(self) -> Pool:
        """Give the size of the KV pool."""

    @property
    def policy(self) -> Policy:
        """Give the scheduling policy in force."""

    @property
    def on_device(self) -> bool:
        """Tell whether requests live resident on a device."""

    @property
    def caches_prefixes(self) -> bool:
        """Tell whether full pages are kept for later texts that begin alike."""


@dataclass(frozen=True)
class Elsewhere:
    """Describe a session that runs in another process; fields as `Described`."""

    table: Table
    config: ModelConfig
    tokenizer: Tokenizer | None
    pool: Pool
    policy: Policy
    on_device: bool
    caches_prefixes: bool

    @classmethod
    def of(cls, session: Described) -> Elsewhere:
        """Describe a session without its tokenizer, which does not travel."""
        return cls(
            session.table,
            session.config,
            None,
            session.pool,
            session.policy,
            session.on_device,
            session.caches_prefixes,
        )


@dataclass
class Served:
    """Hold what is known of the session, spec and settings; `verdict` is the checker's on the spec."""

    session: Described
    loaded: Loaded
    settings: Settings
    verdict: str = "unchecked"
    created: int = 0
    compiler: GrammarCompiler = field(init=False)

    def __post_init__(self) -> None:
        self.compiler = GrammarCompiler(self.tokenizer, self.config.vocab, self.config.eos_token_ids)

    @property
    def table(self) -> Table:
        """Give the table that runs."""
        return self.session.table

    @property
    def config(self) -> ModelConfig:
        """Give the numbers of the model."""
        return self.session.config

    @property
    def tokenizer(self) -> Tokenizer:
        """Give the model's tokenizer."""
        assert self.session.tokenizer is not None
        return self.session.tokenizer

    @property
    def name(self) -> str:
        """Give the name that answers carry."""
        return self.settings.names[0]

    @property
    def fingerprint(self) -> str:
        """Give `system_fingerprint`: it changes with what the start fixed, and with the policy in force."""
        facts = self.settings.fingerprint + self.session.policy.model_dump_json()
        return f"fp_{hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()}"

    @cached_property
    def in_order(self) -> bool:
        """Tell whether every token is predicted after all tokens before it."""
        return reads_in_order(self.table)

    def require_model(self, name: str | None) -> None:
        """Refuse a model that is not served."""
        if name is not None and name not in self.settings.names:
            known = ", ".join(self.settings.names)
            raise Refusal(
                f"model {name!r} is not served here; served: {known}", "model", "model_not_found", status=404
            )

    def require_order(self, param: str) -> None:
        """Refuse a parameter that needs to know the tokens before each one."""
        if not self.in_order:
            raise Refusal(
                f"{param} needs the tokens before each token, and {self.table.name} fills places in any order; "
                "leave it out or serve another spec",
                param,
                "unsupported_parameter",
            )

    def require_judged(self, param: str) -> None:
        """Refuse a parameter that says which tokens may follow which, where nobody looks at them in order."""
        self.require_order(param)
        if not judges_all(self.table):
            raise Refusal(
                f"{param} needs every token judged after those before it, and {self.table.name} takes drafts unread; "
                "leave it out or serve another spec",
                param,
                "unsupported_parameter",
            )

    def require_stop_ids(self, count: int) -> None:
        """Refuse more stop tokens than a request that lives on a device has room for."""
        if self.session.on_device and count > STOP_IDS:
            raise Refusal(
                f"stop_token_ids and the model's own end tokens are {count}, and a request that lives on a device "
                f"holds {STOP_IDS}; give fewer",
                "stop_token_ids",
                "invalid_value",
            )

    def require_room(self, choices: int, tokens: int) -> None:
        """Refuse what the queue in front of the engine could never hold: prompts and limits of all choices."""
        settings = self.settings
        if choices > settings.max_queue or tokens > settings.max_queue_tokens:
            raise Refusal(
                f"the request asks for {choices} choices and up to {tokens} tokens, but this server takes at most "
                f"{settings.max_queue} and {settings.max_queue_tokens} in one request; ask for fewer",
                "n",
                "request_too_large",
            )

    def limit(self, prompt: int, wanted: int | None, param: str, prompt_param: str) -> int:
        """Give the limit of new tokens for a prompt; refuses what context or KV pool can never hold.

        Without a wish it is all that both hold.
        """
        room = self.settings.max_model_len - prompt
        if prompt < 1:
            raise Refusal("the prompt is empty; give at least one token", prompt_param, "invalid_value")
        if room < 0 or (room == 0 and wanted != 0):
            raise Refusal(
                f"the prompt has {prompt} tokens, and the context holds {self.settings.max_model_len}; "
                "give a shorter prompt",
                prompt_param,
                "context_length_exceeded",
            )
        if wanted is not None and wanted > room:
            raise Refusal(
                f"{param} is {wanted}, but beside the prompt of {prompt} tokens the context of "
                f"{self.settings.max_model_len} has room for {room}",
                param,
                "context_length_exceeded",
            )
        if wanted is None:
            return self._most(prompt, room, prompt_param)
        self._fits(prompt, wanted, param if self._holds(prompt, 1) else prompt_param)
        return wanted

    def _most(self, prompt: int, room: int, param: str) -> int:
        """Give the largest limit up to `room` that the pool holds."""
        if self._holds(prompt, room):
            return room
        self._fits(prompt, 1, param)
        low, high = 1, room
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._holds(prompt, middle) else (low, middle)
        return low

    def _fits(self, prompt: int, limit: int, param: str) -> None:
        try:
            self._refuse_impossible(prompt, limit)
        except PoolExhausted as error:
            raise Refusal(str(error), param, "context_length_exceeded") from None

    def _holds(self, prompt: int, limit: int) -> bool:
        try:
            self._refuse_impossible(prompt, limit)
        except PoolExhausted:
            return False
        return True

    def _refuse_impossible(self, prompt: int, limit: int) -> None:
        refuse_impossible(self.table, self.session.pool, prompt, limit, self.session.policy)
