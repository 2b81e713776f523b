"""What clients may send: pydantic models, from which the server's OpenAPI document is made.

Unknown parameters are refused, values are never coerced, and null means the same as leaving a parameter out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MOST_CHOICES = 128
MOST_LOGPROBS = 20
MOST_SECONDS = 86400.0
INT64 = 2**63


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half a character, which is no valid Unicode") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Int = Annotated[int, Field(strict=True)]
TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
StopText = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_encodable)]
Neutral = Mapping[str, tuple[Any, ...]]


class Strict(BaseModel):
    """Refuse what is not declared.

    `neutral` are parameters of OpenAI's that nothing here supports, with the values at which they ask for nothing;
    null is one of them.
    """

    model_config = ConfigDict(extra="forbid")
    neutral: ClassVar[Neutral] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_neutral(cls, given: Any) -> Any:  # noqa: ANN401 -- what the client sent
        if not isinstance(given, dict):
            return given
        return {
            key: value
            for key, value in given.items()
            if not (
                key in cls.neutral and (value is None or any(_same(value, each) for each in cls.neutral[key]))
            )
        }


def _same(value: object, neutral: object) -> bool:
    return type(value) is type(neutral) and value == neutral


class StreamOptions(Strict):
    """Say what a stream carries beside text."""

    include_usage: Flag = Field(default=False, description="send a last chunk with the usage")
    continuous_usage_stats: Flag = Field(default=False, description="send the usage with every chunk")


class JsonSchema(Strict):
    """Name a JSON schema."""

    name: Text = Field(default="schema", max_length=64)
    description: Text | None = None
    schema_: dict[str, Any] | Flag = Field(alias="schema")
    strict: Flag | None = None


class ResponseFormat(Strict):
    """Hold the text to a form: any JSON object, JSON of a schema, or a regular expression."""

    type: Literal["text", "json_object", "json_schema", "regex"]
    json_schema: JsonSchema | None = None
    pattern: Text | None = Field(default=None, max_length=8192, description="of type regex")

    @model_validator(mode="after")
    def _whole(self) -> ResponseFormat:
        for kind, name in (("json_schema", "json_schema"), ("regex", "pattern")):
            if (self.type == kind) != (getattr(self, name) is not None):
                raise ValueError(f"type {kind!r} and {name!r} go together")
        return self


class SamplingRequest(Strict):
    """Hold what completions and chats have in common."""

    neutral: ClassVar[Neutral] = {
        "allowed_token_ids": (),
        "bad_words": ([],),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "detokenize": (True,),
        "early_stopping": (False,),
        "length_penalty": (1, 1.0),
        "metadata": ({},),
        "modalities": (["text"],),
        "prediction": (),
        "prompt_cache_key": (),
        "prompt_cache_retention": (),
        "prompt_logprobs": (),
        "safety_identifier": (),
        "service_tier": ("auto", "default"),
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "store": (False,),
        "truncate_prompt_tokens": (),
        "use_beam_search": (False,),
    }
    model: Text | None = Field(default=None, description="a served name; the server's own when left out")
    n: Int | None = Field(default=None, ge=1, le=MOST_CHOICES, description="choices for each prompt")
    best_of: Int | None = Field(default=None, ge=1, le=MOST_CHOICES, description="must equal n")
    max_tokens: Int | None = Field(default=None, ge=0, lt=2**31, description="most tokens to generate")
    temperature: Real | None = Field(default=None, ge=0, le=2, description="0 takes the most probable token")
    top_p: Real | None = Field(default=None, gt=0, le=1)
    top_k: Int | None = Field(default=None, ge=-1, lt=2**31, description="0 or -1: all tokens")
    min_p: Real | None = Field(default=None, ge=0, le=1)
    presence_penalty: Real | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: Real | None = Field(default=None, ge=-2, le=2)
    # Logits are divided by it, and must stay finite.
    repetition_penalty: Real | None = Field(default=None, ge=0.01, le=10)
    logit_bias: dict[Text, Annotated[Real, Field(ge=-100, le=100)]] | None = Field(
        default=None, max_length=1024
    )
    seed: Int | None = Field(default=None, ge=-INT64, lt=INT64)
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
    stop_token_ids: list[TokenId] | None = Field(default=None, max_length=128)
    include_stop_str_in_output: Flag | None = None
    ignore_eos: Flag | None = None
    min_tokens: Int | None = Field(default=None, ge=0, lt=2**31)
    stream: Flag | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    priority: Int | None = Field(default=None, ge=-INT64, lt=INT64, description="lower goes first")
    timeout: Real | None = Field(
        default=None,
        gt=0,
        le=MOST_SECONDS,
        description="seconds from arrival to the end; the server's own may be less",
    )
    user: Text | None = Field(default=None, max_length=512, description="stands in the log; nothing else")
    speculation_stats: Flag | None = Field(
        default=None, description="add acceptance length and tokens per forward to the answer"
    )


TokenIds = Annotated[list[TokenId], Field(max_length=2**20)]


class CompletionRequest(SamplingRequest):
    """Ask for a text that continues a prompt."""

    neutral: ClassVar[Neutral] = {**SamplingRequest.neutral, "suffix": ("",)}
    prompt: (
        Text
        | TokenIds
        | Annotated[list[Text], Field(max_length=1024)]
        | Annotated[list[TokenIds], Field(max_length=1024)]
    )
    echo: Flag | None = Field(default=None, description="begin the text with the prompt")
    logprobs: Int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)


def _only_text(kind: object) -> object:
    if kind != "text":
        raise ValueError("only parts of type text are read")
    return kind


class TextPart(Strict):
    """Be one part of a message."""

    type: Annotated[Literal["text"], BeforeValidator(_only_text)]
    text: Text


class FunctionCall(Strict):
    """Name a function and the JSON text of its arguments."""

    name: Text
    arguments: Text


class ToolCall(Strict):
    """Be a call that an earlier answer made."""

    id: Text
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Strict):
    """Be one turn of a chat; content is a string or text parts."""

    # What clients send back of an earlier answer, of this server or another.
    neutral: ClassVar[Neutral] = {
        "annotations": ([],),
        "audio": (),
        "function_call": (),
        "reasoning": (),
        "reasoning_content": (),
    }
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[TextPart] | None = None
    name: Text | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: Text | None = None
    refusal: None = None

    @model_validator(mode="after")
    def _whole(self) -> Message:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("content is missing")
        return self


class FunctionTool(Strict):
    """Describe a function by a JSON schema of its arguments."""

    name: Annotated[Text, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: Flag | None = None


class Tool(Strict):
    """Be a tool that the model may call."""

    type: Literal["function"]
    function: FunctionTool


class NamedFunction(Strict):
    """Name a function."""

    name: Text


class NamedTool(Strict):
    """Choose one tool."""

    type: Literal["function"]
    function: NamedFunction


class ChatRequest(SamplingRequest):
    """Ask for the next turn of a chat."""

    neutral: ClassVar[Neutral] = {
        **SamplingRequest.neutral,
        "add_generation_prompt": (True,),
        "audio": (),
        "continue_final_message": (False,),
        "documents": ([],),
        "echo": (False,),
        "function_call": ("none",),
        "functions": ([],),
        "reasoning_effort": (),
        "verbosity": (),
        "web_search_options": (),
    }
    messages: list[Message] = Field(min_length=1, max_length=4096)
    max_completion_tokens: Int | None = Field(default=None, ge=0, lt=2**31, description="as max_tokens")
    logprobs: Flag | None = None
    top_logprobs: Int | None = Field(default=None, ge=0, le=MOST_LOGPROBS, description="needs logprobs")
    tools: list[Tool] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: Flag | None = None


class TokenizeRequest(Strict):
    """Ask for the tokens of a text or of a chat."""

    model: Text | None = None
    prompt: Text | None = None
    messages: list[Message] | None = Field(default=None, min_length=1, max_length=4096)
    add_special_tokens: Flag = True

    @model_validator(mode="after")
    def _one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give prompt or messages")
        return self


class DetokenizeRequest(Strict):
    """Ask for the text of tokens."""

    model: Text | None = None
    tokens: TokenIds


class PolicyRequest(Strict):
    """Choose a scheduling policy by name, or describe one as a policy file does."""

    policy: Text | dict[str, Any]
