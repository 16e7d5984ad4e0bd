"""One request from its fields to its reply: prompts encoded, jobs submitted, answers as one body or as a stream of chunks."""

from __future__ import annotations

import dataclasses
import threading
import time
import uuid
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.errors import UserError, nearest
from posttrain.core.types import Prompt
from posttrain.inference.jobs import Job
from posttrain.serving.detokenize import Detokenizer, StopStrings
from posttrain.serving.openai import ApiError, CompletionRequest, finish_reason, logprob_fields, usage
from posttrain.serving.queue import Queue
from posttrain.serving.request import Progress, QueueFull, Request

if TYPE_CHECKING:
    from posttrain.policies.language import LanguagePolicy

MAX_TOKENS = 512  # per answer, where the request does not say
POLL_SECONDS = 0.5  # between two checks whether the client is still connected


class Service:
    """A policy that answers requests: `submit` starts one, and its reply is then read whole or chunk by chunk.

    name: what clients call the model; slots: answers that run at a time (0: the backend's default); max_queued: answers that run
    or wait at a time; max_tokens: per answer, where the request does not say
    """

    def __init__(
        self, policy: LanguagePolicy, name: str, slots: int = 0, max_queued: int = 256, max_tokens: int = MAX_TOKENS
    ) -> None:
        self.policy, self.name, self.max_tokens = policy, name, max_tokens
        self.queue = Queue(policy, slots, max_queued)
        self.created = int(time.time())
        self._tokenizer = threading.Lock()  # tokenizers are not safe to call from several threads at once
        self._groups = count()
        self.max_model_len = self.queue.backend.max_model_len  # prompt and answer together
        self.queue.start()

    def models(self) -> list[dict[str, Any]]:
        return [{"id": self.name, "object": "model", "created": self.created, "owned_by": "posttrain",
                 "max_model_len": self.max_model_len}]  # fmt: skip

    def check_model(self, model: str) -> None:
        if model and model != self.name:
            hint = "did you mean" if nearest(model, [self.name]) else "this server has"
            raise ApiError(404, f"no model named {model!r}; {hint} {self.name!r}?", "model", "model_not_found")

    def submit(self, params: CompletionRequest) -> Reply:
        self.check_model(params.model)
        contexts = self._contexts(params)
        how = dataclasses.replace(params.how, max_tokens=self._max_tokens(params, max(map(len, contexts))))
        id = uuid.uuid4().hex
        identity = ("seed", params.seed) if params.seed is not None else ("request", id)
        jobs = []
        for p, context in enumerate(contexts):
            group = next(self._groups)
            for i in range(params.n):
                find_stop = StopStrings(self.decode, params.stop) if params.stop else None
                jobs.append(Job(context, rng.key("serve", *identity, p, i), how, find_stop, group))
        try:
            request = self.queue.submit(Request(jobs, params.stream))
        except QueueFull as error:
            raise ApiError(503, str(error), code="queue_full") from None
        except UserError as error:
            raise ApiError(400, str(error), "n") from None
        return Reply(self, params, request, id)

    def _contexts(self, params: CompletionRequest) -> list[Tensor]:
        with self._tokenizer:
            try:
                if params.chat:
                    return [self.policy.encode(Prompt("serve", params.messages))]
                return [self._ids(p) for p in params.prompts]
            except ApiError:
                raise
            except Exception as error:  # chat templates raise errors of any type about the order of roles
                raise ApiError(400, f"the prompt cannot be written for this model: {error}", "messages") from None

    def _ids(self, prompt: str | list[int]) -> Tensor:
        ids = self.policy.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        size = len(self.policy.tokenizer)
        if not ids or min(ids) < 0 or max(ids) >= size:
            raise ApiError(400, f"a prompt needs at least one token, each from 0 to {size - 1}", "prompt")
        return torch.tensor(ids, dtype=torch.long)

    def _max_tokens(self, params: CompletionRequest, longest: int) -> int:
        """The token limit of an answer: as requested, or the default, never beyond the model's longest sequence."""
        left = self.max_model_len - longest
        if left < max(1, params.max_tokens):
            told = f"{longest} tokens of prompt and {params.max_tokens or 1} to answer; there is room for {self.max_model_len}"
            raise ApiError(400, told, "messages" if params.chat else "prompt", "context_length_exceeded")
        return params.max_tokens or min(self.max_tokens, left)

    def decode(self, ids: list[int], special: bool = False) -> str:
        with self._tokenizer:
            return str(self.policy.tokenizer.decode(ids, skip_special_tokens=not special))

    def close(self) -> None:
        self.queue.close()


class Reply:
    """The answers to one request, as they come."""

    def __init__(self, service: Service, params: CompletionRequest, request: Request, id: str) -> None:
        self.service, self.params, self.request = service, params, request
        self.detokenizers = [Detokenizer(service.decode, params.stop, service.policy.stop_ids) for _ in request.jobs]
        self.num_sent = [0] * len(request.jobs)  # tokens whose log-probabilities were sent
        kind = "chat.completion" if params.chat else "text_completion"
        self.head = {"id": ("chatcmpl-" if params.chat else "cmpl-") + id, "object": kind,
                     "created": int(time.time()), "model": service.name}  # fmt: skip

    def cancel(self) -> None:
        self.service.queue.cancel(self.request)

    def wait(self) -> Iterator[bool]:
        """True whenever there is new progress, False after POLL_SECONDS without any; ends when all answers are done."""
        seen = 0
        while not self.request.done:
            version = self.request.wait(seen, POLL_SECONDS)
            yield version > seen
            seen = version
        if isinstance(self.request.error, QueueFull):
            raise ApiError(503, str(self.request.error))
        if self.request.error is not None:
            status = 400 if isinstance(self.request.error, UserError) else 500
            raise ApiError(status, f"{type(self.request.error).__name__}: {self.request.error}")

    # ---- as one body

    def body(self) -> dict[str, Any]:
        choices = [self._choice(i, progress) for i, progress in enumerate(self.request.progress)]
        return self.head | {"choices": choices, "usage": self._usage()} | self._prompt_ids()

    def _choice(self, i: int, progress: Progress) -> dict[str, Any]:
        text = self.detokenizers[i].next_chunk(progress.tokens, True)
        content = {"message": {"role": "assistant", "content": text}} if self.params.chat else {"text": text}
        return {"index": i, **content, **self._extras(i, progress), "finish_reason": finish_reason(progress.stopped)}

    def _usage(self) -> dict[str, int]:
        prompt = sum(len(j.context) for j in self.request.jobs[:: self.params.n])
        return usage(prompt, [len(p.tokens) for p in self.request.progress])

    def _prompt_ids(self) -> dict[str, Any]:
        ids = [j.context.tolist() for j in self.request.jobs[:: self.params.n]]
        return {"prompt_token_ids": ids[0] if len(ids) == 1 else ids} if self.params.return_token_ids else {}

    def _extras(self, i: int, progress: Progress) -> dict[str, Any]:
        """Log-probabilities and ids, where requested, of the tokens since the last call."""
        start, self.num_sent[i] = self.num_sent[i], len(progress.tokens)
        out: dict[str, Any] = {"logprobs": None}
        if self.params.logprobs:
            words = [self.service.decode([t], special=True) for t in progress.tokens[start:]]
            at = len(self.service.decode(progress.tokens[:start], special=True)) if start else 0
            out["logprobs"] = logprob_fields(self.params.chat, words, progress.logp[start:], at)
        return out | ({"token_ids": progress.tokens[start:]} if self.params.return_token_ids else {})

    # ---- as a stream

    def chunks(self) -> Iterator[dict[str, Any] | None]:
        """Chunks of a stream; None after POLL_SECONDS without any."""
        head = self.head | {"object": "chat.completion.chunk" if self.params.chat else "text_completion"}
        if self.params.chat:
            for i in range(len(self.request.jobs)):
                yield head | {"choices": [self._delta(i, {"role": "assistant", "content": ""})]} | self._prompt_ids()
        finished = [False] * len(self.request.jobs)
        for updated in self.wait():
            if not updated:
                yield None
                continue
            yield from ({**head, "choices": [c]} for c in self._new_choices(finished))
        yield from ({**head, "choices": [c]} for c in self._new_choices(finished))
        if self.params.include_usage:
            yield head | {"choices": [], "usage": self._usage()}

    def _new_choices(self, finished: list[bool]) -> Iterator[dict[str, Any]]:
        for i, progress in enumerate(list(self.request.progress)):
            if finished[i]:
                continue
            text = self.detokenizers[i].next_chunk(progress.tokens, progress.done)
            if text:
                content = {"content": text} if self.params.chat else {"text": text}
                yield self._delta(i, content, self._extras(i, progress))
            if progress.done:
                finished[i] = True
                content = {} if self.params.chat else {"text": ""}
                yield self._delta(i, content, self._extras(i, progress), finish_reason(progress.stopped))

    def _delta(
        self, i: int, content: dict[str, str], extras: dict[str, Any] | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        fields = {"delta": content} if self.params.chat else content
        return {"index": i, **fields, **(extras or {"logprobs": None}), "finish_reason": finish}
