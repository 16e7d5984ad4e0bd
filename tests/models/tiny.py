"""Models of a few thousand random parameters, ours and transformers', with a tokenizer of one token a letter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from posttrain.core.turn import Turn
from posttrain.core.types import Prompt, Rollout
from posttrain.models.decoder import Decoder, DecoderConfig
from posttrain.models.hf import HFDecoder
from posttrain.policies.language import LanguagePolicy

V = 40
LETTERS = " abcdefghijklmnopqrstuvwxyz0123456789"
SIZE: dict[str, Any] = {
    "vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}

# the families of our decoder: name -> (model_type, what differs from SIZE)
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"num_key_value_heads": 4}),
    "llama-gqa-tied": ("llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1, "head_dim": 16}),
    "llama-rope-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-rope-linear": ("llama", {"rope_parameters": LINEAR}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 8}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-untied": ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-biases": ("qwen3", {"head_dim": 24, "attention_bias": True}),
}
_GPT2 = {
    "vocab_size": V, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "bos_token_id": None,
    "eos_token_id": 1, "resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5,
}  # fmt: skip
_GEMMA2 = {"head_dim": 8, "query_pre_attn_scalar": 8, "final_logit_softcapping": 0.7, "sliding_window": 6}
# families that go through transformers: learned positions and drop-out, a window and capped logits, scaled logits
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", _GPT2),
    "gpt_neox": ("gpt_neox", SIZE),
    "gemma2": ("gemma2", SIZE | _GEMMA2),
    "granite": ("granite", SIZE | {"logits_scaling": 3.0}),
    "mistral-window": ("mistral", SIZE | {"head_dim": 8, "sliding_window": 6}),
}


def ours(name: str) -> Any:
    """A transformers model of one of our decoder's families."""
    kind, changes = OURS[name]
    return random_hf(kind, SIZE | changes)


def theirs(name: str) -> Any:
    """A transformers model that our decoder does not support."""
    return random_hf(*THEIRS[name])


def random_hf(kind: str, config: dict[str, Any]) -> Any:
    """Every parameter drawn, biases and norms too: a part that is left out must show."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config)).eval()
    return randomise(model)


def randomise(model: Any, seed: int = 0, scale: float = 0.25) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=generator) * scale
            p.copy_(noise if p.dim() > 1 else p + noise)
    return model


def saved(model: Any, folder: Path) -> str:
    """A Hugging Face folder as `save_pretrained` writes it."""
    model.save_pretrained(folder)
    letters().save_pretrained(folder)
    return str(folder)


def letters(**named: str) -> PreTrainedTokenizerFast:
    """One token per letter; id 1 ends an answer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {"<pad>": 0, "<end>": 1} | {c: i + 2 for i, c in enumerate(LETTERS)} | {"<unk>": V - 1}
    fast = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast.decoder = decoders.Fuse()
    named = named or {"eos_token": "<end>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=fast, **named)


def decoder(**changes: Any) -> Decoder:
    """Our decoder, random, grouped heads."""
    shape = {
        "vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2,
        "head_dim": 8,
    }  # fmt: skip
    return randomise(Decoder(DecoderConfig(**(shape | changes))))


def policy(model: Any = None) -> LanguagePolicy:
    return LanguagePolicy(decoder() if model is None else model, letters(), "tiny")


def wrapped(name: str) -> HFDecoder:
    return HFDecoder(theirs(name)).checked()


def prompts(*texts: str) -> list[Prompt]:
    return [Prompt.text(f"p{i}", text) for i, text in enumerate(texts)]


def rows(*args: Any) -> list[Turn]:
    """The same as rows of a batch."""
    return [r.row for r in rollouts(*args)]


def rollouts(
    lengths: Sequence[tuple[int, int]] = ((3, 5), (9, 2), (1, 7), (4, 1), (6, 4)), seed: int = 0
) -> list[Rollout]:
    """Random tokens: (length of the context, number of actions) of each; contexts of one length are the same.

    The second of three or more actions is the environment's.
    """
    draw = torch.Generator().manual_seed(seed)
    contexts = {S: torch.randint(2, V, (S,), generator=draw) for S in sorted({S for S, _ in lengths})}
    out = []
    for i, (S, T) in enumerate(lengths):
        mask_T = torch.ones(T, dtype=torch.bool)
        mask_T[1:2] = T <= 2
        actions = torch.randint(2, V, (T,), generator=draw)
        out.append(Rollout.single(Prompt.text(f"p{i}", "q"), contexts[S], actions, torch.zeros(T), mask_T))
    return out
