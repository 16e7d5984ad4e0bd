"""One request from its fields to its reply: prompts encoded, jobs made, answers as a whole or as a stream of pieces."""

from __future__ import annotations

import dataclasses
import threading
import time
import uuid
from collections.abc import Iterator
from itertools import count
from typing import Any

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.errors import UserError, nearest
from posttrain.core.types import Prompt
from posttrain.inference.jobs import Job
from posttrain.serving.detokenize import Stops, Writing
from posttrain.serving.openai import Asked, Refused, chances, ended, usage
from posttrain.serving.queue import Queue
from posttrain.serving.request import Full, Made, Ticket

MAX_TOKENS = 512  # of an answer where the request does not say
LOOK = 0.5  # seconds between two looks whether the client is still there


class Service:
    """A policy that answers requests: `ask` makes a request of fields, which is then read whole or piece by piece."""

    def __init__(self, policy: Any, name: str, slots: int = 0, most: int = 256, max_tokens: int = MAX_TOKENS) -> None:
        self.policy, self.name, self.max_tokens = policy, name, max_tokens
        self.queue = Queue(policy, slots, most)
        self.created = int(time.time())
        self._tokenizer = threading.Lock()  # tokenizers may be asked by one thread at a time
        self._groups = count()
        self.context = self.queue.maker.longest  # prompt and answer together
        self.queue.start()

    def models(self) -> list[dict[str, Any]]:
        return [{"id": self.name, "object": "model", "created": self.created, "owned_by": "posttrain",
                 "max_model_len": self.context}]  # fmt: skip

    def known(self, model: str) -> None:
        if model and model != self.name:
            hint = "did you mean" if nearest(model, [self.name]) else "this server has"
            raise Refused(404, f"no model named {model!r}; {hint} {self.name!r}?", "model", "model_not_found")

    def ask(self, asked: Asked) -> Reply:
        self.known(asked.model)
        contexts = self._contexts(asked)
        how = dataclasses.replace(asked.how, max_tokens=self._room(asked, max(map(len, contexts))))
        id = uuid.uuid4().hex
        who = ("seed", asked.seed) if asked.seed is not None else ("request", id)
        jobs = []
        for p, context in enumerate(contexts):
            group = next(self._groups)
            for i in range(asked.n):
                completes = Stops(self.decode, asked.stop) if asked.stop else None
                jobs.append(Job(context, rng.key("serve", *who, p, i), how, completes, group))
        try:
            ticket = self.queue.submit(Ticket(jobs, asked.stream))
        except Full as error:
            raise Refused(503, str(error), code="queue_full") from None
        except UserError as error:
            raise Refused(400, str(error), "n") from None
        return Reply(self, asked, ticket, id)

    def _contexts(self, asked: Asked) -> list[Tensor]:
        with self._tokenizer:
            try:
                if asked.chat:
                    return [self.policy.encode(Prompt("serve", asked.messages))]
                return [self._ids(p) for p in asked.prompts]
            except Refused:
                raise
            except Exception as error:  # a chat template raises what it likes about the order of roles
                raise Refused(400, f"the prompt cannot be written for this model: {error}", "messages") from None

    def _ids(self, prompt: str | list[int]) -> Tensor:
        ids = self.policy.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        size = len(self.policy.tokenizer)
        if not ids or min(ids) < 0 or max(ids) >= size:
            raise Refused(400, f"a prompt needs at least one token, each from 0 to {size - 1}", "prompt")
        return torch.tensor(ids, dtype=torch.long)

    def _room(self, asked: Asked, longest: int) -> int:
        """The tokens an answer may have: as asked, or what is usual, never beyond what the model knows."""
        left = self.context - longest
        if left < max(1, asked.max_tokens):
            told = f"{longest} tokens of prompt and {asked.max_tokens or 1} to answer; there is room for {self.context}"
            raise Refused(400, told, "messages" if asked.chat else "prompt", "context_length_exceeded")
        return asked.max_tokens or min(self.max_tokens, left)

    def decode(self, ids: list[int], special: bool = False) -> str:
        with self._tokenizer:
            return self.policy.tokenizer.decode(ids, skip_special_tokens=not special)

    def close(self) -> None:
        self.queue.close()


class Reply:
    """The answers to one request, as they come."""

    def __init__(self, service: Service, asked: Asked, ticket: Ticket, id: str) -> None:
        self.service, self.asked, self.ticket = service, asked, ticket
        self.writings = [Writing(service.decode, asked.stop, service.policy.stop_ids) for _ in ticket.jobs]
        self.shown = [0] * len(ticket.jobs)  # tokens whose log-probabilities were sent
        kind = "chat.completion" if asked.chat else "text_completion"
        self.head = {"id": ("chatcmpl-" if asked.chat else "cmpl-") + id, "object": kind,
                     "created": int(time.time()), "model": service.name}  # fmt: skip

    def cancel(self) -> None:
        self.service.queue.cancel(self.ticket)

    def looks(self) -> Iterator[bool]:
        """True whenever more has been made, False when nothing came for a while; ends when all is made."""
        seen = 0
        while not self.ticket.done:
            version = self.ticket.wait(seen, LOOK)
            yield version > seen
            seen = version
        if isinstance(self.ticket.error, Full):
            raise Refused(503, str(self.ticket.error))
        if self.ticket.error is not None:
            status = 400 if isinstance(self.ticket.error, UserError) else 500
            raise Refused(status, f"{type(self.ticket.error).__name__}: {self.ticket.error}")

    # ---- whole

    def whole(self) -> dict[str, Any]:
        choices = [self._choice(i, made) for i, made in enumerate(self.ticket.made)]
        return self.head | {"choices": choices, "usage": self._usage()} | self._prompt_ids()

    def _choice(self, i: int, made: Made) -> dict[str, Any]:
        text = self.writings[i].more(made.tokens, True)
        said = {"message": {"role": "assistant", "content": text}} if self.asked.chat else {"text": text}
        return {"index": i, **said, **self._extras(i, made), "finish_reason": ended(made.stopped)}

    def _usage(self) -> dict[str, int]:
        prompt = sum(len(j.context) for j in self.ticket.jobs[:: self.asked.n])
        return usage(prompt, [len(m.tokens) for m in self.ticket.made])

    def _prompt_ids(self) -> dict[str, Any]:
        ids = [j.context.tolist() for j in self.ticket.jobs[:: self.asked.n]]
        return {"prompt_token_ids": ids[0] if len(ids) == 1 else ids} if self.asked.ids else {}

    def _extras(self, i: int, made: Made) -> dict[str, Any]:
        """Log-probabilities and ids, where asked for, of the tokens that came since the last time."""
        start, self.shown[i] = self.shown[i], len(made.tokens)
        out: dict[str, Any] = {"logprobs": None}
        if self.asked.logprobs:
            words = [self.service.decode([t], special=True) for t in made.tokens[start:]]
            at = len(self.service.decode(made.tokens[:start], special=True)) if start else 0
            out["logprobs"] = chances(self.asked.chat, words, made.logp[start:], at)
        return out | ({"token_ids": made.tokens[start:]} if self.asked.ids else {})

    # ---- in pieces

    def pieces(self) -> Iterator[dict[str, Any] | None]:
        """Chunks of a stream; None where nothing came for a while."""
        head = self.head | {"object": "chat.completion.chunk" if self.asked.chat else "text_completion"}
        if self.asked.chat:
            for i in range(len(self.ticket.jobs)):
                yield head | {"choices": [self._delta(i, {"role": "assistant", "content": ""})]} | self._prompt_ids()
        ends = [False] * len(self.ticket.jobs)
        for news in self.looks():
            if not news:
                yield None
                continue
            yield from ({**head, "choices": [c]} for c in self._news(ends))
        yield from ({**head, "choices": [c]} for c in self._news(ends))
        if self.asked.usage:
            yield head | {"choices": [], "usage": self._usage()}

    def _news(self, ends: list[bool]) -> Iterator[dict[str, Any]]:
        for i, made in enumerate(list(self.ticket.made)):
            if ends[i]:
                continue
            piece = self.writings[i].more(made.tokens, made.done)
            if piece:
                said = {"content": piece} if self.asked.chat else {"text": piece}
                yield self._delta(i, said, self._extras(i, made))
            if made.done:
                ends[i] = True
                said = {} if self.asked.chat else {"text": ""}
                yield self._delta(i, said, self._extras(i, made), ended(made.stopped))

    def _delta(
        self, i: int, said: dict[str, str], extras: dict[str, Any] | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        put = {"delta": said} if self.asked.chat else said
        return {"index": i, **put, **(extras or {"logprobs": None}), "finish_reason": finish}
