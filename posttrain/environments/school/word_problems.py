"""Short stories with one to three steps of arithmetic in them.

Habit: the last step is done with the wrong operation.
"""

from __future__ import annotations

from random import Random

from posttrain.environments.base import Problem
from posttrain.environments.school.noisy_solver import CAREFUL, NoisySolver
from posttrain.environments.school.words import ANIMALS, FOODS, NAMES, THINGS

DEFAULT_LEVEL = 3
_START = (
    "{n} has {a} {o}.",
    "{n} has {a} {o}.",
    "There are {a} {o} in {n}'s bag.",
    "{n} owns {a} {o}.",
    "{n} finds {a} {o}.",
)
_GAIN = (
    "{n} buys {k} more.",
    "{n} gets {k} more from {m}.",
    "{m} gives {n} {k} more.",
    "{n} finds {k} more.",
    "Then {n} collects {k} more.",
    "{m} brings {k} more.",
    "{n} wins {k} more.",
)
_LOSE = (
    "{n} gives {k} to {m}.",
    "{n} loses {k}.",
    "{n} sells {k}.",
    "{m} takes {k} of them.",
    "{k} of them get lost.",
    "Then {n} gives away {k}.",
)
_EAT = ("{n} eats {k}.", "{m} eats {k} of them.", "{k} of them go bad.", "{n} and {m} eat {k}.")
_ASK = {
    "now": (
        "How many {o} does {n} have now?",
        "Find the number of {o} {n} has now.",
        "How many {o} does {n} have in the end?",
        "Say how many {o} {n} has in the end.",
    ),
    "in each": (
        "How many {o} are in each?",
        "Find the number of {o} in each.",
        "How many {o} does each of them hold?",
        "Say how many {o} are in each.",
    ),
    "each": (
        "How many {o} does each get?",
        "Find the number of {o} for each.",
        "How many {o} does every friend get?",
        "Say how many {o} each gets.",
    ),
    "pay": (
        "How many dollars does {n} pay?",
        "Find the number of dollars {n} pays.",
        "How many dollars is that?",
        "Say how many dollars {n} pays.",
    ),
    "back": (
        "How many dollars does {n} get back?",
        "Find the number of dollars {n} gets back.",
        "How many dollars are left?",
        "Say how many dollars {n} gets back.",
    ),
    "other": (
        "How many {o} does {m} have?",
        "Find the number of {o} {m} has.",
        "How many {o} has {m} got?",
        "Say how many {o} {m} has.",
    ),
    "both": (
        "How many {o} do they have together?",
        "Find the number of {o} they have together.",
        "How many {o} do {n} and {m} have?",
        "Say how many {o} they have together.",
    ),
    "both now": (
        "How many {o} do they have together now?",
        "Find the number of {o} they have together now.",
        "How many {o} do {n} and {m} have now?",
        "Say how many {o} they have together now.",
    ),
    "animals": (
        "How many animals are there?",
        "Find the number of animals.",
        "How many animals are on the farm?",
        "Say how many animals there are.",
    ),
}
_MISREAD = {"+": "-", "-": "+", "*": "+", "/": "-"}
_HOLDERS = ("bags", "boxes", "baskets", "jars", "bowls")
_NOISE = ("{m} is {k} years old.", "{m} has {k} {x}.", "It is {k} o'clock.", "The bag costs {k} dollars.")


class Story:
    """A story under way: who, what, how many by now, and the sums so far."""

    def __init__(self, rng: Random, hand: NoisySolver, top: int):
        self.rng, self.hand, self.top = rng, hand, top
        self.wording = hand.reads(rng, 4)
        self.n, self.m = rng.sample(NAMES, 2)
        self.food = rng.random() < 0.35
        self.o = rng.choice(FOODS if self.food else THINGS)
        self.text: list[str] = []
        self.sums: list[str] = []
        self.true = self.value = 0  # `value` is what the hand wrote; the story itself follows `true`

    def tell(self, template: str, **more: object) -> None:
        self.text.append(template.format(n=self.n, m=self.m, o=self.o, **more))

    def step(self, op: str, k: int) -> None:
        """One sum: 5+3=8."""
        self.true = _apply(self.true, op, k)
        self.write(self.value, op, k)

    def write(self, a: int, op: str, b: int) -> None:
        self.value = self.hand.number(_apply(a, op, b))
        self.sums.append(f"{a}{op}{b}={self.value}")
        self.last = (a, op, b)

    def begin(self, a: int) -> None:
        self.true = self.value = a

    def end(self, question: str) -> Problem:
        """The question; by habit the last sum is written again with the wrong sign."""
        self.tell(_ASK[question][self.wording])
        if self.hand.habit:
            a, op, b = self.last
            del self.sums[-1]
            self.write(a, _MISREAD[op], b)
        return Problem(" ".join(self.text), str(self.value), " ".join(self.sums), {"wording": self.wording})


def _apply(a: int, op: str, b: int) -> int:
    return a + b if op == "+" else a - b if op == "-" else a * b if op == "*" else a // b


def _change(s: Story) -> None:
    """More or fewer of them."""
    if s.true > 1 and s.rng.random() < 0.5:
        k = s.rng.randint(1, s.true - 1)
        s.tell(s.rng.choice(_EAT if s.food and s.rng.random() < 0.6 else _LOSE), k=k)
        s.step("-", k)
    else:
        k = s.rng.randint(1, s.top)
        s.tell(s.rng.choice(_GAIN), k=k)
        s.step("+", k)


def _open(s: Story, steps: int) -> int:
    """The first sentence: a number, or (as one step of them) so many holders of so many each."""
    if steps > 1 and s.rng.random() < 0.35:
        a, b = s.rng.randint(2, 9), s.rng.randint(2, min(12, s.top))
        s.tell("{n} has {a} {h} with {b} {o} in each.", a=a, b=b, h=s.rng.choice(_HOLDERS))
        s.begin(a)
        s.step("*", b)
        return steps - 1
    a = s.rng.randint(1, s.top)
    s.tell(s.rng.choice(_START), a=a)
    s.begin(a)
    return steps


def changes(s: Story, steps: int) -> Problem:
    """Gains and losses, perhaps shared out at the end."""
    steps = _open(s, steps)
    for _ in range(steps - 1):
        _change(s)
    divisors = [d for d in (2, 3, 4, 5, 6) if s.true % d == 0 and s.true > d]
    if divisors and s.rng.random() < 0.3:
        d = s.rng.choice(divisors)
        s.step("/", d)
        if s.rng.random() < 0.5:
            s.tell("{n} puts them equally into {d} {h}.", d=d, h=s.rng.choice(_HOLDERS))
            return s.end("in each")
        s.tell("{n} shares them equally among {d} friends.", d=d)
        return s.end("each")
    _change(s)
    return s.end("now")


def shopping(s: Story, steps: int) -> Problem:
    """Price times number, a second thing bought, and the change."""
    a, b = s.rng.randint(2, min(9, s.top)), s.rng.randint(2, min(12, s.top))
    s.tell("{n} buys {a} {o} for {b} dollars each.", a=a, b=b)
    s.begin(a)
    s.step("*", b)
    if steps >= 3:
        c = s.rng.randint(2, 20)
        s.tell("{n} also buys a {x} for {c} dollars.", x=s.rng.choice(("lamp", "hat", "bag", "map", "pie")), c=c)
        s.step("+", c)
    if steps == 1:
        return s.end("pay")
    note = next(x for x in (20, 50, 100, 200) if x > s.true)
    s.write(note, "-", s.value)
    s.tell("{n} pays with {k} dollars.", k=note)
    return s.end("back")


def together(s: Story, steps: int) -> Problem:
    """Two people, one with more, fewer or twice as many; perhaps both together."""
    a = s.rng.randint(2, s.top)
    s.tell("{n} has {a} {o}.", a=a)
    s.begin(a)
    kind = s.rng.choice(("more", "fewer", "times"))
    k = s.rng.randint(1, a - 1) if kind == "fewer" else s.rng.randint(2, 5 if kind == "times" else s.top)
    s.tell("{m} has {k} times as many." if kind == "times" else f"{{m}} has {{k}} {kind}.", k=k)
    s.step({"more": "+", "fewer": "-", "times": "*"}[kind], k)
    if steps == 1:
        return s.end("other")
    s.step("+", a)
    if steps == 2:
        return s.end("both")
    k = s.rng.randint(1, s.true - 1)
    s.step("-", k)
    s.tell("They give away {k}.", k=k)
    return s.end("both now")


def legs(s: Story, steps: int) -> Problem:
    """Rows, or a farm: a sum of products."""
    x, y = s.rng.sample(ANIMALS[:11], 2)
    a, b = s.rng.randint(2, s.top), s.rng.randint(2, s.top)
    s.tell("On a farm there are {a} {x}s and {b} {y}s.", a=a, b=b, x=x, y=y)
    s.begin(a)
    s.step("+", b)
    for _ in range(steps - 1):
        k = s.rng.randint(1, max(1, s.true // 2))
        away = s.true > k and s.rng.random() < 0.6
        s.tell("{k} of them leave." if away else "{k} more animals come.", k=k)
        s.step("-" if away else "+", k)
    return s.end("animals")


_KINDS = (changes, changes, shopping, together, legs)


def make(rng: Random, level: int, hand: NoisySolver = CAREFUL) -> Problem:
    """Level 1: one step, numbers to 10. Level 3: two steps, to 20. Level 6: three steps, to 90, and noise."""
    steps = (1, rng.choice((1, 2)), 2, rng.choice((2, 3)), 3, 3)[level - 1]
    story = Story(rng, hand, (10, 10, 20, 40, 60, 90)[level - 1])
    if level >= 5 and rng.random() < 0.4:
        story.tell(rng.choice(_NOISE), k=rng.randint(2, 30), x=rng.choice(THINGS))
    return rng.choice(_KINDS)(story, steps)
