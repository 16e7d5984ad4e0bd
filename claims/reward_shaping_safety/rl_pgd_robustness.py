"""Reward-guided projected gradients as a robustness test of one's own small model: it finds margins that noise does not."""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from claims.machinery.claim import Check, Claim, claim
from posttrain.core import rng
from posttrain.systems.reward_shaping_safety.rl_pgd_robustness import (
    harden,
    random_change,
    reward_guided_pgd,
    robustness_margin,
)

TONES, BINS, WIDTH, TRAIN, TEST, NOISE, EPS = 5, 96, 24, 300, 20, 0.3, 0.3


@lru_cache(maxsize=1)
def tones(seed: int) -> tuple[Tensor, Tensor]:
    """Spectra of synthetic tones: a base bin and its overtone, in noise; the label is the tone."""
    draws = rng.torch_generator("tones", seed)
    label_B = torch.randint(0, TONES, (TRAIN + TEST,), generator=draws)
    x_BF = NOISE * torch.randn(TRAIN + TEST, BINS, generator=draws)
    rows = torch.arange(len(label_B))
    x_BF[rows, 2 + 2 * label_B] += 2.0
    x_BF[rows, 5 + 4 * label_B // 2 + label_B] += 1.0
    return x_BF, label_B


@lru_cache(maxsize=2)
def classifier(seed: int, eps: float) -> nn.Module:
    x_BF, label_B = tones(seed)
    model = nn.Sequential(nn.Linear(BINS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, TONES))
    draws = rng.torch_generator("classifier", seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draws) * (p.shape[-1] ** -0.5 if p.dim() == 2 else 0.0))
    return harden(model, x_BF[:TRAIN], label_B[:TRAIN], eps).requires_grad_(False)


def margin(seed: int, find, eps: float = 0.0) -> dict[str, float]:  # type: ignore[no-untyped-def]
    """The margin of a classifier on 20 held-out tones, as this search finds it."""
    x_BF, label_B = tones(seed)
    model = classifier(seed, eps)
    return robustness_margin(model, list(x_BF[TRAIN:]), label_B[TRAIN:].tolist(), find, most=3.0)


claim(
    Claim(
        id="rl-pgd-robustness",
        title="Reward-guided PGD robustness",
        paper="arXiv:2508.03365",
        family="reward-shaping-safety",
        says="Projected gradients towards the best-scored of the model's own sampled outputs change its answer with far smaller changes of "
        "the input than random search. Here only as a test of one's own model with benign labels, and with its defence.",
        experiment="A classifier of synthetic tones (96 bins, 5 labels). The least L-infinity change that flips a label on 20 held-out tones, "
        "by reward-guided PGD and by random corners at equal looks at the model; then the same test of a classifier trained "
        "adversarially. margin: mean least change; right: accuracy.",
        arms={
            "guided": partial(margin, find=reward_guided_pgd),
            "random": partial(margin, find=random_change),
            "guided, hardened model": partial(margin, find=reward_guided_pgd, eps=EPS),
        },
        checks=(
            Check("a much smaller change than random", "margin", "guided", "random", margin=0.1, lower=True),
            Check("adversarial training raises the margin", "margin", "guided, hardened model", "guided", margin=0.2),
            Check("at no loss of accuracy", "right", "guided, hardened model", "guided", margin=-0.1),
        ),
        seeds=tuple(range(5)),
        tried="On seeds 100-101. With samples that may repeat, a sure model only ever draws its own label and the search goes nowhere (margin 2.9): "
        "the outputs must be different ones. With 24 bins random corners come close (0.50 against 0.33), with 96 they do not (0.30 against "
        "0.10). Weights are never changed by the search; no content is produced.",
    ),
    __file__,
)
