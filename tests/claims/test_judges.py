"""The network that reads letters: its numbers are those of the formula, worked out one scalar at a time."""

from __future__ import annotations

import math

import pytest
import torch

from claims.worlds.judges import LetterModel, draw
from claims.worlds.tabular import TabularPolicy
from posttrain.core.errors import UserError
from posttrain.core.types import Rollout
from posttrain.runs.in_memory import row

END = 3


def writer() -> TabularPolicy:
    """Two prompts, at most four letters out of a, b, c and an end."""
    return TabularPolicy(2, 4, 4, end=END)


def small() -> LetterModel:
    """One number wide, weights by hand: prompts 0.5 and -1; letters a, b, c, end: 1, -2, 0.5, 0; before: 0, 1, 0, 0, start 2;
    think(x) = 2 x - 1; speak(h) = (h, -h, 0, 1); score(h) = 3 h."""
    net = LetterModel(writer(), 1, "by hand").as_reward_model("by hand")
    with torch.no_grad():
        net.prompt.weight.copy_(torch.tensor([[0.5], [-1.0]]))
        net.letter.weight.copy_(torch.tensor([[1.0], [-2.0], [0.5], [0.0]]))
        net.before.weight.copy_(torch.tensor([[0.0], [1.0], [0.0], [0.0], [2.0]]))
        net.think.weight.fill_(2.0)
        net.think.bias.fill_(-1.0)
        net.speak.weight.copy_(torch.tensor([[1.0], [-1.0], [0.0], [0.0]]))
        net.speak.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 1.0]))
        net.score.weight.fill_(3.0)
    return net


def test_score_by_hand() -> None:
    """The text ab is a, b, end. Bigrams: a after start relu(1 + 2) = 3; b after a relu(-2 + 0) = 0; end after b relu(0 + 1) = 1.
    Their sum over sqrt(4) is 2. Prompt 0: read 2.5, thought 2 x 2.5 - 1 = 4, score 12. Prompt 1: read 1, thought 1, score 3.
    """
    net = small()
    made = [net.written(row(p), "ab") for p in (0, 1)]
    assert made[0].actions.tolist() == [0, 1, END]
    assert net.forward(made, ("score_B",))["score_B"].tolist() == pytest.approx([12.0, 3.0])


def test_log_probabilities_by_hand() -> None:
    """Prompt 0 before anything: read 0.5, thought 0, logits (0, 0, 0, 1). After a: read 0.5 + 3/2 = 2, thought 3,
    logits (3, -3, 0, 1). After ab: the same, since b added 0. So "ab" and its end have logits 0, -3 and 1.
    """
    logp_T = small().forward([small().written(row(0), "ab")])["logp_BT"][0]
    first = math.log(3 + math.e)
    later = math.log(math.exp(3) + math.exp(-3) + 1 + math.e)
    assert logp_T.tolist() == pytest.approx([-first, -3 - later, 1 - later])


def test_gradient_of_the_score_by_hand() -> None:
    """score = 3 relu(2 read - 1), so d score / d read = 6 where the thought is above 0: 6 by the prompt, 6/2 by the letter a
    and by what stands before it (their bigram is above 0), 0 by b (its bigram is below 0), 4 by the head, 3 by think's bias.
    """
    net = small()
    net.forward([net.written(row(0), "ab")], ("score_B",))["score_B"].sum().backward()
    assert net.prompt.weight.grad.squeeze().tolist() == pytest.approx([6.0, 0.0])
    assert net.letter.weight.grad.squeeze().tolist() == pytest.approx([3.0, 0.0, 0.0, 3.0])  # a, and the end after b
    assert net.before.weight.grad.squeeze().tolist() == pytest.approx([0.0, 3.0, 0.0, 0.0, 3.0])  # b, and the start
    assert net.score.weight.grad.item() == pytest.approx(4.0)
    assert net.think.bias.grad.tolist() == pytest.approx([3.0])
    assert net.speak.weight.grad is None


def test_gradient_of_the_log_probability_by_hand() -> None:
    """d log p(letter) / d bias = [letter] - p. One answer, "c" and its end; before c the logits are (0, 0, 0, 1).

    c after start is relu(0.5 + 2) = 2.5, read 0.5 + 1.25, thought 2.5: logits (2.5, -2.5, 0, 1) before the end.
    """
    net = LetterModel(writer(), 1)
    net.load_state_dict({k: v for k, v in small().state_dict().items() if not k.startswith("score")})
    net.forward([net.written(row(0), "c")])["logp_BT"].sum().backward()
    p = [softmax([0.0, 0.0, 0.0, 1.0]), softmax([2.5, -2.5, 0.0, 1.0])]
    expected = [(v in (2, END)) - p[0][v] - p[1][v] for v in range(4)]
    assert net.speak.bias.grad.tolist() == pytest.approx(expected, abs=1e-6)
    by_weight = [(v == END) * 2.5 - 2.5 * p[1][v] for v in range(4)]  # the first thought is 0
    assert net.speak.weight.grad.squeeze().tolist() == pytest.approx(by_weight, abs=1e-6)


def softmax(x: list[float]) -> list[float]:
    total = sum(map(math.exp, x))
    return [math.exp(v) / total for v in x]


def scalar(net: LetterModel, r: Rollout) -> tuple[list[float], float]:
    """The formula again, number by number in plain Python: log-probabilities and the score of one answer."""
    weight = {k: v.tolist() for k, v in net.state_dict().items()}
    D, V, T = net.think.out_features, net.writer[0].V, net.writer[0].T
    read, before, logps = list(weight["prompt.weight"][int(r.context[0])]), V, []

    def thought() -> list[float]:
        rows = zip(weight["think.weight"], weight["think.bias"], strict=True)
        return [max(0.0, sum(w * x for w, x in zip(ws, read, strict=True)) + b) for ws, b in rows]

    for a in r.actions.tolist():
        h, heads = thought(), zip(weight["speak.weight"], weight["speak.bias"], strict=True)
        logits = [sum(w * x for w, x in zip(ws, h, strict=True)) + b for ws, b in heads]
        logps.append(math.log(softmax(logits)[a]))
        for d in range(D):
            read[d] += max(0.0, weight["letter.weight"][a][d] + weight["before.weight"][before][d]) / math.sqrt(T)
        before = a
    return logps, sum(w * x for w, x in zip(weight["score.weight"][0], thought(), strict=True))


TEXTS = ("", "a", "bc", "cab", "abca")  # of every length; the last has no room for an end


def test_a_wide_network_is_the_formula_and_padding_does_not_matter() -> None:
    net = LetterModel(writer(), 5, 7).as_reward_model(7)
    made = [net.written(row(p), text) for p in (0, 1) for text in TEXTS]
    out = {k: x.detach() for k, x in net.forward(made, ("logp_BT", "score_B")).items()}
    for b, r in enumerate(made):
        logps, score = scalar(net, r)
        assert out["logp_BT"][b].tolist() == pytest.approx(logps + [0.0] * (4 - len(r)), abs=1e-5)
        assert float(out["score_B"][b]) == pytest.approx(score, abs=1e-5)
        alone = net.forward([r], ("logp_BT", "score_B"))  # no padding at all
        assert torch.allclose(alone["logp_BT"][0], out["logp_BT"][b, : len(r)], atol=1e-6)
        assert torch.allclose(alone["score_B"][0], out["score_B"][b], atol=1e-6)
    assert len({round(float(s), 4) for s in out["score_B"]}) > 5  # they do differ


def test_the_gradient_does_not_depend_on_who_is_in_the_batch() -> None:
    """Together, padded to the longest, or one by one: the same sum of gradients."""
    made = [writer().written(row(p), text) for p in (0, 1) for text in TEXTS]
    grads = []
    for batches in ([made], [[r] for r in made]):
        net = LetterModel(writer(), 5, 7).as_reward_model(7)
        for rollouts in batches:
            out = net.forward(rollouts, ("logp_BT", "score_B"))
            (out["logp_BT"].sum() + out["score_B"].square().sum()).backward()
        grads.append({k: p.grad for k, p in net.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        assert torch.allclose(grad, grads[1][name], atol=1e-4), name


def test_a_reward_model_leaves_the_base_alone() -> None:
    base = LetterModel(writer(), 5, 7)
    before = {k: v.clone() for k, v in base.state_dict().items()}
    judge = base.as_reward_model(7, "head")
    assert base.score is None and base.speak.weight.requires_grad and not judge.speak.weight.requires_grad
    made = [judge.written(row(0), "ab"), judge.written(row(1), "c")]
    assert torch.equal(judge.forward(made)["logp_BT"], base.forward(made)["logp_BT"])  # it begins as the base is
    judge.forward(made, ("score_B",))["score_B"].sum().backward()
    with torch.no_grad():
        for p in judge.parameters():
            p.add_(1.0)
    assert all(p.grad is None for p in base.parameters())
    assert all(torch.equal(v, before[k]) for k, v in base.state_dict().items())


def test_draws_belong_to_identity() -> None:
    """Same identity, same weights, whatever was drawn before; another one, others. The writer's table is no parameter."""
    first, other = LetterModel(writer(), 5, 1, "x"), LetterModel(writer(), 5, 1, "y")
    torch.randn(3)
    again = LetterModel(writer(), 5, 1, "x")
    for name, x in first.state_dict().items():
        assert torch.equal(x, again.state_dict()[name])
        assert name.endswith("bias") or not torch.equal(x, other.state_dict()[name])
    assert not any("table" in name for name, _ in first.named_parameters())
    heads = [first.as_reward_model(k).score.weight for k in (1, 1, 2)]
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])


def test_scales_of_the_weights() -> None:
    """Normal of scale 1 for embeddings and 1/sqrt(400) = 0.05 for maps; of n numbers sd is known to sd / sqrt(2 n)."""
    net = LetterModel(writer(), 400, 3)
    assert float(net.before.weight.detach().std()) == pytest.approx(1.0, abs=4 / math.sqrt(2 * 2000))
    assert float(net.think.weight.detach().std()) == pytest.approx(0.05, abs=0.05 * 4 / math.sqrt(2 * 160_000))
    with torch.no_grad():
        net.think.bias.fill_(1.0)
    draw(net, 3)
    assert not net.think.bias.any()


def test_a_network_without_a_head_says_so() -> None:
    net = LetterModel(writer(), 2)
    with pytest.raises(UserError, match="as_reward_model"):
        net.forward([net.written(row(0), "a")], ("score_B",))
