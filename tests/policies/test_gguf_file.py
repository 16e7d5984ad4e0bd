"""GGUF files read back: tensors, tokenizer, chat template; the rotary layout against the reader of SmolLM2's own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.models.decoder import Decoder, DecoderConfig
from posttrain.models.lora import add_lora, merged_state
from posttrain.models.shape import inverse_frequencies
from posttrain.models.smollm2 import decoder_config, half_split, hf_name
from posttrain.models.smollm2 import tokenizer as read_tokenizer
from posttrain.policies.gguf_file import interleaved, pre_tokenizer, write_gguf
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.load import load_model
from tests.models import tiny

gguf = pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def words() -> Any:
    return load_model("pocket", "cpu").tokenizer


def small(tokenizer: Any, name: str = "llama") -> LanguagePolicy:
    """One of the families, random, with the built-in model's tokenizer and some rows more than it has tokens."""
    kind, changes = tiny.OURS[name]
    hf = tiny.random_hf(kind, tiny.SIZE | {"vocab_size": len(tokenizer) + 3} | changes)
    shape = DecoderConfig.of(hf.config.to_dict())
    assert shape is not None
    model = Decoder(shape)
    model.load_state_dict(hf.state_dict(), strict=False)
    return LanguagePolicy(model, tokenizer, "small")


def read(file: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    reader = gguf.GGUFReader(file)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    return meta, {t.name: torch.from_numpy(gguf.dequantize(t.data, t.tensor_type).copy()) for t in reader.tensors}


@pytest.mark.parametrize("name", ["llama", "llama-gqa-tied", "llama-biases", "qwen2", "qwen2-untied", "qwen3"])
def test_every_tensor_comes_back(words: Any, tmp_path: Path, name: str) -> None:
    policy = small(words, name)
    write_gguf(policy, tmp_path / "m.gguf")
    meta, found = read(tmp_path / "m.gguf")
    shape = policy.model.config
    state = {k: v for k, v in merged_state(policy.model).items() if not (shape.tied and k == "lm_head.weight")}
    assert len(found) == len(state)
    names = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
    for key, x in found.items():
        part = key.split(".")[2] if key.startswith("blk.") else ""
        own = f"model.layers.{key.split('.')[1]}.{names[part]}.weight" if part in names else hf_name(key)
        if shape.model_type == "llama" and part in ("attn_q", "attn_k"):
            x = half_split(x, shape.num_heads if part == "attn_q" else shape.num_kv_heads)
        assert torch.equal(x, state[own]), key
    arch = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}[shape.model_type]
    assert meta["general.architecture"] == arch and meta[f"{arch}.rope.freq_base"] == pytest.approx(shape.rope_theta)
    assert meta[f"{arch}.attention.key_length"] == shape.head_dim


def test_the_tokenizer_and_the_template_are_in_it(words: Any, tmp_path: Path) -> None:
    """Read back by the reader of SmolLM2's file, the tokenizer gives the same ids, and the shape is the same."""
    policy = small(words)
    write_gguf(policy, tmp_path / "m.gguf", about={"license": "apache-2.0"})
    meta, found = read(tmp_path / "m.gguf")
    assert meta["tokenizer.chat_template"] == words.chat_template and meta["general.license"] == "apache-2.0"
    assert len(meta["tokenizer.ggml.tokens"]) == len(words) + 3 and meta["tokenizer.ggml.token_type"][-1] == 5
    again = read_tokenizer(meta)
    for text in ("What is 12+7?", "<|user|>Count to 10<|end|>", "  héllo\n\n world"):
        assert again(text)["input_ids"] == words(text)["input_ids"]
    assert decoder_config(meta, "output.weight" not in found) == DecoderConfig(
        **vars(policy.model.config) | {"rope": {}}
    )


def test_adapters_are_merged_and_types_are_kept(words: Any, tmp_path: Path) -> None:
    policy = add_lora(small(words), 2)
    for i, p in enumerate(p for n, p in policy.named_parameters() if "lora" in n):
        torch.nn.init.normal_(p, generator=torch.Generator().manual_seed(i))
    write_gguf(policy, tmp_path / "m.gguf", "f16")
    _, found = read(tmp_path / "m.gguf")
    want = merged_state(policy.model)["model.layers.0.mlp.up_proj.weight"]
    assert torch.equal(found["blk.0.ffn_up.weight"], want.half().float())
    assert gguf.GGUFReader(tmp_path / "m.gguf").tensors[1].tensor_type == gguf.GGMLQuantizationType.F32  # a norm


def test_stretched_frequencies_are_factors(words: Any, tmp_path: Path) -> None:
    policy = small(words, "llama-rope-llama3")
    write_gguf(policy, tmp_path / "m.gguf")
    c = policy.model.config
    factors = read(tmp_path / "m.gguf")[1]["rope_freqs.weight"]
    plain = 1.0 / c.rope_theta ** (torch.arange(0, c.head_dim, 2).float() / c.head_dim)
    torch.testing.assert_close(plain / factors, inverse_frequencies(c))
    assert factors[-1] > 1


def test_rows_of_a_head_by_hand() -> None:
    """One head of four rows: our halves (0 1 | 0' 1') become pairs (0 0' 1 1')."""
    rows = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    assert interleaved(rows, 1).flatten().tolist() == [0.0, 10.0, 1.0, 11.0]
    assert torch.equal(half_split(interleaved(rows, 1), 1), rows)


def test_what_cannot_be_written_is_refused(words: Any, tmp_path: Path) -> None:
    assert pre_tokenizer({"type": "Whitespace"}) == "" and pre_tokenizer(None) == ""
    with pytest.raises(UserError, match="byte-level BPE"):
        write_gguf(tiny.policy(), tmp_path / "m.gguf")
    with pytest.raises(UserError, match="our own decoder"):
        write_gguf(LanguagePolicy(tiny.wrapped("gpt2"), words), tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()
