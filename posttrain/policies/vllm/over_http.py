"""Sampling by a vLLM server: `--engine http://host:8000`.

Before an answer is asked for, the server has the weights as they are: adapters by /v1/load_lora_adapter, each version under a name of its own
(with `load_inplace` vLLM 0.24 would read the files again at every batch), all weights by its worker's `reload_weights` from a folder
that both see. Prefix caches are salted by version. One request asks for all answers to a context.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Observation, Turn
from posttrain.inference.jobs import nobody
from posttrain.models.sampling import Sample
from posttrain.policies.load import save_weights
from posttrain.policies.peft_folder import save_adapter
from posttrain.policies.vllm.request import PROCESSED, RAW, check, parameters, sample_of
from posttrain.policies.vllm.server import Gone, Refused, Server
from posttrain.policies.vllm.weights import Folders, Moved, has_adapters

_SIDE_BY_SIDE = 512  # requests at a time; vLLM itself decides how many of them run
_TRIES = 3  # of one call, at a server that goes away and comes back
_APART = 0.2  # nats per token by which another model differs, and rounding does not
_PROBED, _HOT = 8, 2.0  # tokens of the first look at a server, and their temperature


class ServerEngine:
    """The engine of a policy, made of a server."""

    def __init__(self, server: Server, policy: Any, folder: Path) -> None:
        self.server, self.policy = server, policy
        self.moved, self.folders = Moved(policy), Folders(folder)
        self.finished: Callable[[int, int, Tensor], None] = nobody
        self.adapters, self.mode = has_adapters(policy), ""
        self.run, self.adapter = f"posttrain-{uuid.uuid4().hex[:12]}", ""
        self.base, self.window = served(server)

    def generate(
        self, contexts: Sequence[Tensor], keys: Sequence[Sequence[int]], how: Sampling, stop_ids: Sequence[int]
    ) -> list[list[Sample]]:
        """For each context, one answer per key, from the weights as they are now."""
        if not contexts:
            return []
        for tried in range(_TRIES):
            try:
                self._ready(contexts[0], min(_PROBED, how.max_tokens))
                check(how, self.mode)
                return self._all(contexts, keys, how, stop_ids)
            except Gone as why:
                self.moved.forget()
                self.server.wait(why)
                gone = why
                if tried + 1 == _TRIES:
                    break
        raise UserError(f"{self.server.url} went away {_TRIES} times in one step ({gone}); look at what it printed")

    def _all(self, contexts: Sequence[Tensor], keys: Any, how: Sampling, stop_ids: Sequence[int]) -> list[list[Sample]]:
        pool = ThreadPoolExecutor(min(_SIDE_BY_SIDE, len(contexts)))
        try:
            out: list[list[Sample]] = [[] for _ in contexts]
            asked = {
                pool.submit(self._completions, context, row, how, stop_ids): g
                for g, (context, row) in enumerate(zip(contexts, keys, strict=True))
                if row
            }
            for future in as_completed(asked):
                out[g := asked[future]] = future.result()
                for i, sample in enumerate(out[g]):
                    self.finished(g, i, sample.tokens)
            return out
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _completions(self, context: Tensor, keys: Any, how: Sampling, stop_ids: Sequence[int]) -> list[Sample]:
        body = parameters(how, stop_ids, keys) | {
            "model": self.adapter or self.base,
            "prompt": context.tolist(),
            "return_token_ids": True,
            "cache_salt": f"{self.run}-{self.folders.count}",
        }
        choices = self.server.post("/v1/completions", body).get("choices")
        if not isinstance(choices, list) or len(choices) != len(keys):
            raise UserError(f"{self.server.url} sent no list of {len(keys)} answers; is it vLLM?")
        return [
            sample_of(c.get("token_ids"), (c.get("logprobs") or {}).get("token_logprobs"), c.get("finish_reason"), how, stop_ids)
            for c in sorted(choices, key=lambda c: c.get("index", 0))
        ]  # fmt: skip

    # ---- weights

    def _ready(self, context: Tensor, room: int) -> None:
        """The server has the weights; what it serves is looked at when they were sent for the first time."""
        if self.moved.send(self._send_adapter if self.adapters else self._send_weights) and not self.mode:
            same_tokens(self.server, self.base, self.policy, context)
            self.mode = self._probe(context, Sampling(room, _HOT))

    def _send_weights(self) -> None:
        path = self.folders.next()
        save_weights(self.policy, path)
        try:
            self.server.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(path)}})
            self.server.post("/reset_prefix_cache", {})
        except Refused as error:
            if error.status in (404, 405):
                raise UserError(
                    f"{self.server.url} takes no new weights; start it with VLLM_SERVER_DEV_MODE=1 vllm serve ... (0.24 or newer)"
                ) from None
            raise UserError(
                f"{error}; the server must be able to read {path}: it is for one machine, or a disk that both see"
            ) from None
        self.folders.done(path)

    def _send_adapter(self) -> None:
        path = self.folders.next()
        save_adapter(self.policy, path, self.base)
        name, before = f"{self.run}-{self.folders.count}", self.adapter
        try:
            self.server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})
        except Refused as error:
            if error.status in (404, 405):
                raise UserError(
                    f"{self.server.url} takes no adapters; start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve ... --enable-lora"
                ) from None
            raise UserError(
                f"{error}; it needs --enable-lora, a --max-lora-rank of at least that of --lora, and to be able to read {path}"
            ) from None
        self.adapter = name
        self.folders.done(path)
        self._unload(before)

    def _unload(self, name: str) -> None:
        if name:
            with suppress(Refused, Gone):  # a server that was started again does not have it
                self.server.post("/v1/unload_lora_adapter", {"lora_name": name})

    # ---- what is served

    def _probe(self, context: Tensor, how: Sampling) -> str:
        """Which log-probabilities it says, found by comparing a few tokens with our own; another model is told by it."""
        made = self._completions(context, [1], how, self.policy.stop_ids)[0]
        turn = Turn.of(Observation(context.cpu()), made.tokens, made.logp_T)
        gaps = {mode: gap(self.policy, turn, t) for mode, t in ((PROCESSED, _HOT), (RAW, 1.0))}
        best = min(gaps, key=lambda mode: gaps[mode])
        if not gaps[best] <= _APART:
            sent, todo = (
                ("the adapter", "start it again") if self.adapters else ("the weights", "serve the same --model")
            )
            why = ": another --model, or the weights that a run without --lora left there" if self.adapters else ""
            raise UserError(
                f"{self.server.url} serves {self.base}, whose log-probabilities differ from those of the model that is trained by "
                f"{gaps[best]:.2g} nats per token after it was sent {sent}{why}; {todo}"
            )
        return best

    def close(self) -> None:
        self._unload(self.adapter)
        self.folders.close()


def served(server: Server) -> tuple[str, int]:
    """The model that a server has, by the name it goes by, and its longest context."""
    try:
        found = server.get("/v1/models").get("data")
    except Gone as why:
        raise UserError(f"nothing answers at {server.url} ({why}); is `vllm serve` running there?") from None
    bases = [m for m in found if isinstance(m, dict) and m.get("id") and not m.get("parent")] if found else []
    if not bases:
        raise UserError(f"{server.url} names no model at /v1/models; is it vLLM?")
    return str(bases[0]["id"]), int(bases[0].get("max_model_len") or 0)


def same_tokens(server: Server, model: str, policy: Any, context: Tensor) -> None:
    """Refuse a server whose tokenizer makes other ids of a text; one that was started without a tokenizer is not asked."""
    text = policy.decode(context)
    ours = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    try:
        theirs = server.post("/tokenize", {"model": model, "prompt": text, "add_special_tokens": False}).get("tokens")
    except Refused:
        return
    if text and theirs != ours:
        raise UserError(
            f"{server.url} serves {model}, which makes other token ids of {text[:30]!r} than the model that is trained; serve the same --model"
        )


@torch.no_grad()
def gap(policy: Any, turn: Turn, temperature: float) -> float:
    """The mean distance to our own log-probabilities at this temperature."""
    was = policy.temperature
    policy.temperature = temperature
    try:
        logp_T = policy.forward([turn], ("logp_BT",))["logp_BT"][0].cpu().float()
    finally:
        policy.temperature = was
    return float((logp_T - turn.logp_T).abs().mean())
