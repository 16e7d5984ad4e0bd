"""Helping or herding: ensembles of reward models pre-trained apart choose better than those fine-tuned apart; shared errors remain."""

from __future__ import annotations

import json
from functools import partial

import torch

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.courtesy import APART, ASKED, HOW, comparisons, gold_file, notes, requests
from posttrain.core import rng
from posttrain.core.sampling import Sampling
from posttrain.models.decoder import Decoder, DecoderConfig
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.load import POCKET, load_tokenizer, save_model

BASES, SEEDS, LAYERS, TEXTS, READ = (
    3,
    3,
    2,
    1600,
    150,
)  # networks, fine-tunings of each, their size, what they read in how many steps
PAIRS, NOISE, BIAS, POOL, ASKS = 160, 0.1, 0.3, 64, 40


def texts(bench: Bench) -> str:
    """What the bases are pre-trained on: requests with answers of the embedded model."""
    env = requests()
    prompts = [env.prompt(2 * APART + i) for i in range(TEXTS)]
    made = bench.policy(None).sample(prompts, 1, Sampling(**HOW), bench.seed, -5)
    told = [{"question": p.content[0]["content"], "answer": r.text} for p, (r,) in zip(prompts, made, strict=True)]
    return bench.rows("texts", told)


def base(bench: Bench, at: int, told: str) -> str:
    """A network of 2 layers with weights of its own draw, pre-trained in an order of its own."""
    shape = DecoderConfig.of(json.loads((POCKET / "config.json").read_text()) | {"num_hidden_layers": LAYERS})
    assert shape is not None
    model, draws = Decoder(shape), rng.torch_generator("base", bench.seed, at)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.copy_(0.05 * torch.randn(p.shape, generator=draws))
    folder = bench.folder / f"drawn{at}"
    save_model(LanguagePolicy(model, load_tokenizer(str(POCKET))), folder)
    return str(
        bench.once(
            f"base{at}", method="sft", model=str(folder), task=told, steps=READ, prompts=32, lr=3e-3, seed=1000 * bench.seed + at,
            sampling=HOW,
        )
    )  # fmt: skip


def chosen(seed: int, bias: float) -> Measured:
    """The registered plan with 3 bases and 3 seeds: gold of the best of 64 by single models and by both kinds of ensembles."""
    with Bench(seed) as bench:
        told = texts(bench)
        bases = ",".join(base(bench, at, told) for at in range(BASES))
        pairs = comparisons(bench, PAIRS, NOISE, bias=bias)
        plan = f"helping-or-herding(bases={bases!r}, seeds={SEEDS}, optimiser='best-of-n', pairs={pairs!r})"
        common = ASKED | {"prompts": 16, "reward": gold_file(bench), "eval_problems": 2 * ASKS, "num_generations": POOL}
        found = notes(bench.run("plan", method=plan, **common))
        by = {
            kind: found["best_of_n"][kind]["mean"][str(POOL)]["gold"] for kind in ("single", "fine-tune", "pre-train")
        }
        apart = found["ranks_apart_chosen"] / found["ranks_apart_fresh"]
        metrics = by | {
            "over_single": by["pre-train"] - by["single"],
            "over_fine_tune": by["pre-train"] - by["fine-tune"],
        }
        ranks = list(found["pair_accuracy"].values())
        metrics |= {"apart": apart, "ranked": sum(ranks) / len(ranks)}
        return Measured(metrics, bench.tally.spent(), bench.curves)


claim(
    Claim(
        id="helping-or-herding",
        title="Helping or herding",
        paper="arXiv:2312.09244",
        family="reward-model",
        says="Reward models that agree on fresh answers disagree on those chosen by one of them. Ensembles mitigate that, of different "
        "pre-training seeds more than of fine-tuning seeds; errors that all members share remain.",
        experiment="Three small networks drawn and pre-trained apart on texts of the embedded model, each fine-tuned with three seeds on 160 "
        "comparisons of its answers by a hidden taste. The registered plan: gold of the best "
        "of 64 answers to 40 held-out requests by the nine models alone, by the three of one base, by one of each base; and the same where in "
        "30% of the labels the longer answer wins. apart: how far members are apart about the order of five answers that another member chose, over that of five fresh ones.",
        arms={"longer wins": partial(chosen, bias=BIAS), "fair labels": partial(chosen, bias=0.0)},
        checks=(
            Check("members disagree more about chosen answers", "apart", "fair labels", 1.0),
            Check("an ensemble pre-trained apart beats one model", "over_single", "fair labels", 0.0),
            Check("and one fine-tuned apart", "over_fine_tune", "fair labels", 0.0),
            Check("what all labels have wrong remains", "pre-train", "fair labels", "longer wins"),
        ),
        seeds=tuple(range(400, 408)),
        level="pocket",
        shares=(Shared("written"),),
        tried="Attempt 1 did not run the plan: networks of letters. On seed 100 with 60 requests (fair labels; longer wins): over one model +0.09 and +0.03 with 150 "
        "steps of pre-training, +0.12 and -0.02 with 100; over the fine-tune ensemble +0.04 and +0.03, then +0.01 and -0.04; ranks 1.43 and 1.52 times as far apart; "
        "gold of the pre-train ensemble 1.09 and 0.74, then 1.02 and 0.69. The spread of scores, looked at first, was no larger about chosen answers (0.96 to 1.0 times); "
        "the paper compares ranks of five answers, which the plan now reports. Checks were first on the biased labels; as labels that are wrong "
        "for all cannot be helped by any ensemble, they are on the fair ones now, and the bias has a check of its own.",
        budget_seconds=600.0,
    ),
    __file__,
)
