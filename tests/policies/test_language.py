"""The language policy: packed is padded, the critic sees no future, a step does not depend on how it is laid out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.core.types import Origin, Prompt
from posttrain.models.layout import Rows, pack
from posttrain.policies.language import LanguagePolicy
from tests.models import tiny

# three contexts with two answers each; 8, 12, 8, 4, 3 and 9 tokens: bins of 12 hold 12 | 9 3 | 8 4 | 8
LENGTHS = ((3, 5), (3, 9), (1, 7), (1, 3), (2, 1), (2, 7))
LAYOUTS = ("padded", "packed", "shared")
STREAMS = ("logp_BT", "entropy_BT", "score_B", "value_BT")


def calm_policy() -> LanguagePolicy:
    """Weights of 0.1: at 0.25 a model of this width amplifies rounding itself beyond 1e-6."""
    policy = tiny.policy()
    tiny.randomise(policy.model, scale=0.1)
    return policy


def full_policy() -> LanguagePolicy:
    """A policy with a critic and a score head that are not zero."""
    policy = calm_policy().as_reward_model().with_critic()
    tiny.randomise(policy.score, seed=1)
    tiny.randomise(policy.critic.head, seed=2)
    return policy


def gradient(policy: torch.nn.Module) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in policy.parameters()])


def close(got: Tensor, want: Tensor) -> None:
    """|got - want| <= 1e-6 |want|: float32 has 6e-8 per number, and some thousands are added."""
    assert float((got - want).norm()) <= 1e-6 * float(want.norm())


# ---- streams


def test_layouts_are_not_all_one() -> None:
    """The control: packed puts rows together, shared finds the three contexts, and the answers are computed anew."""
    rows, calls = Rows.of(tiny.rows(LENGTHS)), []
    packed = pack(rows)
    assert packed.tokens_NL.shape == (4, 12)
    assert sorted(torch.bincount(packed.bin_B).tolist()) == [1, 1, 2, 2]
    assert not packed.positions_NL[packed.bin_B, packed.offset_B].any()  # each row begins at position 0 again
    assert rows.prompt_B.tolist() == [0, 0, 1, 1, 2, 2] and rows.first_P.tolist() == [0, 2, 4]
    for layout in LAYOUTS:
        policy = tiny.policy()
        policy.layout = layout
        policy.model.model.embed_tokens.register_forward_hook(lambda _, inputs, out: calls.append(tuple(out.shape[:2])))
        policy.forward(tiny.rollouts(LENGTHS))
    assert calls == [(6, 12), (4, 12), (3, 3), (6, 9)]  # padded; packed; shared: contexts, then answers


def test_unknown_layout() -> None:
    policy = tiny.policy()
    policy.layout = "paked"
    with pytest.raises(UserError, match=r"no layout named 'paked'; did you mean 'packed'\?"):
        policy.forward(tiny.rollouts())


def test_layouts_agree() -> None:
    """Every stream, and the gradient of a sum that weighs each number differently."""
    out, grads = [], []
    for layout in LAYOUTS:
        policy = full_policy()
        policy.layout = layout
        streams = policy.forward(tiny.rollouts(LENGTHS), STREAMS)
        total = sum((x * torch.linspace(1, 2, x.numel()).view_as(x)).sum() for x in streams.values())
        total.backward()
        out.append(streams)
        grads.append(gradient(policy))
    assert set(out[0]) == {"logp_BT", "entropy_BT", "score_B", "value_BT"}
    for name, want in out[0].items():
        assert want.abs().max() > 0.05
        for other in out[1:]:
            torch.testing.assert_close(other[name], want, rtol=0, atol=1e-5)
    close(grads[1], grads[0])
    close(grads[2], grads[0])


@torch.no_grad()
def test_streams_by_definition() -> None:
    """One row at a time, from the logits of the whole row: log softmax at the action, -sum p log p, 0 after the end."""
    policy, rollouts = full_policy(), tiny.rollouts(LENGTHS)
    policy.temperature = 0.7
    streams = policy.forward(rollouts, STREAMS)
    for b, r in enumerate(rollouts):
        S, T = len(r.context), len(r)
        h_LD = policy.model.hidden(torch.cat([r.context, r.actions])[None])[0]
        logp_TV = (policy.model.logits(h_LD[S - 1 : S + T - 1]) / 0.7).log_softmax(-1)
        want = logp_TV.gather(1, r.actions[:, None])[:, 0]
        torch.testing.assert_close(streams["logp_BT"][b, :T], want, rtol=0, atol=1e-5)
        torch.testing.assert_close(streams["entropy_BT"][b, :T], -(logp_TV.exp() * logp_TV).sum(-1), rtol=0, atol=1e-5)
        torch.testing.assert_close(streams["score_B"][b], policy.score(h_LD[-1]), rtol=0, atol=1e-5)
        torch.testing.assert_close(streams["value_BT"][b, :T], policy.critic.head(h_LD[S - 1 : -1]), rtol=0, atol=1e-5)
        assert not any(streams[name][b, T:].any() for name in ("logp_BT", "entropy_BT", "value_BT"))


def test_streams_that_are_not_there() -> None:
    with pytest.raises(UserError, match="no critic"):
        tiny.policy().forward(tiny.rollouts(), ("value_BT",))
    with pytest.raises(UserError, match="no score head"):
        tiny.policy().forward(tiny.rollouts(), ("score_B",))


# ---- text and tokens


def test_written_ends() -> None:
    made = tiny.policy().written(Prompt.text("p", "ab"), "c 1")
    assert made.context.tolist() == [3, 4]  # a, b: letters begin at 2 with the space
    assert made.actions.tolist() == [5, 2, 30, 1]  # c, space, 1, end
    assert made.mask_T.tolist() == [True] * 4 and made.text == "c 1" and made.origin is Origin.WRITTEN


def test_empty_prompt() -> None:
    with pytest.raises(UserError, match="prompt 'p' is empty"):
        tiny.policy().encode(Prompt.text("p", ""))


def test_template_ends_where_the_answer_begins() -> None:
    policy = tiny.policy()
    policy.tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }} {% endfor %}{% if add_generation_prompt %}x{% endif %}"
    )
    prompt = Prompt("p", ({"role": "system", "content": "ab"}, {"role": "user", "content": "c"}))
    assert policy.decode(policy.encode(prompt)) == "ab c x"


@pytest.mark.parametrize("clean", [False, True])
def test_many_answers_decode_as_one(clean: bool) -> None:
    """With the end token left out, and spaces before punctuation cleaned up where the tokenizer is one that does so."""
    policy = tiny.policy()
    policy.tokenizer.clean_up_tokenization_spaces = clean
    many = [torch.tensor(ids) for ids in ([3, 4, 2, 5, 1], [], [1], [30, 2, 2, 3])]
    assert policy.decode_all(many) == [policy.decode(ids) for ids in many]
    assert policy.decode_all(many)[0] == "ab c"


def test_stop_ids() -> None:
    assert tiny.policy().stop_ids == [1]
    wrapped = tiny.wrapped("gpt_neox")
    wrapped.inner.generation_config.eos_token_id = [7, 1]
    assert tiny.policy(wrapped).stop_ids == [1, 7]


# ---- roles


@torch.no_grad()
def test_value_does_not_see_its_action() -> None:
    """Changing action t changes no value up to t, and does change the next one."""
    policy = full_policy()
    (before,) = tiny.rollouts([(4, 6)])
    for t in range(5):
        (after,) = tiny.rollouts([(4, 6)])
        after.actions[t] = (after.actions[t] + 1) % tiny.V
        a, b = (policy.forward([r], ("value_BT",))["value_BT"] for r in (before, after))
        assert a.shape == (1, 6)
        torch.testing.assert_close(a[0, : t + 1], b[0, : t + 1], rtol=0, atol=1e-6)
        assert abs(float(a[0, t + 1] - b[0, t + 1])) > 1e-4


def test_a_new_critic_is_indifferent_and_its_own() -> None:
    """It starts at 0 for every state; learning values leaves the policy's parameters without gradient."""
    policy = tiny.policy().with_critic()
    value_BT = policy.forward(tiny.rollouts(), ("value_BT",))["value_BT"]
    assert not value_BT.any()
    tiny.randomise(policy.critic.head)
    policy.forward(tiny.rollouts(), ("value_BT",))["value_BT"].sum().backward()
    assert all(p.grad is None for p in policy.model.parameters())
    assert policy.critic.model.model.embed_tokens.weight.grad.abs().max() > 0
    assert policy.with_critic().critic is policy.critic


@torch.no_grad()
@pytest.mark.parametrize("name", ["decoder", "gpt2"])
def test_clone_is_independent(name: str) -> None:
    policy = full_policy() if name == "decoder" else tiny.policy(tiny.wrapped(name))
    policy.temperature, policy.layout = 0.5, "padded"
    rollouts = tiny.rollouts()
    other = policy.clone()
    want = policy.forward(rollouts)["logp_BT"]
    assert torch.equal(other.forward(rollouts)["logp_BT"], want)
    for p in policy.parameters():
        p.mul_(1.5)
    assert torch.equal(other.forward(rollouts)["logp_BT"], want)
    assert not torch.equal(policy.forward(rollouts)["logp_BT"], want)
    assert (other.critic, other.layout) == (None, "padded")
    if name == "decoder":  # still one tensor under two names
        assert other.model.lm_head.weight is other.model.model.embed_tokens.weight
