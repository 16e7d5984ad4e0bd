"""The GPU engine against plain sampling in fp32: the same answers and log-probabilities, kernels against their plain-torch versions.

python -m benchmarks.check_kernels
"""

from __future__ import annotations

import torch

from benchmarks import compare_kernels
from posttrain.core import rng
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt, Rollout
from posttrain.inference.engine import Engine
from posttrain.models.decoder import Decoder
from posttrain.models.sampling import generate
from posttrain.models.shape import DecoderConfig
from posttrain.policies.language import LanguagePolicy

SHAPES = [
    DecoderConfig(512, 128, 512, 6, 4, 4, 32),
    DecoderConfig(5000, 96, 160, 3, 9, 3, 64, qkv_bias=True, model_type="qwen2"),
    DecoderConfig(2000, 96, 160, 3, 4, 2, 64, qk_norm=True, tied=False, model_type="qwen3"),
]


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    for shape in SHAPES:
        torch.manual_seed(0)
        model = Decoder(shape).cuda().eval()
        for p in model.parameters():
            if p.dim() == 2:
                torch.nn.init.normal_(p, std=0.05)
        contexts = [torch.randint(2, shape.vocab_size, (n,)) for n in (1, 5, 17, 64, 100)]
        keys = [[rng.key(p, i) for i in range(9)] for p in range(len(contexts))]
        for how in (Sampling(70), Sampling(70, temperature=0.0), Sampling(70, temperature=0.8, top_p=0.9)):
            want = generate(model, contexts, keys, how, [1])
            got = Engine(model).generate(contexts, keys, how, [1])
            pairs = [(a, b) for g, h in zip(want, got, strict=True) for a, b in zip(g, h, strict=True)]
            same = [torch.equal(a.tokens, b.tokens) for a, b in pairs]
            gap = max(float((a.logp_T - b.logp_T).abs().max()) for (a, b), s in zip(pairs, same, strict=True) if s)
            print(shape.model_type, how, f"{sum(same)} of {len(same)} equal, log-probability gap {gap:.1e}", flush=True)
    training()
    for name, gap in compare_kernels.compare_all("cuda").items():
        print(f"{name:32} {gap:.1e}", flush=True)


def training() -> None:
    """The trainer's packed layout in bf16, and its kernels in fp32, against padded rows and plain torch in fp32."""
    shape = DecoderConfig(5000, 192, 320, 3, 6, 2, 32, qkv_bias=True, model_type="qwen2")
    torch.manual_seed(0)
    policy = LanguagePolicy(Decoder(shape).cuda(), None)
    for p in policy.parameters():
        torch.nn.init.normal_(p, mean=float(p.dim() == 1), std=0.05)
    rollouts = []
    for prompt, count in ((5, 17), (5, 3), (40, 60), (1, 9)):
        context = torch.arange(prompt) % 50
        T = torch.ones(count, dtype=torch.bool)
        rollouts.append(
            Rollout.single(Prompt.text("", ""), context, torch.randint(0, 5000, (count,)), torch.zeros(count), T)
        )
    grads, logps = {}, {}
    for name, dtype, layout in (
        ("fp32", torch.float32, "padded"),
        ("packed", torch.bfloat16, "shared"),
        ("bf16", torch.bfloat16, "padded"),
    ):
        other = policy.clone().to(dtype)
        other.layout = layout
        out = other.forward(rollouts, ("logp_BT", "entropy_BT"))
        (out["logp_BT"].sum() + 0.1 * out["entropy_BT"].sum()).backward()
        logps[name] = out["logp_BT"].detach()
        grads[name] = torch.cat([x.grad.float().flatten() for x in other.parameters() if x.grad is not None])
    for name in ("bf16", "packed"):
        gap = (logps[name] - logps["fp32"]).abs().max()
        print(
            f"{name:8} logp {float(gap):.1e}  gradient {float((grads[name] - grads['fp32']).norm() / grads['fp32'].norm()):.1e} of its norm"
        )


if __name__ == "__main__":
    main()
