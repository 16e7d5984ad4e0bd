"""sDPO: DPO in steps: the pairs are divided, and what was learned from one part is the reference of the next."""

from __future__ import annotations

import torch

from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Copy, Cycle, Do, Phase, Plan, plan, round_of
from posttrain.environments.language.listed import Listed
from posttrain.losses.preference.dpo import dpo as dpo_loss
from posttrain.methods.dpo import dpo
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.settings import asked_pairs, written

ORDERS = ("given", "easy")


def in_order(context: Context, order: str) -> None:
    """Places of the training pairs: as given, or those first that the start already prefers by most (log pi(y_w) - log pi(y_l))."""
    pairs, policy = asked_pairs(context).train, context.role("policy")
    places = list(range(len(pairs)))
    if order == "easy":
        with torch.no_grad():
            ahead = []
            for p in pairs:
                two = [policy.written(p, p.info[side]) for side in ("chosen", "rejected")]
                logp_BT = policy.forward(two, ["logp_BT"])["logp_BT"]
                ahead.append(float(logp_BT[0].sum() - logp_BT[1].sum()))
        places.sort(key=lambda i: -ahead[i])
    context.run.write_artifact("order", places)


@plan(paper="arXiv:2403.19270", title="sDPO", uses=("task",))
def sdpo(parts: int = 2, epochs: float = 1, beta: float = 0.1, order: str = "given") -> Plan:
    """sDPO: a reference that is already aligned is a stronger lower bound, so DPO goes through the data part by part.

    part t:  DPO on its pairs, from the policy of part t - 1, which is also the reference
    parts: how many the pairs are divided into. order: as given, or easy (those first that the start already ranks right, by most).

    Departures: the authors' parts are whole data sets, easier ones first; here one file is divided, as given unless `order` is "easy". Their target begins each part
    from the start model or from the last part's, of which the second is here. 2 parts are theirs; epochs and rate (`--lr`) are this package's, beta 0.1.
    """
    if parts < 1 or epochs <= 0 or order not in ORDERS:
        raise UserError(
            f"got parts={parts}, epochs={epochs}, order={order!r}; it takes 1 part at least and order given or easy"
        )

    def part(context: Context) -> Listed:
        rows, places = asked_pairs(context).train, context.run.read_artifact("order")
        i = round_of(context)
        cut = [round(len(places) * k / parts) for k in (i - 1, i)]
        return Listed("pairs", tuple(rows[k] for k in places[cut[0] : cut[1]]))

    def ready(context: Context) -> None:
        if len(asked_pairs(context).train) < parts:
            raise UserError(
                f"{len(asked_pairs(context).train)} pairs cannot be divided into {parts} parts; use --plan.parts {max(1, len(asked_pairs(context).train))} or fewer, or more pairs"
            )

    learn = Phase(
        "sdpo",
        dpo.but(loss=dpo_loss.but(beta=beta)),
        epochs_of(part, epochs),
        part,
        rewards=written,
        reference="previous",
    )
    steps = (Copy("policy", "previous"), learn)
    return Plan((Do("order", lambda c: in_order(c, order)), Cycle(steps, times=parts)), ready=ready)
