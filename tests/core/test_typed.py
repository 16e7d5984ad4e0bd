"""Every setting and every parameter of every part is held to its annotation, those of parts that do not exist yet too."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from posttrain.cli import main
from posttrain.core.config import Config, from_dict
from posttrain.core.errors import UserError
from posttrain.core.method import find_method
from posttrain.core.registry import _PARTS, advantage, find, parse
from posttrain.core.sampling import Sampling
from posttrain.core.typed import checked, fits, hints_of, parameter_hints, shown
from tests.package import package_parts

NAN, INF = float("nan"), float("inf")
WRONG = {int: ["x", 1.5, NAN, INF, True, 2**70, [1]], float: ["x", NAN, -INF, True, 10**400, (1.0,)], bool: [1, "yes"], str: [1, "\ud800", "a\0b"]}  # fmt: skip


@pytest.mark.parametrize(
    ("value", "hint", "right"),
    [
        (3, int, True), (True, int, False), (3.0, int, False), (np.int64(3), int, True), (3, float, True),
        (np.float32(0.5), float, True), (None, float, False), (None, float | None, True), ("a", int | str, True),
        ((1, 2), tuple[int, int], True), ([1, 2], tuple[int, int], True), ((1,), tuple[int, int], False),
        ((1, 2, 3), tuple[int, ...], True), ((1, "2"), tuple[int, ...], False), ((0.1, NAN), Sequence[float], False),
        ("ab", Sequence[float], False), ({"a": 1.0}, dict[str, float] | None, True), ({"a": INF}, dict[str, float], False),
        (5, Callable[[int], int], False), (len, Callable[[int], int], True), (5, Any, True), ("x", Config, False),
    ],
)  # fmt: skip
def test_what_fits(value: Any, hint: Any, right: bool) -> None:
    assert fits(value, hint) is right


def test_every_setting_refuses_what_its_annotation_does_not_allow() -> None:
    for kind, make in ((Config, Config), (Sampling, Sampling)):
        for field in dataclasses.fields(kind):  # type: ignore[arg-type]
            hint = hints_of(kind)[field.name]
            for values in (WRONG[k] for k in WRONG if fits(k(), hint)):
                for value in values:
                    if not fits(value, hint):
                        with pytest.raises(UserError, match=f"^{field.name} is "):
                            make(**{field.name: value})


def test_every_parameter_of_every_part_is_checked_and_its_default_passes() -> None:
    tried = 0
    for part in package_parts():
        hints = parameter_hints(part.fn)
        for name, default in part.defaults().items():
            assert part.but(**{name: default}).defaults()[name] is default
            for kind, values in WRONG.items():
                if kind is not type(default) or not fits(kind(), hints[name]):
                    continue
                for value in values:
                    if fits(value, hints[name]):
                        continue
                    tried += 1
                    with pytest.raises(UserError, match=f"^{name} of {part.name} is "):
                        part.but(**{name: value})
    assert tried > 1000


def test_a_new_part_is_checked_without_a_line_of_its_own() -> None:
    @advantage(name="Toy_Checked")
    def toy(batch: Any, share: float = 0.5, how: str = "a", free=None) -> None:  # type: ignore[no-untyped-def]
        """Toy: nothing."""

    try:
        assert find("toy-checked(share=1, how='b', free='anything')", "advantage").defaults()["free"] == "anything"
        with pytest.raises(UserError, match="share of toy-checked is 'a'; expected a number"):
            find("toy-checked(share='a')", "advantage")
    finally:
        del _PARTS["advantage"]["toy-checked"]


@pytest.mark.parametrize(
    "bad",
    [
        {"warmup": -3}, {"max_norm": -1.0}, {"max_norm": 0.0}, {"max_norm": NAN}, {"lr": INF}, {"lr": 1e4}, {"dtype": "int8"},
        {"eval_every": -1}, {"log_rollouts": -2}, {"reward_timeout": 0.0}, {"name": "x" * 300}, {"steps": 10**12},
        {"seed": "1"}, {"think": "yes"}, {"sampling": 3}, {"sampling": {"temperature": NAN}}, {"sampling": {"top_k": 2**63}},
        {"sampling": {"temperature": 1e-320}}, {"sampling": {"temperature": 10**400}}, {"prompts": 2.5},
    ],
)  # fmt: skip
def test_settings_that_could_only_go_wrong_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(
        UserError,
        match=next(iter(next(iter(bad.values())))) if isinstance(next(iter(bad.values())), dict) else next(iter(bad)),
    ):
        from_dict(Config, bad)


def test_numbers_of_numpy_become_plain() -> None:
    made = Config(steps=np.int64(3), lr=np.float32(0.5))  # type: ignore[arg-type]
    assert type(made.steps) is int and type(made.lr) is float


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--warmup", "-3"], "warmup is -3"),
        (["--max-norm", "-1"], "max_norm is -1.0"),
        (["--max-norm", "nan"], "expected a finite number, got 'nan'"),
        (["--lr", "inf"], "expected a finite number"),
        (["--sampling.temperature", "nan"], "expected a finite number"),
        (["--reward", "1e999*numeric"], "the weight of numeric is inf"),
        (["--reward", "1.2.3*numeric"], "cannot read '1.2.3*numeric'"),
        (["--loss", "cispo(high='a')"], "high of cispo is 'a'; expected a number"),
        (["--loss", "cispo(high=1e999)"], "high of cispo is inf"),
        (["--loss", f"cispo(high={'-' * 3000}1)"], "cannot read 'cispo(high=---"),
        (["--loss", f"cispo(high={'(' * 500}1)"], "cannot read"),
        (["--loss", "cispo(high={[]: 1})"], "cannot read"),
        (["--loss", "ppo() or f(high=1)"], "cannot read"),
        (["--name", "x" * 300], "name has 300 bytes"),
        (["--dtype", "int8"], "dtype is 'int8'; use 'float32' or 'bfloat16'"),
        (["--steps", "1" * 5000], "expected a whole number"),
        (["--optimiser", "adamw(betas=0.9)"], "betas of adamw is 0.9; expected (a number, a number)"),
    ],
)
def test_on_the_command_line_each_is_one_sentence(words: list[str], told: str, capsys: Any) -> None:
    assert main(["run", "grpo", *words]) == 2
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1 and len(said) < 400


@pytest.mark.parametrize("spec", ["grpo(epochs='x')", "grpo(epochs=True)", "grpo(epochs=0)", "grpo(name='../../evil')",
                                  "grpo(others=1)", "grpo(doc=3)", "grpo(loss=3)", f"grpo(epochs={'-' * 3000}1)"])  # fmt: skip
def test_a_method_with_impossible_parameters(spec: str) -> None:
    with pytest.raises(UserError):
        find_method(spec)


def test_what_cannot_be_shown_is_said_to_be_so() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert shown(Odd()) == "a Odd that cannot be shown (RuntimeError)"
    assert len(shown(10**5000)) < 80 and len(shown("x" * 500)) == 60
    with pytest.raises(UserError, match="x is a Odd that cannot"):
        checked("x", Odd(), int)
    assert parse("f(a=1)") == ("f", {"a": 1})


def test_a_message_never_fills_the_screen() -> None:
    with pytest.raises(UserError) as error:
        find("x" * 100_000, "policy_loss")
    assert len(str(error.value)) < 1000 and str(error.value).startswith("no loss named 'xxx")
