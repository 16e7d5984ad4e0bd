"""Constrained jobs take allowed tokens only, with the log-probabilities of what was sampled, and others do not notice."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from posttrain.core import rng
from posttrain.core.sampling import Sampling
from posttrain.inference.engine import Engine
from posttrain.inference.jobs import Job
from posttrain.inference.masks import mask_logits
from posttrain.inference.pick import choose_sampling_mode
from tests.inference.test_engine import small_model

STOP = 1
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # on a GPU masks are read by captured graphs


class Alternate:
    """Even tokens and odd tokens in turn, from 2 on; after `length` of them only the end. Counts what it is told."""

    def __init__(self, length: int) -> None:
        self.length, self.accepted = length, 0
        self.told: list[int] = []

    def accept(self, token: int) -> None:
        self.accepted += 1
        self.told.append(token)

    def allowed(self, place: int) -> list[int]:
        return [STOP] if place == self.length else list(range(2 + place % 2, 60, 2))

    def fill(self, row: NDArray[np.int32]) -> None:
        for token in self.allowed(self.accepted):
            row[token // 32] |= np.int32(1) << (token % 32) if token % 32 < 31 else np.int32(-(1 << 31))


def jobs(constrained: bool, how: Sampling) -> list[Job]:
    """Seven jobs over two contexts; every other one may be constrained."""
    out = []
    for i in range(7):
        context = torch.arange(50 + 10 * (i % 2)) % 57 + 2  # grows into a second page of 64
        constraint = Alternate(5 + i) if constrained and i % 2 == 0 else None
        out.append(Job(context, rng.key("mask", i), how, group=i % 2, constraint=constraint))
    return out


def run(engine: Engine, todo: list[Job]) -> list[Job]:
    engine.prepare(len(todo), 96, 30, [STOP])
    engine.waiting.extend(todo)
    while engine.busy:
        engine.step()
    return todo


@pytest.mark.parametrize("how", [Sampling(30), Sampling(30, 0.0), Sampling(30, 0.7, top_p=0.8), Sampling(9, 2.0)])
@pytest.mark.parametrize(
    "engine", [{}, {"stride": 8}, {"max_slots": 3, "stride": 4}, {"num_pages": 8, "prefix_cache": True}]
)
def test_masks(how: Sampling, engine: dict[str, int]) -> None:
    model = small_model("qwen3").to(DEVICE)  # whose heads the kernels take
    alone = run(Engine(model), jobs(False, how))
    made = Engine(model, **engine)
    found = run(made, jobs(True, how))
    assert (
        made.preempted > 0 or "num_pages" not in engine or how.max_tokens < 30 or DEVICE == "cuda"
    )  # it shares prefixes
    for job, free in zip(found, alone, strict=True):
        tokens, rule = job.tokens.tolist(), job.constraint
        if rule is None:  # the neighbours: as if nobody were constrained
            assert tokens == free.tokens.tolist()
            torch.testing.assert_close(job.logp, free.logp, atol=1e-4, rtol=0)
            continue
        assert len(tokens) == min(rule.length + 1, how.max_tokens) and job.stopped == (len(tokens) == rule.length + 1)
        assert all(token in rule.allowed(place) for place, token in enumerate(tokens))
        assert rule.told == tokens[: len(rule.told)] and len(rule.told) >= len(tokens) - 1
        torch.testing.assert_close(job.logp, of_masked(model, job, how), atol=1e-4, rtol=0)
    assert any(f.tokens.tolist() != j.tokens.tolist() for f, j in zip(alone, found, strict=True))


def of_masked(model: torch.nn.Module, job: Job, how: Sampling) -> torch.Tensor:
    """log softmax over the allowed tokens alone of logits / temperature, each from its whole prefix."""
    out = []
    for place, token in enumerate(job.tokens.tolist()):
        allowed, prefix = job.constraint.allowed(place), job.sequence[: len(job.context) + place]
        with torch.no_grad():
            h_1D, _ = model.prefill(prefix[None].to(DEVICE), torch.tensor([len(prefix)], device=DEVICE), len(prefix))
            logits_V = model.logits(h_1D)[0].float().cpu() / (how.temperature or 1.0)
        out.append(torch.log_softmax(logits_V[allowed], 0)[allowed.index(token)])
    return torch.stack(out)


def test_a_mask_by_hand() -> None:
    words = np.zeros((2, 2), dtype=np.int32)
    words[0] = (0b101, 0b10)  # tokens 0, 2, 33
    words[1] = (-(1 << 31), 0)  # token 31: the sign bit
    out = mask_logits(torch.arange(80.0).reshape(2, 40), torch.from_numpy(words))
    assert out.isfinite().nonzero().tolist() == [[0, 0], [0, 2], [0, 33], [1, 31]] and out[0, 33] == 33


def test_masked_draws_take_the_exact_path() -> None:
    assert choose_sampling_mode({Sampling()}, True) == "truncated masked"
    assert choose_sampling_mode({Sampling(temperature=0.0)}, True) == "greedy masked"
    raw = dataclasses.replace(Sampling(), raw_logp=True)
    assert choose_sampling_mode({raw}, True) == "truncated raw masked" and choose_sampling_mode({Sampling()}) == "plain"
