"""AutoThink: rewards that ask for thinking where it pays; numbers derived by hand."""

from __future__ import annotations

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.types import Prompt
from posttrain.rewards.rules.thinks import thinks
from posttrain.systems.efficient_reasoning.autothink import autothink_balance, autothink_length
from posttrain.systems.efficient_reasoning.autothink import naive_reward as autothink
from tests.rewards.test_thinking_shaping import answers, close


def modes() -> Batch:
    """One group: thought 4 tokens and right, 6 and wrong, 6 and right; at once (1 token) right, and wrong."""
    return answers([4, 6, 6, 1, 1], [1.0, 0.0, 1.0, 1.0, 0.0])


@pytest.mark.derived("shaping/autothink")
def test_autothink_matrix() -> None:
    close(autothink(modes()).sum(-1), [1.0, 0.0, 1.0, 2.0, -1.0])
    batch = modes()
    batch = batch.but(
        **{"reward:thinks_B": torch.tensor([0.0, 0, 1, 1, 1])}
    )  # a component has the last word on the mode
    close(autothink(batch, mode="thinks").sum(-1), [2.0, -1.0, 1.0, 1.0, 0.0])


@pytest.mark.derived("shaping/autothink-balance")
def test_autothink_balance_by_hand() -> None:
    # 3 of 5 thought: z - 1/2 = .1, d = 2 * .1 = .2. Thinking is over its share: right .8 * 1, wrong .8 * 0 - .2.
    close(autothink_balance(modes()).sum(-1), [0.8, -0.2, 0.8, 2.0, -1.0])
    # target .8: z is .2 below it, d = .4, answering at once is over its share: right .6 * 2 + .4, wrong -.6 - .4 * 2
    close(autothink_balance(modes(), target=0.8).sum(-1), [1.0, 0.0, 1.0, 1.6, -1.4])
    # d never exceeds 1: then right is worth nothing, wrong -1
    close(autothink_balance(modes(), strength=100.0).sum(-1), [0.0, -1.0, 0.0, 2.0, -1.0])
    close(autothink_balance(modes(), target=0.6), autothink(modes()).tolist())


def test_autothink_balance_is_of_the_batch_not_of_the_group() -> None:
    """Group 0 all thinks, group 1 never does: balanced as a batch, so nobody pays."""
    batch = answers([4, 4, 1, 1], [1, 0, 1, 0], [0, 0, 1, 1])
    close(autothink_balance(batch).sum(-1), [1.0, 0.0, 2.0, -1.0])


@pytest.mark.derived("shaping/autothink-length")
def test_autothink_length_by_hand() -> None:
    # right: 2 and 4, mean 3, unbiased std sqrt 2, y = -+.7071068; wrong: 2, 4, 6, mean 4, std 2, y = -1, 0, 1.
    # alpha .5: short 1 + e^.3535534 - 1, long 1 + e^-.3535534 - 1. beta .2: short 1 - e^.2 < 0, long 1 - e^-.2 > 0
    batch = answers([2, 4, 2, 4, 6], [1, 1, 0, 0, 0])
    got_B = autothink_length(batch, alpha=0.5, beta=0.2).sum(-1)
    close(got_B, [1.4241190, 0.7021881, -0.2214028, 0.0, 0.1812692])
    close(autothink_length(answers([9, 3, 5], [1, 0, 0]), alpha=0.5).sum(-1)[:1], [1.0])  # the only right one
    close(autothink_length(answers([3, 3], [1, 0])).sum(-1), [1.0, 0.0])


@pytest.mark.derived("reward/thinks")
@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("<think>2+2=4</think>4", 1.0),
        ("<think></think>4", 0.0),
        ("<think>\n...\n</think>\n4", 0.0),
        ("4", 0.0),
        ("<think>so", 1.0),
    ],
)
def test_thinks(text: str, mode: float) -> None:
    assert thinks(Prompt.text("p", "2+2?", "4"), text) == mode
