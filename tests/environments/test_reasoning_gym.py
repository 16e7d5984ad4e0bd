"""Every data set of reasoning-gym: gold answers score 1, nonsense less, splits share no question."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("reasoning_gym")

from posttrain.core.errors import UserError
from posttrain.environments import reasoning_gym as gym

# what the package itself does not offer
NO_GOLD = {
    "boxnet": "any plan that works is right, and the package keeps no example of one",
    "rush_hour": "any list of moves that frees the car is right, and the package keeps no example of one",
}
NOT_ALONE = {"composite": "a mixture of other sets, made from a list of them"}
SLOW = {"sokoban": 2, "knight_swap": 2}  # about half a second a question
ALL = [name for name in gym.names() if name not in NOT_ALONE]


@pytest.mark.parametrize("name", ALL)
def test_every_set(name):
    env = gym.reasoning_gym(name, size=SLOW.get(name, 3), seed=5)
    assert env.validate(2) == []
    train, test = env.prompt(0), env.prompt(0, "test")
    assert train.last and test.last and train.last != test.last
    assert (train.answer is None) == (name in NO_GOLD)
    json.dumps(train.info)
    assert env.grade(train, "<think>never closed") == 0.0
    if train.answer is not None:
        assert env.grade(train, f"<think>so</think><answer>{train.answer}</answer>") == 1.0


def test_there_are_many():
    assert len(ALL) > 100


def test_items_belong_to_seed_and_index():
    a, b, other = (gym.reasoning_gym("chain_sum", seed=s) for s in (3, 3, 4))
    assert [a.prompt(i).last for i in range(20)] == [b.prompt(i).last for i in range(20)]
    assert a.prompt(0).last != other.prompt(0).last
    assert a.prompt(7).id == a.prompt(507).id  # 500 questions, then again


@pytest.mark.parametrize("name", ["chain_sum", "tower_of_hanoi", "coin_flip"])
def test_splits_share_no_question(name):
    env = gym.reasoning_gym(name, size=200)
    train = {env.prompt(i).last for i in range(200)}
    test = [env.prompt(i, "test").last for i in range(len(env.tests()))]
    assert not train & set(test)
    assert len(test) == len(set(test))


def test_settings_reach_the_set():
    env = gym.reasoning_gym("chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    assert all(len(env.prompt(i).last) < 120 for i in range(5))


def test_holes_in_the_packages_own_scores_are_closed():
    halting = gym.reasoning_gym("game_of_life_halting", size=20)
    coin = gym.reasoning_gym("coin_flip", size=20)
    number = gym.reasoning_gym("complex_arithmetic", size=20)
    for i in range(10):
        prompt = halting.prompt(i)
        assert halting.grade(prompt, "whatever") == 0.0
        assert halting.grade(prompt, str(prompt.answer)) == 1.0
        prompt = coin.prompt(i)
        assert coin.grade(prompt, "0") == float(abs(float(prompt.answer)) <= 1e-4)
        assert number.grade(number.prompt(i), "nan") == 0.0


def test_an_answer_the_set_cannot_read_is_worth_nothing_and_a_broken_grader_raises(monkeypatch):
    env = gym.reasoning_gym("prime_factorization", size=5)
    prompt = env.prompt(0)
    assert env.grade(prompt, "two times three") == 0.0  # the set's own score raises here
    assert env.grade(prompt, prompt.answer) == 1.0

    def broken(answer, entry):
        raise RuntimeError("the grader is broken")

    monkeypatch.setattr(env.sets["train"], "score_answer", broken)
    with pytest.raises(RuntimeError):
        env.grade(prompt, "2 × 3")


def test_errors():
    with pytest.raises(UserError, match="did you mean 'chain_sum'"):
        gym.reasoning_gym("chain_sm")
    with pytest.raises(UserError, match="did you mean 'max_terms'"):
        gym.reasoning_gym("chain_sum", max_term=3)
    with pytest.raises(UserError, match="cannot be made"):
        gym.reasoning_gym("chain_sum", min_terms=5, max_terms=2)
    with pytest.raises(UserError, match="cannot be made"):
        gym.reasoning_gym("composite")
    with pytest.raises(UserError, match="size"):
        gym.reasoning_gym("chain_sum", size=0)
    with pytest.raises(UserError, match="did you mean 'train'"):
        gym.reasoning_gym("chain_sum").prompt(0, "trian")


def test_a_missing_package_is_one_sentence(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(gym, "import_module", missing)
    with pytest.raises(UserError, match=r"pip install .*reasoning-gym"):
        gym.reasoning_gym("chain_sum")
