"""MRT: credit by hand, and progress read off a policy whose every probability is known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from posttrain.advantages.grpo import grpo
from posttrain.core.acting import Actor
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.protocols import Environment, RolloutRequest
from posttrain.core.turn import Turn
from posttrain.core.types import Prompt, Rollout
from posttrain.systems.efficient_reasoning.mrt import by_progress as mrt
from posttrain.systems.efficient_reasoning.mrt import episodes, progress


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


@pytest.mark.derived("advantage/mrt")
def test_progress_of_a_whole_continuation_is_part_of_what_it_earned() -> None:
    # outcomes 1, 0; progress -.25, .5; alpha 2: R = .5, 1: mean .75, std .353553: A = -+.25 / .353653. With alpha 0: GRPO
    plain = batch().but(reward_BT=torch.tensor([[0, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.float64))
    made = plain.but(progress_B=torch.tensor([-0.25, 0.5], dtype=torch.float64))
    g = 0.25 / (math.sqrt(0.125) + 1e-4)
    expected = torch.tensor([[-g, -g, -g, 0], [g, 0, g, 0]], dtype=torch.float64)
    torch.testing.assert_close(mrt(made, alpha=2.0), expected)
    torch.testing.assert_close(mrt(made, alpha=0.0), grpo(plain))


def test_without_progress_it_is_grpo() -> None:
    plain = batch().but(reward_BT=torch.tensor([[0, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.float64))
    torch.testing.assert_close(mrt(plain), grpo(plain))
    torch.testing.assert_close(mrt(batch(), alpha=0.0), grpo(plain))


class Certain(Actor):
    """Goes on with the gold answer once the thought holds "=", with "no" before; letters are tokens."""

    def written(self, prompt: Prompt, text: str) -> Rollout:
        ids = torch.tensor([*map(ord, text), 0])
        return Rollout.single(
            prompt, torch.zeros(1), ids, torch.zeros(len(ids)), torch.ones(len(ids), dtype=torch.bool), text
        )

    def decode(self, ids: torch.Tensor) -> str:
        return "".join(chr(i) for i in ids.tolist() if i)

    def act(self, pending: Any, keys: Any, how: Any, version: int = 0) -> list[list[Turn]]:
        self.asked = [turns[-1].text for turns in pending]
        self.keys, self.longest = keys, how.max_tokens
        said = [t + ("4" if "=" in t else "no") for t in self.asked]
        return [[self.written(PROMPT, x).turns[0] for _ in some] for x, some in zip(said, keys, strict=True)]


class Graded(Environment):
    name = "graded"

    def grade(self, prompt: Prompt, text: str) -> float:
        return float(text.endswith("</think>4"))


class Ungraded(Environment):
    name = "ungraded"


PROMPT = Prompt.text("p", "2+2?", "4")
TEXT = "<think>Hm. Two and two. Wait, 2+2=4. Fine. Let me check. Yes.</think>4"


@pytest.mark.derived("rollout/mrt")
def test_answers_are_sampled_after_each_episode_and_its_tokens_carry_the_change() -> None:
    """Three episodes: J is 0 before any and after the first, 1 after the second and the third: p = 0, 1, 0."""
    policy = Certain()
    r = policy.written(PROMPT, TEXT)
    (p,) = progress(RolloutRequest({"policy": policy}, [PROMPT], env=Graded()), [r], answers=3, longest=7)
    inside = TEXT.index("Wait"), TEXT.index("Let me")
    assert [k for k, x in enumerate(p) if x] == list(range(*inside)) and set(p) == {0.0, 1.0}
    ends = [0, *(TEXT.index(x) - len("<think>") for x in ("Wait", "Let me", "</think>"))]
    assert policy.asked == ["<think>" + TEXT[len("<think>") :][:end] + "</think>" for end in ends]
    assert policy.longest == 7 and len({k for some in policy.keys for k in some}) == 4 * 3


def test_episodes_begin_where_a_thought_takes_a_new_course() -> None:
    told = "Add them. It is 5.\nHmm, no. Alternatively: 4."
    assert [told[a:b] for a, b in episodes(told)] == ["Add them. It is 5.\n", "Hmm, no. ", "Alternatively: 4."]
    assert episodes("") == [] and len(episodes("However it may be.")) == 1


def test_never_silently_grpo() -> None:
    policy, plain = Certain(), Certain().written(PROMPT, "4")
    ask = RolloutRequest({"policy": policy}, [PROMPT], env=Graded())
    with pytest.raises(UserError, match="no answer of the first step holds one"):
        progress(ask, [plain, policy.written(PROMPT, "<think></think>4")])
    later = ask.but(step=3)
    assert progress(later, [plain]) == [[0.0, 0.0]]  # a policy may stop thinking in a step; the run goes on
    with pytest.raises(UserError, match="has no gold answers"):
        progress(ask.but(env=Ungraded()), [plain])


def test_a_thought_that_the_template_opened() -> None:
    policy = Certain()
    policy.rendered = lambda prompt: "question <think>\n"  # type: ignore[attr-defined]
    (p,) = progress(
        RolloutRequest({"policy": policy}, [PROMPT], env=Graded()), [policy.written(PROMPT, "2+2=4.</think>4")]
    )
    assert p[:6] == [1.0] * 6 and not any(p[6:]) and policy.asked == ["</think>", "2+2=4.</think>"]


def test_episodes_of_short_thoughts_are_steps_of_a_level() -> None:
    thought = "4+9=13 13+7=20 no"
    assert [thought[a:b].strip() for a, b in episodes(thought, "word")] == ["4+9=13", "13+7=20", "no"]
    assert len(episodes(thought)) == 1
    with pytest.raises(UserError, match="level of steps"):
        episodes(thought, "verse")
