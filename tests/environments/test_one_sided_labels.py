"""Labels of one class are told: nothing says what the other class is."""

from __future__ import annotations

import pytest

from posttrain.core.types import Prompt
from posttrain.environments.good_bad import Judged, doubts


@pytest.mark.parametrize(("labels", "told"), [((True, True), "all answers are good"), ((False,), "all answers are bad"), ((True, False), "")])  # fmt: skip
def test_labels_of_one_class_are_told(labels: tuple[bool, ...], told: str) -> None:
    rows = [Judged(Prompt.text(str(i), f"{i}?"), "a", label) for i, label in enumerate(labels)]
    one_sided = [line for line in doubts(rows) if line.startswith("one-sided")]
    assert len(one_sided) == bool(told) and told in "".join(one_sided)
