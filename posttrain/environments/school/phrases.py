"""What one says on small occasions, in four registers: openers times tails times ends."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from posttrain.environments.school.words import NAMES, listed

REGISTERS = ("curt", "plain", "polite", "effusive")
TOPICS = listed(
    "rain snow music tea winter summer bread school football sleep art autumn spring chess honey sunshine water cheese "
    "soup dance wind rice gold milk sport poetry history weather coffee travel"
)
EVENTS = listed("party dinner lunch concert meeting picnic game wedding walk show film trip class match festival")


class Act(NamedTuple):
    """An occasion: how it is asked for, words of which an answer needs one, words it may be told to avoid, subjects.

    says: for each register (openers, tails); {x} is the name or subject.
    """

    ask: tuple[str, ...]
    any_of: tuple[str, ...]
    common: tuple[str, ...]
    subjects: list[str]
    says: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]

    @property
    def nameless(self) -> str:
        """What is said for the subject by one who forgot it."""
        return "friend" if self.subjects is NAMES else "thing" if self.subjects is EVENTS else "this"


def asked(*asks: str) -> tuple[str, ...]:
    """Each request as it stands, and as an afterthought: Greet {x}, Now greet {x}, Welcome {x}, Go and welcome {x}."""
    later = ("Now", "Go and")
    return tuple(x for i, a in enumerate(asks) for x in (a, f"{later[i % 2]} {a[0].lower()}{a[1:]}"))


@dataclass(frozen=True, slots=True)
class Phrase:
    """A template of an answer and what the grader would see in it."""

    text: str
    register: str
    words: frozenset[str]
    count: int


ACTS = {
    "greet": Act(
        asked("Greet {x}", "Say hello to {x}", "Welcome {x}"),
        ("hello", "hi", "hey", "good", "welcome"),
        ("hello", "you", "day"),
        NAMES,
        {
            "curt": (("Hi {x}", "Hey {x}", "Oh, hi {x}"), ("", ", sit down", ", come in", ", you again")),
            "plain": (
                ("Hello {x}", "Hi {x}", "Good morning, {x}"),
                ("", ", how are you?", ", nice day today", ", come in"),
            ),
            "polite": (
                ("Good day, dear {x}", "Hello, dear {x}", "A kind welcome, {x}"),
                ("", ", please come in", ", may I help you?", ", would you like some tea?"),
            ),
            "effusive": (
                ("Hello, my dear {x}", "Welcome, wonderful {x}"),
                ("", ", so lovely to see you", ", I am so very happy today", ", what a joy"),
            ),
        },
    ),
    "thank": Act(
        asked("Thank {x}", "Say thanks to {x}", "Say thank you to {x}"),
        ("thank", "thanks", "grateful"),
        ("very", "much", "help", "you"),
        NAMES,
        {
            "curt": (("Thanks {x}", "Thanks, {x}"), ("", ", bye", ", fine", ", that will do")),
            "plain": (("Thanks, {x}", "Thank you, {x}"), ("", ", that helps", " for the help", ", that was good")),
            "polite": (
                ("Thank you very much, {x}", "Dear {x}, thank you", "I am grateful, {x}"),
                ("", " for your kind help", ", that was kind", " for all the work"),
            ),
            "effusive": (
                ("Thank you so much, dear {x}", "Thanks a thousand times, {x}"),
                ("", ", you are wonderful", ", I am so happy", ", what a lovely surprise"),
            ),
        },
    ),
    "apologise": Act(
        asked("Apologise to {x}", "Say sorry to {x}", "Tell {x} that you are sorry"),
        ("sorry", "pardon", "forgive", "apologies"),
        ("very", "late", "i", "please"),
        NAMES,
        {
            "curt": (("Sorry {x}", "Sorry, {x}"), ("", ", my fault", ", it happens", ", I was late")),
            "plain": (("I am sorry, {x}", "Sorry, {x}"), ("", ", I was late", ", it was my mistake", ", I forgot it")),
            "polite": (
                ("Please forgive me, {x}", "I am very sorry, {x}", "My apologies, dear {x}"),
                ("", ", it was my mistake", " for being late", ", would you pardon me?"),
            ),
            "effusive": (
                ("I am so very sorry, dear {x}", "Oh {x}, please forgive me"),
                ("", ", I feel so bad", ", it will never happen again", ", you are too kind"),
            ),
        },
    ),
    "decline": Act(
        asked("Decline the invitation to the {x}", "Say no to the {x}", "Tell them you cannot come to the {x}"),
        ("no", "not", "cannot", "unfortunately"),
        ("no", "sorry", "come", "time"),
        EVENTS,
        {
            "curt": (("No {x} for me", "No, not the {x}", "I cannot come to the {x}"), ("", ", no time", ", bye")),
            "plain": (
                ("I cannot come to the {x}", "I will not be at the {x}"),
                ("", ", I must work", ", I have no time"),
            ),
            "polite": (
                (
                    "Thank you, but I cannot join the {x}",
                    "Sorry, I cannot make the {x}",
                    "Sadly not, but thanks for the {x}",
                ),
                ("", ", perhaps another time", ", it was kind to ask"),
            ),
            "effusive": (
                ("Oh, the {x} sounds so lovely, but I cannot", "Thank you so much, sadly no {x} for me"),
                ("", ", have a wonderful time", ", I would love it next time"),
            ),
        },
    ),
    "invite": Act(
        asked("Invite {x}", "Ask {x} to visit you", "Invite {x} to come over"),
        ("come", "join", "visit", "invite", "invited"),
        ("come", "please", "tea", "today"),
        NAMES,
        {
            "curt": (("Come over, {x}", "Come, {x}", "Visit me, {x}"), ("", " today", ", at six", ", bring tea")),
            "plain": (
                ("You can visit me, {x}", "Come for tea, {x}", "Join us, {x}"),
                ("", " today", " on Sunday", ", it is fun"),
            ),
            "polite": (
                ("Please come, {x}", "Would you join us, dear {x}?", "May I invite you, {x}?"),
                ("", " It would please me", " You are kindly invited"),
            ),
            "effusive": (
                ("Dear {x}, please come", "You must visit us, dear {x}"),
                ("", ", it will be wonderful", ", I would be so happy", ", we would love it so much"),
            ),
        },
    ),
    "congratulate": Act(
        asked("Congratulate {x}", "Tell {x} well done", "Praise {x}"),
        ("congratulations", "well", "bravo", "proud", "great"),
        ("well", "great", "you", "work"),
        NAMES,
        {
            "curt": (("Well done, {x}", "Bravo {x}", "Great, {x}"), ("", ", go on", ", not bad")),
            "plain": (
                ("Congratulations, {x}", "Well done, {x}", "Great work, {x}"),
                ("", ", you did it", ", that was good work"),
            ),
            "polite": (
                ("My kind congratulations, {x}", "Dear {x}, well done", "Congratulations, dear {x}"),
                ("", ", you may be proud", ", thank you for the work"),
            ),
            "effusive": (
                ("Bravo, bravest {x}", "Congratulations, wonderful {x}", "Oh {x}, I am so proud"),
                ("", ", that was so great", ", you are the very best", ", what a lovely day"),
            ),
        },
    ),
    "goodbye": Act(
        asked("Say goodbye to {x}", "Take leave of {x}", "Say good night to {x}"),
        ("goodbye", "bye", "farewell", "see", "night"),
        ("goodbye", "you", "soon"),
        NAMES,
        {
            "curt": (("Bye {x}", "Bye, {x}", "Night, {x}"), ("", ", I must go", ", off you go")),
            "plain": (("Goodbye, {x}", "See you, {x}", "Good night, {x}"), ("", ", see you soon", ", until tomorrow")),
            "polite": (
                ("Goodbye, dear {x}", "Good night, dear {x}", "Farewell, {x}, and thank you"),
                ("", ", please come again", ", it was kind of you"),
            ),
            "effusive": (
                ("Goodbye, my dear {x}", "Farewell, wonderful {x}"),
                ("", ", I will miss you so much", ", it was such a joy", ", come back very soon"),
            ),
        },
    ),
    "help": Act(
        asked("Ask {x} for help", "Ask {x} to help you", "Tell {x} that you need help"),
        ("help", "hand", "assist"),
        ("help", "please", "me"),
        NAMES,
        {
            "curt": (("Help me, {x}", "{x}, help", "I need help, {x}"), ("", " now", ", quick")),
            "plain": (("Can you help me, {x}?", "I need a hand, {x}", "{x}, help me"), ("", " today")),
            "polite": (
                ("Could you please help me, {x}?", "Would you help me, dear {x}?", "Please give me a hand, {x}"),
                ("", " Thank you", " That would be kind"),
            ),
            "effusive": (
                ("Dear {x}, please help me", "Oh wonderful {x}, please give me a hand"),
                ("", ", I would be so grateful", ", you are so very kind", ", I would love that"),
            ),
        },
    ),
    "birthday": Act(
        asked("Wish {x} a happy birthday", "Congratulate {x} on the birthday"),
        ("birthday",),
        ("happy", "you", "day"),
        NAMES,
        {
            "curt": (("Happy birthday, {x}", "Birthday today, {x}"), ("", ", another year", ", eat cake")),
            "plain": (("Happy birthday, {x}", "Happy birthday to you, {x}"), ("", ", have fun", ", enjoy the day")),
            "polite": (
                ("Happy birthday, dear {x}", "A happy birthday to you, dear {x}"),
                ("", ", may it be good", ", thank you for being you"),
            ),
            "effusive": (
                ("Happy, happiest birthday, dear {x}", "Oh, a wonderful birthday, dear {x}"),
                ("", ", so much love", ", I am so happy today", ", have a very lovely day"),
            ),
        },
    ),
    "write": Act(
        asked("Write about {x}", "Say something about {x}", "Tell me about {x}"),
        (),
        ("i", "like", "is", "good"),
        TOPICS,
        {
            "curt": (("{x} is fine", "{x} is there", "Not much to say about {x}"), ("", ", what else", ", next")),
            "plain": (
                ("I like {x}", "{x} is good", "Many people like {x}", "I think about {x}"),
                ("", " every day", " at home"),
            ),
            "polite": (
                ("May I say that {x} is good", "Would you like some {x}?", "Thank you for asking about {x}"),
                ("", " I like it", " It is a kind of gift"),
            ),
            "effusive": (
                ("I love {x} so much", "Oh, {x} is wonderful", "What a joy {x} is"),
                ("", ", so very lovely", ", it makes me happy", ", I could sing"),
            ),
        },
    ),
}


def _join(opener: str, tail: str, end: str) -> str:
    """Sentences begin after a question mark; a question needs no other end."""
    if opener.endswith("?") and not tail:
        return opener
    text = opener + tail
    return text if text.endswith("?") else text + end


def _phrases() -> dict[str, list[Phrase]]:
    """Every phrase of every act; openers that ask take only tails that stand alone."""
    found: dict[str, list[Phrase]] = {}
    for act, card in ACTS.items():
        texts: dict[str, str] = {}
        for register, (openers, tails) in card.says.items():
            for opener in openers:
                for tail in tails:
                    if tail and opener.endswith("?") != (tail[:2].strip()[:1].isupper()):
                        continue
                    for end in ("!", ".") if register != "curt" else (".",):
                        texts.setdefault(_join(opener, tail, end), register)
        found[act] = [_phrase(text, register) for text, register in texts.items()]
    return found


def _phrase(text: str, register: str) -> Phrase:
    words = re.findall(r"[a-z0-9']+", text.lower().replace("{x}", "x"))
    return Phrase(text, register, frozenset(words), len(words))


_ALL = _phrases()
_INDEX: dict[tuple[str, int | None, str | None], list[Phrase]] = {}
for _act, _list in _ALL.items():
    for _p in _list:
        for _key in ((_p.count, _p.register), (_p.count, None), (None, _p.register), (None, None)):
            _INDEX.setdefault((_act, *_key), []).append(_p)


def phrases_of(act: str, count: int | None, register: str | None) -> list[Phrase]:
    """The phrases of an act with so many words in a register; None leaves the choice open."""
    return _INDEX.get((act, count, register), [])
