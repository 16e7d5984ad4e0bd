"""Online DPO: sample, score, and learn by DPO from each prompt's best and worst answer, not from written pairs.

Departures: the paper collects 20,000 new prompts with 8 answers each, trains on their pairs for 2 epochs, and does so
three times; here every step samples 16 prompts, learns once and forgets them. The reference stays the start; the
authors' present code moves it to each round's start. A reward model must be given (`--reward runs/NAME`, or a Hugging
Face folder); without one the task's own grade ranks. 8 answers, best against worst, equals dropped, and beta 0.1 are
the paper's.
"""

from __future__ import annotations

from posttrain.core.method import method
from posttrain.methods.dpo import dpo
from posttrain.rollouts.sample import sample
from posttrain.select.best_worst import best_worst

online_dpo = method(
    dpo.but(
        name="online-dpo", title="Online DPO", paper="arXiv:2405.07863", doc=__doc__,
        rollout=sample.but(n=8), select=(best_worst,),
    )
)  # fmt: skip
