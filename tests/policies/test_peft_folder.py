"""Adapters of PEFT: what peft saved is what runs here, what is saved here is what peft runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.inference.engine import Engine
from posttrain.models.lora import adapters_of, add_lora
from posttrain.models.sampling import generate
from posttrain.policies.load import load_model, save_model
from posttrain.policies.peft_folder import adapted, attach, read_adapter, save_adapter
from tests.models import tiny

TOKENS = torch.tensor([[5, 9, 3, 7, 2], [4, 4, 8, 1, 6]])


def logits(policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.model.logits(policy.model.hidden(TOKENS))


def filled(policy, seed: int = 0):
    """Adapters that change something: B starts at 0."""
    for i, p in enumerate(p for n, p in policy.named_parameters() if "lora" in n):
        nn.init.normal_(p, std=0.2, generator=torch.Generator().manual_seed(seed + i))
    return policy


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    tiny.saved(tiny.ours("llama-gqa-tied"), folder)
    return folder


@pytest.fixture(scope="module")
def theirs(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """An adapter that peft made (two kinds of layer, in one of the two blocks), and the logits that peft gives with it."""
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "down_proj"], layers_to_transform=[1], task_type="CAUSAL_LM")  # fmt: skip
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    for i, (name, p) in enumerate(model.named_parameters()):
        if "lora" in name:
            nn.init.normal_(p, std=0.2, generator=torch.Generator().manual_seed(i))
    folder = tmp_path_factory.mktemp("adapter")
    model.save_pretrained(folder)
    with torch.no_grad():
        return folder, model.eval()(TOKENS).logits


def test_what_peft_saved_runs_here(base: Path, theirs: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    folder, want = theirs
    plain = logits(load_model(str(base), "cpu"))
    assert (want - plain).abs().max() > 0.01
    alone = load_model(str(folder), "cpu")  # its config names the base
    torch.testing.assert_close(logits(alone), want, atol=1e-5, rtol=1e-5)
    assert {n for n, p in alone.named_parameters() if p.requires_grad} == {
        f"model.model.layers.1.{layer}.lora_{half}" for layer in ("self_attn.q_proj", "mlp.down_proj") for half in "ab"
    }
    beside = adapted(load_model(str(base), "cpu"), Config(model=str(base), adapter=str(folder)))
    torch.testing.assert_close(logits(beside), want, atol=1e-5, rtol=1e-5)
    merged = adapted(load_model(str(base), "cpu"), Config(adapter=str(folder), merge_adapter=True))
    torch.testing.assert_close(logits(merged), want, atol=1e-5, rtol=1e-5)
    assert not adapters_of(merged.model) and all(p.requires_grad for p in merged.parameters())
    anew = adapted(load_model(str(base), "cpu"), Config(adapter=str(folder), merge_adapter=True, lora=2))
    torch.testing.assert_close(logits(anew), want, atol=1e-5, rtol=1e-5)  # new adapters start at no difference
    assert all(len(m.lora_a) == 2 for m in adapters_of(anew.model).values())
    save_model(alone, tmp_path / "whole")
    torch.testing.assert_close(logits(load_model(str(tmp_path / "whole"), "cpu")), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("targets", ["", "q_proj,v_proj", "all-linear"])
def test_what_is_saved_here_runs_in_peft(base: Path, tmp_path: Path, targets: str) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    policy = filled(add_lora(load_model(str(base), "cpu"), 4, seed=0, targets=targets))
    save_adapter(policy, tmp_path, str(base))
    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS).logits, logits(policy), atol=1e-5, rtol=1e-5)
    told = json.loads((tmp_path / "adapter_config.json").read_text())
    assert told["target_modules"] == (["q_proj", "v_proj"] if targets.startswith("q") else sorted(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]))  # fmt: skip
    assert (told["r"], told["lora_alpha"]) == (4, 8)
    torch.testing.assert_close(logits(load_model(str(tmp_path), "cpu")), logits(policy))


def test_an_adapter_on_some_layers_is_saved_with_their_paths(base: Path, theirs: tuple, tmp_path: Path) -> None:
    policy = load_model(str(theirs[0]), "cpu")
    save_adapter(policy, tmp_path, str(base))
    told = json.loads((tmp_path / "adapter_config.json").read_text())
    assert told["target_modules"] == ["model.layers.1.mlp.down_proj", "model.layers.1.self_attn.q_proj"]
    torch.testing.assert_close(logits(load_model(str(tmp_path), "cpu")), theirs[1], atol=1e-5, rtol=1e-5)


def test_a_wrapped_transformers_model_takes_adapters_too(tmp_path: Path) -> None:
    folder = tiny.saved(tiny.theirs("gemma2"), tmp_path / "base")
    policy = filled(add_lora(load_model(folder, "cpu"), 2, targets="q_proj"))
    save_adapter(policy, tmp_path / "adapter", folder)
    again = attach(load_model(folder, "cpu"), read_adapter(tmp_path / "adapter"))
    torch.testing.assert_close(logits(again), logits(policy))


def test_the_engine_samples_with_adapters_on_some_layers() -> None:
    policy = filled(add_lora(tiny.policy(), 2, targets="v_proj,gate_proj"))
    contexts, keys = [torch.tensor([3, 4, 5])], [[1, 2, 3]]
    want = generate(policy.model, contexts, keys, Sampling(10), [1])
    got = Engine(policy.model).generate(contexts, keys, Sampling(10), [1])
    assert [s.tokens.tolist() for s in got[0]] == [s.tokens.tolist() for s in want[0]]


def test_rank_stabilised_scale(theirs: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    """alpha / sqrt(rank) = 5 / sqrt(3) instead of 5 / 3."""
    for file in theirs[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    told = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(told | {"use_rslora": True}))
    [first, *_] = adapters_of(load_model(str(tmp_path), "cpu").model).values()
    assert first.scale == pytest.approx(5 / 3**0.5)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"peft_type": "PROMPT_TUNING"}, "a PROMPT_TUNING adapter"),
        ({"use_dora": True}, "use_dora is True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"base_model_name_or_path": None}, "names no base model"),
    ],
)
def test_other_kinds_are_refused(theirs: tuple, tmp_path: Path, change: dict, sentence: str) -> None:
    for file in theirs[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    told = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(told | change))
    with pytest.raises(UserError, match=sentence):
        load_model(str(tmp_path), "cpu")


def test_mistakes(base: Path, theirs: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    policy = load_model(str(base), "cpu")
    for config, sentence in (
        ({"adapter": str(theirs[0]), "lora": 8}, "has rank 3, and --lora is 8"),
        ({"merge_adapter": True}, "name its folder with --adapter"),
        ({"adapter": str(tmp_path)}, "there is no adapter_config.json"),
        ({"lora": 2, "lora_targets": "q_prj"}, "did you mean 'q_proj'"),
        ({"lora": 2, "lora_targets": ","}, "name layers"),
    ):
        with pytest.raises(UserError, match=sentence):
            adapted(policy.clone(), Config(**config))
    with pytest.raises(UserError, match="--lora 16"):
        Config(lora_targets="q_proj")
    other = tiny.policy(tiny.decoder(hidden_size=16, num_heads=2, num_kv_heads=1))
    with pytest.raises(UserError, match="it was trained for"):
        attach(other, read_adapter(theirs[0]))
    with pytest.raises(UserError, match="has no adapters"):
        save_adapter(policy, tmp_path / "x", "base")
