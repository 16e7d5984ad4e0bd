"""Comparison: same prompts, same budget; the table and the picture are there, bad input is answered."""

import pytest

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.lab.compare import compare

SMALL = Config(prompts=2, n=2, eval_problems=6, think=False, sampling=Sampling(max_tokens=6))


def test_two_methods_on_a_school_task(tmp_path):
    made = compare(["grpo", "rloo"], "strings", seeds=2, steps=2, config=SMALL, picture=tmp_path / "c.png")
    assert (tmp_path / "c.png").stat().st_size > 1000
    assert [r.method for r in made.rows] == ["grpo", "rloo"] and all(len(r.accuracy) == 2 for r in made.rows)
    assert made.rows[0].curve[0] == made.rows[1].curve[0]  # the first step is the same prompts and the same policy
    assert "ahead of grpo" in str(made) and made.to_dict()["seeds"] == 2


@pytest.mark.parametrize(
    ("methods", "says"), [(["grpo"], "at least two"), (["grpo", "grpo"], "different"), (["grpo", "rlo"], "rloo")]
)
def test_bad_input(methods, says):
    with pytest.raises(UserError, match=says):
        compare(methods, "strings", seeds=2, steps=1, config=SMALL)
