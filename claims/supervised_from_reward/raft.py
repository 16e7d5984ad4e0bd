"""RAFT: imitating the best of K of one's own answers, as a reward model ranks them, raises the reward, the more the larger K."""

from __future__ import annotations

from functools import partial

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.compared import ASKED, HOW, TASK, comparisons, proxy, reward_model
from posttrain.core.method import Method, find_method

PAIRS, STEPS, PROMPTS, PROBLEMS = 480, 10, 8, 400
RAFT = "raft"


def trained(seed: int, method: str | Method, ranked: bool = True) -> Measured:
    """10 rounds of 8 questions; ranked=False: the one of the 8 that is imitated is drawn, by a reward that is noise."""
    with Bench(seed) as bench:
        model = reward_model(bench, comparisons(bench, PAIRS))
        noise = bench.folder / f"noise_of_{bench.folder.name.replace('-', '_')}.py"  # another module for each arm
        noise.write_text("import zlib\n\ndef noise(prompt, text):\n    return zlib.crc32(text.encode()) / 2**32\n")
        reward = str(model) if ranked else f"{noise}:noise"
        run = bench.run("run", method=method, reward=reward, steps=STEPS, prompts=PROMPTS, **ASKED)
        return bench.measured(run, TASK, PROBLEMS, proxy(model), think=True, sampling=HOW)


def ppo(seed: int) -> Measured:
    """The registered PPO, in as many updates as RAFT's 4 passes in 4 parts."""
    return trained(seed, find_method("ppo").but(epochs=4, minibatches=4))


claim(
    Claim(
        id="raft",
        title="RAFT",
        paper="arXiv:2304.06767",
        family="supervised-from-reward",
        says="Ranking K own answers by a reward model and fine-tuning on the best, round after round, raises the reward and the true quality; "
        "more the larger K, and as far as PPO does.",
        experiment="The embedded model on word problems. A reward model is trained on 480 comparisons of the start's own answers, right over "
        "wrong; then 10 rounds of 8 questions by the registered method (best of 8, 4 passes in 4 updates), the same with one of the 8 drawn "
        "instead of the best, the best of 2, and the registered PPO with as many answers and updates. proxy: the reward model's score of "
        "held-out answers; accuracy, which nobody is paid for, on 400 held-out problems.",
        arms={
            "RAFT": partial(trained, method=RAFT),
            "a drawn answer": partial(trained, method=RAFT, ranked=False),
            "best of 2": partial(trained, method=find_method(RAFT).but(rollout="sample(n=2)")),
            "PPO": ppo,
        },
        checks=(
            Check("better than a drawn answer", "accuracy", "RAFT", "a drawn answer", margin=0.05),
            Check("more reward than a drawn answer", "proxy", "RAFT", "a drawn answer", margin=0.0),
            Check("more reward with larger K", "proxy", "RAFT", "best of 2", margin=0.0),
            Check("accuracy not below PPO's", "accuracy", "RAFT", "PPO", margin=-0.05),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(
            Shared("prompts"),
            Shared("updates"),
            Shared("samples", arms=("RAFT", "a drawn answer", "PPO")),
        ),
        tried="Attempts before this one trained lookup tables.",
    ),
    __file__,
)
