"""What vLLM is asked for an answer, and what it says: token ids in, token ids and their log-probabilities out.

All settings are sent, also those that are off: a server fills in what is left out from the model's generation_config.json, which may
truncate or penalise. Stop tokens are ours alone (`ignore_eos`), and the one that ends an answer is among its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.models.sampling import Sample

RAW, PROCESSED = "raw_logprobs", "processed_logprobs"  # vLLM's names: before temperature and truncation, after both
_SEED = (1 << 62) - 1  # seeds have 63 bits, and siblings count up from the first one's


def mode_for(how: Sampling) -> str:
    """The log-probabilities to ask for: raw ones are those of the distribution that is trained at temperature 1, truncated or not."""
    return RAW if how.temperature in (0.0, 1.0) or how.raw_logp else PROCESSED


def check(how: Sampling, mode: str) -> None:
    """Refuse settings under which vLLM's log-probabilities are not those that are trained: at the temperature, before truncation."""
    if mode == RAW and how.temperature not in (0.0, 1.0) and not how.raw_logp:
        raise UserError(
            f"answers are sampled at temperature {how.temperature:g}, and this vLLM says log-probabilities at 1; start it with "
            f"--logprobs-mode {PROCESSED}, or sample at 1"
        )
    if mode == PROCESSED and how.raw_logp and how.temperature not in (0.0, 1.0):
        raise UserError(f"raw_logp asks for log-probabilities at temperature 1; start vLLM with --logprobs-mode {RAW}")
    if mode == PROCESSED and how.temperature and (how.top_k or how.top_p < 1 or how.min_p):
        todo = (
            f"start it with --logprobs-mode {RAW}" if how.temperature == 1 else "switch truncation off, or sample at 1"
        )
        raise UserError(
            "vLLM says log-probabilities after top_k, top_p and min_p, and those before them are trained; " + todo
        )


def parameters(how: Sampling, stop_ids: Sequence[int], keys: Sequence[int]) -> dict[str, Any]:
    """Sampling parameters of the answers to one context, by the names that vLLM has for them in Python and over HTTP alike. An
    answer's seed is that of the context's first key, plus its place: vLLM counts up for siblings."""
    return {
        "n": len(keys),
        "seed": keys[0] & _SEED,
        "max_tokens": how.max_tokens,
        "temperature": how.temperature,
        "top_p": how.top_p,
        "top_k": how.top_k,
        "min_p": how.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(stop_ids),
        "ignore_eos": True,
        "logprobs": 0,  # of the sampled token alone
    }


def sample_of(tokens: Any, logp: Any, why: Any, how: Sampling, stop_ids: Sequence[int]) -> Sample:
    """An answer, where it is what was asked for. why: how vLLM says that it ended."""
    if not isinstance(tokens, list) or not tokens:
        raise UserError("vLLM sent an answer without token ids; it must be 0.24 or newer, with return_token_ids")
    if not isinstance(logp, list) or len(logp) != len(tokens) or not all(_number(x) for x in logp):
        raise UserError("vLLM sent an answer without the log-probability of each token; nothing can be trained on it")
    stopped = why == "stop"
    if stopped and tokens[-1] not in stop_ids:
        raise UserError(
            f"vLLM ended an answer at token {tokens[-1]}, which ends none here (those that do: {list(stop_ids)}); is it the same model?"
        )
    if not stopped and (why != "length" or len(tokens) != how.max_tokens):
        raise UserError(
            f"vLLM ended an answer after {len(tokens)} of {how.max_tokens} tokens ({why}); start it with a longer --max-model-len, and "
            "--generation-config vllm"
        )
    return Sample(torch.tensor(tokens, dtype=torch.long), torch.tensor(logp, dtype=torch.float32), stopped)


def _number(x: Any) -> bool:
    return isinstance(x, float | int) and math.isfinite(x)
