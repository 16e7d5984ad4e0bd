"""OpenAI's API: the fields of a request.

Fields that would change the answer and are not supported are an error, never ignored. Log-probabilities are those of the
distribution that was sampled (tempered, masked by `response_format`, before top_p, top_k and min_p), one for every generated
token, the end token included.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from posttrain.core.errors import UserError, nearest
from posttrain.core.sampling import Sampling
from posttrain.serving.limits import (
    MAX_NAME,
    MAX_STOP_CHARS,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TOP_K,
    ApiError,
    Limits,
    shown,
)
from posttrain.serving.messages import ToolChoice, messages, prompts, response_schema, tool_choice, tools

COMMON = ("model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop", "stream",
          "stream_options", "logprobs", "return_token_ids")  # fmt: skip
BY_ENDPOINT = {
    "chat": (
        "messages",
        "max_completion_tokens",
        "top_logprobs",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
    ),
    "text": ("prompt",),
}
# fields that do not affect the answer, and unsupported ones that are accepted with a value that changes nothing
IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,), "presence_penalty": (0,), "logit_bias": ({},), "best_of": (1,), "echo": (False,),
    "suffix": ("",), "parallel_tool_calls": (True, False), "tools": ([],), "tool_choice": ("none", "auto"), "response_format": ({"type": "text"},),
}  # fmt: skip
GREEDY = 1e-5  # a lower temperature counts as 0: dividing by it would overflow
LARGEST = 1 << 63  # whole numbers are smaller


@dataclass(frozen=True)
class CompletionRequest:
    """The fields of a valid request; it has either messages (chat) or prompts."""

    messages: tuple[dict[str, Any], ...] = ()  # {role, content}
    prompts: tuple[str | list[int], ...] = ()  # texts or token ids
    model: str = ""  # "": the model that is served
    max_tokens: int = 0  # per answer; 0: the server's default
    how: Sampling = field(default_factory=Sampling)
    n: int = 1  # answers per prompt
    seed: int | None = None  # the same seed gives the same answers
    stop: tuple[str, ...] = ()  # strings that end an answer
    stream: bool = False  # reply in chunks as tokens are generated
    include_usage: bool = False  # token counts at the end of a stream
    logprobs: bool = False  # the log-probability of every token
    return_token_ids: bool = False  # the ids of every token
    tools: tuple[dict[str, Any], ...] = ()  # functions that the model may call
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    parallel_tool_calls: bool = True  # False: at most one call per answer
    schema: dict[str, Any] | None = None  # the answer is JSON that this schema accepts

    @property
    def chat(self) -> bool:
        return bool(self.messages)


def parse_json(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(body, dict):
        raise ApiError(400, f"the body is a JSON {type(body).__name__}, expected an object")
    return body


def parse_request(body: dict[str, Any], kind: str, limits: Limits | None = None) -> CompletionRequest:
    """Check every field of a request to chat/completions (kind chat) or completions (kind text)."""
    limits, body = limits or Limits(), check_fields({k: v for k, v in body.items() if v is not None}, kind)
    n, chat = int_field(body, "n", 1, 1), kind == "chat"
    said = messages(body.get("messages"), limits) if chat else ()
    texts = () if chat else prompts(body.get("prompt"), limits)
    limits.check_answers(len(texts) or 1, n)
    functions, schema = tools(body.get("tools")), response_schema(body.get("response_format"))
    if functions and schema is not None:
        raise ApiError(400, "tools and response_format are both given; give one of them", "response_format")
    return CompletionRequest(
        messages=said,
        prompts=texts,
        model=typed_field(body, "model", str, ""),
        max_tokens=max_tokens(body),
        how=sampling(body),
        n=n,
        seed=int_field(body, "seed", None) if "seed" in body else None,
        stop=stops(body.get("stop", [])),
        stream=typed_field(body, "stream", bool, False),
        include_usage=typed_field(typed_field(body, "stream_options", dict, {}), "include_usage", bool, False),
        logprobs=logprobs(body, kind),
        return_token_ids=typed_field(body, "return_token_ids", bool, False),
        tools=functions,
        tool_choice=tool_choice(body.get("tool_choice"), functions),
        parallel_tool_calls=typed_field(body, "parallel_tool_calls", bool, True),
        schema=schema,
    )


def check_fields(body: dict[str, Any], kind: str) -> dict[str, Any]:
    """The fields that affect the answer; an unknown field, or an unsupported value, is an error."""
    names = (*COMMON, *BY_ENDPOINT[kind])
    for name, value in body.items():
        if name in names or name in IGNORED or (name in NEUTRAL and value in NEUTRAL[name]):
            continue
        if name in NEUTRAL:
            raise ApiError(400, f"{name} is not supported here; leave it out", name, "unsupported_parameter")
        close = nearest(name[:MAX_NAME], names)
        hint = f"did you mean {close!r}?" if close else f"known: {', '.join(names)}"
        raise ApiError(400, f"no field named {shown(name)}; {hint}", name[:MAX_NAME], "unknown_parameter")
    return {k: v for k, v in body.items() if k in names}


def typed_field(body: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = body.get(name, default)
    if not isinstance(value, kind):
        want = {str: "a string", bool: "true or false", dict: "an object"}[kind]
        raise ApiError(400, f"{name} is {shown(value)}; expected {want}", name)
    return value


def int_field(body: dict[str, Any], name: str, least: int | None, default: int = 0, most: int = LARGEST - 1) -> int:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        of = "" if least is None else f" of at least {least}"
        raise ApiError(400, f"{name} is {shown(value)}; expected a whole number{of}", name)
    if not -LARGEST <= value <= most:
        raise ApiError(400, f"{name} is {shown(value)}; expected a whole number of at most {most:,}", name)
    return value


def float_field(body: dict[str, Any], name: str, default: float) -> float:
    value = body.get(name, default)
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
    except OverflowError:  # a whole number of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise ApiError(400, f"{name} is {shown(value)}; expected a number", name)
    return number


def max_tokens(body: dict[str, Any]) -> int:
    """Of an answer, under either name; 0 where the request does not say."""
    given = [int_field(body, k, 1) for k in ("max_tokens", "max_completion_tokens") if k in body]
    if len(set(given)) > 1:
        raise ApiError(400, f"max_tokens is {given[0]} and max_completion_tokens {given[1]}; give one", "max_tokens")
    return given[0] if given else 0


def sampling(body: dict[str, Any]) -> Sampling:
    temperature, top_k = float_field(body, "temperature", 1.0), max(0, int_field(body, "top_k", -1, most=MAX_TOP_K))
    if temperature > MAX_TEMPERATURE:
        raise ApiError(400, f"temperature is {temperature:g}; expected 0 to {MAX_TEMPERATURE:g}", "temperature")
    temperature = 0.0 if 0 <= temperature < GREEDY else temperature
    try:
        return Sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=float_field(body, "top_p", 1.0),
            min_p=float_field(body, "min_p", 0.0),
        )
    except UserError as error:
        raise ApiError(400, str(error), "temperature" if str(error).startswith("temperature") else "top_p") from None


def stops(given: Any) -> tuple[str, ...]:
    several = [given] if isinstance(given, str) else given
    if not isinstance(several, list) or not all(isinstance(s, str) and s for s in several):
        told = f"stop is {shown(given)}; expected a string or a list of strings, none of them empty"
        raise ApiError(400, told, "stop")
    if len(several) > MAX_STOPS or max(map(len, several), default=0) > MAX_STOP_CHARS:
        raise ApiError(400, f"stop takes at most {MAX_STOPS} strings of {MAX_STOP_CHARS:,} characters each", "stop")
    return tuple(several)


def logprobs(body: dict[str, Any], kind: str) -> bool:
    """A boolean in chat, a number of alternatives in completions; only the chosen token's own is supported."""
    name = "top_logprobs" if kind == "chat" else "logprobs"
    more = body.get(name, 0)
    if more is not False and more != 0:
        told = f"{name} is {shown(more)}; only 0 is supported: the log-probability of the chosen token"
        raise ApiError(400, told, name)
    return typed_field(body, "logprobs", bool, False) if kind == "chat" else body.get("logprobs", False) is not False
