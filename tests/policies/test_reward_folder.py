"""Reward models of every family as classifiers of transformers, and templates that write something after the end."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from posttrain.core.types import Prompt
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.load import load_model
from posttrain.policies.reward_folder import save_reward_model, token_ids
from posttrain.rewards.scorers.classifier import Classifier
from tests.models import tiny

CHATML = (
    "{% for m in messages %}{{ '<|user|>' if m['role'] == 'user' else '<|assistant|>' }}{{ m['content'] + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def scoring(policy: LanguagePolicy, bias: float = 0.0) -> LanguagePolicy:
    model = policy.as_reward_model()
    torch.nn.init.normal_(model.score.out.weight, generator=torch.Generator().manual_seed(1))
    torch.nn.init.constant_(model.score.out.bias, bias)
    return model.eval()


@pytest.mark.parametrize("name", ["llama-gqa-tied", "mistral", "qwen2", "qwen3", "gpt2", "gemma2"])
def test_the_score_of_transformers_is_ours(tmp_path: Path, name: str) -> None:
    from transformers import AutoModelForSequenceClassification

    folder = tiny.saved((tiny.ours if name in tiny.OURS else tiny.theirs)(name), tmp_path / "base")
    policy = scoring(load_model(folder, "cpu"))
    notes = save_reward_model(policy, tmp_path / "rm")
    assert len(notes) == 1 and "no chat template" in notes[0]
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "rm", dtype=torch.float32).eval()
    prompt = Prompt.text("p", "how are you")
    with torch.no_grad():
        for text in ("fine", "a longer answer 123", ""):
            want = float(policy.forward([policy.written(prompt, text)], ("score_B",))["score_B"])
            got = float(theirs(token_ids(policy, prompt, text).unsqueeze(0)).logits)
            assert got == pytest.approx(want, abs=1e-5)


def test_a_template_that_writes_on_after_the_end_is_cut_there(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    policy = scoring(load_model("pocket", "cpu"), bias=0.5)
    policy.tokenizer.chat_template = CHATML
    [note] = save_reward_model(policy, tmp_path)
    assert "0.5" in note and policy.tokenizer.chat_template == CHATML
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    assert tokenizer.apply_chat_template(said, tokenize=False) == "<|user|>q<|end|>\n<|assistant|>a<|end|>"
    asked = tokenizer.apply_chat_template(said[:1], tokenize=False, add_generation_prompt=True)
    assert asked == "<|user|>q<|end|>\n<|assistant|>"


@pytest.mark.parametrize(("kind", "room"), [("Roberta", 20 - 2), ("Bert", 20), ("GPT2", 20)])
def test_what_is_longer_than_a_classifier_can_read_is_masked(kind: str, room: int) -> None:
    """RoBERTa keeps the places up to its padding token's; a model with learned places cannot read beyond them."""
    import transformers

    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 20}
    tokenizer = tiny.letters()
    told = getattr(transformers, f"{kind}Config")(vocab_size=len(tokenizer), num_labels=1, pad_token_id=1, **shape)
    model = getattr(transformers, f"{kind}ForSequenceClassification")(told).eval()
    made = Classifier(model, tokenizer)
    prompt = Prompt.text("p", "ab")
    extra = len(made.encode(prompt, "")) - 2
    fits, long = made([prompt, prompt], ["c" * (room - 2 - extra), "c" * (room - 1 - extra)])
    assert math.isfinite(fits) and math.isnan(long)
