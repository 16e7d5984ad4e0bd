"""Two prompts of equal tokens and different pictures never share a prefix, in the sampler or in the trainer."""

from __future__ import annotations

import pytest
import torch

from examples.look import HOW, PATCHES, PICTURE, Look, SeeingPolicy, main, policy_of
from posttrain.core import rng
from posttrain.core.turn import Turn
from posttrain.core.types import Prompt
from posttrain.models.layout import LAYOUTS, Rows


@pytest.fixture
def policy() -> SeeingPolicy:
    return policy_of(0)


def twins() -> list[Prompt]:
    """One question about two pictures."""
    asked = [Look().prompt(i) for i in range(20)]
    first = asked[0]
    other = next(
        p for p in asked[1:] if p.last == first.last and not torch.equal(p.info["pixels"], first.info["pixels"])
    )
    return [first, other]


def sampled(policy: SeeingPolicy, prompts: list[Prompt], n: int = 4) -> list[list[Turn]]:
    """n answers to each prompt, with the same keys for every prompt: what differs is what was seen."""
    pending = [[Turn.empty(policy.observe(p))] for p in prompts]
    return policy.act(pending, [[rng.key("look", i) for i in range(n)] for _ in prompts], HOW)


def test_the_twins_differ_in_the_picture_alone(policy: SeeingPolicy) -> None:
    a, b = (policy.observe(p) for p in twins())
    assert torch.equal(a.tokens, b.tokens) and (a.tokens == PICTURE).sum() == PATCHES
    assert a.key != b.key


def test_rows_of_equal_tokens_and_different_pictures_are_two_prompts(policy: SeeingPolicy) -> None:
    rows = Rows.of([t for turns in sampled(policy, twins()) for t in turns])
    assert rows.prompt_B.tolist() == [0] * 4 + [1] * 4
    assert rows.seen_P["pixels"].shape[0] == 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batched_forward_pass_is_the_same_as_one_by_one(policy: SeeingPolicy, layout: str) -> None:
    """The same answers to both pictures: where a prefix was shared, both would get one picture's log-probabilities."""
    first, other = (policy.observe(p) for p in twins())
    answers = sampled(policy, twins())[0]
    turns = [Turn.of(seen, t.actions, t.logp_T) for seen in (first, other) for t in answers]
    policy.layout = layout
    with torch.no_grad():
        together_BT = policy.forward(turns)["logp_BT"]
        alone = [policy.forward([t])["logp_BT"][0] for t in turns]
    for i, logp_T in enumerate(alone):
        assert together_BT[i, : len(turns[i])].tolist() == pytest.approx(logp_T.tolist(), abs=1e-5)
    apart = [float((alone[i] - alone[i + 4]).abs().max()) for i in range(4)]
    assert min(apart) > 1e-3  # the pictures matter, so sharing would show


def test_acting_on_a_batch_is_the_same_as_one_by_one(policy: SeeingPolicy) -> None:
    together = sampled(policy, twins())
    alone = [sampled(policy, [p])[0] for p in twins()]
    for ts, us in zip(together, alone, strict=True):
        for t, u in zip(ts, us, strict=True):
            assert torch.equal(t.actions, u.actions)
            assert t.logp_T.tolist() == pytest.approx(u.logp_T.tolist(), abs=1e-5)
    (a, *_), (b, *_) = together
    assert abs(float(a.logp_T[0] - b.logp_T[0])) > 1e-3 or int(a.actions[0]) != int(b.actions[0])


def test_the_engine_is_not_asked_where_there_is_a_picture(
    policy: SeeingPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes contexts as ids alone, so it would share the twins' prefix."""
    monkeypatch.setattr(SeeingPolicy, "_engine", lambda self: pytest.fail("the engine was asked"))
    assert len(sampled(policy, twins())) == 2


def test_the_trainer_gives_the_sampler_s_log_probabilities(policy: SeeingPolicy) -> None:
    prompts = [Look().prompt(i) for i in range(6)]
    rollouts = [r for rs in policy.sample(prompts, 4, HOW) for r in rs]
    with torch.no_grad():
        logp_BT = policy.forward(rollouts)["logp_BT"]
    gap = max(float((logp_BT[b, : len(r)] - r.logp_T).abs().max()) for b, r in enumerate(rollouts))
    assert gap < 1e-4


def test_a_placeholder_that_is_said_gets_no_patch(policy: SeeingPolicy) -> None:
    """In a padded row answers stand beside the context: one that says the placeholder must not shift the next row's patches."""
    first, other = (policy.observe(p) for p in twins())
    said = torch.tensor([PICTURE, PICTURE, 5, 0])
    turns = [Turn.of(seen, said, torch.zeros(4)) for seen in (first, other)]
    with torch.no_grad():
        together_BT = policy.forward(turns)["logp_BT"]
        alone_BT = torch.cat([policy.forward([t])["logp_BT"] for t in turns])
        policy.layout = "shared"
        shared_BT = policy.forward([*turns, *turns])["logp_BT"][:2]
    assert torch.allclose(together_BT, alone_BT, atol=1e-5) and torch.allclose(together_BT, shared_BT, atol=1e-5)


def test_demonstrations_and_clones_see_the_picture_too(policy: SeeingPolicy) -> None:
    prompt = twins()[0]
    assert policy.written(prompt, "circle").row.observation.key == policy.observe(prompt).key
    assert isinstance(policy.clone(), SeeingPolicy)


def test_grpo_makes_it_answer_better() -> None:
    """Seeds 0, 1, 2 gain 0.22 to 0.32; the standard error of an accuracy is 0.03."""
    found = main(0, small=True)
    assert found["after"] > found["before"] + 0.1
