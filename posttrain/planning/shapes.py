"""The shape of a decoder as arithmetic sees it, and the public configs of well-known models (dimensions only)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from posttrain.core.errors import UserError


@dataclass(frozen=True)
class Shape:
    """The dimensions of a dense decoder."""

    vocab: int
    hidden: int
    inner: int  # width of the MLP
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool = True  # the head is the embedding
    positions: int = 2048  # longest sequence that the model was trained for
    family: str = "llama"  # model_type of its config.json

    @property
    def wide(self) -> int:
        return self.heads * self.head_dim

    @property
    def narrow(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def projections(self) -> int:
        """Parameters of one layer's seven matrices."""
        return 2 * self.hidden * (self.wide + self.narrow) + 3 * self.hidden * self.inner

    @property
    def layer(self) -> int:
        """Parameters of one layer: matrices, norms, biases of queries, keys and values (Qwen2), norms of heads (Qwen3)."""
        bias = self.wide + 2 * self.narrow if self.family == "qwen2" else 0
        return self.projections + 2 * self.hidden + bias + (2 * self.head_dim if self.family == "qwen3" else 0)

    @property
    def ends(self) -> int:
        """Parameters outside of the layers: embedding, last norm, head."""
        return self.vocab * self.hidden * (1 if self.tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer + self.ends

    @property
    def multiplied(self) -> int:
        """Parameters that every token is multiplied with: an embedding is looked up."""
        return self.layers * self.projections + self.vocab * self.hidden

    def adapters(self, rank: int) -> int:
        """Parameters of LoRA adapters of this rank on the seven matrices of every layer."""
        ends = 2 * (self.hidden + self.wide) + 2 * (self.hidden + self.narrow) + 3 * (self.hidden + self.inner)
        return self.layers * rank * ends

    def position_bytes(self, size: int = 2) -> int:
        """Keys and values of one token in every layer."""
        return 2 * self.layers * self.narrow * size

    def as_config(self) -> dict[str, Any]:
        """What of a config.json it is known by."""
        return {
            "model_type": self.family, "vocab_size": self.vocab, "hidden_size": self.hidden, "intermediate_size": self.inner,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim, "tie_word_embeddings": self.tied, "max_position_embeddings": self.positions,
        }  # fmt: skip


def shape_of(config: Mapping[str, Any], model: str = "the model") -> Shape:
    """The shape that a config.json states; a model whose sizes it does not state is an error."""
    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    for name in needed:
        if type(config.get(name)) is not int or config[name] < 1:
            raise UserError(
                f"the config.json of {model} has {name} {config.get(name)!r}, and a whole number from 1 on was expected, "
                "so its size is not known; try a small run"
            )
    heads = config["num_attention_heads"]
    return Shape(
        config["vocab_size"], config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"], heads,
        config.get("num_key_value_heads") or heads, config.get("head_dim") or config["hidden_size"] // heads,
        bool(config.get("tie_word_embeddings", False)), config.get("max_position_embeddings") or 2048,
        str(config.get("model_type", "llama")),
    )  # fmt: skip


Dims = tuple[int, int, int, int, int, int, int]  # as the first fields of Shape


def _qwen(dims: Dims, tied: bool = False, positions: int = 32768, family: str = "qwen2") -> Shape:
    return Shape(*dims, tied=tied, positions=positions, family=family)


# hub id -> dimensions, as the public config.json of each states them
KNOWN: dict[str, Shape] = {
    "HuggingFaceTB/SmolLM2-135M": Shape(49152, 576, 1536, 30, 9, 3, 64, True, 8192),
    "HuggingFaceTB/SmolLM2-360M": Shape(49152, 960, 2560, 32, 15, 5, 64, True, 8192),
    "HuggingFaceTB/SmolLM2-1.7B": Shape(49152, 2048, 8192, 24, 32, 32, 64, True, 8192),
    "Qwen/Qwen2.5-0.5B": _qwen((151936, 896, 4864, 24, 14, 2, 64), tied=True),
    "Qwen/Qwen2.5-1.5B": _qwen((151936, 1536, 8960, 28, 12, 2, 128), tied=True, positions=131072),
    "Qwen/Qwen2.5-3B": _qwen((151936, 2048, 11008, 36, 16, 2, 128), tied=True),
    "Qwen/Qwen2.5-7B": _qwen((152064, 3584, 18944, 28, 28, 4, 128), positions=131072),
    "Qwen/Qwen2.5-14B": _qwen((152064, 5120, 13824, 48, 40, 8, 128), positions=131072),
    "Qwen/Qwen2.5-32B": _qwen((152064, 5120, 27648, 64, 40, 8, 128), positions=131072),
    "Qwen/Qwen2.5-72B": _qwen((152064, 8192, 29568, 80, 64, 8, 128), positions=131072),
    "Qwen/Qwen2.5-Math-7B": _qwen((152064, 3584, 18944, 28, 28, 4, 128), positions=4096),
    "Qwen/Qwen3-8B": _qwen((151936, 4096, 12288, 36, 32, 8, 128), positions=40960, family="qwen3"),
    "Qwen/Qwen3-32B": _qwen((151936, 5120, 25600, 64, 64, 8, 128), positions=40960, family="qwen3"),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": _qwen((151936, 1536, 8960, 28, 12, 2, 128), positions=131072),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _qwen((152064, 3584, 18944, 28, 28, 4, 128), positions=131072),
    "meta-llama/Llama-3.2-1B": Shape(128256, 2048, 8192, 16, 32, 8, 64, True, 131072),
    "meta-llama/Llama-3.2-3B": Shape(128256, 3072, 8192, 28, 24, 8, 128, True, 131072),
    "meta-llama/Llama-3.1-8B": Shape(128256, 4096, 14336, 32, 32, 8, 128, False, 131072),
    "meta-llama/Llama-3.1-70B": Shape(128256, 8192, 28672, 80, 64, 8, 128, False, 131072),
    "meta-llama/Meta-Llama-3-8B": Shape(128256, 4096, 14336, 32, 32, 8, 128, False, 8192),
    "meta-llama/Meta-Llama-3-70B": Shape(128256, 8192, 28672, 80, 64, 8, 128, False, 8192),
}
# tuned versions of a known model that have a length of their own
_TUNED = {
    "Qwen/Qwen2.5-1.5B-Instruct": 32768, "Qwen/Qwen2.5-7B-Instruct": 32768, "Qwen/Qwen2.5-14B-Instruct": 32768,
    "Qwen/Qwen2.5-32B-Instruct": 32768, "Qwen/Qwen2.5-72B-Instruct": 32768,
}  # fmt: skip
_ENDINGS = ("-instruct",)


def known_shape(model: str) -> tuple[str, Shape] | None:
    """(hub id, shape) of a model of the table, by its id or its last name, tuned for chat or not; None where it is not there."""
    word = model.strip().lower().rstrip("/")
    for ending in _ENDINGS:
        plain = word.removesuffix(ending)
        for name, shape in KNOWN.items():
            if plain in (name.lower(), name.lower().rpartition("/")[2]):
                full = name if plain == word else f"{name}-Instruct"
                return full, replace(shape, positions=_TUNED.get(full, shape.positions))
    return None
