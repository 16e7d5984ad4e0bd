"""Every registered method on a decoder of 20k parameters: three steps, and does what its parts say it does."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.config import to_dict
from posttrain.core.loop import Loop
from posttrain.core.method import Method, find_method
from posttrain.core.registry import Part, parts
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.runs.build import Pieces, build_loop
from posttrain.runs.run import Run
from posttrain.train import train
from posttrain.weights.reference import Frozen, fixed
from tests.runs import tiny_run

NAMES = [p.name for p in parts("method")]
NOBODYS = ("sft", "reinforce", "tis", "mis", "weighted-sft", "on-policy-distillation", "cdpo")


class Pairs(tiny_run.Count):
    """The letter six times, as three phrases, is preferred to another letter six times; two answers so far have labels."""

    def prompt(self, index: int, split: str = "train") -> Prompt:
        p = super().prompt(index, split)
        other = "abcd"[(index + 1) % 4]
        steps = [{"tokens": [3, 4], "worth": 1.0}, {"tokens": [4], "worth": 0.25}]
        told: dict[str, Any] = {
            "chosen": " i ".join([p.answer * 2] * 3),
            "rejected": " i ".join([other * 2] * 3),
            "steps": steps,
        }
        told["answers"] = [{"text": p.answer * 6, "reward": 1.0}, {"text": other * 6, "reward": 0.0}]
        told["ranked"] = [{"text": x, "score": 2.0 - i} for i, x in enumerate((p.answer * 6, p.answer * 3, other * 6))]
        told |= {"response": (p.answer if index % 2 else other) * 6, "label": bool(index % 2)}
        return Prompt(p.id, p.content, p.answer, {**p.info, **told})


def share(prompt: Prompt, text: str) -> float:
    return text.count(prompt.answer) / max(len(text), 1)


def vowels(prompt: Prompt, text: str) -> float:
    """Differs between almost any two answers, so that filters keep something."""
    return sum(c in "aeiou" for c in text) / max(len(text), 1)


def loop_of(method: Method, run: Run, reward: Any = share, **changes: Any) -> Loop:
    torch.manual_seed(0)
    policy = tiny_run.policy()
    if method.scores:
        policy = policy.as_reward_model()
    written = method.rollout.card.data  # answers that are there already, with what they are worth
    scorer = Prescored() if written else RewardSum([("test", reward, 1.0)], timeout=60)
    config = tiny_run.config(**({"steps": 3, "warmup": 0} | changes))
    return build_loop(config, method, policy, Pieces(Pairs(), scorer, run))


def series(run: Run, name: str) -> list[float]:
    return [value for _, value in run.store.series(name)]


def trained(method: Method, folder: Path, **changes: Any) -> tuple[Loop, list[float]]:
    with Run(folder, to_dict(tiny_run.config())) as run:
        loop = loop_of(method, run, **changes)
        train(loop)
        return loop, series(run, "loss")


class Tutor(Frozen):
    """Stands in for a teacher: the tiny model with other weights."""

    def start(self, policy: Any) -> None:
        super().start(policy)
        draw = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in self.policy.parameters():
                p.add_(0.1 * torch.randn(p.shape, generator=draw))


def odd(prompt: Any, text: str) -> float:
    return float(len(text) % 2)


def runnable(name: str) -> Method:
    """A method with what it refuses to run without: thoughts to measure the progress of, a teacher."""
    m = find_method(name)
    if m.reference.name == "teacher":
        return m.but(reference=Part(Tutor, fixed.card))
    if name == "mrt":  # the tiny model writes no thoughts
        return m.but(rollout=m.rollout.but(continued=False, probe=lambda policy, r: [0.1] * len(r)))
    return m


@pytest.mark.parametrize("name", NAMES)
def test_three_steps(name: str, tmp_path: Path) -> None:
    """The loss is a number at every step, no update was skipped, and the weights of the policy moved."""
    before = tiny_run.policy().state_dict()
    longer = Sampling(max_tokens=32)  # so that some answers end by themselves: the others are masked by DAPO
    pays = odd if name == "oreal" else vowels  # OREAL refuses a step that has right answers only, or wrong ones
    loop, losses = trained(runnable(name), tmp_path / "run", reward=pays, sampling=longer)
    assert len(losses) == 3 and all(math.isfinite(x) for x in losses)
    assert loop.learner.skipped == 0
    after = loop.learner.policy.state_dict()
    moved = [k for k, x in before.items() if not torch.equal(x, after[k])]
    assert len(moved) >= len(before) - 1  # a reward model does not use the head over the vocabulary


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_named_and_told(name: str) -> None:
    m = find_method(name)
    assert m.name == name and m.title and m.doc.strip()
    assert m.paper.startswith("arXiv:") or name in NOBODYS  # no preprint, or nobody's


# what sets a method apart from GRPO; a change here is a change of the method
DIFFERENCES = {
    "grpo": set(),
    "dr-grpo": {"advantage", "aggregate", "terms"},
    "dapo": {"rollout", "shaping", "loss", "aggregate", "select", "terms", "minibatches"},
    "gspo": {"loss", "terms", "minibatches"},
    "cispo": {"rollout", "shaping", "loss", "aggregate", "select", "terms", "minibatches"},
    "dual-clip": {"loss", "minibatches"},
    "reinforce": {"advantage", "loss", "aggregate", "terms"},
    "rloo": {"advantage", "loss", "aggregate", "shaping", "terms"},
    "reinforce-pp": {"advantage", "aggregate", "shaping", "terms"},
    "ppo": {"advantage", "aggregate", "shaping", "terms", "epochs", "minibatches"},
    "raft": {"advantage", "loss", "aggregate", "select", "terms", "epochs", "minibatches"},
    "online-dpo": {"advantage", "loss", "aggregate", "select", "terms"},
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_difference_to_grpo(name: str) -> None:
    base, other = find_method("grpo").describe(), find_method(name).describe()
    assert {k for k in base if base[k] != other[k]} - {"name"} == DIFFERENCES[name]


def test_clips_need_a_second_update() -> None:
    """On the first update of a step the ratio is 1 everywhere, so a clip without a second update is no method at all."""
    for name in ("dapo", "gspo", "cispo", "dual-clip", "ppo"):
        m = find_method(name)
        assert m.epochs * m.minibatches > 1, name


@pytest.mark.parametrize("name", ["sft", "raft", "grpo", "rloo"])
def test_learns(name: str, tmp_path: Path) -> None:
    """A random decoder writes the asked letter 1 time in 37; twenty-five steps make it at least twice as likely."""
    m = find_method(name)
    with Run(tmp_path / "run", to_dict(tiny_run.config())) as run:
        loop = loop_of(m, run, steps=25, prompts=8, lr=5e-3)
        prompts = [Pairs().prompt(i, "test") for i in range(4)]
        before = mean_share(loop.learner.policy, prompts)
        train(loop)
        assert mean_share(loop.learner.policy, prompts) > 2 * before


def mean_share(policy: Any, prompts: list[Prompt]) -> float:
    made = policy.sample(prompts, 32, tiny_run.config().sampling, seed=99)
    return sum(share(r.prompt, r.text) for rs in made for r in rs) / (32 * len(prompts))


@pytest.mark.parametrize("name", ["dpo", "ipo", "hinge", "robust-dpo"])
def test_preference_methods_prefer(name: str, tmp_path: Path) -> None:
    """After twenty steps the policy's log-ratio to where it began is larger for the chosen answer, for every prompt."""
    loop, _ = trained(find_method(name), tmp_path / "run", steps=20, prompts=8)
    policy, before = loop.learner.policy, tiny_run.policy()
    for i in range(4):
        p = Pairs().prompt(i, "test")
        both = [policy.written(p, p.info["chosen"]), policy.written(p, p.info["rejected"])]
        gain = [
            (policy.forward([r])["logp_BT"] - before.forward([r])["logp_BT"]).sum().item() for r in both
        ]  # fmt: skip
        assert gain[0] > gain[1]


def test_a_reward_model_prefers(tmp_path: Path) -> None:
    """Scores begin equal (a head of zeros); after thirty steps the chosen one is higher for every prompt."""
    loop, losses = trained(find_method("reward-model"), tmp_path / "run", steps=30, prompts=8)
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6)  # -log sigmoid(0)
    policy = loop.learner.policy
    for i in range(4):
        p = Pairs().prompt(i, "test")
        both = [policy.written(p, p.info["chosen"]), policy.written(p, p.info["rejected"])]
        s_chosen, s_rejected = policy.forward(both, ("score_B",))["score_B"].tolist()
        assert s_chosen > s_rejected


def test_ppo_trains_its_critic(tmp_path: Path) -> None:
    loop, _ = trained(find_method("ppo"), tmp_path / "run")
    assert loop.learner.policy.critic is not None
    assert loop.learner.policy.critic.head.out.weight.abs().sum() > 0  # it began at zero
