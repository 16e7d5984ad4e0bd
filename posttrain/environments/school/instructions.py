"""Short instructions about what to say and how; graded by what can be checked.

Constraints live in prompt.info: `words` (exact number), `contain` (all of them), `any_of` (one of them), `avoid` (none
of them), `polite` (a marker of politeness), `end` (the last character). Every prompt has many right answers: `variants`
gives one in each register, from curt to effusive, so that preference methods have something to prefer.

Habit: the name or subject that the answer must contain is left out, as in `Thank you, friend` for Mia.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any

from posttrain.core.types import Prompt
from posttrain.environments.base import Problem
from posttrain.environments.school.noisy_solver import CAREFUL, NoisySolver
from posttrain.environments.school.phrases import ACTS, REGISTERS, Phrase, phrases_of

DEFAULT_LEVEL = 3
POLITE = ("please", "thank", "thanks", "kind", "kindly", "dear", "sorry", "would", "could", "may", "grateful", "pardon")
WARM = ("so", "very", "lovely", "wonderful", "happy", "glad", "love", "dear", "great", "delighted", "joy", "warm")
_POLITE = frozenset(POLITE)
_STYLES = ("politely", "kindly", "in a polite way")


def words_of(text: str) -> list[str]:
    """Words in lower case, without punctuation: `Thank you, Mia!` -> thank you mia."""
    return re.findall(r"[a-z0-9']+", text.lower())


def politeness(text: str) -> int:
    """How many markers of politeness a text has."""
    return sum(word in POLITE for word in words_of(text))


def warmth(text: str) -> int:
    """How many warm words and exclamation marks a text has."""
    return sum(word in WARM for word in words_of(text)) + text.count("!")


def unmet(info: Mapping[str, Any], text: str) -> list[str]:
    """The constraints a text breaks, by name; empty when it meets them all."""
    said = words_of(text)
    broken = {
        "words": info.get("words") not in (None, len(said)),
        "contain": not all(w.lower() in said for w in info.get("contain", ())),
        "any_of": bool(info.get("any_of")) and not any(w in said for w in info["any_of"]),
        "avoid": any(w.lower() in said for w in info.get("avoid", ())),
        "polite": bool(info.get("polite")) and politeness(text) == 0,
        "end": bool(info.get("end")) and not text.rstrip().endswith(info["end"]),
        # a list of the wanted words over and over is no answer
        "repeats": any(said[i] == said[i + 1] for i in range(len(said) - 1)),
    }
    return [name for name, is_broken in broken.items() if is_broken]


def check(prompt: Prompt, answer: str) -> bool:
    """Every constraint holds."""
    return not unmet(prompt.info, answer)


def spoil(rng: Random, prompt: Prompt) -> str:
    """An answer that breaks a constraint: beside the point, nothing but its first word twice, or another subject."""
    first = words_of(prompt.answer)[0]
    return rng.choice(("blorp", f"{first} {first} {prompt.answer}", "I do not know what that is about"))


def _pool(act: str, info: Mapping[str, Any], register: str | None) -> list[Phrase]:
    """The phrases of an act that satisfy the constraints, by word count and register first (they are indexed)."""
    found = phrases_of(act, info.get("words"), register)
    if info.get("polite"):
        found = [p for p in found if p.words & _POLITE]
    if info.get("end"):
        found = [p for p in found if p.text.endswith(info["end"])]
    if info.get("avoid"):
        avoid = {w.lower() for w in info["avoid"]}
        found = [p for p in found if not avoid & p.words]
    return found


def _fill(phrase: Phrase, about: str) -> str:
    text = phrase.text.replace("{x}", about)
    return text[0].upper() + text[1:]


def variants(prompt: Prompt, rng: Random) -> dict[str, str]:
    """One right answer in each register that has one: curt, plain, polite, effusive."""
    info = prompt.info
    pools = {r: _pool(info["act"], info, r) for r in REGISTERS}
    return {r: _fill(rng.choice(pool), info["about"]) for r, pool in pools.items() if pool}


def _constrain(rng: Random, act: str, level: int) -> tuple[str, dict[str, Any]]:
    """Words that ask for more, and the constraints they stand for; more of them at higher levels."""
    info: dict[str, Any] = {}
    tail = []
    kinds = rng.sample(("style", "words", "end", "avoid"), k=(0, 1, 1, 2, 2, 3)[level - 1])
    if "style" in kinds and act != "write":
        tail.append(rng.choice(_STYLES))
        info["polite"] = True
    if "words" in kinds:
        low, high = (3, 5) if level <= 3 else (4, 9)
        info["words"] = rng.randint(low, high)
        tail.append(f"in {info['words']} words")
    if "end" in kinds:
        info["end"] = rng.choice("!.")
        tail.append("and end with " + ("an exclamation mark" if info["end"] == "!" else "a full stop"))
    if "avoid" in kinds:
        info["avoid"] = [rng.choice(ACTS[act].common)]
        tail.append(f"without the word {info['avoid'][0]}")
    return " ".join(["", *tail]), info


def make(rng: Random, level: int, hand: NoisySolver = CAREFUL) -> Problem:
    """Level 1: Greet Tom. Level 3: Thank Mia politely; Describe rain in 4 words. Level 6: three constraints at once."""
    while True:
        act = rng.choice(_ACT_NAMES)
        card = ACTS[act]
        about = rng.choice(card.subjects)
        tail, info = _constrain(rng, act, level)
        register = rng.choice(REGISTERS)
        pool = _pool(act, info, register) or _pool(act, info, None)
        if pool:
            break
    wording = hand.reads(rng, len(card.ask))
    question = card.ask[wording].format(x=about) + tail + "."
    info |= {"act": act, "about": about, "contain": [about], "any_of": card.any_of, "wording": wording}
    if hand.slips():  # does what it pleases: any phrase of the act, or of another one
        pool = phrases_of(act if rng.random() < 0.7 else rng.choice(_ACT_NAMES), None, None)
    said = card.nameless if hand.habit else about
    answer = _fill(rng.choice(pool), said)
    return Problem(question, answer, _plan({**info, "about": said}, answer), info)


def _plan(info: Mapping[str, Any], answer: str) -> str:
    """What to keep in mind; a number of words is counted out: `Thank1 you2 Mia3`."""
    if "words" in info:
        return " ".join(f"{w}{i}" for i, w in enumerate(re.findall(r"[A-Za-z0-9']+", answer), 1))
    notes = [info["act"], info["about"]]
    if info.get("polite"):
        notes.append("polite")
    if "avoid" in info:
        notes.append(f"no {info['avoid'][0]}")
    if "end" in info:
        notes.append(f"end {info['end']}")
    return " ".join(notes)


_ACT_NAMES = tuple(ACTS)
