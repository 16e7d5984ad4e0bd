"""RLHF, generalisation and diversity: PPO carries over to other questions better than SFT, and its answers to one question are more alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.people import written_comparisons
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.environments.school import school
from posttrain.evals.accuracy import accuracy, held_out
from posttrain.evals.diversity import per_input

TASK, NEAR, FAR, CARE = "word_problems", 2, 6, 0.5
HOW: dict[str, Any] = {"max_tokens": 64}
COMPARED, PROMPTS, ANSWERS, STEPS, PROBLEMS, LOOKED, EACH = 2400, 16, 4, 15, 400, 40, 8
UPDATES = 8  # of PPO per step


def pairs(bench: Bench, level: int, count: int) -> list[dict[str, Any]]:
    return written_comparisons(TASK, level, bench.seed, count, CARE)


def looked_at(policy: Policy, env: Environment) -> dict[str, float]:
    """Accuracy on longer stories with larger numbers; how different 8 answers to one question are, near and far."""
    far = school(TASK, FAR)
    found = {"far": accuracy(policy, far, PROBLEMS, Sampling(**HOW), 1).accuracy}
    for name, where in (("diversity", env), ("diversity_far", far)):
        made = policy.sample(held_out(where, LOOKED, "test"), EACH, Sampling(**HOW), 1, -1)
        found[name] = per_input([[r.text.split() for r in some] for some in made], 50257, (1, 2, 3, 4, 5))
    return found


def measured(bench: Bench, run: Path) -> Measured:
    made = bench.measured(run, TASK, PROBLEMS, looked_at, level=NEAR, think=True, sampling=HOW)
    made["fall"] = made["accuracy"] - made["far"]
    return made


def by_rlhf(seed: int) -> Measured:
    """The registered plan: SFT on the preferred answers, a reward model, PPO."""
    with Bench(seed) as bench:
        near, far = bench.rows("near", pairs(bench, NEAR, COMPARED)), bench.rows("far", pairs(bench, FAR, 60))
        plan = f"rlhf-generalisation-diversity(ood={far!r}, steps={STEPS})"
        run = bench.run("plan", method=plan, task=near, prompts=PROMPTS, num_generations=ANSWERS, sampling=HOW)
        return measured(bench, run)


def by_sft(seed: int, more: int = UPDATES * STEPS) -> Measured:
    """The preferred answers imitated, for as many updates."""
    with Bench(seed) as bench:
        rows = [{"prompt": x["prompt"], "completion": x["chosen"]} for x in pairs(bench, NEAR, COMPARED)]
        steps = round(0.9 * len(rows) / PROMPTS) + more
        return measured(
            bench, bench.run("sft", method="sft", task=bench.rows("chosen", rows), steps=steps, prompts=PROMPTS)
        )


claim(
    Claim(
        id="rlhf-generalisation-diversity",
        title="RLHF effects: generalisation and diversity",
        paper="arXiv:2310.06452",
        family="study-benchmark-survey",
        says="RLHF generalises better than SFT, the more so the larger the shift from training to test; but it cuts the "
        "diversity of answers to one prompt.",
        experiment="The embedded model; some 1,200 pairs of answers to short word problems, the right one preferred nine times in ten. The registered "
        "plan (SFT on the preferred answers, a reward model, 15 steps of PPO on 64 answers with the authors' KL price and frozen layers) and SFT for "
        "as many updates. Accuracy, which no arm sees, on 400 held-out problems like those of training and on 400 longer ones with larger numbers "
        "(far); expectation-adjusted distinct n-grams of 8 answers to each of 40 questions.",
        arms={"RLHF": by_rlhf, "SFT": by_sft},
        checks=(
            Check("better than SFT like training", "accuracy", "RLHF", "SFT"),
            Check("better than SFT far from it", "far", "RLHF", "SFT"),
            Check("answers to one question are more alike", "diversity", "RLHF", "SFT", lower=True),
        ),
        seeds=tuple(range(200, 208)),
        level="pocket",
        shares=(Shared("updates", within=0.02), Shared("prompts", within=0.02)),
        tried="Attempt 1 trained lookup tables. On the embedded model, seed 100, with 600 pairs of which a quarter preferred the wrong answer and 66 updates of the "
        "reward model at 8 pairs: RLHF 0.69 near and 0.26 far, SFT 0.76 and 0.27: the reward model was bad. As it stands now, seed 100 and 200 problems: RLHF 0.98 near, 0.55 far, "
        "diversity 0.142; SFT 0.95, 0.65, 0.171. So the second check is not expected to hold; it is what the paper says, and stays. The paper's best of 16, which the plan measures too, is not checked.",
    ),
    __file__,
)
