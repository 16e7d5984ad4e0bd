"""What a learner does around an update."""

from __future__ import annotations

import pytest

import posttrain as pt
from posttrain.core.assemble import assemble
from posttrain.core.method import find_method
from posttrain.weights.learner import Learner
from tests.models import tiny


@pytest.mark.parametrize("left", [True, False])
def test_a_policy_learns_in_training_mode_however_it_was_left(left: bool) -> None:
    policy = tiny.policy().train(left)
    made = tiny.rollouts(((3, 5), (3, 2)))
    rows, batch = assemble([pt.Group(made[0].prompt, made)])
    learner = Learner(policy, find_method("sft"), lr=1e-3)
    learner.update(rows, batch, 0)
    assert all(module.training for module in policy.modules())
