"""Names, cards and parameters: found by existing, wrong ones answered with the nearest."""

import pytest

from posttrain.core.errors import UserError, nearest
from posttrain.core.registry import _PARTS, LOSSES, STAGES, advantage, find, fold, parse
from posttrain.systems.policy_gradient.cispo import clipped_weight as cispo
from tests.package import package_parts


def test_every_part_has_a_card_with_a_sentence_and_a_file():
    for part in package_parts():
        assert part.card.stage in STAGES
        assert part.card.doc and part.card.title, part.name
        assert part.card.file.startswith(("posttrain/", "examples/")), part.card.file  # an example has its own


def test_the_base_parts_are_there():
    names = {p.name for p in package_parts(*LOSSES)}
    assert {"sft", "bradley-terry", "dpo", "ipo", "hinge", "robust-dpo", "reinforce", "ppo", "dual-clip"} <= names
    assert {"dapo", "gspo", "cispo", "raft"} <= names
    assert {"grpo", "dr-grpo", "rloo", "reinforce-pp", "gae", "outcome"} <= {p.name for p in package_parts("advantage")}
    assert {"token-mean", "sequence-mean", "constant"} <= {p.name for p in package_parts("aggregate")}
    assert {"fixed", "ema", "reset"} <= {p.name for p in package_parts("reference")}
    assert {"zero-variance", "overlong"} <= {p.name for p in package_parts("select")}


def test_find_binds_parameters_and_folds_names():
    assert find("CISPO(high=4)", *LOSSES).defaults()["high"] == 4
    assert find("dr_grpo", "advantage") is find("Dr-GRPO", "advantage") or fold("Dr-GRPO") == "dr-grpo"


def test_a_part_may_have_another_name_than_its_function():
    @advantage(name="Toy_Credit")
    def half(batch, share=0.5):
        """Toy: half of it."""

    try:
        assert (half.name, half.fn.__name__) == ("toy-credit", "half")
        assert find("toy_credit(share=0.1)", "advantage").defaults() == {"share": 0.1}
        assert "half" not in _PARTS["advantage"]
    finally:
        del _PARTS["advantage"]["toy-credit"]


def test_a_wrong_name_gets_the_nearest():
    with pytest.raises(UserError, match="no loss named 'csipo'; did you mean 'cispo'"):
        find("csipo", *LOSSES)


def test_a_wrong_parameter_gets_the_nearest():
    with pytest.raises(UserError, match="cispo has no parameter 'hihg'; did you mean 'high'"):
        cispo.but(hihg=3)


def test_parse_takes_literals_only():
    assert parse("kl(coef=0.1, kind='k2')") == ("kl", {"coef": 0.1, "kind": "k2"})
    for bad in ("kl(coef=open('x'))", "kl(0.1)", "kl(coef=", "kl(coef=__import__('os'))"):
        with pytest.raises(UserError, match="cannot read"):
            parse(bad)


def test_nearest_gives_nothing_for_nothing_like_it():
    assert nearest("zzzzqqq", ["cispo", "ppo"]) is None
