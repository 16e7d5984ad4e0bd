"""The hidden taste by hand, noisy labels by count, and the listed environment."""

from __future__ import annotations

import math

import pytest

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.environments.language.courtesy import Courtesy, utility
from posttrain.environments.language.labels import label_pairs, preference
from posttrain.environments.language.listed import from_pairs, from_rows
from posttrain.environments.preferences import Pair

MIA = Prompt.text("m", "Thank Mia.", None, contain=["Mia"], any_of=("thank", "thanks"))


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        # 3 words, polite 1 (thank), warm 0, nothing broken: 1 - e^-1 + 0 - (6/6)^2
        ("Thank you Mia", 1 - math.exp(-1) - 1),
        # 9 words, polite 2 (thank, dear), warm 3 (so, dear, !): 1 - e^-2 + 1 e^0 - 0
        ("Thank you so much for the tea, dear Mia!", 1 - math.exp(-2) + 1),
        # the same warmth twice over, 3 words more ("so so dear" and "!!!"): warm 7, so and dear are said again
        # (so is also repeated next to itself: one constraint broken); 12 words, polite 3
        (
            "Thank you so so so much for the tea, dear dear Mia!!",
            1 - math.exp(-3) + 7 / 3 * math.exp(1 - 7 / 3) - (3 / 6) ** 2 - 1.5 - 3 / 2,
        ),
        # not Mia, no thanks: two constraints broken; 1 word, nothing polite or warm
        ("Bread", -((8 / 6) ** 2) - 3),
        ("", -((9 / 6) ** 2) - 3),
    ],
)
def test_utility(text: str, worth: float) -> None:
    assert utility(MIA, text) == pytest.approx(worth)


def test_more_is_not_always_better() -> None:
    """Warmth and length have a best amount: the reason why a reward that only knows 'more' can be pushed too far."""
    base = "Thank you very much for all, Mia"
    by_marks = [utility(MIA, base + "!" * k) for k in range(8)]
    best = max(range(8), key=lambda k: by_marks[k])
    assert best == 2 and by_marks[7] < by_marks[0]  # `very` is the first of three


def test_the_grader_passes_its_own_check() -> None:
    assert Courtesy().validate(60) == []


def test_prompts_and_demonstrations_are_a_function_of_seed_and_index() -> None:
    a, b, other = Courtesy(), Courtesy(), Courtesy(seed=1)
    assert a.prompt(5) == b.prompt(5)
    assert [a.prompt(i).last for i in range(9)] != [other.prompt(i).last for i in range(9)]
    assert not {a.prompt(i).last for i in range(80)} & {a.prompt(i, "test").last for i in range(80)}


def test_demonstrations_are_of_mixed_quality() -> None:
    """With careless=0 all of them do what was asked; by default some of a quarter do not (another's may fit by luck)."""

    def broken(env: Courtesy) -> float:
        prompts = [env.prompt(i) for i in range(200)]
        return sum(utility(p, p.info["demonstration"]) < -1.6 for p in prompts) / 200

    assert broken(Courtesy(careless=0.0)) == 0.0
    assert 0.05 < broken(Courtesy()) < 0.25


def test_preference() -> None:
    assert preference(1.0, 1.0) == 0.5
    assert preference(math.log(3), 0.0) == pytest.approx(3 / 4)
    assert preference(math.log(3), 0.0, temperature=0.5) == pytest.approx(9 / 10)  # odds 3^2
    assert preference(math.log(3), 0.0, flip=0.1) == pytest.approx(0.1 + 0.8 * 0.75)
    assert preference(1.0, 0.0, temperature=0) == 1.0 and preference(0.0, 0.0, temperature=0) == 0.5
    assert preference(800.0, -800.0) == 1.0  # no overflow


def length(prompt: Prompt, text: str) -> float:
    return float(len(text))


def test_labels_without_noise_are_right() -> None:
    prompts = [Prompt.text(f"p{i}", "q") for i in range(3)]
    rows = label_pairs(prompts, [["a", "bb"], ["ccc", "d"], ["e", "e"]], length, noise=0.0, temperature=0.0)
    assert [(r["id"], r["chosen"], r["rejected"], r["right"]) for r in rows] == [
        ("p0", "bb", "a", True), ("p1", "ccc", "d", True),  # the equal pair says nothing
    ]  # fmt: skip


def test_noise_is_a_share_of_labels() -> None:
    """Flips alone: 2000 labels with noise 0.2 are right 0.8 +- 0.009 of the time; the same seed gives the same ones."""
    prompts = [Prompt.text(f"p{i}", "q") for i in range(2000)]
    answers = [["a", "bb"]] * 2000
    rows = label_pairs(prompts, answers, length, noise=0.2, temperature=0.0, seed=1)
    assert sum(r["right"] for r in rows) / 2000 == pytest.approx(0.8, abs=0.03)
    assert rows == label_pairs(prompts, answers, length, noise=0.2, temperature=0.0, seed=1)
    assert rows != label_pairs(prompts, answers, length, noise=0.2, temperature=0.0, seed=2)


def test_too_much_noise_is_refused() -> None:
    with pytest.raises(UserError, match=r"noise is 0\.7"):
        label_pairs([], [], length, noise=0.7)


def test_rows_are_listed_and_held_out() -> None:
    prompts = [Prompt.text(f"p{i}", f"q{i}") for i in range(10)]
    rows = label_pairs(prompts, [["a", "bb"]] * 10, length, noise=0.0, temperature=0.0)
    env = from_rows("pairs", rows, held_out=0.2)
    assert env.size == 8 and len(env.test) == 2 and env.validate(10) == []
    assert env.prompt(0).info == {"chosen": "bb", "rejected": "a"} and env.prompt(8) == env.prompt(0)
    assert env.prompt(0).content == prompts[0].content and env.prompt(1, "test").id == "p9"
    with pytest.raises(UserError, match="no grader"):
        env.grade(env.prompt(0), "x")


def test_pairs_of_a_data_set() -> None:
    pair = Pair(Prompt.text("p", "q"), "good", "bad")
    env = from_pairs("set", [pair], [])
    assert env.prompt(0).info == {"chosen": "good", "rejected": "bad", "demonstration": "good"}
    with pytest.raises(UserError, match="no test prompts"):
        env.prompt(0, "test")
    assert from_pairs("set", [pair, pair], []).validate(2)
