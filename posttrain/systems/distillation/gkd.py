"""GKD: a student follows its teacher's whole distribution, token by token, on answers of its own as well as on written ones.

A step learns from answers of the student with probability `share` (the paper's lambda), else from those of the data set. The teacher is
`--reference "teacher(model='FOLDER')"` (a folder, a hub id, runs/NAME). With `--loss topk-divergence` only the teacher's k likeliest tokens are
compared, which a vLLM server can tell too: `--reference "teacher(model='http://host:8000', k=20)"`.

Departures: the paper compares several divergences and shares for each task and has no single setting (which ones was not checked against its
text); here beta and lambda are 0.5, as in TRL (`--loss "gkd(beta=0.1)"`, `--rollout "student_or_data(share=1.0)"`). It fine-tunes the student on the data first; give a model that had
that (`posttrain run sft`). Its combination with a reward (RLHF with a distillation term) is not here. Ids that only one of the two
models has (rows that pad a vocabulary) are left out. The divergences, one answer per prompt and no gradient through the sampling are the paper's. That it begins with
SFT, averages over an answer's tokens and then over answers, and samples at temperature 1 was not checked against its text; TRL's trainer averages over all tokens and
samples at 0.9.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout, supervised_loss
from posttrain.core.types import Group
from posttrain.losses.aggregate import sequence_mean
from posttrain.methods.sft import sft
from posttrain.models.divergence import STREAMS, divergence_of, logp_at, mixture, placed
from posttrain.rollouts.sample import sample
from posttrain.rollouts.written import demonstrations
from posttrain.weights.teacher import teacher

PAPER = "arXiv:2306.13649"

# ---- whose answers


@rollout(paper=PAPER)
def student_or_data(ask: RolloutRequest, share: float = 0.5, n: int = 1) -> list[Group]:
    """Student or data (GKD): all prompts of a step are answered by the student, with probability `share`, or as the data set has it.

    share: the paper's lambda; 0 learns from the data alone, 1 from the student's answers alone. n: answers of the student to a prompt.
    """
    if not 0 <= share <= 1:
        raise UserError(f"share is {share}; it is the probability, from 0 to 1, that the student answers")
    coin = rng.python(ask.seed, "gkd", ask.step).random()
    return sample(ask, n=n) if coin < share else demonstrations(ask)


# ---- what is minimised


@supervised_loss(name="gkd", paper=PAPER, reads=STREAMS)
def whole_distribution(batch: Batch, beta: float = 0.5) -> Tensor:
    """GKD: the generalised Jensen-Shannon divergence between teacher p and student q, over the whole vocabulary at every token.

    L_t = beta KL(p || m) + (1 - beta) KL(q || m);  m = beta p + (1 - beta) q
    beta = 0: forward KL(p || q);  beta = 1: reverse KL(q || p);  no tensor of tokens x vocabulary is kept
    """
    return divergence_of(batch, beta)


@supervised_loss(
    title="Top-k divergence",
    base="gkd",
    reads=("hidden_BTD", "head_VD", "temperature_B", "topk_id_BTK", "topk_logp_BTK"),
)
def topk_divergence(batch: Batch, beta: float = 0.0) -> Tensor:
    """Top-k divergence: GKD between k + 1 events, the teacher's k likeliest tokens and all others together.

    L_t = D_beta(p', q');  p' = (p(v_1), ..., p(v_k), 1 - sum_i p(v_i)), q' of the same tokens
    It is never more than the divergence over the whole vocabulary, and equal to it where k is all of that.
    """
    own_BT = batch.mask_BT > 0
    logq_NK = logp_at(batch, batch["topk_id_BTK"])
    logp_NK = batch["topk_logp_BTK"][own_BT].to(logq_NK)
    return placed(jensen_shannon(with_rest(logq_NK), with_rest(logp_NK), beta), own_BT)


def with_rest(logp_NK: Tensor) -> Tensor:
    """Log-probabilities of k events and of all others together (N, K + 1); where rounding leaves no others, a millionth of one."""
    rest_N1 = (1 - logp_NK.exp().sum(-1, keepdim=True)).clamp_min(1e-6)
    return torch.cat([logp_NK, rest_N1.log()], -1)


def jensen_shannon(logq: Tensor, logp: Tensor, beta: float) -> Tensor:
    """D_beta of each row, from log-probabilities of all events."""
    if not 0 <= beta <= 1:
        raise UserError(
            f"beta is {beta}; it is a share between 0, KL(teacher || student), and 1, KL(student || teacher)"
        )
    if beta in (0, 1):
        first, second = (logp, logq) if beta == 0 else (logq, logp)
        return (first.exp() * (first - second)).sum(-1)
    m = mixture(logq, logp, beta)
    return beta * (logp.exp() * (logp - m)).sum(-1) + (1 - beta) * (logq.exp() * (logq - m)).sum(-1)


# ---- the method

gkd = method(
    sft.but(
        name="gkd", title="GKD", paper=PAPER, doc=__doc__,
        rollout=student_or_data, loss=whole_distribution, aggregate=sequence_mean, reference=teacher,
    )
)  # fmt: skip
