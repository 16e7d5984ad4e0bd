"""RAFT: imitating the best of K of one's own answers, as a reward model ranks them, raises the reward and what it stands for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from claims.machinery.arms import Bench, Further, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.courtesy import ASKED, HOW, comparisons, gold, passes
from posttrain.core.method import Method, find_method
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.evals.accuracy import answers, held_out
from posttrain.rewards.scorers.spec import build_scorer
from posttrain.rollouts.sample import sample

PAIRS, NOISE, ROUNDS, PROMPTS = 400, 0.1, 4, 48
NOBODY = "import zlib\n\n\ndef noise(prompt, text):\n    return zlib.crc32(text.encode()) / 2**32\n"


def judged(model: Path) -> Further:
    """The hidden taste, and what the reward model says, of held-out answers."""

    def further(policy: Policy, env: Environment) -> dict[str, float]:
        groups = answers(policy, env, held_out(env, 100, "test"), Sampling(**HOW))
        build_scorer(str(model), env).score(groups)
        return gold(policy, env) | {"proxy": sum(r.total for g in groups for r in g.rollouts) / len(groups)}

    return further


def trained(seed: int, method: str | Method = "raft", ranked: bool = True) -> Measured:
    """4 rounds of 8 answers to 48 requests, the best imitated in 4 passes of 4 updates; ranked=False: which of the 8 is imitated is drawn, by a reward that is noise."""
    with Bench(seed) as bench:
        pairs = comparisons(bench, PAIRS, NOISE)
        model = bench.once("rm", method="reward-model", task=pairs, **passes(pairs, 3, 16))
        noise = bench.folder / f"noise_of_{bench.folder.name.replace('-', '_')}.py"  # another module for each arm
        noise.write_text(NOBODY)
        how: dict[str, Any] = ASKED | {"prompts": PROMPTS, "steps": ROUNDS}
        run = bench.run("run", method=method, reward=str(model) if ranked else f"{noise}:noise", **how)
        return bench.measured(run, "instructions", 200, judged(model), level=1, think=False, sampling=HOW)


def rounds(seed: int, count: int) -> Measured:
    """The best of 32 / count in each of so many rounds, 16 / count passes: as many answers to 48 requests a round, as many updates."""
    with Bench(seed) as bench:
        pairs = comparisons(bench, PAIRS, NOISE)
        model = bench.once("rm", method="reward-model", task=pairs, **passes(pairs, 3, 16))
        method = find_method("raft").but(rollout=sample.but(n=32 // count), epochs=16 // count)
        run = bench.run("run", method=method, reward=str(model), **ASKED | {"prompts": PROMPTS, "steps": count})
        return bench.measured(run, "instructions", 200, judged(model), level=1, think=False, sampling=HOW)


def ppo(seed: int) -> Measured:
    """The registered PPO, in as many updates as RAFT's 4 passes in 4 parts."""
    return trained(seed, find_method("ppo").but(epochs=4, minibatches=4))


claim(
    Claim(
        id="raft",
        title="RAFT",
        paper="arXiv:2304.06767",
        family="supervised-from-reward",
        says="Ranking K own answers by a reward model and fine-tuning on the best, round after round, raises the reward and the quality it stands "
        "for, and does so as well as PPO.",
        experiment="The embedded model answers small requests. A reward model is trained on 400 comparisons of its own answers by a hidden taste, a "
        "tenth of the labels flipped. Then 4 rounds of 8 answers to 48 requests by the registered method (the best of 8, 4 passes in 4 updates), the "
        "same with one of the 8 drawn in place of the best, one round of the best of 32 in 16 passes, and the registered PPO, all with as many answers and updates. length: tokens of an answer, which the paper saw grow. proxy: the reward "
        "model's score, gold: the hidden taste, of answers to held-out requests.",
        arms={
            "RAFT": trained,
            "a drawn answer": partial(trained, ranked=False),
            "one round of 32": partial(rounds, count=1),
            "PPO": ppo,
        },
        checks=(
            Check("more reward than a drawn answer", "proxy", "RAFT", "a drawn answer", margin=0.2),
            Check("and worth more", "gold", "RAFT", "a drawn answer", margin=0.2),
            Check("rounds earn more than one large one", "proxy", "RAFT", "one round of 32"),
            Check("worth no less than PPO's", "gold", "RAFT", "PPO", margin=-0.1),
        ),
        seeds=tuple(range(210, 220)),
        level="pocket",
        shares=(
            Shared("prompts", within=0.05, arms=("RAFT", "a drawn answer", "PPO")),
            Shared("samples"),
            Shared("updates"),
        ),
        tried="Attempts before this one trained lookup tables. On word problems, seed 100, with a reward model of 480 right and wrong answers and 10 rounds of "
        "8 questions, which is 160 updates of 2 answers: RAFT 0.24, a drawn answer 0.22, the best of 2 0.49, PPO 0.20, the start 0.47. The reward "
        "model knew little of what is right, and rounds so small forget; hence a task of taste, and few large rounds as in the paper. One round of 8 requests with a reward "
        "model of 40 comparisons, seed 100: gold 0.35 (RAFT), -0.73 (a drawn answer), -0.28 (PPO), the start -0.37; the sizes above were not tried. Attempt 2 was shown with these checks but "
        "for the one of rounds, which came with attempt 3 and its seeds; on seed 100 four rounds of 8 had proxy 0.75, gold 1.12 and 27 tokens an answer; the arm of one round of 32 was not tried to its end.",
    ),
    __file__,
)
