"""A process reward model as a folder: classifiers of tokens with two labels, as they are published, and what is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.types import Group, Prompt
from posttrain.policies.load import POCKET
from posttrain.rewards.runtime import score
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rewards.scorers.process_model import ProcessModel
from posttrain.rollouts.step_labels import step_ends
from posttrain.runs.critics import from_reward_model, read_reward_model
from tests.runs import tiny_run

CPU = Config(device="cpu", dtype="float32")
ASKED = Prompt.text("p", "What is 17 + 25?", "42")
TEXT = "17 + 25 = 32 + 10\n32 + 10 = 42\n42"


def saved(folder: Path, kind: str, labels: int) -> tuple[Any, Path]:
    """A tiny Qwen2 of that kind with random weights and the built-in model's tokenizer."""
    import transformers

    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(POCKET)
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, num_labels=labels, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = getattr(transformers, kind)(config).eval()
    torch.nn.init.normal_(model.score.weight, std=0.1)
    if model.score.bias is not None:
        torch.nn.init.normal_(model.score.bias, std=0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, folder


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    from posttrain.runs import critics

    told: list[str] = []
    monkeypatch.setattr(critics, "say_once", told.append)
    yield told
    assert score.say_once is not told.append


def test_two_labels_of_tokens_pay_each_step_the_chance_of_right_less_that_of_wrong(
    tmp_path: Path, notes: list[str]
) -> None:
    """2 sigma(logit_1 - logit_0) - 1 = softmax_1 - softmax_0, of transformers' own model at the last token of each step."""
    theirs, folder = saved(tmp_path / "prm", "Qwen2ForTokenClassification", 2)
    ours = read_reward_model(str(folder), CPU, "--plan.prm", steps=True)
    r = ours.written(ASKED, TEXT)
    r.reward = 1.0
    ends = step_ends(ours, r, "line")
    (verdict,) = ProcessModel(Prescored(), ours, "line").verdicts([Group(ASKED, [r])])
    ids = torch.cat([r.context, r.actions])
    with torch.no_grad():
        chance_TL = theirs(input_ids=ids[None]).logits[0].softmax(-1)
    want = [float(chance_TL[len(r.context) + at - 1] @ torch.tensor([-1.0, 1.0])) for at in ends]
    assert len(ends) == 3 and verdict.reward_T is not None
    torch.testing.assert_close([float(verdict.reward_T[at - 1]) for at in ends], want, atol=1e-5, rtol=1e-4)
    assert len({round(x, 4) for x in want}) == 3 and int((verdict.reward_T != 0).sum()) == 3
    assert not notes


def test_two_labels_are_no_critic_and_no_answers_score(tmp_path: Path) -> None:
    _, folder = saved(tmp_path / "prm", "Qwen2ForTokenClassification", 2)
    with pytest.raises(UserError, match=r"^--critic .*: not a reward model \(one label, score.weight\)"):
        from_reward_model(str(folder), tiny_run.policy(), CPU)


def test_what_is_no_process_reward_model_is_told_with_the_option_that_named_it(
    tmp_path: Path, notes: list[str]
) -> None:
    _, three = saved(tmp_path / "three", "Qwen2ForTokenClassification", 3)
    _, of_answers = saved(tmp_path / "two", "Qwen2ForSequenceClassification", 2)
    for folder in (three, of_answers):
        with pytest.raises(UserError, match=r"^--plan\.prm .*: not a reward model \(one label, or two of tokens,"):
            read_reward_model(str(folder), CPU, "--plan.prm", steps=True)
    with pytest.raises(UserError, match=r"^--plan\.prm nowhere: there is no such folder"):
        read_reward_model("nowhere", CPU, "--plan.prm", steps=True)
    _, one = saved(tmp_path / "one", "Qwen2ForSequenceClassification", 1)
    read_reward_model(str(one), CPU, "--plan.prm", steps=True)
    assert "its one label is read as the log-odds that the answer so far will end right" in notes[0]


def test_a_run_that_compared_whole_answers_is_refused(tmp_path: Path) -> None:
    pairs = [{"prompt": f"What is {i}+1?", "chosen": str(i + 1), "rejected": "no"} for i in range(12)]
    steps = [{"prompt": f"{i}+1?", "completions": ["a", "b"], "labels": [1, 0]} for i in range(12)]
    how: dict[str, Any] = {"steps": 1, "prompts": 2, "eval_problems": 0, "runs": tmp_path}
    file = tmp_path / "steps.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in steps))
    posttrain.run(method="reward-model", task=pairs, name="rm", **how)
    posttrain.run(method="process-reward-model", task=str(file), name="prm", **how)
    with pytest.raises(UserError, match=r"^--plan\.prm .*rm: this run trained reward-model, whose scores are of whole"):
        read_reward_model(str(tmp_path / "rm"), CPU, "--plan.prm", steps=True)
    assert read_reward_model(str(tmp_path / "prm"), CPU, "--plan.prm", steps=True).score is not None
    assert read_reward_model(str(tmp_path / "rm"), CPU).score is not None
