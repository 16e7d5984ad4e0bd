"""Texts that end an answer: the same tokens whoever samples, and the text is the answer's end."""

from __future__ import annotations

import pytest
import torch

import posttrain as pt
from posttrain.inference.engine import Engine
from posttrain.inference.stop_strings import WINDOW, RunningText, finder
from tests.runs import tiny_run

HOW = pt.Sampling(max_tokens=60, stop="b|xy|7")


def answers(policy: tiny_run.LanguagePolicy, how: pt.Sampling) -> list[pt.Rollout]:
    prompts = [pt.Prompt.text(f"p{i}", "abc"[i]) for i in range(3)]
    return [r for some in policy.sample(prompts, 4, how) for r in some]


@pytest.mark.parametrize("stride", [1, 8])
def test_an_answer_ends_with_the_text_and_is_otherwise_what_it_was(stride: int) -> None:
    policy = tiny_run.policy()
    whole, plain = answers(policy, pt.Sampling(max_tokens=60)), answers(policy, HOW)
    policy._native = Engine(policy.model, stride=stride)
    policy._engine = lambda turns=False: policy._native  # type: ignore[method-assign]
    engine = answers(policy, HOW)
    ends = [min((at + len(x) for x in HOW.stops if (at := r.text.find(x)) >= 0), default=0) for r in whole]
    assert sum(end > 0 for end in ends) >= 6
    for end, all_of_it, a, b in zip(ends, whole, plain, engine, strict=True):
        assert a.text == (all_of_it.text[:end] if end else all_of_it.text)  # one letter a token
        assert torch.equal(a.actions, b.actions) and a.stop == b.stop == ("stop" if end else all_of_it.stop)
        torch.testing.assert_close(a.logp_T, all_of_it.logp_T[: len(a)], atol=1e-6, rtol=0)


def test_a_turn_that_ends_with_a_text_is_followed_by_an_end_that_was_not_sampled() -> None:
    class Once(pt.Environment):
        name = "once"

        def prompt(self, index: int, split: str = "train") -> pt.Prompt:
            return pt.Prompt.text(f"{split}-{index}", "ask")

        def open(self, prompt: pt.Prompt, key: int) -> pt.Episode:
            return Two()

    class Two(pt.Episode):
        turns = 0

        def step(self, turn: pt.Turn) -> pt.Step:
            self.turns += 1
            return pt.Step([{"role": "user", "content": "found"}] if self.turns == 1 else None, reward=1.0)

    policy, env = tiny_run.policy(), Once()
    ask = pt.RolloutRequest({"policy": policy}, [env.prompt(i) for i in range(4)], HOW, env=env)
    from posttrain.rollouts.episode import episodes

    made = [r for g in episodes(ask, 4) for r in g.rollouts if len(r.turns) == 2]
    assert made
    for r in made:
        first, second = r.turns
        if first.text.endswith(HOW.stops):
            assert int(second.observation.tokens[0]) == policy.tokenizer.eos_token_id
            assert not r.mask_T[len(first)] and r.mask_T[: len(first)].all()
    assert any(r.turns[0].text.endswith(HOW.stops) for r in made)


def test_a_text_far_back_is_found_once_it_is_complete() -> None:
    find = finder(lambda ids: "".join(chr(97 + i) for i in ids.tolist()), ["bc"])
    assert [find(torch.tensor([0, 1, 2, 0][:n])) for n in range(1, 5)] == [0, 0, 3, 3]


def test_several_texts_and_none() -> None:
    assert pt.Sampling(stop="</a>|</b>").stops == ("</a>", "</b>") and pt.Sampling().stops == ()


def test_the_running_text_is_the_text_where_a_first_token_loses_its_space() -> None:
    """As SentencePiece decodes: what a token reads as depends on whether one comes before it."""

    def decode(ids: list[int]) -> str:
        return "".join(f" {chr(97 + i)}" for i in ids).removeprefix(" ")

    text, ids = RunningText(decode), [i % 26 for i in range(3 * WINDOW)]
    for n in range(1, len(ids) + 1, 7):
        assert text(ids[:n]) == decode(ids[:n])
