"""Learning to summarize from human feedback: the RLHF workflow with PPO on a reward model of comparisons, one round."""

from __future__ import annotations

from posttrain.core.plan import Plan, plan
from posttrain.systems.preference.rlhf_workflow import rlhf_workflow


@plan(paper="arXiv:2009.01325", title="Learning to summarize from human feedback", uses=())
def summarize_hf(steps: int = 60, pairs: int = 800, noise: float = 0.1, beta: float = 0.2, data: str = "") -> Plan:
    """Learning to summarize from human feedback: SFT, a reward model of comparisons, then PPO with a KL price beta per token.

    One round of `rlhf-workflow` with PPO; data: a set of real preference pairs (hh_rlhf). The claim uses beta 0.3.

    Departures: the paper fine-tunes on posts with summaries of 24 to 48 tokens, learns from about 64,000 human
    comparisons and starts the critic from the reward model. Here, unless `data` names a set of pairs (hh_rlhf), small
    talk with a hidden taste is made and labelled, and `--task` and `--reward` are ignored; a file of pairs cannot be
    named. Scores are centred on samples of the SFT policy, not on reference summaries; the critic is a copy of the
    policy. The KL price is 0.2, the paper's 0.05.
    """
    whole = rlhf_workflow("ppo", 1, steps, pairs, noise, beta, data)
    return whole
