"""TR-DPO: DPO whose reference follows the policy: every so many steps it moves most of the way to it.

Departures: the paper's soft update, 0.6 of the policy every 512 steps (its hard one, the policy itself: `--reference "soft_update(mix=1, every=512)"`); runs here have 40
steps by default, in which it would never move, so `every` is 16 unless given. beta 0.05 is the paper's. Steps and rate are `dpo`'s: 640 pairs by default, not a pass, and no phase of supervised fine-tuning. Pairs must be given
(`--task pairs.jsonl`); without a task the school pairs that ship are learned.
"""

from __future__ import annotations

from posttrain.core.method import method
from posttrain.losses.preference.dpo import dpo as dpo_loss
from posttrain.methods.dpo import dpo

tr_dpo = method(
    dpo.but(
        name="tr-dpo", title="TR-DPO", paper="arXiv:2404.09656", doc=__doc__, loss=dpo_loss.but(beta=0.05),
        reference="soft_update(every=16)",
    )
)  # fmt: skip
