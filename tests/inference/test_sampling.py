"""The sampler: what it says is what the trainer says, and an answer depends on nothing but its identity."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt, Rollout
from posttrain.models.sampling import Sample, draw, generate, truncate
from posttrain.policies.language import LanguagePolicy
from tests.models import tiny

TEXTS = ("add 1 and 2", "b", "say hello to the whole wide world", "count 3", "xyz")
LOG_P = torch.tensor([[0.2, 0.4, 0.1, 0.3]]).log()


def answers(policy: LanguagePolicy, how: Sampling, n: int = 4, chunk: int = 512) -> list[Rollout]:
    policy.temperature = how.temperature or 1.0
    return [r for group in sampled(policy, tiny.prompts(*TEXTS), n, how, chunk, seed=3) for r in group]


def sampled(
    policy: LanguagePolicy, ask: list[Prompt], n: int, how: Sampling, chunk: int, **where: int
) -> list[list[Rollout]]:
    """As `policy.sample`, with so many answers at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "act", partial(policy.act, chunk=chunk))
        return policy.sample(ask, n, how, **where)


@torch.no_grad()
def gap(policy: LanguagePolicy, rollouts: list[Rollout]) -> Tensor:
    """|trainer - sampler| at every token, the trainer in training mode as a learner has it."""
    logp_BT = policy.train().forward(rollouts)["logp_BT"]
    return torch.cat([(logp_BT[b, : len(r)] - r.logp_T).abs() for b, r in enumerate(rollouts)])


SETTINGS = [
    Sampling(24),
    Sampling(24, 0.6),
    Sampling(24, 1.3, top_k=5),
    Sampling(24, top_p=0.7, min_p=0.05),
    Sampling(24, 0),
]


@pytest.mark.parametrize("how", SETTINGS, ids=str)
@pytest.mark.parametrize("layout", ["padded", "packed", "shared"])
def test_sampler_equals_trainer(how: Sampling, layout: str) -> None:
    policy = tiny.policy()
    policy.layout = layout
    made = answers(policy, how)
    assert len({len(r) for r in made}) > 1 or how.temperature == 0  # answers end at different times
    assert gap(policy, made).max() <= 1e-4


@pytest.mark.parametrize("name", tiny.THEIRS)
def test_sampler_equals_trainer_through_transformers(name: str) -> None:
    """Learned positions with drop-out, windows shorter than the text, capped and scaled logits."""
    policy = tiny.policy(tiny.wrapped(name))
    assert gap(policy, answers(policy, Sampling(16, 0.8))).max() <= 1e-4


def test_sampler_equals_trainer_in_bf16() -> None:
    """The two take different paths (one token against rows), so bf16 rounds differently: 0.01 nats on average."""
    policy = tiny.policy(tiny.decoder(hidden_size=64, num_layers=4).to(torch.bfloat16))
    gaps = gap(policy, answers(policy, Sampling(32)))
    assert 0 < gaps.mean() <= 0.01


def test_wrong_weights_are_noticed() -> None:
    """The control: a gap does appear when the sampler's weights are a little stale."""
    policy = tiny.policy()
    made = answers(policy, Sampling(24))
    with torch.no_grad():
        policy.model.model.layers[0].mlp.up_proj.weight.mul_(1.05)
    assert gap(policy, made).max() > 1e-3


# ---- an answer belongs to its identity


def stops(x: Sample | Rollout) -> bool:
    """Whether it ended by itself."""
    return x.stopped if isinstance(x, Sample) else not x.truncated


def same(a: Sequence[Sample | Rollout], b: Sequence[Sample | Rollout]) -> None:
    for x, y in zip(a, b, strict=True):
        tokens = [r.actions if isinstance(r, Rollout) else r.tokens for r in (x, y)]
        assert tokens[0].tolist() == tokens[1].tolist() and stops(x) == stops(y)
        torch.testing.assert_close(x.logp_T, y.logp_T, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["decoder", "gpt2", "gemma2"])
def test_answers_do_not_depend_on_the_batch(name: str) -> None:
    policy = tiny.policy() if name == "decoder" else tiny.policy(tiny.wrapped(name))
    if (
        name == "gpt2"
    ):  # its kernels round by the shape of the batch: in float32 one draw in a million falls on the other side of a boundary
        policy.model.double()
    how, n = Sampling(16, top_p=0.95), 8
    ask = tiny.prompts(*TEXTS)
    together = policy.sample(ask, n, how, seed=1, step=2)
    backwards = policy.sample(ask[::-1], n, how, seed=1, step=2)[::-1]
    cut = sampled(policy, ask, n, how, 17, seed=1, step=2)
    single = policy.sample(ask, 1, how, seed=1, step=2)
    for i, prompt in enumerate(ask):
        alone = policy.sample([prompt], n, how, seed=1, step=2)[0]
        for other in (backwards[i], cut[i], alone):
            same(together[i], other)
        same(together[i][:1], single[i])
    assert len({tuple(r.actions.tolist()) for g in together for r in g}) > 35  # and they do differ from one another


def test_seed_step_prompt_and_index_all_count() -> None:
    policy, how = tiny.policy(), Sampling(12)
    ask = tiny.prompts("same text", "same text")

    def texts(**where: int) -> list[list[int]]:
        return [r.actions.tolist() for g in policy.sample(ask, 2, how, **where) for r in g]

    base = texts()
    assert len({tuple(a) for a in base}) == 4
    assert all(a != b for other in (texts(seed=1), texts(step=1)) for a, b in zip(base, other, strict=True))
    assert texts() == base


# ---- ends


def test_stop_ids_end_an_answer() -> None:
    """Of 60 answers of up to 30 tokens, with 3 of 40 ids that stop, most stop: at their first stop id, not later."""
    stop = [1, 7, 20]
    model = tiny.decoder()
    keys = [[rng.key(i, j) for j in range(20)] for i in range(3)]
    made = [s for g in generate(model, [torch.tensor([2, 3])] * 3, keys, Sampling(30), stop) for s in g]
    assert sum(s.stopped for s in made) > 30 and len({len(s.tokens) for s in made}) > 5
    for s in made:
        ends = [t for t, token in enumerate(s.tokens.tolist()) if token in stop]
        assert ends == ([len(s.tokens) - 1] if s.stopped else [])
        assert len(s.tokens) == len(s.logp_T) and (s.stopped or len(s.tokens) == 30)
    assert not any(s.stopped for g in generate(model, [torch.tensor([2])], keys[:1], Sampling(4), []) for s in g)


def test_max_tokens_is_a_prefix() -> None:
    """Asked for fewer tokens, an answer is the beginning of itself; one that stops on its last token has stopped."""
    policy = tiny.policy()
    long = answers(policy, Sampling(24))
    n = next(len(r) for r in long if (not r.truncated) and len(r) > 2)
    for limit in (1, n - 1, n):
        for short, whole in zip(answers(policy, Sampling(limit)), long, strict=True):
            assert short.actions.tolist() == whole.actions[:limit].tolist()
            assert stops(short) == (stops(whole) and len(whole) <= limit)


@torch.no_grad()
def test_greedy_is_argmax() -> None:
    """Against the whole row read anew for every token; the log-probability is that of temperature 1."""
    model, context = tiny.decoder(), torch.tensor([5, 9, 11])
    (made,) = generate(model, [context], [[0]], Sampling(10, 0), [])[0]
    row, logp = context, []
    for _ in range(10):
        logp_V = model.logits(model.hidden(row[None]))[0, -1].log_softmax(-1)
        row = torch.cat([row, logp_V.argmax()[None]])
        logp.append(logp_V.max())
    assert made.tokens.tolist() == row[3:].tolist()
    torch.testing.assert_close(made.logp_T, torch.stack(logp), rtol=0, atol=1e-5)


def test_no_prompts_no_answers() -> None:
    assert generate(tiny.decoder(), [], [], Sampling(4), [1]) == []


# ---- the draw


def frequencies(how: Sampling, position: int, n: int = 20000) -> Tensor:
    key_B = torch.tensor([rng.key("draw", i) for i in range(n)])
    token_B, _ = draw(LOG_P.expand(n, -1), key_B, position, how)
    return torch.bincount(token_B, minlength=4).double() / n


@pytest.mark.parametrize("position", [0, 1, 500])
@pytest.mark.parametrize(
    ("how", "p"),
    [
        (Sampling(), [0.2, 0.4, 0.1, 0.3]),
        (Sampling(temperature=0.5), [4 / 30, 16 / 30, 1 / 30, 9 / 30]),  # p^2 / sum p^2, sum = 0.30
        (Sampling(top_k=2), [0, 4 / 7, 0, 3 / 7]),
        (Sampling(top_p=0.75), [2 / 9, 4 / 9, 0, 3 / 9]),
    ],
    ids=str,
)
def test_frequencies(how: Sampling, p: list[float], position: int) -> None:
    """Chi-square with 3 degrees of freedom (fewer where tokens are cut) exceeds 16.3 once in 1000."""
    n, got, want = 20000, frequencies(how, position), torch.tensor(p).double()
    assert (got[want == 0] == 0).all()
    assert float((n * (got - want) ** 2 / want)[want > 0].sum()) < 16.3


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        # p = 0.2 0.4 0.1 0.3; in order 1 (0.4), 3 (0.3), 0 (0.2), 2 (0.1); mass before each: 0, 0.4, 0.7, 0.9
        (Sampling(top_k=1), [1]),
        (Sampling(top_k=3), [0, 1, 3]),
        (Sampling(top_k=9), [0, 1, 2, 3]),
        (Sampling(top_p=0.39), [1]),
        (Sampling(top_p=0.41), [1, 3]),
        (Sampling(top_p=0.69), [1, 3]),
        (Sampling(top_p=0.71), [0, 1, 3]),
        (Sampling(top_p=1e-9), [1]),  # the likeliest always stays
        (Sampling(min_p=0.6), [1, 3]),  # 0.6 * 0.4 = 0.24
        (Sampling(min_p=0.45), [0, 1, 3]),  # 0.18
        # top_k 2 first: 4/7, 3/7, so the mass before the second is 0.571
        (Sampling(top_k=2, top_p=0.56), [1]),
        (Sampling(top_k=2, top_p=0.58), [1, 3]),
        # min_p drops 0.1 first: 4/9, 3/9, 2/9, so the mass before the third is 0.777
        (Sampling(min_p=0.3, top_p=0.77), [1, 3]),
        (Sampling(min_p=0.3, top_p=0.79), [0, 1, 3]),
    ],
    ids=str,
)
def test_truncation(how: Sampling, kept: list[int]) -> None:
    out_V = truncate(LOG_P, how)[0]
    assert out_V.isfinite().nonzero().squeeze(-1).tolist() == kept
    assert torch.equal(out_V[kept], LOG_P[0, kept])


def test_truncation_is_row_by_row() -> None:
    rows = torch.cat([LOG_P, LOG_P.flip(-1)])
    assert truncate(rows, Sampling(top_p=0.41)).isfinite().tolist() == [
        [False, True, False, True],
        [True, False, True, False],
    ]


def test_log_probability_is_tempered_and_untruncated() -> None:
    """At temperature 0.5 p is 4, 16, 1, 9 of 30; top_k=1 leaves only token 1, whose log-probability is log 16/30."""
    token_B, logp_B = draw(LOG_P, torch.tensor([3]), 0, Sampling(temperature=0.5, top_k=1))
    assert token_B.tolist() == [1] and float(logp_B) == pytest.approx(float(torch.tensor(16 / 30).log()), abs=1e-6)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"max_tokens": 0}, "at least 1"), ({"temperature": -1.0}, "temperature is -1"), ({"top_p": 0.0}, "top_p"),
     ({"min_p": 1.0}, "min_p"), ({"top_k": -1}, "top_k")],
)  # fmt: skip
def test_settings_that_make_no_sense(wrong: dict, told: str) -> None:
    with pytest.raises(UserError, match=told):
        Sampling(**wrong)
