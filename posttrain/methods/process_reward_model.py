"""Process reward model: from steps labelled by finishing them many times (Math-Shepherd), how likely an answer so far ends right."""

from posttrain.core.method import method
from posttrain.losses.aggregate import sequence_mean
from posttrain.losses.supervised.step_value import step_value
from posttrain.methods.reward_model import reward_model
from posttrain.rollouts.step_labels import step_labels

process_reward_model = method(
    reward_model.but(
        name="process-reward-model", title="Process reward model (Math-Shepherd)", paper="arXiv:2312.08935", doc=__doc__,
        rollout=step_labels, loss=step_value, aggregate=sequence_mean,
    ),
    __file__,
)  # fmt: skip
