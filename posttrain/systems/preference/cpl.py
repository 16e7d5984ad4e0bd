"""CPL (contrastive preference learning): the policy's own log-probabilities are the advantages that preferences are about, so no reward is learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError, unknown
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.registry import preference_loss, term
from posttrain.losses.aggregate import token_mean
from posttrain.losses.preference.margin import sequence_logp
from posttrain.losses.supervised.sft import sft as maximum_likelihood
from posttrain.methods.dpo import dpo
from posttrain.methods.settings import asked_pairs, written
from posttrain.methods.sft import sft
from posttrain.rollouts.written import pairs as both

PAPER = "arXiv:2310.13639"

# ---- what is minimised


def compared(adv_B: Tensor, batch: Batch, bias: float) -> Tensor:
    """-log [e^A+ / (e^A+ + e^(bias A-))] of each pair; where labels are not sure, averaged over both orders."""
    one_P, other_P = adv_B[batch["chosen_P"]], adv_B[batch["rejected_P"]]
    sure_P = batch.get("preferred_P")
    right_P = -logsigmoid(one_P - bias * other_P)
    if sure_P is None:
        return right_P
    return sure_P * right_P - (1 - sure_P) * logsigmoid(other_P - bias * one_P)


@preference_loss(name="cpl", title="CPL", paper=PAPER, base="dpo", system="cpl", reads=("chosen_P", "rejected_P"))
def cpl_loss(batch: Batch, alpha: float = 0.1, bias: float = 0.5) -> Tensor:
    """CPL: the preferred answer or segment is likelier than the other, whose log-probability counts only in part, so that it is not driven away.

    L = -log [e^A+ / (e^A+ + e^(bias A-))] = -log sigmoid(A+ - bias A-);  A = alpha sum_t log pi(a_t | s_t);  bias is the paper's lambda
    """
    return compared(alpha * sequence_logp(batch.logp_BT, batch), batch, bias)


@preference_loss(
    name="cpl_kl", title="CPL-KL", paper=PAPER, base="cpl", system="cpl", reads=("chosen_P", "ref_logp_BT", "rejected_P")
)  # fmt: skip
def cpl_kl_loss(batch: Batch, alpha: float = 0.2, bias: float = 0.75) -> Tensor:
    """CPL-KL: the same for KL-regularised advantages, measured from the cloned policy; with bias 1 it is DPO with beta = alpha.

    A = alpha sum_t [log pi(a_t | s_t) - log pi_clone(a_t | s_t)]
    """
    return compared(alpha * sequence_logp(batch.logp_BT - batch["ref_logp_BT"], batch), batch, bias)


@term(name="cloning", title="Cloning", paper=PAPER, base="sft", system="cpl")
def cloning(batch: Batch, coef: float = 1.0) -> Tensor:
    """Cloning: everything that is there stays likely, preferred or not (CPL-BC).

    L_t = -coef log pi(a_t | s_t)
    """
    return -coef * batch.logp_BT


# ---- the plan


@dataclass(frozen=True)
class Kind:
    """A variant of the paper and its defaults."""

    loss: Any
    alpha: float
    bias: float
    clones: float = 0.0


KINDS = {"cpl": Kind(cpl_loss, 0.1, 0.5), "kl": Kind(cpl_kl_loss, 0.2, 0.75), "bc": Kind(cpl_loss, 0.1, 1.0, 1.0)}


def contrastive(kind: str, alpha: float | None, bias: float | None) -> Method:
    """The second phase of a variant."""
    k = KINDS[kind]
    loss = k.loss.but(alpha=k.alpha if alpha is None else alpha, bias=k.bias if bias is None else bias)
    terms = (cloning.but(coef=k.clones),) if k.clones else ()
    return dpo.but(name="cpl", title="CPL", paper=PAPER, doc=__doc__, loss=loss, terms=terms, aggregate=token_mean)


clone = sft.but(name="clone", title="Cloning", paper=PAPER, rollout=both, loss=maximum_likelihood, aggregate=token_mean)


@plan(paper=PAPER, title="CPL", uses=("task", "pairs", "steps"))
def cpl(kind: str = "cpl", alpha: float | None = None, bias: float | None = None, cloned: float = 0.4) -> Plan:
    """CPL: both answers of each pair (or segments of behaviour) are cloned first; then the preferred one is made likelier than the other.

    1. min E[-log pi(a | s)] over all of both, for the first `cloned` share of --steps
    2. min E[-log sigmoid(A+ - bias A-)];  A = alpha sum_t log pi(a_t | s_t);  bias in (0, 1] is the paper's lambda
    kind: cpl (alpha 0.1, bias 0.5); kl, A from the cloned policy (0.2, 0.75); bc, with the cloning loss added (0.1, 1, coefficient 1).
    Pairs: --task pairs.jsonl with chosen and rejected; `preferred`, a number, where a label is not sure. It trains any policy that can say how
    likely what was written is: for control, `posttrain.run(model=MeanPolicy(...), method="cpl", env=env)` with segments
    {"states": [...], "actions": [...]} in place of texts; there log pi = -|a - mean(s)|^2.

    Departures: the paper trains networks of control on 64-step segments of MetaWorld, 10,000 comparisons, for 500,000 steps of 96 at 1e-4
    with dropout 0.25; text is this package's transfer of it, and steps, pairs per step and rate are the run's (--steps, --prompts, --lr). The
    authors' discount is 1 in their code, as here. Their dense data, all pairs within a ranked batch, is to be given as pairs. The optimiser begins anew after cloning, as
    theirs does; their rate then rises over 10,000 steps, here over --warmup at both. The share 0.4, alphas, biases and coefficients are theirs for states.
    """
    if kind not in KINDS:
        raise unknown("kind of CPL", kind, KINDS)
    if not 0 <= cloned < 1 or (alpha is not None and alpha <= 0) or (bias is not None and not 0 < bias <= 1):
        raise UserError(
            f"got alpha={alpha}, bias={bias}, cloned={cloned}; alpha is above 0, bias above 0 and at most 1, cloned 0 or more and below 1"
        )

    def ready(context: Context) -> None:
        asked_pairs(context)
        if (cloned and not first(context)) or not rest(context):
            raise UserError(
                f"of --steps {context.config.steps} {first(context)} are for cloning and {rest(context)} for comparing, and each takes one at least; "
                "give more --steps, or another --plan.cloned (0: the model is cloned already)"
            )

    def first(context: Context) -> int:
        return round(cloned * int(context.config.steps))

    def rest(context: Context) -> int:
        return int(context.config.steps) - first(context)

    told: dict[str, Any] = {"env": asked_pairs, "rewards": written, "measured": True}
    learn = Phase("cpl", contrastive(kind, alpha, bias), rest, **told)
    return Plan((*((Phase("clone", clone, first, **told),) if cloned else ()), learn), ready=ready)
