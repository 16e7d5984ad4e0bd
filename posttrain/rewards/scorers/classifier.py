"""A reward model of Hugging Face: a sequence classifier with one label, asked through its own chat template."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt

_TOKENS = 32768  # padded tokens of one forward pass


def load_classifier(folder: Path, device: str = "") -> Classifier:
    """The model and its tokenizer; only safetensors are read, and no code of the folder runs."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    from posttrain.policies.load import usable

    logging.disable_progress_bar()
    device = usable(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    try:
        labels = AutoConfig.from_pretrained(folder, trust_remote_code=False).num_labels
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # transformers raises a dozen kinds, from a missing file to a damaged one
        raise UserError(f"--reward {folder}: transformers cannot read it: {str(error).splitlines()[0]}") from None
    if labels != 1:
        raise UserError(f"--reward {folder}: a classifier with {labels} labels; a reward model has one (num_labels=1)")
    try:
        model, told = AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:
        raise UserError(f"--reward {folder}: cannot load its weights: {str(error).splitlines()[0]}") from None
    if missing := sorted(told["missing_keys"]):
        raise UserError(
            f"--reward {folder}: its weights lack {', '.join(missing[:3])}, which would be random; save the whole model"
        )
    return Classifier(model.to(device).eval().requires_grad_(False), tokenizer)


class Classifier:
    """score(prompt, answer) = the one logit of the classifier on the whole dialogue."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        if tokenizer.pad_token_id is not None and model.config.pad_token_id is None:
            model.config.pad_token_id = tokenizer.pad_token_id
        self.pad = model.config.pad_token_id
        self.bias = float(getattr(model.config, "score_bias", None) or 0.0)  # of a head that was trained here
        self.room = places(model)

    def encode(self, prompt: Prompt, text: str) -> list[int]:
        """The dialogue in the model's own template; without one, question and answer as its tokenizer joins two texts."""
        if not getattr(self.tokenizer, "chat_template", None):
            asked = "\n".join(str(m["content"]) for m in prompt.content)
            return list(self.tokenizer(asked, text)["input_ids"])
        said = [*prompt.content, {"role": "assistant", "content": text}]
        whole = self.tokenizer.apply_chat_template(said, tokenize=False)
        return list(self.tokenizer(whole, add_special_tokens=False)["input_ids"])

    @torch.no_grad()
    def __call__(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        rows = [self.encode(p, t) for p, t in zip(prompts, texts, strict=True)]
        out = [math.nan] * len(rows)  # stays for what is longer than the model can read
        for index in self.pieces(rows):
            longest = max(len(rows[i]) for i in index)
            ids_BT = torch.full((len(index), longest), self.pad or 0)
            mask_BT = torch.zeros(len(index), longest, dtype=torch.long)
            for row, i in enumerate(index):
                ids_BT[row, : len(rows[i])], mask_BT[row, : len(rows[i])] = torch.tensor(rows[i]), 1
            device = self.model.device
            logits_B1 = self.model(input_ids=ids_BT.to(device), attention_mask=mask_BT.to(device)).logits
            for i, x in zip(index, logits_B1.float().squeeze(-1).tolist(), strict=True):
                out[i] = x + self.bias
        return out

    def pieces(self, rows: list[list[int]]) -> list[list[int]]:
        """Short ones first, in pieces of at most _TOKENS; a model without a padding token reads one at a time. Those that are
        longer than it has places are in none."""
        out: list[list[int]] = []
        for i in sorted((i for i, row in enumerate(rows) if len(row) <= self.room), key=lambda i: len(rows[i])):
            if out and self.pad is not None and len(rows[i]) * (len(out[-1]) + 1) <= _TOKENS:
                out[-1].append(i)
            else:
                out.append([i])
        return out


def places(model: torch.nn.Module) -> float:
    """How many tokens a model with learned places (BERT, RoBERTa, GPT-2, OPT) can read; others have no such end."""
    for name, part in model.named_modules():
        if isinstance(part, torch.nn.Embedding) and name.endswith(("position_embeddings", "wpe", "embed_positions")):
            kept = part.padding_idx + 1 if part.padding_idx is not None else int(getattr(part, "offset", 0))
            return part.num_embeddings - kept
    return math.inf
