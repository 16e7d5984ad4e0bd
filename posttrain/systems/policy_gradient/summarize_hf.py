"""Learning to summarize from human feedback: the RLHF workflow with PPO on a reward model of comparisons, one round."""

from __future__ import annotations

from posttrain.core.plan import Plan, plan
from posttrain.systems.preference.rlhf_workflow import rlhf_workflow


@plan(paper="arXiv:2009.01325", title="Learning to summarize from human feedback")
def summarize_hf(steps: int = 60, pairs: int = 800, noise: float = 0.1, beta: float = 0.2, data: str = "") -> Plan:
    """Learning to summarize from human feedback: SFT, a reward model of comparisons, then PPO with a KL price beta per token.

    One round of `rlhf-workflow` with PPO; data: a set of real preference pairs (hh_rlhf). The claim uses beta 0.3.
    """
    whole = rlhf_workflow("ppo", 1, steps, pairs, noise, beta, data)
    return whole
