"""PURE: process rewards in min form, so that a chain is worth its worst step, with leave-one-out credit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posttrain.advantages.pure import pure as per_token
from posttrain.core import rng
from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last, spans_to_tokens, split_steps, token_ends
from posttrain.core.errors import UserError, unknown
from posttrain.core.method import Method
from posttrain.core.plan import Context, Do, Phase, Plan, plan
from posttrain.core.protocols import Scorer
from posttrain.core.registry import scorer, shaping
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.language.listed import Listed
from posttrain.losses.aggregate import token_mean
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_rewards, asked_task
from posttrain.prompts.uniform import distinct
from posttrain.rewards.runtime.scorer import NAN, BaseScorer, Prescored, Verdict, answers_of
from posttrain.rewards.runtime.timeout_pool import caught
from posttrain.rewards.scorers.process_model import ProcessModel
from posttrain.rewards.scorers.spec import function_of
from posttrain.rollouts.step_labels import label_steps
from posttrain.runs.critics import read_reward_model, same_tokens
from posttrain.systems.reward_model.process_reward_model import process_reward_model


@shaping(title="Min-form credit (PURE)", paper="arXiv:2504.15275", system="pure", reads=("reward_BT",))
def min_form(batch: Batch, temperature: float = 0.1, outcome: str = "") -> Tensor:
    """Min-form credit (PURE): a chain is worth its worst step, so that steps of filler add nothing.

    r*_i = r_i exp(-r_i / T) / sum_j exp(-r_j / T), over the answer's steps;  sum_i r*_i -> min_i r_i as T -> 0
    Steps are the tokens that earned something (not 0). outcome names a component of the reward that is no step, the check
    of the final answer, say: it stays as it is, on the last token.
    """
    if temperature <= 0:
        raise UserError(f"temperature is {temperature}; it is more than 0, and the smaller, the nearer to the minimum")
    reward_BT = batch["reward_BT"]
    apart_BT = torch.zeros_like(reward_BT)
    if outcome:
        apart_BT = torch.where(batch.valid_B.unsqueeze(-1), on_last(component(batch, outcome), batch), 0.0)
    step_BT = reward_BT - apart_BT
    earned_BT = step_BT.abs() > 1e-7
    weight_BT = torch.softmax(torch.where(earned_BT, -step_BT / temperature, -1e30), -1)
    return torch.where(earned_BT, weight_BT * step_BT, 0.0) + apart_BT


FORMS = ("min", "sum")


def min_form_rl(temperature: float = 0.1, outcome: str = "", beta: float = 0.001, form: str = "min") -> Method:
    """PPO's clip on min-form credit, with a light KL; form="sum" leaves the steps' rewards as they are."""
    if form not in FORMS:
        raise unknown("form of credit", form, FORMS)
    softly = (min_form.but(temperature=temperature, outcome=outcome),) if form == "min" else ()
    return grpo.but(
        name="pure", title="PURE", paper="arXiv:2504.15275", doc=__doc__,
        shaping=softly, advantage=per_token.but(outcome=outcome),
        aggregate=token_mean, terms=(kl.but(coef=beta),),
    )  # fmt: skip


# ---- what steps are worth

StepJudge = Callable[[Prompt, list[str]], float]  # the question, and all steps up to the one that is judged


@scorer(title="Steps by a function", paper="arXiv:2504.15275")
class StepFunction(BaseScorer):
    """Steps by a function: judge(prompt, steps) says what the last of these steps is worth, having seen all before it.

    Each step's reward is on the token that ends it. The outcome is `scorer`'s, also as the component `outcome`. An answer
    whose judge fails is masked and counted.
    """

    reported = ("outcome",)  # with why a judge failed

    def __init__(
        self, scorer: Scorer, judge: StepJudge, decode: Callable[[Tensor], str], level: str = "sentence"
    ) -> None:
        self.inner, self.judge, self.decode, self.level = scorer, judge, decode, level

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        return [self.one(r) for r in answers_of(groups)]

    def one(self, r: Rollout) -> Verdict:
        """One answer, step by step."""
        spans = split_steps(r.text, self.level)
        steps = [r.text[a:b] for a, b in spans]
        try:
            worths = [float(self.judge(r.prompt, steps[: k + 1])) for k in range(len(steps))]
        except Exception as error:  # a failed reward is data
            return Verdict(NAN, {"outcome": caught(error)})
        ends = token_ends(self.decode, r.actions, r.turns[-1].observation.lead)
        reward_T = spans_to_tokens(spans, worths, ends, r.mask_T)
        return Verdict(None, {"outcome": NAN if r.reward is None else r.reward}, reward_T)


def step_model(steps: int, level: str) -> tuple[Do, Phase]:
    """Label the steps of the policy's answers by finishing them, and train a process reward model on them."""

    def label(context: Context) -> None:
        c, env = context.config, asked_task(context)
        asked = distinct(env, range(steps * c.prompts))
        found = label_steps(context.role("policy"), asked, asked_rewards(context), c.sampling, level=level, seed=c.seed)
        context.run.write_artifact(
            "steps", [{"id": p.id, "prompt": p.content, "steps": p.info["steps"]} for p in found]
        )
        context.notes["labelled_steps"] = sum(len(p.info["steps"]) for p in found)

    def labelled(context: Context) -> Listed:
        rows = context.run.read_artifact("steps")
        return Listed("steps", tuple(Prompt(r["id"], tuple(r["prompt"]), None, {"steps": r["steps"]}) for r in rows))

    learn = Phase(
        "step-model", process_reward_model, steps, labelled, role="step_model", rewards=lambda c: Prescored(),
        make=lambda c: c.role("policy").as_reward_model(),
    )  # fmt: skip
    return Do("label-steps", label), learn


class Checked(BaseScorer):
    """Some answers checked: a share of the prompts has a checked answer; to all answers of the others the outcome is 0, which
    is no credit, as in a group that is all wrong.

    Which prompts those are is drawn from their identities, so that it stays the same when they come again.
    """

    def __init__(self, scorer: Scorer, share: float = 0.1) -> None:
        if not 0 <= share <= 1:
            raise UserError(f"checked is {share}; it is the share of prompts whose answers are checked, 0 to 1")
        self.inner, self.share = scorer, share

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        return [Verdict(None if self.known(r.prompt) else 0.0) for r in answers_of(groups)]

    def known(self, prompt: Prompt) -> bool:
        """Whether the answers to this prompt are checked."""
        return rng.python("checked", prompt.id.partition("#")[0]).random() < self.share


def paid_by(prm: str, level: str, checked: float) -> Callable[[Context], Scorer]:
    """The task's reward as the outcome, and on every step what the process reward model says."""

    def scorer(context: Context) -> Scorer:
        outcome = Checked(asked_rewards(context), checked)
        if prm == "train":
            return ProcessModel(outcome, context.role("step_model"), level)
        file, _, name = prm.rpartition(":")
        if file.endswith(".py"):
            judge = function_of(file, name, context.config.reward_timeout)
            return StepFunction(outcome, judge, context.role("policy").decode, level)
        model = read_reward_model(prm, context.config, "--plan.prm", steps=True)
        same_tokens(model, context.role("policy"), f"--plan.prm {prm}")
        return ProcessModel(outcome, model, level)

    return scorer


NO_PRM = (
    "pure pays each step by a process reward model, and none is named; give it with --plan.prm: a folder or run "
    "(posttrain run process-reward-model), mine.py:function of (prompt, steps), or train, to learn one from steps that are "
    "labelled by finishing them"
)


@plan(paper="arXiv:2504.15275", title="PURE")
def pure(
    steps: int = 60, prm: str = "", temperature: float = 0.1, prm_steps: int = 20, level: str = "line",
    checked: float = 0.1, form: str = "min",
) -> Plan:  # fmt: skip
    """PURE: RL on process rewards whose sum is replaced by their soft minimum, beside the checked answer.

    r*_i = r_i softmin_i(r / T);  A_t = sum_{s >= t} (r*_s - b) + (R - mean of others' R);  R: the task's grade or --reward
    prm: who says what steps (of this level) are worth: a run of process-reward-model, or a folder of a classifier, of sequences with one
    label, s, or of tokens with two (wrong, right: the authors' own and most that are published), s = logit_1 - logit_0. It reads the question
    and all of the answer up to the last token of a step, r = 2 sigma(s) - 1, which of two labels is p_right - p_wrong; mine.py:function of (prompt, steps), which judges the
    last of the steps; or "train": a model of the policy's size learns it in `prm_steps` steps from the policy's own answers,
    whose steps are labelled by finishing each 4 times. checked: the share of prompts whose answers are checked; R is 0 for the
    others (0: process rewards alone, the paper's PURE-PRM; 0.1: its best, PURE-PRM+VR). form="sum": credit is the plain sum
    of the process rewards, what the paper argues against.

    Departures: the paper's process reward model is a 7B model that learned from people's labels (PRM800K); it must be given,
    with the policy's own tokens, or a small one is trained, which the paper does not do. Steps end with a line, the authors'
    with two (\\n\\n). They sample
    4 answers at temperature 0.5 and whiten the credit, here 8 at 1, not whitened. Temperature 0.1 of the minimum, one pass, clip
    0.2 and KL 0.001 are theirs; their KL is a part of the reward, here of the loss.
    """
    learn = Phase(
        "pure", min_form_rl(temperature, "outcome", form=form), steps, asked_task, rewards=paid_by(prm, level, checked)
    )
    parts = (*step_model(prm_steps, level), learn) if prm == "train" else (learn,)
    return Plan(parts, missing="" if prm else NO_PRM)
