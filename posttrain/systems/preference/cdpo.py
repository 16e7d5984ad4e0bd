"""cDPO: DPO that takes every label to be wrong with a small probability, so that no pair is won for ever.

Departures: none known in the loss; it is DPO's with label smoothing, and 0.1 is the share of the note that proposes it (E. Mitchell, "A note on
DPO with noisy preferences"), which must be known for real data: `--loss "dpo(label_smoothing=0.2)"`. Steps and rate are `dpo`'s: 640 pairs by default, not a pass, and no phase of supervised fine-tuning. Pairs must be given
(`--task pairs.jsonl`); without a task the school pairs that ship are learned.
"""

from __future__ import annotations

from posttrain.core.method import method
from posttrain.losses.preference.dpo import dpo as dpo_loss
from posttrain.methods.dpo import dpo

cdpo = method(dpo.but(name="cdpo", title="cDPO", paper="", doc=__doc__, loss=dpo_loss.but(label_smoothing=0.1)))
