"""RLPrompt: soft Q-learning writes a prompt that makes a frozen model read a text right more often than a prompt found by search."""

from __future__ import annotations

import json
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from posttrain.core import rng
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.environments.school.phrases import ACTS, phrases_of
from posttrain.environments.school.words import NAMES
from posttrain.policies.prompt_writer import PromptWriter
from posttrain.systems.policy_gradient.rlprompt import OnShots, label_reader

STEPS, N, LENGTH, SHOTS, TEST, LR = 100, 16, 5, 16, 200, 1e-3
LABELS = {"curt": "curt", "effusive": "kind"}  # the register of a phrase, and what it is called


def texts(seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What one says on small occasions, curt or kind: 16 of each to learn from, 100 others of each to test."""
    draw, rows = rng.python("rlprompt", seed), list[list[dict[str, Any]]]()
    for register, label in LABELS.items():
        said = {p.text for act in ACTS for p in phrases_of(act, None, register)}
        some = draw.sample(sorted(said), min(len(said), SHOTS + TEST // 2))
        rows.append([{"question": t.replace("{x}", draw.choice(NAMES)), "answer": label} for t in some])
    return [r for some in rows for r in some[:SHOTS]], [r for some in rows for r in some[SHOTS:]]


def reader(bench: Bench, rows: list[dict[str, Any]]) -> OnShots:
    """The frozen model reading these texts."""
    inputs = [Prompt.text(f"text{i}", r["question"], r["answer"]) for i, r in enumerate(rows)]
    labels = sorted(LABELS.values())
    return OnShots(label_reader(bench.policy(None), labels), labels, inputs)


def read(bench: Bench, rows: list[dict[str, Any]], prompt: str) -> float:
    """How often the frozen model with this prompt behind a text names its register."""
    known = reader(bench, rows)
    return float((known.gaps(known.shots, [prompt] * len(rows)) > 0).float().mean())


def by_rlprompt(seed: int) -> Measured:
    """The registered plan: 100 steps of 16 prompts of 5 tokens, each tried on all 32 texts."""
    shots, test = texts(seed)
    with Bench(seed) as bench:
        plan = f"rlprompt(steps={STEPS}, lr={LR}, n={N}, length={LENGTH}, shots={SHOTS})"
        file, others = bench.rows("texts", shots), bench.rows("others", test)
        run = bench.run("rlprompt", method=plan, task=f"{file}(test='{others}')")
        best = json.loads((run / "summary.json").read_text())["prompt"]
        right, bare, curve = read(bench, test, best), read(bench, test, ""), bench.curves["rlprompt"]["write"]["reward"]
        learned = (
            sum(curve[-10:]) / 10 - sum(curve[:3]) / 3
        )  # reward of what is written, at the end and before it learned
        found = {
            "right": right,
            "shots": read(bench, shots, best),
            "bare": bare,
            "gain": right - bare,
            "learned": learned,
        }
        spent = bench.tally.spent()
        return Measured(found, spent | {"samples": spent["writer/samples"]}, bench.curves)


def by_search(seed: int) -> Measured:
    """As many prompts, drawn from the writer as it begins and tried on the same texts; the one with the largest mean gap."""
    shots, test = texts(seed)
    with Bench(seed) as bench:
        writer = PromptWriter.of(bench.policy(None), 2048, seed)
        how = Sampling(max_tokens=LENGTH, top_k=256)
        (made,) = writer.sample([Prompt.text("writer", "")], STEPS * N, how, seed, 0)
        known = reader(bench, shots)
        worth = {z: float(known.gaps(known.shots, [z] * len(shots)).mean()) for z in {r.text for r in made}}
        best = max(sorted(worth), key=lambda z: worth[z])
        return Measured(
            {"right": read(bench, test, best), "shots": read(bench, shots, best)}, {"samples": float(len(made))}, {}
        )


claim(
    Claim(
        id="rlprompt",
        title="RLPrompt",
        paper="arXiv:2205.12548",
        family="policy-gradient",
        says="A small policy trained by soft Q-learning writes discrete prompts that make a frozen model classify far better than without, "
        "and better than the best of as many prompts that were only tried.",
        experiment="The embedded model, frozen, says of a short text whether it is curt or kind; 32 texts to learn from, about 200 others "
        "to test. The registered plan writes 16 prompts of 5 tokens in each of 100 steps and tries each on all 32 texts, for 100 steps in place "
        "of 12,000 and so at 20 times the rate; random search tries 1600 prompts of the untrained writer on the same texts. "
        "right: share of the other texts that are read right with the chosen prompt; bare: without any.",
        arms={"RLPrompt": by_rlprompt, "random search": by_search},
        checks=(
            Check("better than without a prompt", "gain", "RLPrompt", 0.0, margin=0.1),
            Check("better than random search", "right", "RLPrompt", "random search", margin=0.02),
            Check("learned, not only chosen", "learned", "RLPrompt", 0.0),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("samples"),),  # prompts that were tried, each on all texts
        tried="Attempt 1 trained a table for a random net. Of five pairs of labels that the embedded model might tell apart (animal or fruit, up or "
        "down, even or odd, good or bad, curt or kind), 60 random prompts had the widest range on curt or kind (0.44 to 0.85, 0.52 without a "
        "prompt), so that was taken. Seed 100, 20 steps with 4 texts of each label: 0.69 of 100 others read right, 0.60 without; rewards of what is "
        "written rose from 9 to 40 at the rate 1e-3. Margins and 100 steps were set before that was run. REINFORCE and rewards without z-scores "
        "are not compared.",
    ),
    __file__,
)
