"""Okapi: rankings by a judge that reads the answers in translation make RLHF work in a language that the judge reads badly."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.courtesy import ASKED, HOW, gold

MEASURED: dict[str, Any] = {"level": 1, "think": False, "sampling": HOW}
# a judge that understands the pivot language alone, and guesses elsewhere; a translation is marked, and says the same
JUDGE = """
import hashlib
import math

from posttrain.environments.language.courtesy import utility

MARK = "[in English] "


def translate(text):
    return MARK + text


def noise(*identity):
    raw = hashlib.sha256(repr(identity).encode()).digest()
    u = (int.from_bytes(raw[:6], "big") + 0.5) / 2**48
    v = int.from_bytes(raw[6:12], "big") / 2**48
    return math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)


def judge(prompt, texts):
    out = []
    for text in texts:
        plain = text.removeprefix(MARK)
        known = utility(prompt, plain) if text.startswith(MARK) else 0.0
        out.append(known + 0.5 * noise(SEED, prompt.id, plain))
    return out
"""


def learned(seed: int, pivot: bool) -> Measured:
    """The registered plan without SFT: four answers ranked for each request of the second part, a reward model, PPO on the third."""
    with Bench(seed) as bench:
        path = bench.folder / "judge_in_english.py"
        path.write_text(JUDGE.replace("SEED", str(seed)))
        translate = f"{path}:translate" if pivot else ""
        plan = f"okapi(translate={translate!r}, warmup=0, passes=2, epochs=2)"
        run = bench.run("plan", method=plan, reward=f"{path}:judge", **(ASKED | {"prompts": 16}))
        return bench.measured(run, "instructions", 200, gold, **MEASURED)


def start(seed: int) -> Measured:
    with Bench(seed) as bench:
        return bench.measured(None, "instructions", 200, gold, **MEASURED)


claim(
    Claim(
        id="okapi",
        title="Okapi",
        paper="arXiv:2307.16039",
        family="preference",
        says="Where a judge does not understand the language, ranking translated answers still makes a reward model by which PPO improves "
        "on the start; ranking the text as it stands does not.",
        experiment="The embedded model on small requests. The judge ranks by a hidden taste, with noise, what is translated, and guesses at what is not. The registered plan (without "
        "SFT, with all blocks learning, of which there are fewer than five): four answers to each request of the second part, a reward model of all pairs in two passes, two passes of PPO over the third "
        "part; with and without translation, as many questions to the judge, samples and updates. gold: the taste on 200 held-out requests.",
        arms={
            "in translation": partial(learned, pivot=True),
            "as it stands": partial(learned, pivot=False),
            "start": start,
        },
        checks=(
            Check("better than the start", "gold", "in translation", "start", margin=0.15),
            Check("translation helps", "gold", "in translation", "as it stands", margin=0.15),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(
            Shared("judge_calls", arms=("in translation", "as it stands")),
            Shared("samples", arms=("in translation", "as it stands")),
            Shared("updates", arms=("in translation", "as it stands")),
        ),
        tried="No trial was finished: on seed 100 with three passes of the reward model and four of PPO the first arm took more than 70 s of a core, hence two of each: 0.86 in translation, the start -0.38.",
    ),
    __file__,
)
