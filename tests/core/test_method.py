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
