"""Tiny language models with the chat templates of real ones (`templates/README.md` says where each is from)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from posttrain.policies.language import LanguagePolicy
from tests.models.tiny import decoder

TEMPLATES = Path(__file__).parent / "templates"
# template -> the end token of its models
ENDS = {
    "qwen2_5": "<|im_end|>", "qwen3": "<|im_end|>", "llama3": "<|eot_id|>", "deepseek_r1_distill": "<｜end▁of▁sentence｜>",
    "smollm2": "<|im_end|>",
}  # fmt: skip
SIZE = 300


def tokenizer(template: str, tags: bool = False) -> Any:
    """One token per byte, the model's end token, and the two tags as tokens of their own where `tags` (as Qwen3 and R1 have)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=fast, eos_token=ENDS[template], bos_token="<bos>")
    if tags:
        made.add_tokens([AddedToken(t, special=False, normalized=False) for t in ("<think>", "</think>")])
    made.chat_template = (TEMPLATES / f"{template}.jinja").read_text()
    return made


def thinker(template: str, tags: bool = False) -> LanguagePolicy:
    """A random model that reads this template."""
    return LanguagePolicy(decoder(vocab_size=SIZE), tokenizer(template, tags), template)
