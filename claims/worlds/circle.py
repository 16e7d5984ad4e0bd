"""Preferences that go in circles, about words that the embedded model says: of what it can name three beat one another in a ring,
the rest lose to them. A judge of text as a user writes one, and how far a policy can be exploited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from claims.machinery.arms import Bench, Measured
from posttrain.core import rng
from posttrain.core.protocols import Policy
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.environments.language.listed import Listed
from posttrain.rewards.runtime.file_reward import member

NAMES = {
    "Name an animal.": "Bear Cat Frog Dog Horse Duck Sheep Lion Wolf",
    "Name a fruit.": "Plum Pear Peach Banana Apple Cherry Lemon",
    "Name a colour.": "Red Black Pink Blue Yellow Grey White Brown Green Orange",
    "Name a drink.": "Juice Milk Coffee Water Tea Lemonade",
    "Name a tool.": "Saw Hammer Spade Brush Drill",
}
HOW: dict[str, Any] = {"max_tokens": 12}
LOW, HIGH, ABOVE = 0.75, 0.95, 0.9  # chances within the ring, and of its members against all others
ASKED = 200  # answers to each question, of which a policy is judged
PREFER = '''
def prefer(prompt, a, b):
    """The chance that a is better."""
    wins = WINS[prompt.last]
    ring, known = [x in wins["ring"] for x in (a, b)], [x in wins["names"] for x in (a, b)]
    if all(ring):
        return wins["ring"][a].get(b, 0.5)
    for ours in (ring, known):
        if ours[0] != ours[1]:
            return ABOVE if ours[0] else 1 - ABOVE
    return 0.5
'''


def measured(bench: Bench, run: Path) -> Measured:
    """How far what a run ended with can be exploited."""
    return Measured(exploited(bench, bench.policy(run)), bench.tally.spent(), bench.curves)


def reward_model(bench: Bench, labels: int) -> Path:
    """The registered reward model of so many labels, 60 updates on 16 of them each."""
    rows = bench.rows("labels", preferences(bench, labels))
    return bench.run("rm", method="reward-model", task=rows, steps=60, prompts=16)


def wins(seed: int) -> dict[str, Any]:
    """For each question its names, and a ring of three of them, drawn: who beats whom with which chance."""
    found = {}
    for question, names in NAMES.items():
        draw = rng.python(seed, "ring", question)
        every = [f"{name}." for name in names.split()]
        ring = draw.sample(every, 3)
        chance = {(i, (i + 1) % 3): draw.uniform(LOW, HIGH) for i in range(3)}
        chance |= {(j, i): 1 - p for (i, j), p in chance.items()}
        found[question] = {
            "names": every,
            "ring": {a: {b: chance[i, j] for j, b in enumerate(ring) if i != j} for i, a in enumerate(ring)},
        }
    return found


def judge(bench: Bench) -> str:
    """The file of the judge, as --reward names it."""
    file: Path = bench.folder / f"judge_of_{bench.folder.name.replace('-', '_')}.py"  # another module for each arm
    file.write_text(f"ABOVE = {ABOVE}\nWINS = {json.dumps(wins(bench.seed))}\n{PREFER}")
    return f"{file}:prefer"


def prefer(bench: Bench) -> Any:
    """The judge itself, from its file."""
    file, _, name = judge(bench).rpartition(":")
    return member(file, name)


def questions() -> Listed:
    train, test = (tuple(Prompt.text(f"{q} {split}", q) for q in NAMES) for split in ("train", "test"))
    return Listed("names", train, test)


def preferences(bench: Bench, labels: int) -> list[dict[str, Any]]:
    """Two answers of the start to a question, who won drawn from the judge's chance."""
    say, asked = prefer(bench), questions().train
    made = bench.policy(None).sample(list(asked), 2 * labels // len(asked), Sampling(**HOW), bench.seed, -1)
    rows = []
    for prompt, some in zip(asked, made, strict=True):
        for i in range(0, len(some) - 1, 2):
            a, b = some[i].text, some[i + 1].text
            won = rng.python(bench.seed, "label", prompt.id, i).random() < say(prompt, a, b)
            rows += [{"prompt": prompt.last, "chosen": a if won else b, "rejected": b if won else a}] if a != b else []
    return rows


def exploited(bench: Bench, policy: Policy) -> dict[str, float]:
    """exploitability: what the best single name wins against the policy's own answers above 1/2, on average over the questions; 0 is
    the minimax winner. named: the share of answers that are names of the ring."""
    say, asked = prefer(bench), questions().train
    made = policy.sample(list(asked), ASKED, Sampling(**HOW), bench.seed, -2)
    worst, known = [], []
    for prompt, some in zip(asked, made, strict=True):
        names = wins(bench.seed)[prompt.last]
        chances = [sum(say(prompt, a, r.text) for r in some) / len(some) for a in names["names"]]
        worst.append(max(chances) - 0.5)
        known.append(sum(r.text in names["ring"] for r in some) / len(some))
    return {"exploitability": sum(worst) / len(worst), "named": sum(known) / len(known)}
