"""The examples learn, at the settings that `python -m examples.run --small` has; each is at most 120 lines.

That `denoise` and `look` learn is in test_denoise.py and test_look_prefix.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import guess, two_roles

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["guess", "two_roles", "control", "off_policy", "denoise", "look"])
def test_an_example_fits_on_a_page(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 120


def test_guess(tmp_path: Path) -> None:
    found = guess.main(0, small=True, runs=str(tmp_path))
    assert found["after"] > found["before"] + 0.2


def test_two_roles() -> None:
    found = two_roles.main(0, small=True)
    assert found["after"] > found["before"] + 0.3


@pytest.mark.parametrize(("name", "margin"), [("ppo", 4.0), ("grpo", 2.0)])
def test_control(name: str, margin: float) -> None:
    pytest.importorskip("gymnasium")
    from examples import control

    found = control.main(0, small=True, name=name)
    assert found["after"] > found["before"] + margin


def test_off_policy(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    from examples import off_policy

    found = off_policy.main(0, small=True, runs=str(tmp_path))
    assert found["after"] > found["before"] + 10.0
