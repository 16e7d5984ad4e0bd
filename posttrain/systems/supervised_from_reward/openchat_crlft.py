"""OpenChat's C-RLFT: imitate answers of mixed quality, each told its class; whoever asks later asks for the best class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens
from posttrain.core.batch import Batch
from posttrain.core.conditioning import Classes
from posttrain.core.errors import UserError, unknown
from posttrain.core.method import Method
from posttrain.core.plan import Context, Do, Phase, Plan, plan
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import advantage, rollout
from posttrain.core.types import Group, Prompt
from posttrain.environments.base import size_of
from posttrain.environments.mapped import each
from posttrain.losses.policy.reinforce import reinforce
from posttrain.methods.conditioned import keep_conditioning, refuse_conditioned
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.settings import asked_task, written
from posttrain.methods.sft import sft
from posttrain.rollouts.written import demonstrations

PAPER = "arXiv:2309.11235"
PER = ("token", "answer")

# ---- which class a row is of


def classes_of(env: Any, column: str, expert: str) -> Classes:
    """The classes of the training rows, the best first."""
    size = size_of(env, "train")
    found = {class_of(env.prompt(i), column) for i in range(size)} if size else set()
    if not found:
        raise UserError(
            f"openchat-crlft learns from rows that say their class, and {env.name} has none; give a file: --task rows.jsonl"
        )
    if expert not in found:
        there = ", ".join(sorted(found)[:8])
        raise UserError(
            f"no row of {env.name} has the class {expert!r} in {column!r}; its classes are {there}: say which is the best, --plan.expert NAME"
        )
    if len(found) == 1:
        raise UserError(
            f"every row of {env.name} is of the class {expert!r}; with one class this is plain imitation: run sft"
        )
    return Classes((expert, *sorted(found - {expert})))


def class_of(prompt: Prompt, column: str) -> str:
    name = prompt.info.get(column)
    if not isinstance(name, (str, int)) or not str(name).strip():
        raise UserError(
            f"the row {prompt.id} has no class in the column {column!r}; name the column that says who wrote an answer: --plan.column NAME"
        )
    return str(name).strip()


def told(env: Any, how: Classes, column: str, weight: float) -> Any:
    """The task with every training prompt told its own class, and every held-out one the best; of held-out rows those of the best class
    are kept, where there are any: the answers of others are no gold."""
    best = how.names[0]
    held_out = [env.prompt(i, "test") for i in range(size_of(env, "test"))]

    def of_best(p: Prompt) -> bool:
        return str(p.info.get(column)).strip() == best

    some = any(map(of_best, held_out))

    def change(p: Prompt, split: str) -> Prompt | None:
        if split != "train" and some and not of_best(p):
            return None
        name = class_of(p, column) if split == "train" else best
        worth = 1.0 if name == best else weight
        return replace(p, content=how.written(p.content, name), info={**p.info, "worth": worth})

    return each(env, change)


@rollout(
    name="classed",
    title="Demonstrations by class (C-RLFT)",
    paper=PAPER,
    system="openchat-crlft",
    data="demonstrations",
)
def classed(ask: RolloutRequest) -> list[Group]:
    """Demonstrations by class (C-RLFT): the answer that comes with the prompt, paid what its class is worth (`info["worth"]`)."""
    groups = demonstrations(ask)
    for g in groups:
        for r in g.rollouts:
            r.reward = float(g.prompt.info.get("worth", 1.0))
    return groups


# ---- how much a row counts


@advantage(
    name="class_weight", title="Class weight (C-RLFT)", paper=PAPER, system="openchat-crlft", reads=("reward_BT",)
)
def class_weight(batch: Batch, per: str = "token") -> Tensor:
    """Class weight (C-RLFT): a row counts as much as its class is worth, in a mean over all that is counted.

    A_t = w_b N / sum_b w_b |y_b|;  N: tokens of the batch, so that the token mean is sum_bt w_b loss / sum_bt w_b
    per="answer": w_b / |y_b| in place of w_b, so that a long answer counts as much as a short one.
    """
    if per not in PER:
        raise unknown("way to count (per)", per, PER)
    own_BT = batch.mask_BT > 0
    weight_BT = broadcast_to_tokens(batch.returns_B, batch)
    if per == "answer":
        weight_BT = weight_BT / batch.lengths_B.clamp_min(1).unsqueeze(-1)
    total = weight_BT.sum()
    return torch.where(total > 0, weight_BT * own_BT.sum() / total, torch.zeros_like(weight_BT))


# ---- the plan


def c_rlft(per: str) -> Method:
    return sft.but(
        name="c-rlft", title="C-RLFT", paper=PAPER, doc=__doc__,
        rollout=classed, advantage=class_weight.but(per=per), loss=reinforce,
    )  # fmt: skip


def _task(column: str, expert: str, weight: float) -> Callable[[Context], Any]:
    def env(context: Context) -> Any:
        task = asked_task(context)
        return told(task, classes_of(task, column, expert), column, weight)

    return env


@plan(title="OpenChat (C-RLFT)", paper=PAPER, uses=("task",))
def openchat_crlft(
    column: str = "class", expert: str = "expert", weight: float = 0.1, per: str = "token", epochs: float = 5.0
) -> Plan:
    """OpenChat's C-RLFT: imitate answers of mixed quality, each told its class, and ask for the best class ever after.

    L = sum_b w_c(b) CE(y_b | x_b, c_b) / sum_b w_c(b) |y_b|;  w = 1 for the best class, `weight` for all others
    Rows say in a column whose answer they hold ({"question", "answer", "class": "expert"}). The class is written before every message of the
    user (`expert User: ...`), in training the row's own, in use the best one: `chat`, `eval`, `generate` and `serve` write it by themselves,
    since the run keeps its classes, and `--prefer NAME` asks for another. This is the optimum of a reward r_c under a KL to what each class
    says, projected onto the policy: with exp(r_c / beta) as the weight it is regression weighted by reward, in one stage and without a
    reward model.

    column: that names the class; expert: its best value; weight: of rows of any other class; per: "token", or "answer" for a mean over
    answers in which length does not count; epochs: passes over the rows.

    Departures: the authors write the class into the names of the roles, for the assistant too (`GPT4 User:`, `GPT4 Assistant:`), and use a
    special token for the end of a turn; here the model's own chat template stays, and the class stands in the user's messages. Weights 1 and 0.1 and
    their linear use are the authors' code; the paper derives exp(r_c / beta). Division by the sum of weights is theirs too, over batches of 200,000 packed
    tokens; here over `--prompts` rows. 5 epochs are theirs; their rate 6.7e-5 for 13 billion parameters follows the root of the batch, here one for the size (`--lr`), with a
    linear fall in place of a cosine to a tenth. More than two classes are this plan's own.
    """
    if not 0 <= weight <= 1:
        raise UserError(f"weight is {weight:g}; rows of other classes count from 0 to 1 of one of the best class")
    if per not in PER:
        raise unknown("way to count (per)", per, PER)
    if epochs <= 0:
        raise UserError(f"epochs is {epochs:g}; it takes more than 0 passes over the rows")
    env = _task(column, expert, weight)

    def ready(context: Context) -> None:
        refuse_conditioned(context, "openchat-crlft")
        env(context)

    def classes(context: Context) -> None:
        task = asked_task(context)
        keep_conditioning(context, classes_of(task, column, expert))
        names = [class_of(task.prompt(i), column) for i in range(size_of(task, "train"))]
        context.notes["rows"] = ", ".join(f"{names.count(name)} of class {name}" for name in sorted(set(names)))

    learn = Phase("c-rlft", c_rlft(per), epochs_of(env, epochs), env, rewards=written, measured=True)
    return Plan((Do("classes", classes), learn), ready=ready)
