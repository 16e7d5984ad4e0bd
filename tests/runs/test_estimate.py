"""What a run will need: the count by hand for a small shape, against real models, against recorded and fresh measurements."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from posttrain.core.method import find_method
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt, Rollout
from posttrain.inference.pages import Pages
from posttrain.models.decoder import Decoder
from posttrain.models.lora import add_lora
from posttrain.models.packed import layers_to_recompute
from posttrain.models.sampling import generate
from posttrain.models.shape import DecoderConfig
from posttrain.planning import memory
from posttrain.planning import work as planned
from posttrain.planning.lengths import Lengths
from posttrain.planning.shapes import KNOWN
from posttrain.policies.load import load_model
from posttrain.runs import estimate as e
from posttrain.runs.calibrate import calibrate, shortest
from posttrain.runs.estimate import Machine, Work, adapters, estimate, layers_recomputed, parameters
from posttrain.weights.learner import Learner

TINY = DecoderConfig(
    vocab_size=10, hidden_size=4, intermediate_size=6, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=3
)
QWEN = DecoderConfig(10, 4, 6, 2, 2, 1, 3, tied=False, qkv_bias=True, model_type="qwen2")
RESULTS = Path(__file__).parent.parent.parent / "benchmarks" / "results"
H200 = Machine(790e12, 4.3e12, 139e9, gpu=True)
SHAPES = {
    "SmolLM2-135M": DecoderConfig(49152, 576, 1536, 30, 9, 3, 64),
    "Qwen2.5-0.5B": DecoderConfig(151936, 896, 4864, 24, 14, 2, 64, qkv_bias=True, model_type="qwen2"),
    "Qwen2.5-1.5B": DecoderConfig(151936, 1536, 8960, 28, 12, 2, 128, qkv_bias=True, model_type="qwen2"),
    "Qwen2.5-7B": DecoderConfig(152064, 3584, 18944, 28, 28, 4, 128, tied=False, qkv_bias=True, model_type="qwen2"),
}


# ---- by hand


def test_parameters_by_hand() -> None:
    """TINY: embedding 10*4 = 40; a layer has q and o 2*4*6 = 48, k and v 2*4*3 = 24, gates 3*4*6 = 72, norms 8: 152;
    two of them, and the last norm 4: 40 + 304 + 4 = 348. QWEN: a head of its own + 40, biases 2 * (6 + 3 + 3) = 24."""
    assert parameters(TINY) == 348 and parameters(QWEN) == 348 + 40 + 24


@pytest.mark.parametrize(
    "shape",
    [TINY, QWEN, DecoderConfig(10, 4, 6, 2, 2, 1, 4, qk_norm=True, out_bias=True, mlp_bias=True, qkv_bias=True)],
)
def test_parameters_are_those_of_the_model(shape: DecoderConfig) -> None:
    assert parameters(shape) == sum(p.numel() for p in Decoder(shape).parameters())


def test_adapters_are_those_of_lora() -> None:
    policy = add_lora(load_model("pocket", "cpu"), 4)
    assert adapters(policy.model.config, 4) == sum(p.numel() for p in policy.parameters() if p.requires_grad)


def test_memory_on_a_cpu_by_hand() -> None:
    """2 prompts x 3 answers x 5 tokens after 7 of prompt, fp32: weights 4*348, gradients as many, moments twice, no masters.
    A position has 2*2*1*3 numbers, 48 bytes; 6 answers of 12 positions: 3456. A piece of at most 15 tokens: 3 answers and their
    prompt, 22 tokens; each keeps 4*(14*4 + 4*6) = 320 bytes in 2 layers: 14080. Logits 22*10*12 + 4*40 = 2800."""
    found = estimate(TINY, Work(2, 3, 5, 7, 15), Machine(1.0, 1.0, 1e9))
    want = {"weights": 1392, "masters": 0, "gradients": 1392, "moments": 2784, "reference": 1392, "fused copies": 0,
            "keys and values": 3456, "activations": 14080, "logits": 2800}  # fmt: skip
    assert found.memory == want and found.slots == 6 and found.recomputed == 0
    assert found.total == sum(want.values()) and found.fits


def test_memory_on_a_gpu_by_hand() -> None:
    """bf16: masters of 4 bytes; fused copies 2*4*(6 + 6 + 12)*2 = 384; 5 tokens take a page of 64 positions of 24 bytes, 1536,
    and so do the 7 of a prompt, once for 3 answers: 6*1536 + 2*1536. A token keeps 2*(6*4 + 2*6 + 3*6 + 2*3) = 120 bytes per layer."""
    found = estimate(TINY, Work(2, 3, 5, 7, 15, size=2, reference=False), Machine(1.0, 1.0, 1e12, gpu=True))
    want = {"weights": 696, "masters": 1392, "gradients": 1392, "moments": 2784, "reference": 0, "fused copies": 384,
            "keys and values": 12288, "activations": 22 * 2 * 120, "logits": 22 * 10 * 2 + 160}  # fmt: skip
    assert found.memory == want and found.recomputed == 0


def test_what_does_not_fit_is_made_smaller() -> None:
    """An answer takes its page and a third of its prompt's, 1536 + 512 = 2048 bytes; half of what the weights (696) leave
    of 696 + 2*6144 is room for 3."""
    found = estimate(TINY, Work(2, 3, 5, 7, 15, size=2, reference=False), Machine(1.0, 1.0, 696 + 2 * 6144, gpu=True))
    assert found.slots == 3 and found.recomputed == 2  # no room to spare: every layer computes twice
    # a token's inputs of both layers, 4 numbers of 4 bytes and 4 of 2 each, and one layer at a time in full
    assert found.memory["activations"] == 22 * (2 * 24 + 120)
    assert not found.fits


def test_four_bits_by_hand() -> None:
    """A layer's projections have 4*(6 + 6) + 6*4 + 3*4*6 = 144 numbers; 288 of 348 take 4.5 bits, 162 bytes, the other 60 two
    bytes each. With adapters the engine on a GPU has a copy of all 288."""
    found = estimate(TINY, Work(2, 3, 5, 7, 15, size=2, lora=2, bits=4), Machine(1.0, 1.0, 1e12, gpu=True))
    assert found.memory["weights"] == found.memory["reference"] == 162 + 120
    assert found.memory["fused copies"] == 2 * 288


def test_lora_learns_little() -> None:
    """Rank 2: 2 layers * 2 * (2*(4 + 6) + 2*(4 + 3) + 3*(4 + 6)) = 256 numbers with gradients and moments."""
    found = estimate(TINY, Work(2, 3, 5, 7, 15, lora=2), Machine(1.0, 1.0, 1e9))
    assert (
        found.memory["gradients"] == 4 * 256 and found.memory["moments"] == 8 * 256 and found.memory["weights"] == 1392
    )


def test_speed_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all of the floor reached and launches free: a step of 6 answers reads 1392 bytes of weights and 6*(7 + 2.5)*48 = 2736
    of keys and values, 4128 s at 1 byte/s; on a GPU the product, 2*348*6 = 4176 FLOPs, takes longer, and bounds it. Prompts:
    2*348*14 = 9744. 5 steps: 30624 s on a GPU, on a CPU one after the other: 9744 + 5*(4128 + 4176)."""
    for name in ("GPU", "CPU"):
        monkeypatch.setattr(e, name, (1.0, 1.0, 0.0, 0))
    work = Work(2, 3, 5, 7, 15, reference=False)
    for gpu, want in ((True, 9744 + 5 * 4176), (False, 9744 + 5 * (4128 + 4176))):
        found = estimate(TINY, work, Machine(1.0, 1.0, 1e9, gpu))
        assert found.rollout_s == want and found.rollout_tokens_s == 30 / want
        # training: (6*348 + 12*2*6*6) FLOPs for each of 30 + 14 tokens
        assert found.train_s == (2088 + 864) * 44
    twice = estimate(TINY, Work(2, 3, 5, 7, 15, reference=True), Machine(1.0, 1.0, 1e9))
    assert twice.train_s == (2088 + 864) * 44 * 4 / 3  # a forward pass of the reference is a third of an update


# ---- the same counts as the engine's and the trainer's own


def test_keys_and_values_are_those_of_the_engine() -> None:
    model = Decoder(QWEN)
    assert e.position_bytes(QWEN, 4) * 64 == Pages.bytes_per_page(model, 64)


@pytest.mark.parametrize("free", [8e9, 20e9, 40e9, 139e9])
def test_recomputation_is_that_of_the_trainer(free: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(free), int(free)))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    shape = SHAPES["Qwen2.5-1.5B"]
    assert layers_recomputed(shape, 32768, free) == layers_to_recompute(SimpleNamespace(config=shape), 32768)


@pytest.mark.parametrize("critic", ["", "own"])
@pytest.mark.parametrize("free, some", [(15e9, (28, 28)), (40e9, (1, 27)), (139e9, (0, 0))])
def test_activations_are_those_of_the_plan_for_many_cards(free: float, some: tuple[int, int], critic: str) -> None:
    """Nothing is sharded, so the plan is given the room that is left here: as many layers recompute, and as many bytes are kept."""
    answer, prompt = 2048, 128
    work = Work(8, 8, answer, prompt, 16384, size=2, lora=16, critic=critic)
    free *= work.trunks  # a critic goes through as many tokens again
    found = estimate(SHAPES["Qwen2.5-1.5B"], work, Machine(1.0, 1.0, free, gpu=True))
    same = planned.Work(8, 8, Lengths(answer, answer), prompt, 16384, critic=critic)
    held = sum(size for part, size in found.memory.items() if part not in ("activations", "logits"))
    parts, recomputed = memory.passing(KNOWN["Qwen/Qwen2.5-1.5B"], same, free - held)
    assert some[0] <= recomputed <= some[1]
    assert (found.recomputed, found.memory["activations"]) == (recomputed, parts["activations"])


# ---- measurements


@pytest.mark.parametrize(
    "row", [r for r in json.loads((RESULTS / "rollout.json").read_text()) if r["unit"] == "tokens/s"]
)
def test_recorded_rollouts(row: dict[str, Any]) -> None:
    name, answers = row["name"].removeprefix("rollout ").removesuffix(" answers").split(", ")
    work = Work(int(answers) // 8, 8, 256, 128, size=2, reference=False)
    found = estimate(SHAPES[name], work, H200)
    assert found.slots == int(answers)
    assert row["value"] / 1.5 < found.rollout_tokens_s < row["value"] * 1.5


@pytest.mark.parametrize(
    "row", [r for r in json.loads((RESULTS / "train.json").read_text()) if "rows of 2,048" in r["name"]]
)
def test_recorded_training(row: dict[str, Any]) -> None:
    shape = SHAPES[row["name"].split()[1].strip(",")]
    found = estimate(shape, Work(8, 1, 2047, 1, 16384, size=2, reference=False), H200)
    assert row["seconds"] / 1.5 < found.train_s < row["seconds"] * 1.5
    training = found.total - found.memory["keys and values"] - found.memory["fused copies"]
    assert row["peak_gib"] / 1.5 < training / 2**30 < row["peak_gib"] * 1.5


def test_a_step_of_the_built_in_model_on_this_cpu() -> None:
    """One thread, in seconds of that thread's own work, so that other programs do not count; the shortest of several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        policy = load_model("pocket", "cpu")
        machine = calibrate("cpu", 8e9, clock=time.thread_time)
        contexts = [policy.encode(Prompt.text(str(i), "word " * 25 + str(i))) for i in range(4)]
        work = Work(4, 4, 48, max(map(len, contexts)), reference=False)
        want = estimate(policy.model.config, work, machine)
        how, keys = Sampling(48), [[4 * p + i for i in range(4)] for p in range(4)]
        rollout_s = shortest(lambda: generate(policy.model, contexts, keys, how, []), "cpu", 0.4, time.thread_time)
        learner = Learner(policy, find_method("sft"), 0, 1e-6)
        groups = generate(policy.model, contexts, keys, how, [])
        prompts = [Prompt.text(str(i), "") for i in range(4)]
        made = [
            Rollout.single(p, c, s.tokens, s.logp_T)
            for p, c, g in zip(prompts, contexts, groups, strict=True)
            for s in g
        ]

        def update() -> None:
            policy.forward(made)["logp_BT"].sum().mul(0.001).backward()
            learner._step(1.0)

        train_s = shortest(update, "cpu", 0.4, time.thread_time)
    finally:
        torch.set_num_threads(threads)
    assert rollout_s / 3 < want.rollout_s < rollout_s * 3
    assert train_s / 3 < want.train_s < train_s * 3
