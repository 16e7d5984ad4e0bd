"""The shape of a dense decoder, read from and written to a Hugging Face config."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.core.typed import check_fields, shown

_NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_COUNTS = {
    "vocab_size": 10**8, "hidden_size": 10**7, "intermediate_size": 10**8, "num_hidden_layers": 10**4,
    "num_attention_heads": 10**5, "num_key_value_heads": 10**5, "head_dim": 10**5, "max_position_embeddings": 10**12,
}  # fmt: skip
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class DecoderConfig:
    """The shape of a decoder; `of` reads a Hugging Face config."""

    vocab_size: int
    hidden_size: int  # width of the residual stream
    intermediate_size: int  # width of the MLP
    num_layers: int
    num_heads: int  # query heads
    num_kv_heads: int  # key and value heads: fewer than query heads in grouped-query attention
    head_dim: int
    rope_theta: float = 10000.0  # base of the rotary frequencies
    rms_eps: float = 1e-5  # added to the mean square in RMSNorm
    tied: bool = True  # the head is the embedding
    qkv_bias: bool = False  # biases of the q, k and v projections
    out_bias: bool = False  # bias of the attention output projection
    mlp_bias: bool = False  # biases of the MLP
    qk_norm: bool = False  # RMSNorm on queries and keys (Qwen3)
    max_positions: int = 2048  # longest sequence that the model was trained for
    rope: dict[str, Any] = field(default_factory=dict)  # rope scaling, as the checkpoint's config states it
    model_type: str = "llama"  # one of FAMILIES

    @staticmethod
    def of(hf: dict[str, Any]) -> DecoderConfig | None:
        """The config of a checkpoint, or None for an architecture that our decoder does not implement."""
        kind = hf.get("model_type")
        rope = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            raise UserError(f"rope_scaling in config.json is {shown(rope)}; expected a table")
        rope = dict(rope)
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        window = hf.get("sliding_window", 4096) if hf.get("use_sliding_window", kind == "mistral") else None
        partial = rope.get("partial_rotary_factor", hf.get("partial_rotary_factor", 1.0)) != 1.0
        plain = hf.get("hidden_act", "silu") == "silu" and not window and not partial
        if kind not in FAMILIES or rope_type not in ("default", "llama3", "linear") or not plain:
            return None
        if absent := [n for n in _NEEDED if n not in hf]:
            raise UserError(f"config.json of a {kind} model has no {absent[0]}; download the model again")
        heads = hf["num_attention_heads"]
        bias = hf.get("attention_bias", False)
        for name, value in hf.items():
            if name in _COUNTS and value is not None and (type(value) is not int or not 0 < value <= _COUNTS[name]):
                raise UserError(
                    f"{name} in config.json is {shown(value)}; expected a whole number from 1 to {_COUNTS[name]:,}"
                )
        made = DecoderConfig(
            vocab_size=hf["vocab_size"],
            hidden_size=hf["hidden_size"],
            intermediate_size=hf["intermediate_size"],
            num_layers=hf["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=hf.get("num_key_value_heads") or heads,
            head_dim=hf.get("head_dim") or hf["hidden_size"] // heads,
            rope_theta=rope.get("rope_theta", hf.get("rope_theta", 10000.0)),
            rms_eps=hf.get("rms_norm_eps", 1e-6),
            tied=hf.get("tie_word_embeddings", False),
            qkv_bias=kind == "qwen2" or bias,
            out_bias=bias and kind != "qwen2",
            mlp_bias=hf.get("mlp_bias", False),
            qk_norm=kind == "qwen3",
            max_positions=hf.get("max_position_embeddings", 2048),
            rope=rope,
            model_type=kind,
        )
        try:
            check_fields(made)
            inverse_frequencies(made)
        except (KeyError, TypeError, ZeroDivisionError, OverflowError, RuntimeError) as error:
            raise UserError(f"rope_scaling in config.json cannot be used: {type(error).__name__}: {error}") from None
        if made.num_heads % made.num_kv_heads or made.head_dim % 2:
            raise UserError(
                f"config.json has {made.num_heads} heads for {made.num_kv_heads} of keys and values, of width {made.head_dim}; "
                "the first must be a multiple of the second, the width even"
            )
        return made

    @property
    def parameters(self) -> int:
        """How many numbers the weights are, biases and norms left out."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        layer = attention + 3 * self.hidden_size * self.intermediate_size
        return self.num_layers * layer + self.vocab_size * self.hidden_size * (1 if self.tied else 2)

    def to_hf(self) -> dict[str, Any]:
        """The config.json that transformers reads."""
        names = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
        out: dict[str, Any] = {
            "architectures": [f"{names[self.model_type]}ForCausalLM"],
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.rms_eps,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": self.max_positions,
            "hidden_act": "silu",
        }
        if self.model_type in ("llama", "qwen3"):
            out["attention_bias"] = self.qkv_bias
        if self.model_type == "llama":
            out["mlp_bias"] = self.mlp_bias
        if self.model_type == "mistral":
            out["sliding_window"] = None
        if self.rope.get("rope_type", self.rope.get("type", "default")) != "default":
            out["rope_scaling"] = {k: v for k, v in self.rope.items() if k != "rope_theta"}
        return out


def inverse_frequencies(c: DecoderConfig) -> Tensor:
    """1 / theta^(2i/d), stretched for long contexts where the checkpoint says so (linear, llama3)."""
    freq = 1.0 / c.rope_theta ** (torch.arange(0, c.head_dim, 2, dtype=torch.int64).float() / c.head_dim)
    kind = c.rope.get("rope_type", c.rope.get("type", "default"))
    if kind == "linear":
        freq = freq / c.rope["factor"]
    if kind == "llama3":
        factor, low, high = c.rope["factor"], c.rope["low_freq_factor"], c.rope["high_freq_factor"]
        turns = c.rope["original_max_position_embeddings"] * freq / (2 * math.pi)
        smooth = ((turns - low) / (high - low)).clamp(0, 1)  # 0: slow waves, divided; 1: fast waves, kept
        freq = (1 - smooth) * freq / factor + smooth * freq
    return freq
