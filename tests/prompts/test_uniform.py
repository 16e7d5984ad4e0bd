"""What comes at a step is a function of (seed, step); a finite set is seen whole before any of it is seen again."""

from posttrain.core.protocols import Environment
from posttrain.core.types import Prompt
from posttrain.prompts.uniform import uniform


class Ten(Environment):
    size = 10

    def prompt(self, index, split="train"):
        return Prompt.text(f"{split}-{index}", "?")


class Endless(Ten):
    size = 0


def ids(env, step, n, seed, **params):
    live = uniform.but(**params).live()
    live.start(env, seed)
    return [p.id for p in live.propose(n, step)]


def test_an_epoch_sees_every_prompt_once():
    seen = [i for step in range(5) for i in ids(Ten(), step, 4, 0)]
    assert sorted(seen[:10]) == sorted(f"train-{i}" for i in range(10))
    assert sorted(seen[10:20]) == sorted(seen[:10]) and seen[10:20] != seen[:10]


def test_a_function_of_seed_and_step():
    assert ids(Ten(), 3, 4, 1) == ids(Ten(), 3, 4, 1) != ids(Ten(), 3, 4, 2)
    assert not set(ids(Endless(), 0, 8, 1)) & set(ids(Endless(), 0, 8, 2))


def test_endless_tasks_give_fresh_prompts():
    seen = [i for step in range(20) for i in ids(Endless(), step, 8, 0)]
    assert len(set(seen)) == len(seen)


def test_repeat_gives_copies_with_an_identity_of_their_own():
    made = ids(Ten(), 0, 4, 0, pool=1, repeat=4)
    assert made == ["train-0", "train-0#1", "train-0#2", "train-0#3"]
