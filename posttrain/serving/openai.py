"""The words of OpenAI's API: what a request may say, and the shape of the replies.

Fields that would change the answer and are not supported are refused, never ignored. Log-probabilities are those of the
distribution that was sampled (tempered, before top_p and its like cut it), one for every token made, the end token too.
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
from posttrain.serving.detokenize import HALF

COMMON = ("model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop", "stream",
          "stream_options", "logprobs", "return_token_ids")  # fmt: skip
OWN = {"chat": ("messages", "max_completion_tokens", "top_logprobs"), "text": ("prompt",)}
# what says nothing about the answer, and what is supported only where it asks for nothing
IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls")
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,), "presence_penalty": (0,), "logit_bias": ({},), "best_of": (1,), "echo": (False,),
    "suffix": ("",), "tools": ([],), "tool_choice": ("none", "auto"), "response_format": ({"type": "text"},),
}  # fmt: skip
ROLES = ("system", "developer", "user", "assistant", "tool")
GREEDY = 1e-5  # a temperature below it is 0: dividing by it would overflow


class Refused(Exception):
    """A request that gets an error: the HTTP status and what OpenAI's clients expect to read."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 403: "permission_error", 500: "server_error", 503: "server_error"}
        kind = kinds.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class Asked:
    """A request that makes sense. Of messages and prompts exactly one is there; max_tokens 0: it did not say."""

    messages: tuple[dict[str, Any], ...] = ()
    prompts: tuple[str | list[int], ...] = ()
    model: str = ""
    max_tokens: int = 0
    how: Sampling = field(default_factory=Sampling)
    n: int = 1
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    usage: bool = False  # at the end of a stream
    logprobs: bool = False
    ids: bool = False

    @property
    def chat(self) -> bool:
        return bool(self.messages)


def parse(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(400, f"the body is a JSON {type(body).__name__}, expected an object")
    return body


def read(body: dict[str, Any], kind: str) -> Asked:
    """Check every field of a request to chat/completions (kind chat) or completions (kind text)."""
    body = known({k: v for k, v in body.items() if v is not None}, kind)
    limits = [whole(body, k, 1) for k in ("max_tokens", "max_completion_tokens") if k in body]
    if len(set(limits)) > 1:
        raise Refused(400, f"max_tokens is {limits[0]} and max_completion_tokens {limits[1]}; give one", "max_tokens")
    return Asked(
        messages=messages(body.get("messages")) if kind == "chat" else (),
        prompts=prompts(body.get("prompt")) if kind == "text" else (),
        model=typed(body, "model", str, ""),
        max_tokens=limits[0] if limits else 0,
        how=sampling(body),
        n=whole(body, "n", 1, 1),
        seed=whole(body, "seed", None) if "seed" in body else None,
        stop=stops(body.get("stop", [])),
        stream=typed(body, "stream", bool, False),
        usage=typed(typed(body, "stream_options", dict, {}), "include_usage", bool, False),
        logprobs=logprobs(body, kind),
        ids=typed(body, "return_token_ids", bool, False),
    )


def known(body: dict[str, Any], kind: str) -> dict[str, Any]:
    """The fields that count; one that is not known, or asks for what cannot be done, is refused."""
    names = (*COMMON, *OWN[kind])
    for name, value in body.items():
        if name in names or name in IGNORED or (name in NEUTRAL and value in NEUTRAL[name]):
            continue
        if name in NEUTRAL:
            raise Refused(400, f"{name} is not supported here; leave it out", name, "unsupported_parameter")
        close = nearest(name, names)
        hint = f"did you mean {close!r}?" if close else f"known: {', '.join(names)}"
        raise Refused(400, f"no field named {name!r}; {hint}", name, "unknown_parameter")
    return {k: v for k, v in body.items() if k in names}


def typed(body: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = body.get(name, default)
    if not isinstance(value, kind):
        want = {str: "a string", bool: "true or false", dict: "an object"}[kind]
        raise Refused(400, f"{name} is {value!r}; expected {want}", name)
    return value


def whole(body: dict[str, Any], name: str, least: int | None, default: int = 0) -> int:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        of = "" if least is None else f" of at least {least}"
        raise Refused(400, f"{name} is {value!r}; expected a whole number{of}", name)
    return value


def real(body: dict[str, Any], name: str, default: float) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise Refused(400, f"{name} is {value!r}; expected a number", name)
    return float(value)


def sampling(body: dict[str, Any]) -> Sampling:
    temperature, top_k = real(body, "temperature", 1.0), max(0, whole(body, "top_k", -1))
    temperature = 0.0 if 0 <= temperature < GREEDY else temperature
    try:
        return Sampling(
            temperature=temperature, top_k=top_k, top_p=real(body, "top_p", 1.0), min_p=real(body, "min_p", 0.0)
        )
    except UserError as error:
        raise Refused(400, str(error), "temperature" if temperature < 0 else "top_p") from None


def stops(given: Any) -> tuple[str, ...]:
    some = [given] if isinstance(given, str) else given
    if not isinstance(some, list) or not all(isinstance(s, str) and s for s in some):
        raise Refused(400, f"stop is {given!r}; expected a string or a list of strings, none of them empty", "stop")
    return tuple(some)


def logprobs(body: dict[str, Any], kind: str) -> bool:
    """true in chat, a number of alternatives in completions; only the chosen tokens' own are there."""
    more = body.get("top_logprobs" if kind == "chat" else "logprobs", 0)
    if more is not False and more != 0:
        name = "top_logprobs" if kind == "chat" else "logprobs"
        raise Refused(400, f"{name} is {more!r}; only 0 is supported: the log-probability of the chosen token", name)
    return typed(body, "logprobs", bool, False) if kind == "chat" else body.get("logprobs", False) is not False


def messages(given: Any) -> tuple[dict[str, Any], ...]:
    """Roles and texts, as a chat template reads them; parts of text are joined, other parts refused."""
    if not isinstance(given, list) or not given:
        said = "missing" if given is None else "empty" if given == [] else repr(given)[:80]
        raise Refused(400, f"messages is {said}; expected a list of {{role, content}}", "messages")
    out = []
    for i, message in enumerate(given):
        where = f"messages[{i}]"
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise Refused(400, f"{where} has no role; expected one of {', '.join(ROLES)}", where)
        role = "system" if message["role"] == "developer" else message["role"]
        out.append({"role": role, "content": content(message.get("content"), where)})
    return tuple(out)


def content(given: Any, where: str) -> str:
    if isinstance(given, str):
        return given
    parts = given if isinstance(given, list) else None
    if parts is None or not all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in parts):
        raise Refused(400, f"{where}.content must be a string or a list of text parts", f"{where}.content")
    return "".join(p["text"] for p in parts)


def prompts(given: Any) -> tuple[str | list[int], ...]:
    """A text, token ids, or a list of either."""
    some = [given] if isinstance(given, str) or is_ids(given) else given
    if not isinstance(some, list) or not some or not all(isinstance(p, str) or is_ids(p) for p in some):
        raise Refused(400, "prompt must be a string, a list of token ids, or a list of such prompts", "prompt")
    return tuple(some)


def is_ids(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(type(i) is int for i in given)


# ---- replies


def usage(prompt: int, made: Sequence[int]) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": sum(made), "total_tokens": prompt + sum(made)}


def ended(stopped: bool) -> str:
    return "stop" if stopped else "length"


def chances(chat: bool, tokens: Sequence[str], logp: Sequence[float], start: int = 0) -> dict[str, Any]:
    """The log-probabilities of tokens, each given as its text; `start` is the place of the first in the answer's text."""
    if chat:
        rows = zip(tokens, logp, strict=True)
        return {"content": [chance(t, p) for t, p in rows], "refusal": None}
    offsets = list(accumulate(map(len, tokens[:-1]), initial=start)) if tokens else []
    return {"tokens": list(tokens), "token_logprobs": list(logp), "top_logprobs": None, "text_offset": offsets}


def chance(token: str, logp: float) -> dict[str, Any]:
    whole_characters = HALF not in token
    return {"token": token, "logprob": logp, "bytes": list(token.encode()) if whole_characters else None,
            "top_logprobs": []}  # fmt: skip
