"""How RLHF begins: imitate demonstrations, then train a reward model on preference pairs and centre its scores.

Phases that plans share (SALSA, DR-PO, summarize-hf). Who pays is either this reward model (`--plan.pairs FILE`) or what --reward names.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Phase
from posttrain.environments.base import size_of
from posttrain.evals.reward_model import margins, pair_accuracy
from posttrain.methods.reward_model import reward_model
from posttrain.methods.settings import asked_demonstrations, asked_pairs, asked_rewards, written
from posttrain.methods.sft import sft
from posttrain.models.heads import Critic
from posttrain.rewards.scorers.reward_model import RewardModel

ENDLESS = 500  # questions of a task that never ends
CENTRED_ON = 200  # reference answers that have the mean score 0

Env = Callable[[Context], Any]


def epochs_of(env: Env, epochs: float) -> Callable[[Context], int]:
    """How many steps make so many passes over the training rows."""
    return lambda context: max(1, round(epochs * (size_of(env(context), "train") or ENDLESS) / context.config.prompts))


def demonstrations(questions: int = 0, spec: str = "", option: str = "warmup") -> Env:
    """Questions with a written solution: of --task, or of the file `spec`; questions: how many, 0 for all (500 where they never end)."""

    def env(context: Context) -> Any:
        whole = asked_demonstrations(context, questions, spec, option)
        return (
            whole if questions or size_of(whole.env, "train") else asked_demonstrations(context, ENDLESS, spec, option)
        )

    return env


def imitation(epochs: float, env: Env, name: str = "sft", **more: Any) -> tuple[Phase, ...]:
    """SFT for so many passes over the demonstrations; none for 0."""
    return (Phase(name, sft, epochs_of(env, epochs), env, rewards=written, **more),) if epochs > 0 else ()


def reward_phase(pairs: str | Env, epochs: float = 1) -> tuple[Phase, ...]:
    """A reward model, from the policy as it is by then, on a file of pairs, or on those that a function of the context gives; none where
    no file is named."""

    def env(context: Context) -> Any:
        return asked_pairs(context, pairs) if isinstance(pairs, str) else pairs(context)

    def judged(context: Context) -> None:
        """Held-out accuracy; then scores are shifted and scaled to mean 0 and deviation 1 over preferred answers that people wrote."""
        model, known = RewardModel(context.role("reward_model")), env(context)
        policy = context.role("policy")
        answers = [policy.written(p, p.info["chosen"]) for p in _first(known, CENTRED_ON)]
        centred = model.centred(answers)
        found = pair_accuracy(margins(model, list(known.test))) if known.test else float("nan")
        context.notes |= {"reward_model_accuracy": found, "reward_model": {"mean": centred.mean, "std": centred.std}}

    made = Phase(
        "reward-model", reward_model, epochs_of(env, epochs), env, role="reward_model",
        make=lambda c: c.role("policy").clone().as_reward_model(), rewards=written, after=judged,
    )  # fmt: skip
    return (made,) if pairs else ()


def _first(env: Any, most: int) -> list[Any]:
    return [env.prompt(i, "train") for i in range(min(most, size_of(env, "train")))]


def learned(context: Context) -> RewardModel:
    """The reward model that the plan trained, centred."""
    note = context.notes["reward_model"]
    return RewardModel(context.role("reward_model"), note["mean"], note["std"])


def payer(pairs: str) -> Callable[[Context], Any]:
    """Who pays: the reward model of the pairs, else what --reward names."""
    return learned if pairs else asked_rewards


def has_reward(context: Context) -> bool:
    """Whether a reward was named or given."""
    return bool(context.config.reward) or not context.given.keys().isdisjoint({"scorer", "judge"})


def paid_somehow(context: Context, name: str, pairs: str) -> None:
    """A plan that is paid by a learned reward is refused where there is none, before anything is loaded."""
    if pairs and has_reward(context):
        raise UserError(f"{name} is paid by --plan.pairs or by --reward, not by both; leave one away")
    if pairs:
        asked_pairs(context, pairs)
    elif not has_reward(context):
        raise UserError(
            f"{name} is paid by a reward model: train it from preferences in the plan (--plan.pairs pairs.jsonl, with chosen and "
            "rejected), or name one (--reward runs/NAME, or a folder); --reward task pays the task's own grade"
        )


def paid_and_shown(name: str, pairs: str, worked: Env) -> Callable[[Context], None]:
    """What a plan of imitation and a learned reward needs before anything is loaded: somebody who pays, and demonstrations."""

    def ready(context: Context) -> None:
        paid_somehow(context, name, pairs)
        worked(context)

    return ready


def critic_of_reward_model(context: Context) -> Critic:
    """A critic that begins as the plan's reward model, in the units of the reward."""
    scorer = learned(context)
    model: Any = scorer.policy.clone().requires_grad_(True)
    head = copy.deepcopy(model.score)
    with torch.no_grad():
        head.out.weight.div_(scorer.std)
        head.out.bias.sub_(scorer.mean).div_(scorer.std)
    return Critic(model.model, head)
