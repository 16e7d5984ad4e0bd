"""Cards that are not here."""

from __future__ import annotations

import json

import pytest

from posttrain.cli import main
from posttrain.core.errors import UserError
from posttrain.runs.cards import CARDS, SHARES, card, machine_of


@pytest.mark.parametrize(
    ("said", "name"),
    [("h100-80gb", "h100-80gb"), ("NVIDIA H200", "h200-141gb"), ("RTX 4090", "rtx4090-24gb"), ("l4", "l4-24gb")],
)
def test_a_card_by_its_usual_names(said: str, name: str) -> None:
    assert card(said) == (name, CARDS[name])


def test_a_card_of_several_sizes_or_none_is_an_error() -> None:
    with pytest.raises(UserError, match="a100-40gb, a100-80gb"):
        card("a100")
    with pytest.raises(UserError, match=r"did you mean|known"):
        card("h10")


def test_a_machine_has_a_share_of_the_data_sheet() -> None:
    m = machine_of(CARDS["h100-80gb"])
    assert m.gpu and m.flops == pytest.approx(989e12 * SHARES[0]) and m.free == pytest.approx(76e9)


def test_doctor_answers_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {}
    for name in ("l4", "h100-80gb"):
        assert main(["doctor", "--json", "--hardware", name]) == 0
        found = {f["what"]: f for f in json.loads(capsys.readouterr().out)}
        figures[name] = found["memory of a run"]["figures"]["step_s"]
        assert name in found["speed of a run"]["told"]
    assert figures["h100-80gb"] < figures["l4"]
    assert main(["doctor", "--hardware", "abacus"]) != 0
    assert "no card named" in capsys.readouterr().err
