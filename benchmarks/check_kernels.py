"""The GPU engine against plain sampling in fp32: the same answers and log-probabilities, kernels against their twins.

python -m benchmarks.check_kernels.py
"""

from __future__ import annotations

from itertools import product

import torch

from posttrain.core import rng
from posttrain.core.types import Prompt, Rollout
from posttrain.engines.native import attention, products
from posttrain.engines.native.engine import Engine
from posttrain.engines.sampling import Sampling, generate
from posttrain.models import likelihood
from posttrain.models.decoder import Decoder
from posttrain.models.elementwise import gated
from posttrain.models.language import LanguagePolicy
from posttrain.models.shape import DecoderConfig

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
            want = generate(model, contexts, keys, how, [1], "cuda")
            got = Engine(model).generate(contexts, keys, how, [1])
            pairs = [(a, b) for g, h in zip(want, got, strict=True) for a, b in zip(g, h, strict=True)]
            same = [torch.equal(a.tokens, b.tokens) for a, b in pairs]
            gap = max(float((a.logp_T - b.logp_T).abs().max()) for (a, b), s in zip(pairs, same, strict=True) if s)
            print(shape.model_type, how, f"{sum(same)} of {len(same)} equal, log-probability gap {gap:.1e}", flush=True)
    twins()
    training()


def training() -> None:
    """The trainer's stream in bf16, and its kernels in fp32, against padded rows and plain torch in fp32."""
    shape = DecoderConfig(5000, 192, 320, 3, 6, 2, 32, qkv_bias=True, model_type="qwen2")
    torch.manual_seed(0)
    policy = LanguagePolicy(Decoder(shape).cuda(), None)
    for p in policy.parameters():
        torch.nn.init.normal_(p, mean=float(p.dim() == 1), std=0.05)
    rollouts = []
    for prompt, count in ((5, 17), (5, 3), (40, 60), (1, 9)):
        context = torch.arange(prompt) % 50
        T = torch.ones(count, dtype=torch.bool)
        rollouts.append(Rollout(Prompt.text("", ""), context, torch.randint(0, 5000, (count,)), torch.zeros(count), T))
    grads, logps = {}, {}
    for name, dtype, layout in (
        ("fp32", torch.float32, "padded"),
        ("stream", torch.bfloat16, "shared"),
        ("bf16", torch.bfloat16, "padded"),
    ):
        other = policy.clone().to(dtype)
        other.layout = layout
        out = other.forward(rollouts, ("logp", "entropy"))
        (out["logp_BT"].sum() + 0.1 * out["entropy_BT"].sum()).backward()
        logps[name] = out["logp_BT"].detach()
        grads[name] = torch.cat([x.grad.float().flatten() for x in other.parameters() if x.grad is not None])
    for name in ("bf16", "stream"):
        gap = (logps[name] - logps["fp32"]).abs().max()
        print(
            f"{name:8} logp {float(gap):.1e}  gradient {float((grads[name] - grads['fp32']).norm() / grads['fp32'].norm()):.1e} of its norm"
        )
    z, token = torch.randn(50, 5000, device="cuda"), torch.randint(0, 5000, (50,), device="cuda")
    ours, cpu = likelihood.summed(z, token, 0.7), likelihood.summed(z.cpu(), token.cpu(), 0.7)
    up = torch.randn(2, 50, device="cuda")
    known = likelihood.Known(token, ours[2], ours[1], up[0], up[1])
    slope = likelihood.sloped(z, known, 0.7, torch.float32).cpu()
    want = likelihood.sloped(
        z.cpu(), likelihood.Known(token.cpu(), cpu[2], cpu[1], up[0].cpu(), up[1].cpu()), 0.7, torch.float32
    )
    print(
        "likelihood",
        max(float((a.cpu() - b).abs().max()) for a, b in zip(ours, cpu, strict=True)),
        float((slope - want).abs().max()),
    )
    y, g = torch.randn(1000, 154, device="cuda", requires_grad=True), torch.randn(1000, 77, device="cuda")
    a, b = y.chunk(2, -1)
    ours, theirs = (torch.autograd.grad((z * g).sum(), y)[0] for z in (gated(y), torch.nn.functional.silu(a) * b))
    print(f"gate's gradient {float((ours - theirs).abs().max()):.1e}")


def twins() -> None:
    """Each kernel beside its plain twin in fp32, with spans short enough to be joined."""
    S, H, KV, D, C, F = 7, 6, 2, 64, 96, 150
    gen = torch.Generator("cuda").manual_seed(0)
    q, x, y = (torch.randn(*s, device="cuda", generator=gen) for s in ((S, H, D), (S, C), (S, F)))
    k, v = (torch.randn(40, KV, 64, D, device="cuda", generator=gen) for _ in range(2))
    table = (torch.randperm(39, device="cuda", generator=gen)[: S * 5].view(S, 5) + 1).to(torch.int32)
    table[3, :2], table[5:, :2] = (
        table[2, :2],
        table[4, :2],
    )  # two share a head of 100 places in two pages, and three another
    length = torch.tensor([0, 1, 163, 164, 100, 191, 255], device="cuda")
    head = torch.tensor([0, 1, 100, 100, 100, 100, 100], device="cuda")
    N, gaps = (H + 2 * KV) * D, {}
    qkv, bias = (torch.randn(*s, device="cuda", generator=gen) for s in ((S, N), (N,)))
    angle = torch.rand(300, D // 2, device="cuda", generator=gen)
    turn = products.Turn(bias, (angle[0].repeat(2), angle[1].repeat(2)), (angle.cos(), angle.sin()), 1e-5)
    where = products.Where(table, head, length, arrived=torch.zeros(S, KV, dtype=torch.int32, device="cuda"))
    for attention.SPAN, mates in product((1, 2, 8), (1, 2, 4)):
        ours, theirs, name = (k.clone(), v.clone()), (k.clone(), v.clone()), f"span {attention.SPAN}, mates {mates}"
        want = attention.attend_plain(products.place_plain(qkv, *theirs, where, turn)[0], *theirs, where)
        gaps[name] = attention.attend(qkv, *ours, where, turn, mates) - want
        gaps[f"{name} keys"], gaps[f"{name} values"] = ours[0] - theirs[0], ours[1] - theirs[1]
    where.row = torch.tensor([0, 1, 2, 5, 6, 4, 3], device="cuda")
    ours, theirs = (k.clone(), v.clone()), (k.clone(), v.clone())
    gaps["place"] = torch.cat(products.place(qkv, *ours, where, turn), 1)
    gaps["place"] -= torch.cat(products.place_plain(qkv, *theirs, where, turn), 1)
    gaps["keys"], gaps["values"] = ours[0] - theirs[0], ours[1] - theirs[1]
    gaps["gate"] = products.gate(y, None) - products.gate_plain(y, None)
    w, mine, other = torch.randn(C, device="cuda", generator=gen), x.clone(), x.cpu()
    gaps["norm"] = products.add_norm(mine, q.flatten(1)[:, :C].contiguous(), w, w, 1e-5).cpu()
    gaps["norm"] -= products.add_norm(other, q.flatten(1)[:, :C].cpu(), w.cpu(), w.cpu(), 1e-5)
    gaps["sum"] = mine.cpu() - other
    whole, long = (torch.randn(n, 1024, device="cuda", generator=gen) for n in (S, C))
    for pieces in (1, 2, 4):
        parts = products.split_product(whole, long, pieces)
        gaps[f"pieces {pieces}"] = products.add_norm(mine, parts, None, w, 1e-5).cpu()
        gaps[f"pieces {pieces}"] -= products.add_norm(other, (whole @ long.T).cpu(), None, w.cpu(), 1e-5)
    token = torch.tensor([5, 0, 3], device="cuda")
    for a, b in zip(
        products.embed_norm(token, x, w, 1e-5), products.embed_norm(token.cpu(), x.cpu(), w.cpu(), 1e-5), strict=True
    ):
        gaps[f"embed {a[0, 0]:.2f}"] = a.cpu() - b
    for name, gap in gaps.items():
        print(f"{name:22} {float(gap.abs().max()):.1e}", flush=True)


if __name__ == "__main__":
    main()
