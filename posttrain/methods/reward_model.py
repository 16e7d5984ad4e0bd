"""Reward model: from written pairs, a score whose differences are the log-odds of being preferred (Bradley-Terry).

Departures: the paper learns all pairs among 4 to 9 ranked answers of a prompt as one element of a batch, here pairs
come one by one. It shifts the scores afterwards so that demonstrations have the mean 0; here a term of 0.01
(arXiv:2312.09244) centres them during training. It takes one pass over the comparisons, here 40 steps of 16 pairs
(`--steps`), and starts from a model fine-tuned on demonstrations, here from `--model` as it is. Pairs must be given
(`--task pairs.jsonl`); without a task the school pairs that ship are learned.
"""

from posttrain.core.method import method
from posttrain.losses.reward_model.bradley_terry import bradley_terry
from posttrain.methods.dpo import dpo

reward_model = method(
    dpo.but(
        name="reward-model", title="Reward model", paper="arXiv:2203.02155", doc=__doc__,
        loss=bradley_terry.but(centering=0.01),
    )
)  # fmt: skip
