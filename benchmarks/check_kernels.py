"""The GPU engine against plain sampling in fp32: the same answers and log-probabilities, kernels against their twins.

python benchmarks/check_kernels.py
"""

from __future__ import annotations

import torch

from posttrain.core import rng
from posttrain.engines.native import kernels
from posttrain.engines.native.engine import Engine
from posttrain.engines.sampling import Sampling, generate
from posttrain.models.decoder import Decoder
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
    q, k, v = (torch.randn(s, device="cuda") for s in ((7, 6, 64), (7, 2, 200, 64), (7, 2, 200, 64)))
    length = torch.tensor([0, 1, 63, 64, 65, 130, 199], device="cuda")
    print("attend", float((kernels.attend(q, k, v, length) - kernels.attend_plain(q, k, v, length)).abs().max()))


if __name__ == "__main__":
    main()
