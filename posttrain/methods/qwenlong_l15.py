"""QwenLong-L1.5: RL over many kinds of tasks at once: as many prompts of each, credit in the spread of each task's rewards,
and blame only while the policy is not too undecided (AEPO). Give it a mixture: `--task "arithmetic + counting"`.

The plan `qwenlong-stages` is the whole recipe: documents that grow by stages, a reader with a memory (the rollout `memory`), and
both merged.
"""

from posttrain.advantages.aepo import aepo
from posttrain.core.method import method
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo
from posttrain.prompts.task_balanced import task_balanced

qwenlong_l15 = method(
    grpo.but(
        name="qwenlong-l15", title="QwenLong-L1.5 (AEPO)", paper="arXiv:2512.12967", doc=__doc__,
        prompts=task_balanced, advantage=aepo, aggregate=token_mean, terms=(),
    ),
    __file__,
)  # fmt: skip
