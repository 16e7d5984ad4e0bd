"""A model as a GGUF file, for llama.cpp and what is built on it: weights, tokenizer, chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posttrain.core.errors import UserError, unknown
from posttrain.models.decoder import Decoder, DecoderConfig
from posttrain.models.lora import merged_state
from posttrain.models.smollm2 import BLOCK, OUTER
from posttrain.policies.language import LanguagePolicy

TYPES = ("f32", "f16", "bf16", "q8_0")
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_NAMES = {theirs: ours for ours, theirs in (BLOCK | OUTER).items()} | _NORMS
# pre-tokenizers by the pattern that splits words, as llama.cpp names them
_SPLITS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": "qwen2",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": "llama-bpe",
}  # fmt: skip
_NORMAL, _CONTROL, _USER, _UNUSED = 1, 3, 4, 5  # tokenizer.ggml.token_type


def write_gguf(policy: LanguagePolicy, file: Path, kind: str = "", about: dict[str, str] | None = None) -> None:
    """The model in one file; kind: f32, f16, bf16 or q8_0 (the type of the weights unless given). about: name, license."""
    try:
        import gguf
    except ImportError:
        raise UserError("GGUF needs the package gguf: pip install 'posttrain[gguf]'") from None
    if not isinstance(policy.model, Decoder):
        kinds = ", ".join(ARCHITECTURES)
        raise UserError(
            f"GGUF can be written for models of our own decoder ({kinds}); export it with --format hf instead"
        )
    if kind and kind not in TYPES:
        raise unknown("type of GGUF weights", kind, TYPES)
    shape = policy.model.config
    tokens = token_table(policy, shape.vocab_size)  # before anything is written
    arch = ARCHITECTURES[shape.model_type]
    file.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(file, arch)
    for key, value in {"name": policy.name or "posttrain", **(about or {})}.items():
        writer.add_string(f"general.{key}", value)
    add_shape(writer, shape)
    add_tokens(writer, policy, tokens)
    dtype = next(policy.model.parameters()).dtype
    kind = kind or {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    writer.add_file_type(
        gguf.LlamaFileType[{"f32": "ALL_F32", "q8_0": "MOSTLY_Q8_0"}.get(kind, f"MOSTLY_{kind.upper()}")]
    )
    for name, x in tensors(policy.model):
        data, raw = packed(gguf, x, kind)
        writer.add_tensor(name, data, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(model: Decoder) -> list[tuple[str, Tensor]]:
    """Every tensor under its name in llama.cpp; q and k of the llama family in the rotary layout that it expects."""
    out = []
    for name, x in merged_state(model).items():
        if name == "lm_head.weight" and model.config.tied:
            continue
        x = x.detach().cpu().float()
        if ARCHITECTURES[model.config.model_type] == "llama" and ".self_attn." in name:
            heads = {"q_proj": model.config.num_heads, "k_proj": model.config.num_kv_heads}
            x = interleaved(x, heads[part]) if (part := name.split(".")[-2]) in heads else x
        out.append((gguf_name(name), x))
    if frequencies := rope_factors(model):
        out.append(("rope_freqs.weight", torch.tensor(frequencies)))
    return out


def gguf_name(name: str) -> str:
    """model.layers.3.self_attn.q_proj.weight -> blk.3.attn_q.weight"""
    stem, end = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{_NAMES[part]}.{end}"
    return f"{_NAMES[stem]}.{end}"


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """Rows of q and k from our rotary layout to llama.cpp's: in each head, (0 1 ... 0' 1' ...) -> (0 0' 1 1' ...)."""
    halves = weight.view(heads, 2, -1, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def rope_factors(model: Decoder) -> list[float]:
    """llama3 stretches each frequency by its own factor: what llama.cpp divides by."""
    from posttrain.models.shape import inverse_frequencies

    c = model.config
    if c.rope.get("rope_type", c.rope.get("type", "default")) != "llama3":
        return []
    plain = 1.0 / c.rope_theta ** (torch.arange(0, c.head_dim, 2, dtype=torch.int64).float() / c.head_dim)
    return [float(f) for f in plain / inverse_frequencies(c)]


def packed(gguf: Any, x: Tensor, kind: str) -> tuple[Any, Any]:
    """The array and its type; vectors (norms, biases) stay in 32 bits."""
    types = {k: gguf.GGMLQuantizationType[k.upper()] for k in TYPES}
    whole = x.dim() == 1 or (kind == "q8_0" and x.shape[-1] % 32)
    found = types["f32"] if whole else types[kind]
    return gguf.quants.quantize(x.contiguous().numpy(), found), found


def add_shape(writer: Any, c: DecoderConfig) -> None:
    writer.add_context_length(c.max_positions)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_heads)
    writer.add_head_count_kv(c.num_kv_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_layer_norm_rms_eps(c.rms_eps)
    writer.add_rope_freq_base(c.rope_theta)
    writer.add_vocab_size(c.vocab_size)
    if c.rope.get("rope_type", c.rope.get("type")) == "linear":
        import gguf

        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(c.rope["factor"])


def token_table(policy: LanguagePolicy, size: int) -> dict[str, Any]:
    """Tokens, their types, merges and the pre-tokenizer of a byte-level BPE; other tokenizers are refused."""
    backend = getattr(policy.tokenizer, "backend_tokenizer", None)
    told = json.loads(backend.to_str()) if backend is not None else {"model": {}}
    model, pre = told["model"], pre_tokenizer(told.get("pre_tokenizer"))
    if model.get("type") != "BPE" or model.get("byte_fallback") or not pre:
        raise UserError(
            "GGUF can be written for byte-level BPE tokenizers split as in SmolLM2, GPT-2, Llama 3 or Qwen2; this one is "
            f"{model.get('type', 'not a fast tokenizer')}; use llama.cpp's convert_hf_to_gguf.py on a folder of --format hf"
        )
    tokens, types = [f"[PAD{i}]" for i in range(size)], [_UNUSED] * size
    for token, i in model["vocab"].items():
        tokens[i], types[i] = token, _NORMAL
    for added in told.get("added_tokens", ()):
        tokens[added["id"]], types[added["id"]] = added["content"], _CONTROL if added["special"] else _USER
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return {"tokens": tokens, "types": types, "merges": merges, "pre": pre}


def pre_tokenizer(told: Any) -> str:
    """llama.cpp's name for how words are split; empty where it is not known."""
    steps = told.get("pretokenizers", [told]) if isinstance(told, dict) else []
    kinds = [s.get("type") for s in steps]
    if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"):
        return "smollm"
    if kinds == ["ByteLevel"]:
        return "gpt-2"
    if kinds == ["Split", "ByteLevel"]:
        return _SPLITS.get(str(steps[0].get("pattern", {}).get("Regex", "")), "")
    return ""


def add_tokens(writer: Any, policy: LanguagePolicy, table: dict[str, Any]) -> None:
    t = policy.tokenizer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(table["pre"])
    writer.add_token_list(table["tokens"])
    writer.add_token_types(table["types"])
    writer.add_token_merges(table["merges"])
    for add, i in ((writer.add_bos_token_id, t.bos_token_id), (writer.add_eos_token_id, t.eos_token_id)):
        if i is not None:
            add(i)
    if t.pad_token_id is not None:
        writer.add_pad_token_id(t.pad_token_id)
    writer.add_add_bos_token(False)  # prompts are written by the chat template, which has its own
    if getattr(t, "chat_template", None):
        writer.add_chat_template(t.chat_template)
