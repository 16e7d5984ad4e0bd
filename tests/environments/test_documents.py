"""Documents: the answer follows from the facts alone, whichever part they are in, and from nothing else."""

from __future__ import annotations

import re

import pytest

from posttrain.core.errors import UserError
from posttrain.environments.documents import documents
from posttrain.environments.task import task

THING = {
    "favourite food": r"(\w+) likes (\w+) best",
    "favourite colour": r"The colour (\w+) likes is (\w+)",
    "pet": r"(\w+) keeps this animal: (\w+)",
}


def solved(text: str, ask: str) -> str:
    """Follow the relations as a reader would."""
    who, *relations, thing = re.match(r"What is (.*)\?", ask).group(1).split("'s ")
    for relation in relations:
        (who,) = re.findall(rf"The {relation} of {who} is (\w+)\.", text)
    (answer,) = [v for n, v in re.findall(THING[thing], text) if n == who]
    return answer


@pytest.mark.parametrize("hops", [0, 1, 3])
def test_one_reading_and_it_is_the_gold(hops):
    env = documents(parts=5, facts=6, hops=hops)
    for index in range(30):
        p = env.prompt(index)
        assert solved(" ".join(p.info["parts"]), p.info["ask"]) == p.answer
        assert len(p.info["parts"]) == 5 and all(part in p.last for part in p.info["parts"])
        assert p.info["ask"] in p.last + " "
    assert env.validate(40) == []


def test_facts_lie_anywhere_and_answers_differ():
    env = documents(parts=4, facts=1, hops=0)
    prompts = [env.prompt(i) for i in range(200)]
    places = [next(k for k, part in enumerate(p.info["parts"]) if part == p.info["steps"]) for p in prompts]
    assert all(30 < places.count(k) < 70 for k in range(4))  # 50 each expected, sd 6
    assert len({p.answer for p in prompts}) > 20


def test_bad_sizes_are_sentences():
    for spec, said in (("documents(parts=0)", "at least 1"), ("documents(parts=1, facts=1, hops=3)", "3 hops need 4"),
                       ("documents(parts=200, facts=9)", "different ones"), ("documents(level=2)", "no option 'level'")):  # fmt: skip
        with pytest.raises(UserError, match=said):
            task(spec)
    assert task("documents", think=True).prompt(0).last.endswith("Think first.")
