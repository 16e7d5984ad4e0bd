"""TL-Training's samples, weights and rewards, worked out by hand.

The claim to come: tl-training against SFT, SFT + mask, SFT + mask + weights, and PPO with graded=False, equal samples and updates, on traces of
which a quarter of the calls failed; exact calls on held-out requests, by kind of error; expected: each part adds, graded above binary.
"""

from __future__ import annotations

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.types import Prompt
from posttrain.systems.agents_multiturn.tl_training import (
    failed,
    graded_call,
    key_places,
    key_weights,
    read_call,
    right_call,
    samples,
    validate,
    weighed_tokens,
)

TOOLS = [
    {"name": "get_city", "parameters": {"properties": {"name": {"type": "string"}, "year": {}, "unit": {}}}},
    {"name": "get_time", "parameters": {}},
]
GOLD = '[{"name": "get_city", "arguments": {"name": "Oslo", "year": 3}}]'


def asked() -> Prompt:
    return Prompt.text("p", "q", GOLD, tool_parameters={"get_city": ["name", "year", "unit"], "get_time": []})


@pytest.mark.derived("reward/graded-call", "reward/right-call")
def test_every_line_of_the_table() -> None:
    table = {
        "get_city(year=3, name='Oslo')": 1.0,
        "get_city(name='Rome', year=3)": -0.25,
        "get_city(name='Oslo')": -0.5,  # missing
        "get_city(name='Oslo', year=3, unit='m')": -0.5,  # too many
        "get_city(name='Oslo', year=3, x=1)": -0.8,  # not the tool's
        "get_city(name='Oslo', unit='m')": -1.0,
        "get_city(name='Oslo', x=1)": -1.3,
        "get_city(name='Oslo', year=3, unit='m', x=1)": -1.3,
        "get_city(unit='m', x=1)": -1.8,
        "get_time()": -1.5,
        "get_moon()": -2.0,
        "get_city('Oslo', 3)": -2.0,
        "Oslo, I think": -2.0,
        "get_city(name=open('x'))": -2.0,
        "": -2.0,
    }
    for said, want in table.items():
        assert graded_call(asked(), said) == want, said
        assert right_call(asked(), said) == float(want == 1.0)
    assert graded_call(asked(), "get_city(name='Oslo', year=4)", quoted=True) == 1.0  # a number is invisible there
    assert graded_call(asked(), "<think>get_time()</think>get_city(name='Oslo', year=3)") == 1.0
    assert right_call(Prompt.text("p", "q", "It is 3.", tool_parameters={}), "It is 3.") == 1.0
    assert validate() == [] and read_call("f(" * 30000) is None


@pytest.mark.derived("rollout/key-tokens", "supervised_loss/weighed-tokens")
def test_weights_and_their_loss() -> None:
    """Names g,e,t,C(.. and g,e,t,T(..: keys are places 0 and 3. Of 10 tokens 2 are keys: w = min(8 / 2, 9) = 4, mean (8 + 2 * 4) / 10 = 1.6.

    So keys have 2.5 and others 0.625, and a mean over tokens of w l is (sum 4 l_key + sum l_other) / 16. dL/dlogp = -w.
    """
    assert key_places([7, 8, 9, 1, 2], [[7, 8, 9, 4], [5], [7, 8, 9, 1, 3]]) == [0, 3, 4]
    places = key_places([7, 8, 9, 1, 2], [[7, 8, 9, 4]])
    weight = key_weights(10, places)
    torch.testing.assert_close(weight, torch.tensor([2.5, 0.625, 0.625, 2.5, *[0.625] * 6]))
    torch.testing.assert_close(key_weights(100, [0])[0] / key_weights(100, [0])[1], torch.tensor(9.0))  # capped
    torch.testing.assert_close(key_weights(3, [0, 1]), torch.ones(3))  # no fewer than the others
    logp = torch.full((1, 10), -2.0, requires_grad=True)
    loss = weighed_tokens(Batch(logp_BT=logp, mask_BT=torch.ones(1, 10), reward_BT=weight[None]))
    torch.testing.assert_close(loss[0, :2], torch.tensor([5.0, 1.25]))
    loss.sum().backward()
    torch.testing.assert_close(logp.grad, -weight[None])


def test_a_failed_turn_is_seen_and_not_learned() -> None:
    def call(tool: str, **given: object) -> dict[str, object]:
        return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": tool, "arguments": given}}]}

    said = (
        {"role": "user", "content": "Oslo?"},
        call("get_city", name="Olso"),
        {"role": "tool", "content": "{'error': 'no such city'}"},
        call("get_city", name="Oslo"),
        {"role": "tool", "content": "5 m"},
    )
    row = Prompt("d", said, "5 m high", {"tools": TOOLS, "imitated": {"role": "assistant", "content": "5 m high"}})
    made = samples(row)
    assert [p.info["demonstration"] for p in made] == ["get_city(name='Oslo')", "5 m high"]
    assert any("Olso" in m["content"] for m in made[0].content) and "Output: {'error'" in made[0].content[-1]["content"]
    assert "get_city(name, year, unit)" in made[0].content[0]["content"]
    assert len(samples(row, mask=False)) == 3
    assert failed("400 client error: bad") and failed("NameError: x is not defined") and not failed("12 degrees")
    with pytest.raises(ValueError, match="2 calls at once"):
        samples(Prompt.text("p", "q", '[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]', tools=TOOLS))
