"""SPIN: self-play fine-tuning: DPO in rounds that prefers the demonstration to what the policy itself says."""

from __future__ import annotations

from typing import Any

from posttrain.core.answers import demonstration
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Copy, Do, Phase, Plan, plan, round_of
from posttrain.environments.base import size_of
from posttrain.environments.language.listed import Listed, from_rows
from posttrain.losses.preference.dpo import dpo as dpo_loss
from posttrain.methods.dpo import dpo
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.rounds import sampled, write
from posttrain.methods.settings import asked_demonstrations, written
from posttrain.prompts.uniform import distinct


def own_answers(context: Context, prompts: int) -> None:
    """One answer of the policy to each demonstrated prompt; the demonstration is preferred to it, unless it says the same."""
    env = asked_demonstrations(context, option="")
    asked = distinct(env, range(min(prompts, size_of(env, "train") or prompts)))
    rows: list[dict[str, Any]] = []
    for group in sampled(context, asked, 1):
        shown, own = demonstration(group.prompt), group.rollouts[0].text
        if shown is not None and shown.strip() != own.strip():
            row = {"id": f"{group.prompt.id}-{round_of(context)}", "prompt": list(group.prompt.content)}
            rows.append(row | {"chosen": shown, "rejected": own})
    if not rows:
        raise UserError(
            f"round {round_of(context)}: the policy says what the demonstrations say, word for word; there is nothing to learn"
        )
    write(context, rows)


def both_rounds(context: Context) -> Listed:
    """The pairs of the present round and of the one before."""
    i = round_of(context)
    rows = [row for k in range(max(1, i - 1), i + 1) for row in context.run.read_artifact(f"pairs{k}")]
    return from_rows("pairs", rows, 0.0)


@plan(paper="arXiv:2401.01335", title="SPIN", uses=("task",))
def spin(rounds: int = 3, prompts: int = 2000, epochs: float = 2, beta: float = 0.1, last_beta: float = 5.0) -> Plan:
    """SPIN: the policy learns to tell the demonstrations from its own answers, until it cannot; no preferences and no reward are needed.

    round t:  L = -log sigmoid(beta [log pi(y) / pi_t(y) - log pi(y') / pi_t(y')]);  y the demonstration, y' the answer of pi_t
    pi_t: the policy as the round began, also the reference. prompts: demonstrations that are used, the same in every round. Later rounds also
    have the pairs of the round before. last_beta: of the last round, where there are several.

    Departures: rows must be demonstrations (a worked answer, or messages that end with the assistant), and --model a model that was fine-tuned on them
    (`posttrain run sft`), as the paper begins. The authors take 50,000 prompts and rates of 5e-7, then 1e-7 in the later rounds; here 2,000, and one rate by the size
    (`--lr`). beta 0.1 and 5 in the last of 4 rounds are theirs; 3 rounds here, and 2 epochs, 6 in the authors' scripts.
    """
    if rounds < 1 or prompts < 1 or epochs <= 0 or beta <= 0 or last_beta <= 0:
        raise UserError(
            f"got rounds={rounds}, prompts={prompts}, epochs={epochs}, beta={beta}, last_beta={last_beta}; each must be above 0"
        )

    def ready(context: Context) -> None:
        asked_demonstrations(context, option="")

    parts: list[Any] = []
    for i in range(1, rounds + 1):
        loss = dpo_loss.but(beta=last_beta if i == rounds > 1 else beta)
        learn = Phase(
            f"spin.{i}", dpo.but(loss=loss), epochs_of(both_rounds, epochs), both_rounds, rewards=written, reference="previous",
        )  # fmt: skip
        parts += [Do(f"answer.{i}", lambda c: own_answers(c, prompts)), Copy("policy", "previous"), learn]
    return Plan(tuple(parts), ready=ready)
