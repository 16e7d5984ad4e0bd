"""The answers to one request in OpenAI's shape, as one body or as a stream of chunks, while the model's thread generates them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from posttrain.core.errors import UserError
from posttrain.inference.stop_strings import REPLACEMENT
from posttrain.serving.detokenize import Detokenizer
from posttrain.serving.limits import ApiError
from posttrain.serving.openai import CompletionRequest
from posttrain.serving.request import Progress, QueueFull, Request
from posttrain.serving.tools import Call, ToolFormat, ToolParser

Decode = Callable[..., str]  # (ids, special=False): with the texts of special tokens or without


@dataclass
class Answer:
    """One answer of a request: what has been said of it so far."""

    detokenizer: Detokenizer
    parser: ToolParser | None = None  # where the model may call tools
    num_sent: int = 0  # tokens whose log-probabilities and ids were sent
    offset: int = 0  # characters of those tokens
    calls: list[Call] = field(default_factory=list)
    seen: Progress | None = None  # the progress that the chunks so far are of

    def new(self, progress: Progress) -> tuple[str, list[Call]]:
        """The text and the calls since the last time."""
        if self.parser is None:
            return self.detokenizer.next_chunk(progress.tokens, progress.done), []
        self.detokenizer.next_chunk(progress.tokens, progress.done)
        text, calls = self.parser.feed(self.detokenizer.sent, progress.done)
        self.calls += calls
        return text, calls


class Reply:
    """The answers to one request, as they come."""

    def __init__(
        self, request: Request, params: CompletionRequest, head: dict[str, Any], decode: Decode, stop_ids: Sequence[int],
        form: ToolFormat | None = None, lead: str = "",
    ) -> None:  # fmt: skip
        self.request, self.params, self.decode = request, params, decode
        self.head = head | {"created": int(time.time())}
        tools = {t["function"]["name"]: t["function"]["parameters"] for t in params.tools}
        self.answers = [
            Answer(
                Detokenizer(decode, params.stop, stop_ids),
                ToolParser(form, tools, lead, params.parallel_tool_calls) if form else None,
            )
            for _ in request.jobs
        ]

    def cancel(self) -> None:
        """No client waits for it any more: its slots are free after the next step."""
        self.request.cancelled = True

    async def wait(self) -> AsyncIterator[None]:
        """Whenever there is progress; ends when all answers are done."""
        updated = self.request.updates()
        while True:
            await updated.wait()
            updated.clear()
            if self.request.done:
                break
            yield
        self._check()

    def _check(self) -> None:
        error = self.request.error
        if isinstance(error, QueueFull):
            raise ApiError(503, str(error))
        if error is not None:
            raise ApiError(400 if isinstance(error, UserError) else 500, f"{type(error).__name__}: {error}")
        failed = [told for j in self.request.jobs if (told := getattr(j.constraint, "error", ""))]
        if failed:
            told = f"the answer could not be held to its form: {' '.join(failed[0].split())[:200]}"
            raise ApiError(400, told, "response_format", "unsupported_schema")

    # ---- as one body

    def body(self) -> dict[str, Any]:
        """Once all answers are done."""
        choices = [self._choice(i, progress) for i, progress in enumerate(self.request.progress)]
        return self.head | {"choices": choices, "usage": self._usage()} | self._prompt_ids()

    def _choice(self, i: int, progress: Progress) -> dict[str, Any]:
        text, calls = self.answers[i].new(progress)
        content: dict[str, Any] = {"text": text}
        if self.params.chat:
            message = {"role": "assistant", "content": text if text or not calls else None}
            content = {"message": message | ({"tool_calls": [c.body() for c in calls]} if calls else {})}
        return {"index": i, **content, **self._extras(i, progress), "finish_reason": self._finish_reason(i, progress)}

    def _finish_reason(self, i: int, progress: Progress) -> str:
        return "length" if not progress.stopped else "tool_calls" if self.answers[i].calls else "stop"

    def _usage(self) -> dict[str, int]:
        prompt = sum(len(j.context) for j in self.request.jobs[:: self.params.n])
        completion = sum(len(p.tokens) for p in self.request.progress)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _prompt_ids(self) -> dict[str, Any]:
        ids = [j.context.tolist() for j in self.request.jobs[:: self.params.n]]
        return {"prompt_token_ids": ids[0] if len(ids) == 1 else ids} if self.params.return_token_ids else {}

    def _extras(self, i: int, progress: Progress) -> dict[str, Any]:
        """Log-probabilities and ids, where requested, of the tokens since the last call."""
        answer, known = self.answers[i], min(len(progress.tokens), len(progress.logp))
        start, answer.num_sent = answer.num_sent, max(known, answer.num_sent)
        tokens, out = progress.tokens[start:known], dict[str, Any](logprobs=None)
        if self.params.logprobs:
            words = [self.decode([t], special=True) for t in tokens]
            out["logprobs"] = logprob_fields(self.params.chat, words, progress.logp[start:known], answer.offset)
            answer.offset += sum(map(len, words))
        return out | ({"token_ids": tokens} if self.params.return_token_ids else {})

    # ---- as a stream

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """Chunks of a stream."""
        head = self.head | {"object": "chat.completion.chunk" if self.params.chat else "text_completion"}
        if self.params.chat:
            for i in range(len(self.answers)):
                yield head | {"choices": [self._delta(i, {"role": "assistant", "content": ""})]} | self._prompt_ids()
        async for _ in self.wait():
            for choice in self._new_choices():
                yield {**head, "choices": [choice]}
        for choice in self._new_choices():
            yield {**head, "choices": [choice]}
        if self.params.include_usage:
            yield head | {"choices": [], "usage": self._usage()}

    def _new_choices(self) -> Iterator[dict[str, Any]]:
        for i, progress in enumerate(list(self.request.progress)):
            answer = self.answers[i]
            if progress is answer.seen:
                continue
            answer.seen, first = progress, len(answer.calls)
            text, calls = answer.new(progress)
            if text:
                yield self._delta(i, {"content" if self.params.chat else "text": text}, self._extras(i, progress))
            for k, call in enumerate(calls, first):
                yield self._delta(i, {"tool_calls": [{"index": k, **call.body()}]}, self._extras(i, progress))
            if progress.done:
                content: dict[str, Any] = {} if self.params.chat else {"text": ""}
                yield self._delta(i, content, self._extras(i, progress), self._finish_reason(i, progress))

    def _delta(
        self, i: int, content: dict[str, Any], extras: dict[str, Any] | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        fields = {"delta": content} if self.params.chat else content
        return {"index": i, **fields, **(extras or {"logprobs": None}), "finish_reason": finish}


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
