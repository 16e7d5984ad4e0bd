"""What is wanted of a policy, written into its prompt."""

from __future__ import annotations

import math

import pytest

from posttrain.core.conditioning import Classes, Directions, Wanted, example, of_row
from posttrain.core.errors import UserError

ASKED = ({"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}, {"role": "user", "content": "Go on"})  # fmt: skip
TASTE = Directions(("helpful", "verbose"))


def test_a_class_stands_before_every_message_of_the_user_alone() -> None:
    how = Classes(("expert", "web"))
    said = [m["content"] for m in how.written(ASKED, how.asked("web"))]
    assert said == ["Be kind.", "web User: Hi", "Yes", "web User: Go on"]
    assert how.asked() == "expert" and how.asked("web") == "web"
    with pytest.raises(UserError, match=r"no class .* named 'wbe'; did you mean 'web'"):
        how.asked("wbe")


def test_parts_of_a_message_stay() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    found = Classes(("a", "b")).written([message], "a")[0]["content"]
    assert [part["text"] for part in found] == ["a User: ", "Hi"]


def test_a_direction_is_a_system_message_in_hundredths() -> None:
    # (8, -6) / 10 = (0.8, -0.6)
    v = TASTE.asked("helpful=8, verbose=-6")
    assert v == pytest.approx((0.8, -0.6))
    assert TASTE.written(ASKED[1:2], v) == (
        {"role": "system", "content": "Maximize the weighted rating = helpful*80 + verbose*-60"}, ASKED[1],
    )  # fmt: skip
    before = TASTE.written(ASKED, v)
    assert len(before) == 4 and before[0]["content"].endswith("verbose*-60\nBe kind.")
    assert TASTE.asked("helpful=1") == (1.0, 0.0)


def test_messages_that_come_later_are_told_a_class_and_no_direction() -> None:
    later = [{"role": "user", "content": "And?"}]
    assert Wanted(Classes(("a", "b")), "b").goes_on(later)[0]["content"] == "b User: And?"
    assert Wanted(TASTE, (1.0, 0.0)).goes_on(later) == tuple(later)


@pytest.mark.parametrize(
    ("prefer", "told"),
    [
        ("", r'say which: --prefer "helpful=0.8,verbose=-0.6"'),
        ("helpfull=1", "did you mean 'helpful'"),
        ("helpful", "write a number after each name"),
        ("helpful=x", "write a number after each name"),
        ("helpful=0", "no direction"),
        ("helpful=nan", "no direction"),
        ("helpful=0.6,verbose=0.8", r"points 53 degrees away from helpful, .* up to 45: .* is 0.71 or more"),
        ("helpful=-1", "points 180 degrees"),
        ("helpful=0.8,helpful=0.9", "names helpful twice"),
    ],
)
def test_what_is_no_direction_is_told_in_a_sentence(prefer: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        TASTE.asked(prefer)


def test_the_edge_is_inside() -> None:
    assert TASTE.asked("helpful=1,verbose=1") == pytest.approx((math.sqrt(0.5), math.sqrt(0.5)))


@pytest.mark.parametrize("how", [Classes(("expert", "web")), Directions(("a", "b", "c"), 30.0)])
def test_an_artifact_says_all_of_it(how: Classes | Directions) -> None:
    assert of_row(how.row()) == how and example(how)["role"] in ("user", "system")
