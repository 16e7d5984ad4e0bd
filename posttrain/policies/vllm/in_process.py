"""Sampling by vLLM in this process: `--engine vllm`, or `--engine "vllm(gpu_memory_utilization=0.5, tensor_parallel_size=2)"`.

What is in the brackets is vLLM's own (`vllm.LLM`). On one card its engine runs in this process, so that tensors of our decoder are handed over
as they are. On several they go through a folder, and so do those of other models: transformers calls and joins some of their tensors
otherwise in memory than in a folder, which is what vLLM reads. vLLM takes the first card that the process sees, beside what is trained there.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.inference.jobs import nobody
from posttrain.models.decoder import Decoder
from posttrain.models.folder import one_line
from posttrain.models.sampling import Sample
from posttrain.policies.load import save_model, save_weights
from posttrain.policies.vllm.request import check, mode_for, parameters, sample_of
from posttrain.policies.vllm.weights import Folders, Moved, tensors

_MEMORY = 0.4  # of the card; vLLM's own default is nearly all of it, and here the card trains too


def installed() -> None:
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            'vLLM is not installed; pip install "posttrain[vllm]", give a server\'s address (--engine http://host:8000), or leave '
            "--engine away: posttrain has an engine of its own"
        )


class LocalEngine:
    """The engine of a policy, made of `vllm.LLM`."""

    def __init__(self, policy: Any, folder: Path, how: Sampling, options: dict[str, Any]) -> None:
        installed()
        if policy.device.index:
            raise UserError(
                f"vLLM takes the first GPU that a process sees, and this one trains on {policy.device}; export "
                f"CUDA_VISIBLE_DEVICES={policy.device.index} and leave --device away"
            )
        self.cards = int(options.get("tensor_parallel_size", 1))
        if self.cards == 1:
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # read when vLLM is imported
        import vllm

        self.policy, self.moved, self.folders = policy, Moved(policy), Folders(folder)
        self.finished: Callable[[int, int, Tensor], None] = nobody
        self.mode, self.params = mode_for(how), vllm.SamplingParams
        start = self.folders.folder / "model"
        save_model(policy, start)
        known = {"gpu_memory_utilization": _MEMORY, "logprobs_mode": self.mode, "generation_config": "vllm"} | options
        self.mode = str(known["logprobs_mode"])
        try:
            self.llm = vllm.LLM(model=str(start), **known)
        except Exception as error:
            raise UserError(f"vLLM could not start ({type(error).__name__}: {one_line(error)})") from None
        self.window = int(self.llm.llm_engine.model_config.max_model_len)

    def generate(
        self, contexts: Sequence[Tensor], keys: Sequence[Sequence[int]], how: Sampling, stop_ids: Sequence[int]
    ) -> list[list[Sample]]:
        """For each context, one answer per key, from the weights as they are now."""
        check(how, self.mode)
        if self.moved.send(self._send):
            self.llm.reset_prefix_cache()
        places = [g for g, row in enumerate(keys) if row]
        params = [self.params(**parameters(how, stop_ids, keys[g]), detokenize=False) for g in places]
        told = self.llm.generate([{"prompt_token_ids": contexts[g].tolist()} for g in places], params, use_tqdm=False)
        out: list[list[Sample]] = [[] for _ in contexts]
        for g, request in zip(places, told, strict=True):
            out[g] = [answer(o, how, stop_ids) for o in sorted(request.outputs, key=lambda o: o.index)]
            for i, sample in enumerate(out[g]):
                self.finished(g, i, sample.tokens)
        return out

    def _send(self) -> None:
        """The weights by vLLM's own names for them: its worker knows how to fuse and divide them."""
        here = self.cards == 1 and os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0"
        if here and isinstance(self.policy.model, Decoder):
            self._reload(weights_iterator=list(tensors(self.policy).items()))
            return
        path = self.folders.next()
        save_weights(self.policy, path)
        self._reload(weights_path=str(path))
        self.folders.done(path)

    def _reload(self, **source: Any) -> None:
        try:
            self.llm.collective_rpc("reload_weights", kwargs=source)
        except Exception as error:
            raise UserError(
                f"vLLM did not take the new weights ({type(error).__name__}: {one_line(error)}); leave --engine away, or use vLLM 0.24 or newer"
            ) from None

    def close(self) -> None:
        with suppress(Exception):  # names of its inside, which may change; the process ends soon anyway
            self.llm.llm_engine.engine_core.shutdown()
        self.folders.close()


def answer(output: Any, how: Sampling, stop_ids: Sequence[int]) -> Sample:
    """A `CompletionOutput` as an answer; its log-probabilities come as one dict of ids per token."""
    tokens = list(output.token_ids)
    logp = [x[t].logprob for t, x in zip(tokens, output.logprobs, strict=True)] if output.logprobs is not None else None
    return sample_of(tokens, logp, output.finish_reason, how, stop_ids)
