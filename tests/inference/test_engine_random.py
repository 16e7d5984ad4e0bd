"""The slot engine with random slots, pages, strides, prompts and limits against plain sampling: whatever the memory and the order,
the answers are the same and every page is released. Each seed is a configuration; bugs found this way have tests of their own."""

from __future__ import annotations

import random

import pytest
import torch

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.inference.engine import Engine
from posttrain.models.decoder import Decoder
from posttrain.models.sampling import truncate
from tests.inference.test_engine import small_model

SHAPES = {name: small_model(name) for name in ("llama", "qwen3")}


@pytest.mark.parametrize("seed", range(30))
def test_any_configuration_gives_the_same_answers(seed: int) -> None:
    draw = random.Random(seed)
    model, prefix_cache = SHAPES[draw.choice(list(SHAPES))], draw.random() < 0.5
    engine = Engine(
        model, max_slots=draw.choice([3, 7, 50]), num_pages=draw.choice([14, 20, 40]), prefix_cache=prefix_cache, stride=draw.choice([1, 4, 8])
    )  # fmt: skip
    engine._bucket = lambda n: max(4, 1 << (n - 1).bit_length())  # type: ignore[method-assign]  # as on a GPU
    words = [torch.tensor([draw.randrange(2, 50) for _ in range(200)]) for _ in range(2)]
    for call in range(2):
        contexts = [begun(draw, words) for _ in range(draw.randrange(1, 5))]
        keys = [[rng.key(seed, call, p, i) for i in range(draw.randrange(1, 6))] for p in range(len(contexts))]
        most = draw.choice([3, 20, 70])
        limits = [[draw.randrange(1, most + 1) for _ in row] for row in keys] if draw.random() < 0.6 else None
        how = Sampling(most) if draw.random() < 0.6 else Sampling(most, temperature=0.7, top_k=5)
        try:
            got = engine.generate(contexts, keys, how, [1], limits=limits)
        except UserError:
            continue  # one answer alone is too long for so few pages, as the error says
        want = Engine(model).generate(contexts, keys, how, [1], limits=limits)
        for p, (wanted, found) in enumerate(zip(want, got, strict=True)):
            for key, a, b in zip(keys[p], wanted, found, strict=True):
                same = agreed(a.tokens, b.tokens)
                torch.testing.assert_close(a.logp_T[:same], b.logp_T[:same], atol=1e-4, rtol=0)
                if same < max(len(a.tokens), len(b.tokens)):
                    assert on_an_edge(model, torch.cat((contexts[p], a.tokens[:same])), key, same, how), (p, key, same)
                else:
                    assert a.stopped == b.stopped
        pages = engine.slots.pages
        in_use = sum(count > 0 for count in pages.ref_count)
        assert in_use == len(set(pages.cached.values())) and in_use + len(pages.free) == pages.count - 1


def agreed(a: torch.Tensor, b: torch.Tensor) -> int:
    """The number of leading tokens that are equal."""
    n = min(len(a), len(b))
    differ = (a[:n] != b[:n]).nonzero()
    return int(differ[0]) if len(differ) else n


@torch.no_grad()
def on_an_edge(model: Decoder, text: torch.Tensor, key: int, place: int, how: Sampling) -> bool:
    """Whether the draw falls on the boundary between two tokens, so that rounding decides: about one answer in ten thousand."""
    z_V = truncate(model.logits(model.hidden(text[None]))[:, -1].float() / how.temperature, how)[0]
    share_V = torch.softmax(z_V.double(), -1).cumsum(-1)
    u = float(rng.uniform(torch.tensor([key]), torch.tensor([place])))
    return float((share_V - u).abs().min()) < 1e-5


def begun(draw: random.Random, words: list[torch.Tensor]) -> torch.Tensor:
    """A sequence that ends near a page boundary; many have a common prefix."""
    text = draw.choice(words)[: draw.choice([1, 2, 5, 63, 64, 65, 127, 128, 129, 180])].clone()
    if draw.random() < 0.4 and len(text) > 3:
        half = len(text) // 2
        text[half:] = torch.tensor([draw.randrange(2, 50) for _ in range(len(text) - half)])
    return text
