"""Steps labelled by finishing them, and the process reward model that learns from them and pays."""

from __future__ import annotations

import json

import pytest
import torch

import posttrain as pt
from posttrain.api import run_plan
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Observation
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.policies.load import load_model
from posttrain.rewards.scorers.process_model import ProcessModel
from posttrain.rollouts.step_labels import label_steps, labelled, step_ends, step_labels
from posttrain.runs.in_memory import FunctionScorer, Listed, fit, row
from posttrain.systems.policy_gradient.pure import pure
from posttrain.systems.reward_model.process_reward_model import process_reward_model
from tests.runs import tiny_run


class Spelled:
    """Answers of given letters, one token each; from any place the rest is "c." in three of four continuations."""

    training, stop_ids = False, (0,)

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def decode(self, tokens: torch.Tensor) -> str:
        return "".join(map(chr, tokens.tolist()))

    def encode(self, prompt: Prompt) -> torch.Tensor:
        return torch.tensor([1])

    def observe(self, prompt: Prompt) -> Observation:
        return Observation(self.encode(prompt))

    def sample(self, prompts, n, how, seed=0, step=0):
        return [[self._rollout(p, t, i) for i, t in enumerate(self.texts)] for p in prompts]

    def _rollout(self, p: Prompt, text: str, index: int) -> Rollout:
        T = len(text)
        ids = torch.tensor([ord(c) for c in text])
        return Rollout.single(
            p, self.encode(p), ids, torch.zeros(T), torch.ones(T, dtype=torch.bool), text, index=index
        )


def continued(monkeypatch: pytest.MonkeyPatch, policy: Spelled, tails: list[str]) -> None:
    """Continuations that are known: each stem goes on with the tails in turn."""

    def resume(_, stems, keys, how, step, more=None):
        return [
            [policy._rollout(s.prompt, s.text + tails[j % len(tails)], j) for j in range(len(k))]
            for s, k in zip(stems, keys, strict=True)
        ]

    monkeypatch.setattr("posttrain.rollouts.step_labels.resume", resume)


@pytest.mark.derived("rollout/step-labels")
def test_steps_are_worth_what_their_continuations_earn(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Spelled("a. b. c", "a. x")
    continued(monkeypatch, policy, ["c", "c", "c", "x"])
    right = FunctionScorer(lambda rollouts: torch.tensor([float(r.text.endswith("c")) for r in rollouts]))
    (p,) = label_steps(policy, [row(0)], right, Sampling(16), (2, 4))
    told = [("".join(map(chr, s["tokens"])), s["worth"]) for s in p.info["steps"]]
    # inner ends first, three of four continuations right; then whole answers with their own reward
    assert told == [("a. ", 0.75), ("a. b. ", 0.75), ("a. ", 0.75), ("a. b. c", 1.0), ("a. x", 0.0)]
    (group,) = step_labels(RolloutRequest({"policy": policy}, [p], Sampling(), 0, 0))
    assert [r.reward for r in group.rollouts] == [0.75, 0.75, 0.75, 1.0, 0.0]
    assert step_ends(policy, policy._rollout(p, "a. b. c", 0), "answer") == [7]


def test_a_prompt_without_labels_is_a_sentence() -> None:
    with pytest.raises(UserError, match="no labelled steps"):
        step_labels(RolloutRequest({"policy": Spelled("a")}, [row(0)], Sampling(), 0, 0))


def test_the_model_learns_worths_and_pays_each_step() -> None:
    """Half of the prefixes are always right, half never: a model that has learned pays near +1 and -1 at their ends."""
    policy = load_model("pocket")
    good, bad = ("2+3=5.", 1.0), ("2+3=9.", 0.0)
    prompts = []
    for i in range(8):
        q = Prompt.text(str(i), "What is 2+3?")
        steps = [{"tokens": policy.written(q, t).actions.tolist(), "worth": w} for t, w in (good, bad)]
        prompts.append(Prompt.text(str(i), "What is 2+3?", steps=steps))
    model = policy.as_reward_model()
    rows = fit(model, process_reward_model, Listed(prompts), Config(steps=30, prompts=4, lr=1e-3, warmup=0))
    assert rows[0]["loss"] == pytest.approx(0.6931, abs=1e-3) and rows[-1]["loss"] < 0.1
    made = [policy.written(prompts[0], t) for t, _ in (good, bad)]
    outcome = FunctionScorer(lambda rollouts: torch.tensor([1.0, 0.0]))
    ProcessModel(outcome, model).score([Group(prompts[0], made)])
    for r, sign in zip(made, (1, -1), strict=True):
        paid = r.stream("reward")[r.stream("reward") != 0]
        assert len(paid) == 1 and sign * float(paid) > 0.5
        assert r.rewards["outcome"] == r.reward


def test_pure_with_a_model_of_its_own(tmp_path) -> None:
    plan = pure(prm="train", steps=1, prm_steps=1, level="sentence")
    config = Config(task="word_problems", prompts=2, num_generations=2, name="p", sampling=Sampling(24))
    summary = run_plan(plan, config, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "p/artifacts/steps.jsonl").read_text().splitlines()]
    assert summary["labelled_steps"] == sum(len(r["steps"]) for r in rows) > 0
    assert all(0 <= s["worth"] <= 1 for r in rows for s in r["steps"])


def test_rows_with_completions_and_labels_are_steps() -> None:
    policy = tiny_run.policy()
    p = Prompt.text("p", "write", completions=["ab", "c"], labels=[True, 0])
    (group,) = step_labels(RolloutRequest({"policy": policy}, [p]))
    assert [(policy.decode(r.actions), r.reward) for r in group.rollouts] == [("ab", 1.0), ("ab\nc", 0.0)]
    assert int(group.rollouts[0].actions[-1]) != policy.tokenizer.eos_token_id  # the answer goes on
    with pytest.raises(UserError, match="2 completions and 1 labels"):
        labelled(Prompt.text("p", "?", completions=["a", "b"], labels=[1]))


def test_a_task_without_steps_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(UserError, match="process-reward-model learns from answers whose steps are labelled"):
        pt.run(method="process-reward-model", model="/no/such/model", task=[{"question": "1+1=?", "answer": "2"}] * 4)
