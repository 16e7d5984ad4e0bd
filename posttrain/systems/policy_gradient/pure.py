"""PURE: process rewards in min form, so that a chain is worth its worst step, with leave-one-out credit."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.pure import pure as per_token
from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Do, Phase, Plan, plan
from posttrain.core.registry import shaping
from posttrain.core.types import Prompt
from posttrain.environments.language.listed import Listed
from posttrain.losses.aggregate import token_mean
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_rewards, asked_task
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rewards.scorers.fine_grained import FineGrained, models_of
from posttrain.rewards.scorers.process_model import ProcessModel
from posttrain.rollouts.step_labels import label_steps
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


def min_form_rl(temperature: float = 0.1, outcome: str = "", beta: float = 0.001) -> Method:
    """PPO's clip on min-form credit, with a light KL."""
    return grpo.but(
        name="pure", title="PURE", paper="arXiv:2504.15275", doc=__doc__,
        shaping=(min_form.but(temperature=temperature, outcome=outcome),), advantage=per_token.but(outcome=outcome),
        aggregate=token_mean, terms=(kl.but(coef=beta),),
    )  # fmt: skip


def step_model(steps: int, level: str) -> tuple[Do, Phase]:
    """Label the steps of the policy's answers by finishing them, and train a process reward model on them."""

    def label(context: Context) -> None:
        c, env = context.config, asked_task(context)
        asked = [env.prompt(i) for i in range(steps * c.prompts)]
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


def paid_by_model(context: Context, level: str) -> ProcessModel:
    """The task's reward as the outcome, the model's on every step."""
    return ProcessModel(asked_rewards(context), context.role("step_model"), level)


@plan(paper="arXiv:2504.15275", title="PURE")
def pure(
    steps: int = 60, rewards: str = "line:repetition + answer:task", temperature: float = 0.1, prm_steps: int = 0, level: str = "sentence"
) -> Plan:  # fmt: skip
    """PURE: RL on process rewards whose sum is replaced by their soft minimum, beside the checked answer.

    r*_i = r_i softmin_i(r / T);  A_t = sum_{s >= t} (r*_s - b) + (R - mean of others' R)
    rewards: "weight*level:rule + ...", as in fine-grained-rlhf; those of the level answer are R. prm_steps: first train a
    process reward model for so many steps, on steps (of this level) labelled by finishing them, and let it pay instead
    of the rules; R is then the task's reward.

    Departures: the paper's process reward model is a 7B model that learned from people's labels; it is not here and
    cannot be named. By default steps are lines and their reward is a repetition rule; with `prm_steps` a model of the
    policy's own size is trained on steps labelled by finishing them, and its scores are read at sentence ends.
    Without `prm_steps` the reward is the option `rewards` and `--reward` is ignored. The paper's best setting checks
    the answers of a tenth of its prompts; here all are checked. Temperature 0.1 and 8 answers per prompt are the
    paper's; the KL is 0.001 here.
    """
    if prm_steps:
        learn = Phase(
            "pure", min_form_rl(temperature, "outcome"), steps, asked_task, rewards=lambda c: paid_by_model(c, level)
        )
        return Plan((*step_model(prm_steps, level), learn))

    def scorer(context: Context) -> FineGrained:
        return FineGrained(models_of(rewards, asked_task(context)), context.role("policy").decode)

    whole = [piece.split("*")[-1].strip() for piece in rewards.split("+") if "answer:" in piece]
    outcome = whole[0].replace(":", "-") if len(whole) == 1 else ""
    return Plan((Phase("pure", min_form_rl(temperature, outcome), steps, asked_task, rewards=scorer),))
