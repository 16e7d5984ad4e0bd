"""DPO: learn from written preference pairs by logistic regression on the policy's log-ratio to a fixed reference.

Metrics: `rewards/chosen` and `rewards/rejected` (beta log(pi / ref)), `rewards/margins`, `rewards/accuracies`, and `logps/chosen`,
`logps/rejected`: the preferred answer's own likelihood may fall while the margin grows.

Departures: the paper first fine-tunes on the preferred answers (`posttrain run sft` on them) and then takes one pass over the pairs with RMSprop
(`--optimiser rmsprop`), 150 warm-up steps, 64 pairs per step and gradients clipped to 10; its rate is 1e-6, that of the authors' code 5e-7. Here there is
no phase of supervised fine-tuning (give a model that had one), AdamW, a learning rate by the model's size, a norm of 1, and 40 steps of 16 pairs: 640
pairs, not a pass; the authors' are `--optimiser rmsprop --lr 5e-7 --warmup 150 --prompts 64 --max-norm 10`. The rate by size is one for sampled
answers: where pairs differ in few tokens it can break a small model within 20 steps, which `--warmup 150 --prompts 64` or a tenth of it avoid. beta is 0.1; the
authors' code has no default and suggests 0.1 to 0.5. Pairs must be given (`--task pairs.jsonl` with chosen and rejected); without a task the school pairs
that ship are learned.
"""

from posttrain.core.method import method
from posttrain.losses.aggregate import pair_mean
from posttrain.losses.preference.dpo import dpo as dpo_loss
from posttrain.methods.sft import sft
from posttrain.rollouts.written import pairs

dpo = method(
    sft.but(
        name="dpo", title="DPO", paper="arXiv:2305.18290", doc=__doc__,
        rollout=pairs, loss=dpo_loss, aggregate=pair_mean,
    )
)  # fmt: skip
