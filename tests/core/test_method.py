"""A method is a difference: what `but` takes, by part and by name, and what it refuses."""

from __future__ import annotations

import pytest

from posttrain.advantages.rloo import rloo
from posttrain.core.errors import UserError
from posttrain.core.method import Method, find_method, method
from posttrain.core.registry import _PARTS, find
from posttrain.losses.regularisers.entropy import entropy
from posttrain.methods.grpo import grpo
from posttrain.systems.policy_gradient.cispo import clipped_weight as cispo


def test_but_changes_one_stage_and_leaves_the_original() -> None:
    other = grpo.but(loss=cispo)
    assert other.loss.name == "cispo" and grpo.loss.name == "ppo"
    a, b = grpo.describe(), other.describe()
    assert {k for k in a if a[k] != b[k]} == {"loss"}


def test_but_by_name_binds_parameters() -> None:
    assert grpo.but(loss="cispo(high=4)").loss.defaults() == {"high": 4}
    assert grpo.but(advantage="Dr_GRPO").advantage.name == "dr-grpo"  # names are folded
    assert [t.name for t in grpo.but(terms=("kl", "entropy(coef=0.1)")).terms] == ["kl", "entropy"]


def test_one_part_is_enough_for_a_stage_of_several() -> None:
    assert grpo.but(terms=entropy).terms == (entropy,)
    assert grpo.but(terms=()).terms == ()
    assert grpo.but(select="zero_variance").select[0].name == "zero-variance"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"los": cispo}, "no stage 'los'; did you mean 'loss'"),
        ({"loss": "csipo"}, "did you mean 'cispo'"),
        ({"loss": "cispo(hihg=4)"}, "did you mean 'high'"),
        ({"loss": rloo}, "loss takes a part of the stage policy_loss or .* not a advantage|not an advantage"),
        ({"loss": 3}, "not 3"),
        ({"advantage": (rloo, rloo)}, "exactly one part, got 2"),
        ({"loss": "cispo(4)"}, r"write it like cispo\(name=value"),
    ],
)
def test_mistakes_are_told(changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        grpo.but(**changes)


def test_needs_are_those_of_its_parts() -> None:
    own = {"reward_BT", "group_B", "adv_BT", "old_logp_BT"}  # of the advantage and the loss
    assert grpo.reads == own | {"ref_logp_BT"}
    assert grpo.but(terms=()).reads == own
    assert grpo.but(terms=entropy, advantage="gae").reads == own - {"group_B"} | {"entropy_BT", "old_value_BT"}


def test_found_by_name_with_changes() -> None:
    assert find_method("grpo(epochs=2)").epochs == 2
    assert find_method("Dr_GRPO").name == "dr-grpo"
    with pytest.raises(UserError, match="did you mean 'gspo'"):
        find_method("gspoo")
    with pytest.raises(UserError, match="did you mean 'epochs'"):
        find_method("grpo(epoch=2)")


def test_description_is_plain_and_whole() -> None:
    """What a run's fingerprint is made of: every part with every parameter in force."""
    told = grpo.describe()
    assert told["terms"] == [{"part": "kl", "coef": 0.04, "kind": "k3"}]
    assert told["rollout"] == [{"part": "sample", "n": 8}]
    assert isinstance(grpo, Method) and grpo.but(epochs=3).describe() != told


def test_a_method_is_known_by_its_name_and_the_file_that_made_it() -> None:
    toy = method(grpo.but(name="toy_method", title="Toy", paper="arXiv:1", doc="Toy: nothing new."))
    try:
        card = find("toy-method", "method").card
        assert (card.file, card.title, card.paper) == ("tests/core/test_method.py", "Toy", "arXiv:1")
        assert find_method("toy-method") is toy
    finally:
        del _PARTS["method"]["toy-method"]


def test_a_parameter_that_follows_a_setting_is_the_runs_unless_it_is_given() -> None:
    """`cosine_length` has a window of the longest answer: that of the run, in every stage and in objectives of others too."""
    from dataclasses import replace

    from posttrain.core.config import Config, followed
    from posttrain.core.method import Objective
    from posttrain.core.sampling import Sampling
    from posttrain.rewards.shaping.cosine_length import cosine_length

    run = followed(Config(sampling=Sampling(max_tokens=3584), steps=7))
    assert run == {"max_tokens": 3584, "steps": 7}
    whole = grpo.but(shaping=(cosine_length, "cosine_length(longest=16)"))
    found = whole.within(run)
    assert [p.defaults()["longest"] for p in found.shaping] == [3584, 16]
    assert [p.defaults()["longest"] for p in whole.shaping] == [None, 16]  # the method itself is as it was
    assert found.describe()["shaping"][0]["longest"] == 3584  # what a run's folder says of it
    other = Objective("other", cosine_length, grpo.aggregate, grpo.optimiser, grpo.reference)
    assert replace(grpo, others=(other,)).within(run).others[0].loss.defaults()["longest"] == 3584
    with pytest.raises(UserError, match=r"longest of cosine_length is the run's max_tokens .* cosine_length\(longest="):
        from posttrain.core import laws

        cosine_length(laws.example())


def test_a_run_tells_its_parts(tmp_path) -> None:
    """As `posttrain run grpo --shaping cosine_length` builds it, and as a loop in memory does."""
    from posttrain.core.sampling import Sampling
    from posttrain.rewards.runtime.scorer import Prescored
    from posttrain.runs.build import Pieces, build_loop
    from posttrain.runs.in_memory import loop_of
    from tests.runs.tiny_run import Count, config, policy

    settings = config(sampling=Sampling(max_tokens=5))
    m = grpo.but(shaping="cosine_length")
    live = build_loop(settings, m, policy(), Pieces(Count(), Prescored(), None)).shaping[0]
    assert live.defaults()["longest"] == 5
    assert loop_of(policy(), m, Count(), settings).shaping[0].defaults()["longest"] == 5
