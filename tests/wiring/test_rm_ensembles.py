"""Plans with several reward models: who is trained on what, what the policy is paid, what is only looked at."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.plan import Context
from posttrain.core.registry import find
from posttrain.systems.reward_model.helping_or_herding import ranks_apart, winners
from tests.models import tiny
from tests.models.tiny import random_hf, randomise
from tests.wiring.spies import ROWS, SHAPE, WORDS, tiny_folder, traced

PAIRS = [{"prompt": r["question"], "chosen": r["answer"], "rejected": "no"} for r in ROWS]


def length(prompt: Any, text: str) -> float:
    return float(len(text))


def paid(trace: Any, phase: str) -> list[tuple[float, list[float]]]:
    """(reward, what each member said) of every answer of a phase."""
    rollouts = [r for s in trace.steps if s.phase == phase for r in s.rollouts]
    return [(r.reward, [r.rewards[k] for k in sorted(r.rewards) if k.startswith("member")]) for r in rollouts]


def test_members_differ_by_seed_and_the_worst_pays() -> None:
    trace = traced(
        "rm-ensemble-conservative(members=3,how='wco',steps=2)", rows=PAIRS, reward=length, num_generations=2, prompts=8
    )
    assert trace.parts[:5] == ["policy->start", "reward-model-0", "reward-model-1", "reward-model-2", "units"]
    assert [p.name for p in trace.phases] == [f"reward-model-{k}" for k in range(3)] + ["ppo"]
    assert {p.method.loss.name for p in trace.phases[:3]} == {"bradley-terry-l2"}, "scores are pulled towards 0"
    heads = [u.passes[0].batch["score_B"] for k in range(3) for u in trace.of(f"reward-model-{k}")[:1]]
    first = [[r.text for r in u.rows] for k in range(3) for u in trace.of(f"reward-model-{k}")[:1]]
    assert first[0] != first[1], "members see the pairs in orders of their own"
    assert not torch.allclose(heads[0], heads[1]), "members begin with heads of their own"
    bases = {trace.of(f"reward-model-{k}")[0].before for k in range(3)}
    assert len(bases) == 1, "all members begin at the given model"
    updates = trace.of("policy", "ppo")
    assert len(updates) == 2 and updates[0].before in bases and updates[1].reference == updates[0].before
    for reward, members in paid(trace, "ppo"):
        assert reward == pytest.approx(min(members), abs=1e-5) and len(members) == 3
    measured = trace.summary["measured"]
    assert set(measured) == {"start", "policy"} and measured["start"]["kl"] == pytest.approx(0, abs=1e-6)
    assert {"proxy", "gold", "kl", "members_apart"} <= set(measured["policy"])


def test_heads_are_drawn_by_the_name_and_the_seed() -> None:
    context = Context(None, Config(), {"start": tiny.policy()})
    one, two, *_ = find("rm-ensemble-conservative", "plan")().phases()
    heads = [phase.make(context).score.out.weight for phase in (one, two, one)]
    assert torch.equal(heads[0], heads[2]) and not torch.equal(heads[0], heads[1])


def test_the_variance_is_paid_for() -> None:
    trace = traced("rm-ensemble-conservative(members=2,steps=1,coef=0.5)", rows=PAIRS, num_generations=2, prompts=8)
    for reward, (a, b) in paid(trace, "ppo"):
        assert reward == pytest.approx((a + b) / 2 - 0.5 * ((a - b) / 2) ** 2, abs=1e-4)
    assert "gold" not in trace.summary["measured"]["policy"]


def test_best_of_n_trains_no_policy() -> None:
    trace = traced(
        "rm-ensemble-conservative(members=2,optimiser='best-of-n')",
        rows=PAIRS,
        reward=length,
        num_generations=4,
        prompts=8,
    )
    assert not trace.of("policy") and trace.parts[-1] == "best-of-n"
    found = trace.summary["best_of_n"]
    assert list(found) == ["1", "2", "4"] and found["4"]["proxy"] >= found["1"]["proxy"] and "gold" in found["2"]


def test_bases_pre_trained_apart_and_fine_tuned_again(tmp_path: Any) -> None:
    other = _other_base(str(tmp_path / "other"))
    name = f"helping-or-herding(bases='{tiny_folder()},{other}',seeds=2,how='median',steps=1)"
    trace = traced(name, rows=PAIRS, reward=length, num_generations=2, prompts=8)
    roles = ["base0-seed0", "base0-seed1", "base1-seed0", "base1-seed1"]
    assert [p.name for p in trace.phases] == [*roles, "ppo"]
    starts = [trace.of(r)[0].before for r in roles]
    assert starts[0] == starts[1] != starts[2] == starts[3], "fine-tuning seeds share a base, bases do not"
    for reward, members in paid(trace, "ppo"):  # one member of each base, fine-tuned with seeds of their own
        assert len(members) == 2 and reward == pytest.approx(sum(members) / 2, abs=1e-4)
    found = trace.summary["best_of_n"]
    assert set(found) == {"single", "fine-tune", "pre-train"}
    assert set(found["pre-train"]) == {"mean", "median", "mean_minus_std"}
    assert "gold" in found["single"]["mean"]["2"]


def test_without_bases_only_fine_tuning_seeds_are_compared() -> None:
    trace = traced("helping-or-herding(seeds=3,optimiser='best-of-n')", rows=PAIRS, num_generations=10, prompts=8)
    assert not trace.of("policy") and set(trace.summary["best_of_n"]) == {"single", "fine-tune"}
    assert {"ranks_apart_fresh", "ranks_apart_chosen"} <= set(trace.summary)


def test_members_are_apart_by_the_ranks_they_give() -> None:
    # two members: one prompt ranked alike, one in the opposite order: ranks differ by 2, 0, 2, so deviations 1, 0, 1 and 0, 0, 0
    z_KPG = torch.tensor([[[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], [[0.1, 0.2, 0.3], [3.0, 2.0, 1.0]]])
    assert ranks_apart(z_KPG) == pytest.approx((0 + 2 / 3) / 2)


def test_each_winner_is_the_first_member_s_best_of_its_share() -> None:
    # 10 answers are 5 shares of 2: the first member takes the larger of each, the second member's scores of the same answers follow
    first = torch.tensor([1.0, 0.0, 2.0, 3.0, 5.0, 4.0, 6.0, 7.0, 9.0, 8.0])
    z_KPG = torch.stack([first, 10 * torch.arange(10.0)]).unsqueeze(1)
    assert winners(z_KPG).squeeze(1).tolist() == [[1.0, 3.0, 5.0, 7.0, 9.0], [0.0, 30.0, 40.0, 70.0, 80.0]]


def _other_base(folder: str) -> str:
    from transformers import AutoTokenizer

    randomise(random_hf("llama", SHAPE | {"vocab_size": len(WORDS)}), seed=7).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_folder()).save_pretrained(folder)
    return folder


def test_mistakes_are_sentences() -> None:
    with pytest.raises(UserError, match="way to combine"):
        traced("rm-ensemble-conservative(how='min')", rows=PAIRS)
    with pytest.raises(UserError, match="chosen"):
        traced("rm-ensemble-conservative(members=1)", rows=ROWS)
