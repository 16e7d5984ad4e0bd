"""A reward model as a Hugging Face folder for sequence classification: one label, the same scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.models.decoder import Decoder
from posttrain.models.heads import ScalarHead
from posttrain.models.lora import merged_state
from posttrain.policies.language import LanguagePolicy

_PROBE = ({"role": "user", "content": "question"},)


def save_reward_model(policy: LanguagePolicy, folder: Path) -> list[str]:
    """Write the folder; returns what a user of it must know besides, in sentences (mostly nothing).

    transformers scores the last token that is no padding by a linear layer without a bias. The bias of our head is a constant
    that no comparison sees: it is `score_bias` in config.json, and `--reward FOLDER` adds it.
    """
    head, model = policy.score, policy.model
    if head is None:
        raise UserError("this model has no score head; train one with posttrain run reward-model")
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, Decoder):
        _save_own(policy, model, head, folder)
    else:
        _save_wrapped(policy, head, folder)
    notes = list(filter(None, (bias_note(head), template_note(policy))))
    tokenizer = policy.tokenizer
    before = getattr(tokenizer, "chat_template", None)
    try:
        tokenizer.chat_template = scoring_template(policy)
        tokenizer.save_pretrained(folder)
    finally:
        tokenizer.chat_template = before
    return notes


def _save_own(policy: LanguagePolicy, model: Decoder, head: ScalarHead, folder: Path) -> None:
    from safetensors.torch import save_file

    state = {k: v.detach().cpu().contiguous() for k, v in merged_state(model).items() if not k.startswith("lm_head.")}
    state["score.weight"] = head.out.weight.detach().cpu().contiguous()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    told = model.config.to_hf()
    told["architectures"] = [told["architectures"][0].replace("ForCausalLM", "ForSequenceClassification")]
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(told | labels(policy) | {"dtype": dtype}, indent=2) + "\n")


def labels(policy: LanguagePolicy) -> dict[str, Any]:
    t = policy.tokenizer
    pad = t.pad_token_id if t.pad_token_id is not None else t.eos_token_id
    assert policy.score is not None
    named: dict[str, Any] = {
        "score_bias": policy.score.out.bias.item(),
        "id2label": {"0": "reward"},
        "label2id": {"reward": 0},
        "pad_token_id": pad,
    }
    return named | {"eos_token_id": t.eos_token_id, "bos_token_id": t.bos_token_id}


@torch.no_grad()
def _save_wrapped(policy: LanguagePolicy, head: ScalarHead, folder: Path) -> None:
    """Through transformers' own class of that family; refused unless it gives the same score."""
    from transformers import AutoModelForSequenceClassification

    inner: Any = policy.model.inner
    config = type(inner.config).from_dict(inner.config.to_dict() | labels(policy))
    try:
        model = AutoModelForSequenceClassification.from_config(config, dtype=inner.dtype).eval()
        model.base_model.load_state_dict(merged_state(inner.base_model))
        model.score.weight.copy_(head.out.weight)
    except (ValueError, AttributeError, RuntimeError) as error:
        raise UserError(
            f"transformers has no sequence classifier for {inner.config.model_type} that takes these weights ({error})"
        ) from None
    tokens_BT = torch.tensor([[2, 3, 4, 5]])
    want = head(policy.model.hidden(tokens_BT.to(policy.device))[:, -1]).cpu() - head.out.bias.float().cpu()  # type: ignore[operator]
    got: Tensor = model(input_ids=tokens_BT).logits.float()[:, 0]
    if not torch.allclose(want, got, atol=1e-3, rtol=1e-3):
        raise UserError(
            f"transformers' classifier for {inner.config.model_type} scores differently; it cannot be exported"
        )
    model.save_pretrained(folder)


def bias_note(head: ScalarHead) -> str:
    bias = head.out.bias.item()
    told = f"transformers' head has no bias: add score_bias of config.json ({bias:.6g}) to its logits for the scores of training"
    return told if bias else ""


def rendered(policy: LanguagePolicy) -> tuple[str, str]:
    """A whole conversation as the tokenizer's template writes it, and as this model was trained to score it."""
    said = [*_PROBE, {"role": "assistant", "content": "answer"}]
    whole = policy.tokenizer.apply_chat_template(said, tokenize=False)
    asked = policy.tokenizer.apply_chat_template(list(_PROBE), tokenize=False, add_generation_prompt=True)
    return whole, asked + "answer" + policy.tokenizer.eos_token


def scoring_template(policy: LanguagePolicy) -> str | None:
    """The chat template, less blanks that it writes after the end of the answer: the score is read at that end."""
    template: str | None = getattr(policy.tokenizer, "chat_template", None)
    if not template:
        return template
    whole, scored = rendered(policy)
    if whole != scored and whole.rstrip() == scored:
        return (
            "{%- set whole -%}" + template + "{%- endset -%}{{- whole if add_generation_prompt else whole.rstrip() -}}"
        )
    return template


def template_note(policy: LanguagePolicy) -> str:
    """Where the template writes a finished conversation in another way than prompt, answer, end of text."""
    if not getattr(policy.tokenizer, "chat_template", None):
        return "it has no chat template: score the prompt's messages joined by new lines, the answer and the end-of-text token"
    whole, scored = rendered(policy)
    if whole.rstrip() == scored:
        return ""
    return "its template does not end an answer with the end-of-text token: score prompt, answer and that token"


def token_ids(policy: LanguagePolicy, prompt: Prompt, text: str) -> Tensor:
    """What is scored here: the prompt in its template, the answer, the end of text."""
    made = policy.written(prompt, text)
    return torch.cat([made.context, made.actions])
