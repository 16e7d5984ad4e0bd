"""OpenAI's API: the fields of a request, and the shape of the replies.

Fields that would change the answer and are not supported are an error, never ignored. Log-probabilities are those of the
distribution that was sampled (tempered, before top_p, top_k and min_p), one for every generated token, the end token included.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from posttrain.core.errors import UserError, nearest
from posttrain.core.sampling import Sampling
from posttrain.serving.detokenize import REPLACEMENT

COMMON = ("model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop", "stream",
          "stream_options", "logprobs", "return_token_ids")  # fmt: skip
BY_ENDPOINT = {"chat": ("messages", "max_completion_tokens", "top_logprobs"), "text": ("prompt",)}
# fields that do not affect the answer, and unsupported ones that are accepted with a value that changes nothing
IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls")
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,), "presence_penalty": (0,), "logit_bias": ({},), "best_of": (1,), "echo": (False,),
    "suffix": ("",), "tools": ([],), "tool_choice": ("none", "auto"), "response_format": ({"type": "text"},),
}  # fmt: skip
ROLES = ("system", "developer", "user", "assistant", "tool")
GREEDY = 1e-5  # a lower temperature counts as 0: dividing by it would overflow


class ApiError(Exception):
    """An error reply: the HTTP status, and the fields that OpenAI's clients expect."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 403: "permission_error", 500: "server_error", 503: "server_error"}
        kind = kinds.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


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

    @property
    def chat(self) -> bool:
        return bool(self.messages)


def parse_json(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, f"the body is a JSON {type(body).__name__}, expected an object")
    return body


def parse_request(body: dict[str, Any], kind: str) -> CompletionRequest:
    """Check every field of a request to chat/completions (kind chat) or completions (kind text)."""
    body = check_fields({k: v for k, v in body.items() if v is not None}, kind)
    limits = [int_field(body, k, 1) for k in ("max_tokens", "max_completion_tokens") if k in body]
    if len(set(limits)) > 1:
        raise ApiError(400, f"max_tokens is {limits[0]} and max_completion_tokens {limits[1]}; give one", "max_tokens")
    return CompletionRequest(
        messages=messages(body.get("messages")) if kind == "chat" else (),
        prompts=prompts(body.get("prompt")) if kind == "text" else (),
        model=typed_field(body, "model", str, ""),
        max_tokens=limits[0] if limits else 0,
        how=sampling(body),
        n=int_field(body, "n", 1, 1),
        seed=int_field(body, "seed", None) if "seed" in body else None,
        stop=stops(body.get("stop", [])),
        stream=typed_field(body, "stream", bool, False),
        include_usage=typed_field(typed_field(body, "stream_options", dict, {}), "include_usage", bool, False),
        logprobs=logprobs(body, kind),
        return_token_ids=typed_field(body, "return_token_ids", bool, False),
    )


def check_fields(body: dict[str, Any], kind: str) -> dict[str, Any]:
    """The fields that affect the answer; an unknown field, or an unsupported value, is an error."""
    names = (*COMMON, *BY_ENDPOINT[kind])
    for name, value in body.items():
        if name in names or name in IGNORED or (name in NEUTRAL and value in NEUTRAL[name]):
            continue
        if name in NEUTRAL:
            raise ApiError(400, f"{name} is not supported here; leave it out", name, "unsupported_parameter")
        close = nearest(name, names)
        hint = f"did you mean {close!r}?" if close else f"known: {', '.join(names)}"
        raise ApiError(400, f"no field named {name!r}; {hint}", name, "unknown_parameter")
    return {k: v for k, v in body.items() if k in names}


def typed_field(body: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = body.get(name, default)
    if not isinstance(value, kind):
        want = {str: "a string", bool: "true or false", dict: "an object"}[kind]
        raise ApiError(400, f"{name} is {value!r}; expected {want}", name)
    return value


def int_field(body: dict[str, Any], name: str, least: int | None, default: int = 0) -> int:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        of = "" if least is None else f" of at least {least}"
        raise ApiError(400, f"{name} is {value!r}; expected a whole number{of}", name)
    return value


def float_field(body: dict[str, Any], name: str, default: float) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ApiError(400, f"{name} is {value!r}; expected a number", name)
    return float(value)


def sampling(body: dict[str, Any]) -> Sampling:
    temperature, top_k = float_field(body, "temperature", 1.0), max(0, int_field(body, "top_k", -1))
    temperature = 0.0 if 0 <= temperature < GREEDY else temperature
    try:
        return Sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=float_field(body, "top_p", 1.0),
            min_p=float_field(body, "min_p", 0.0),
        )
    except UserError as error:
        raise ApiError(400, str(error), "temperature" if temperature < 0 else "top_p") from None


def stops(given: Any) -> tuple[str, ...]:
    several = [given] if isinstance(given, str) else given
    if not isinstance(several, list) or not all(isinstance(s, str) and s for s in several):
        raise ApiError(400, f"stop is {given!r}; expected a string or a list of strings, none of them empty", "stop")
    return tuple(several)


def logprobs(body: dict[str, Any], kind: str) -> bool:
    """A boolean in chat, a number of alternatives in completions; only the chosen token's own is supported."""
    more = body.get("top_logprobs" if kind == "chat" else "logprobs", 0)
    if more is not False and more != 0:
        name = "top_logprobs" if kind == "chat" else "logprobs"
        raise ApiError(400, f"{name} is {more!r}; only 0 is supported: the log-probability of the chosen token", name)
    return typed_field(body, "logprobs", bool, False) if kind == "chat" else body.get("logprobs", False) is not False


def messages(given: Any) -> tuple[dict[str, Any], ...]:
    """Roles and texts, as a chat template takes them; text parts are concatenated, other parts are an error."""
    if not isinstance(given, list) or not given:
        said = "missing" if given is None else "empty" if given == [] else repr(given)[:80]
        raise ApiError(400, f"messages is {said}; expected a list of {{role, content}}", "messages")
    out = []
    for i, message in enumerate(given):
        where = f"messages[{i}]"
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise ApiError(400, f"{where} has no role; expected one of {', '.join(ROLES)}", where)
        role = "system" if message["role"] == "developer" else message["role"]
        out.append({"role": role, "content": content(message.get("content"), where)})
    return tuple(out)


def content(given: Any, where: str) -> str:
    if isinstance(given, str):
        return given
    parts = given if isinstance(given, list) else None
    if parts is None or not all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in parts):
        raise ApiError(400, f"{where}.content must be a string or a list of text parts", f"{where}.content")
    return "".join(p["text"] for p in parts)


def prompts(given: Any) -> tuple[str | list[int], ...]:
    """A text, token ids, or a list of either."""
    several = [given] if isinstance(given, str) or is_token_ids(given) else given
    if not isinstance(several, list) or not several or not all(isinstance(p, str) or is_token_ids(p) for p in several):
        raise ApiError(400, "prompt must be a string, a list of token ids, or a list of such prompts", "prompt")
    return tuple(several)


def is_token_ids(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(type(i) is int for i in given)


# ---- replies


def usage(prompt: int, completions: Sequence[int]) -> dict[str, int]:
    completion = sum(completions)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def finish_reason(stopped: bool) -> str:
    return "stop" if stopped else "length"


def logprob_fields(chat: bool, tokens: Sequence[str], logp: Sequence[float], start: int = 0) -> dict[str, Any]:
    """The log-probabilities of tokens, each given as its text; `start` is the offset of the first in the answer's text."""
    if chat:
        rows = zip(tokens, logp, strict=True)
        return {"content": [token_logprob(t, p) for t, p in rows], "refusal": None}
    offsets = list(accumulate(map(len, tokens[:-1]), initial=start)) if tokens else []
    return {"tokens": list(tokens), "token_logprobs": list(logp), "top_logprobs": None, "text_offset": offsets}


def token_logprob(token: str, logp: float) -> dict[str, Any]:
    complete = REPLACEMENT not in token
    return {"token": token, "logprob": logp, "bytes": list(token.encode()) if complete else None,
            "top_logprobs": []}  # fmt: skip
