"""MRT: credit by hand, and progress read off a policy whose every probability is known."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.advantages.grpo import grpo
from posttrain.core.batch import Batch
from posttrain.core.types import Prompt, Rollout
from posttrain.systems.efficient_reasoning.mrt import by_progress as mrt
from posttrain.systems.efficient_reasoning.mrt import forced, progress


def batch() -> Batch:
    """Two siblings: progress .3, -.1 and outcome 1; progress .4 and outcome 0; in front of the last a token of others."""
    rows = {"mask_BT": [[1, 1, 1, 0], [1, 0, 1, 0]], "reward_BT": [[0.3, -0.1, 1, 0], [0.4, 0, 0, 0]]}
    made = {k: torch.tensor(x, dtype=torch.float64) for k, x in rows.items()}
    return Batch(logp_BT=torch.zeros(2, 4), **made, group_B=torch.tensor([0, 0]))


@pytest.mark.derived("advantage/mrt")
def test_credit_by_hand() -> None:
    # outcomes 1, 0: mean .5, unbiased std .707107, credit +-.5 / .707207 = +-.707007. Thought tokens .3, -.1, .4: mean .2.
    # alpha 2: .707007 + 2 (.1, -.3, and 0 - .2 at the last); -.707007 + 2 (.2), -.707007 + 2 (-.2)
    g = 0.5 / (math.sqrt(0.5) + 1e-4)
    expected = [[g + 0.2, g - 0.6, g - 0.4, 0], [-g + 0.4, 0, -g - 0.4, 0]]
    torch.testing.assert_close(mrt(batch(), alpha=2.0), torch.tensor(expected, dtype=torch.float64))


def test_without_progress_it_is_grpo() -> None:
    plain = batch().but(reward_BT=torch.tensor([[0, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.float64))
    torch.testing.assert_close(mrt(plain), grpo(plain))
    torch.testing.assert_close(mrt(batch(), alpha=0.0), grpo(plain))


class Certain:
    """Says a next character with chance 1/2, or 9/10 once the thought holds as many sums as `needs`; letters are tokens."""

    def __init__(self, needs: int = 1) -> None:
        self.needs = needs

    def written(self, prompt: Prompt, text: str) -> Rollout:
        ids = torch.tensor([*map(ord, text), 0])
        return Rollout.single(
            prompt, torch.zeros(1), ids, torch.zeros(len(ids)), torch.ones(len(ids), dtype=torch.bool), text
        )

    def decode(self, ids: torch.Tensor) -> str:
        return "".join(chr(i) for i in ids.tolist() if i)

    def forward(self, rollouts: list[Rollout]) -> dict[str, torch.Tensor]:
        rows = [torch.full((len(r),), 0.9 if r.text.count("=") >= self.needs else 0.5).log() for r in rollouts]
        return {"logp_BT": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)}


PROMPT = Prompt.text("p", "2+2?", "4")


def test_forced_answers() -> None:
    # "4" and the end: two tokens, .5^2 before the sum is there, .9^2 after
    assert forced(Certain(), PROMPT, ["<think></think>", "<think>2+2=4.</think>"]) == pytest.approx([0.25, 0.81])


@pytest.mark.derived("rollout/mrt")
def test_each_token_of_a_piece_carries_its_progress() -> None:
    """Hm. | 2+2=4 ok. | Yes.: nothing, then .81 - .25, then nothing; they add up to what was gained in all."""
    text = "<think>Hm. 2+2=4 ok. Yes.</think>4"
    r = Certain().written(PROMPT, text)
    p = progress(Certain(), r)
    inside = text.index("2+2=4 ok. "), text.index("Yes.")
    assert [t for t, x in enumerate(p) if x] == list(range(*inside))
    assert p[inside[0]] == pytest.approx(0.56)
    per_piece = [p[text.index(s)] for s in ("Hm.", "2+2", "Yes.")]
    assert sum(per_piece) == pytest.approx(0.81 - 0.25)  # telescopes: last J minus first J


def test_no_thought_no_progress() -> None:
    for text in ("4", "<think></think>4"):
        assert progress(Certain(), Certain().written(PROMPT, text)) == [0.0] * (len(text) + 1)
