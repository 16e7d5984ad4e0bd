"""A picture in front of a decoder: its patches are embedded as a prefix of the question, and GRPO learns to answer.

    python -m examples.look

What you should see: after a short SFT 51, 68 and 49% of the questions about held-out pictures are answered right (seeds 0, 1,
2); 120 steps of GRPO lift that to 81, 96 and 95% in 20 s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posttrain as pt
from posttrain.evals.accuracy import accuracy
from posttrain.methods.grpo import grpo
from posttrain.methods.sft import sft
from posttrain.models.decoder import Decoder
from posttrain.models.shape import DecoderConfig
from posttrain.policies.language import LanguagePolicy
from posttrain.runs.in_memory import FunctionScorer, fit, one_thread

SIDE, PATCH = 12, 4
PATCHES = (SIDE // PATCH) ** 2
SHAPES = {"square": "111101111", "circle": "010101010", "cross": "101010101"}  # 3x3 pixels each
LETTERS = "\n ?abcdefghijklmnopqrstuvwxyz0123456789"
PICTURE = 1  # the id of the placeholders that stand for patches
HOW = pt.Sampling(max_tokens=8)
METHOD = grpo.but(rollout=grpo.rollout.but(n=8), terms=(), minibatches=2)


class Letters:
    """A tokenizer of one token per letter; id 0 ends an answer, id 1 is a patch of the picture."""

    eos_token_id, pad_token_id, bos_token_id, chat_template = 0, 0, None, None

    def __call__(self, text: str, add_special_tokens: bool = False) -> dict[str, list[int]]:
        return {"input_ids": [2 + LETTERS.index(c) for c in text]}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(LETTERS[i - 2] for i in ids if 2 <= i < 2 + len(LETTERS))


class SeeingDecoder(Decoder):
    """A decoder whose placeholders are filled with the patches of a picture."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.patches = nn.Linear(PATCH * PATCH, config.hidden_size)

    def embed(self, tokens: Tensor, seen: Mapping[str, Tensor] | None = None) -> Tensor:
        """`seen["pixels"]` is (rows, 1, SIDE, SIDE); an answer that says a placeholder does not get a patch for it."""
        x_BLD = super().embed(tokens)
        if not seen:
            return x_BLD
        cut_BNP = F.unfold(seen["pixels"], PATCH, stride=PATCH).transpose(1, 2)
        hole_BL = tokens == PICTURE
        hole_BL &= hole_BL.cumsum(1) <= PATCHES
        return x_BLD.masked_scatter(hole_BL.unsqueeze(-1), self.patches(cut_BNP))


class SeeingPolicy(LanguagePolicy):
    """A language policy that sees the picture of a prompt, then reads its question."""

    def observe(self, prompt: pt.Prompt) -> pt.Observation:
        tokens = torch.cat((torch.full((PATCHES,), PICTURE), self.encode(prompt)))
        return pt.Observation(tokens, {"pixels": prompt.info["pixels"]})


class Look(pt.Environment):
    """1 to 3 equal shapes on a 3x3 board of 12x12 pixels: how many are there, or which shape is it?"""

    name = "look"

    def prompt(self, index: int, split: str = "train") -> pt.Prompt:
        draw = pt.rng.python("look", split, index)
        shape, count = draw.choice(list(SHAPES)), draw.randint(1, 3)
        pixels = torch.zeros(1, SIDE, SIDE)
        for cell in draw.sample(range(9), count):
            top, left = (PATCH * k + draw.randint(0, 1) for k in divmod(cell, 3))
            pixels[0, top : top + 3, left : left + 3] = torch.tensor([float(c) for c in SHAPES[shape]]).view(3, 3)
        question, answer = draw.choice([("how many?", str(count)), ("which shape?", shape)])
        return pt.Prompt.text(f"{split}-{index}", question, answer, pixels=pixels)

    def grade(self, prompt: pt.Prompt, text: str) -> float:
        return float(text == prompt.answer)


def policy_of(seed: int) -> SeeingPolicy:
    """49 thousand weights, drawn by identity."""
    model = SeeingDecoder(DecoderConfig(2 + len(LETTERS), 48, 96, 2, 4, 4, 12))
    draw = pt.rng.torch_generator("look", seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw) * 0.1 if p.dim() > 1 else torch.ones(p.shape))
    return SeeingPolicy(model, Letters(), "look")


@one_thread()
def main(seed: int = 0, small: bool = False) -> dict[str, float]:
    """A short SFT, then GRPO; returns the accuracy on held-out pictures before and after GRPO."""
    policy, env = policy_of(seed), Look()
    grade = FunctionScorer(lambda made: torch.tensor([env.grade(r.prompt, r.text) for r in made]))
    fit(policy, sft, env, pt.Config(steps=100, prompts=32, lr=3e-3, seed=seed))
    before = accuracy(policy, env, 300, HOW).accuracy
    config = pt.Config(steps=40 if small else 120, prompts=32, lr=5e-4, warmup=0, seed=seed, sampling=HOW)
    fit(policy, METHOD, env, config, grade)
    return {"before": before, "after": accuracy(policy, env, 300, HOW).accuracy}


if __name__ == "__main__":
    print(main())
