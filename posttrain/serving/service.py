"""One request from its fields to its reply: prompts encoded, jobs submitted, answers as one body or as a stream of chunks."""

from __future__ import annotations

import copy
import dataclasses
import threading
import time
import uuid
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.errors import nearest
from posttrain.core.types import Prompt
from posttrain.inference.jobs import Job
from posttrain.inference.stop_strings import StopStrings
from posttrain.policies.conversation import only_text
from posttrain.policies.template import opened
from posttrain.policies.tool_use import own_format, shown_ids
from posttrain.serving.limits import MAX_NAME, ApiError, Limits, shown
from posttrain.serving.openai import CompletionRequest
from posttrain.serving.queue import Queue
from posttrain.serving.reply import Reply
from posttrain.serving.request import QueueFull, Request
from posttrain.serving.structured import Grammar, Grammars
from posttrain.serving.tools import FORMS, HERMES, ToolFormat, forced_call

if TYPE_CHECKING:
    from posttrain.policies.language import LanguagePolicy

MAX_TOKENS = 512  # per answer, where the request does not say


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
        self.limits = Limits(self.queue.backend.max_model_len, max_queued)
        self._encoding = threading.Lock()  # tokenizers are not safe to call from several threads at once,
        self._decoder = copy.deepcopy(policy.tokenizer)  # and streams must not wait for a long prompt
        self._hidden = hidden_ids(self._decoder)
        self.vocab_size = self.queue.backend.vocab_size
        self.grammars = Grammars(policy, self.vocab_size)
        self._groups = count()
        self.queue.start()

    @property
    def max_model_len(self) -> int:
        """Prompt and answer together."""
        return self.limits.max_model_len

    def models(self) -> list[dict[str, Any]]:
        return [{"id": self.name, "object": "model", "created": self.created, "owned_by": "posttrain",
                 "max_model_len": self.max_model_len}]  # fmt: skip

    def check_model(self, model: str) -> None:
        if model and model != self.name:
            hint = "did you mean" if nearest(model[:MAX_NAME], [self.name]) else "this server has"
            raise ApiError(404, f"no model named {shown(model)}; {hint} {self.name!r}?", "model", "model_not_found")

    def submit(self, params: CompletionRequest) -> Reply:
        """Encode the prompts and put the answers into the queue; takes as long as that takes, so not on the event loop."""
        try:
            return self._start(params)
        except QueueFull as error:
            raise ApiError(503, str(error), code="queue_full") from None

    def _start(self, params: CompletionRequest) -> Reply:
        self.check_model(params.model)
        self.queue.check(len(params.prompts or (0,)) * params.n)  # before any work
        use_tools = bool(params.tools) and params.tool_choice.mode != "none"
        own = own_format(self.policy.tokenizer)
        form = FORMS.get(own, HERMES) if use_tools else None
        contexts = self._contexts(params, use_tools)
        how = dataclasses.replace(params.how, max_tokens=self._max_tokens(params, max(map(len, contexts))))
        grammar, id = self._grammar(params, form), uuid.uuid4().hex
        identity = ("seed", params.seed) if params.seed is not None else ("request", id)
        ends = (*params.stop, form.close) if form and form.close and not params.parallel_tool_calls else params.stop
        jobs = []
        for p, context in enumerate(contexts):
            group = next(self._groups)
            for i in range(params.n):
                find_stop = StopStrings(self.decode, ends) if ends else None
                constraint = grammar.constraint() if grammar else None
                key = rng.key("serve", *identity, p, i)
                jobs.append(Job(context, key, how, find_stop, group, constraint=constraint))
        head = {"id": ("chatcmpl-" if params.chat else "cmpl-") + id, "model": self.name,
                "object": "chat.completion" if params.chat else "text_completion"}  # fmt: skip
        request = self.queue.submit(Request(jobs, params.stream))
        lead = opened(self.policy.tokenizer, self._decoder.decode(contexts[0].tolist()), None) if form else ""
        return Reply(request, params, head, self.decode, self.policy.stop_ids, form, lead)

    def _grammar(self, params: CompletionRequest, form: ToolFormat | None) -> Grammar | None:
        """What every answer is held to, if anything."""
        if params.schema is not None:
            return self.grammars.of_schema(params.schema)
        if form is None or params.tool_choice.mode != "required":
            return None
        schema, (before, after) = forced_call(params.tools, params.tool_choice.name, form), form.held
        return self.grammars.of_text(before, schema, after, "tool_choice")

    # ---- text <-> tokens

    def _contexts(self, params: CompletionRequest, use_tools: bool) -> list[Tensor]:
        with self._encoding:
            try:
                if use_tools:
                    return [self._with_tools(params)]
                if params.chat:
                    return [self._checked(self.policy.encode(Prompt("serve", params.messages)).tolist())]
                return [self._ids(p) for p in params.prompts]
            except ApiError:
                raise
            except Exception as error:  # chat templates raise errors of any type about the order of roles
                told = f"the prompt cannot be written for this model: {str(error)[:200]}"
                raise ApiError(400, told, "messages" if params.chat else "prompt") from None

    def _with_tools(self, params: CompletionRequest) -> Tensor:
        """The prompt with the tools as the model's chat template writes them; in words where it has no place for them."""
        tokenizer, content = self.policy.tokenizer, only_text(params.messages)
        wanted = self.policy.wanted
        if own_format(tokenizer) in FORMS:
            text = tokenizer.apply_chat_template(
                content if wanted is None else wanted.begins(content),
                tools=list(params.tools),
                tokenize=False,
                add_generation_prompt=True,
            )
        else:
            asked = {"tools": list(params.tools), "tool_format": "hermes"}
            text = self.policy.rendered(Prompt("serve", tuple(content), info=asked))
        if not all(t["function"]["name"] in text for t in params.tools):
            told = "this model's chat template leaves tools out of a conversation like this one; leave them out, or begin with a user's message"
            raise ApiError(400, told, "tools", "unsupported_parameter")
        self.limits.check_text(len(text), "tools")
        return self._checked(tokenizer(text, add_special_tokens=False)["input_ids"])

    def _ids(self, prompt: str | list[int]) -> Tensor:
        return self._checked(self.policy.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt)

    def _checked(self, ids: list[int]) -> Tensor:
        size = min(len(self.policy.tokenizer), self.vocab_size)
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
        """The text of tokens; special ones have none, except tags around calls of tools."""
        if self._hidden and not special:
            ids = [i for i in ids if i not in self._hidden]
        return str(self._decoder.decode(ids, skip_special_tokens=not special and not self._hidden))

    def close(self) -> None:
        self.queue.close()


def hidden_ids(tokenizer: Any) -> set[int]:
    """Special tokens that are not shown, for a tokenizer to which the tags around calls of tools are special, too; else none."""
    tags = shown_ids(tokenizer)
    special = {i for i, token in getattr(tokenizer, "added_tokens_decoder", {}).items() if token.special}
    return special - tags if tags else set()
