"""Days of the week, months and the clock.

Habit: the day (month, minute) one starts from is counted too, so the answer is off by one.
"""

from __future__ import annotations

from random import Random

from posttrain.environments.base import Problem
from posttrain.environments.school.noisy_solver import CAREFUL, NoisySolver
from posttrain.environments.school.words import listed

DEFAULT_LEVEL = 3
DAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = listed("January February March April May June July August September October November December")
LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # of an ordinary year
_ASK = {
    "weekday": (
        "What day is {0} {1} {2}?",
        "Name the day {0} {1} {2}.",
        "Which day is {0} {1} {2}?",
        "Give the day {0} {1} {2}.",
    ),
    "today": (
        "Today is {2}. What day is it in {0}?",
        "Today is {2}. Name the day in {0}.",
        "Today is {2}. Which day is it in {0}?",
        "Today is {2}. Give the day in {0}.",
    ),
    "month": (
        "Which month is {0} {1} {2}?",
        "Name the month {0} {1} {2}.",
        "What month is {0} {1} {2}?",
        "Give the month {0} {1} {2}.",
    ),
    "clock": (
        "What time is {0} minutes after {1}?",
        "Name the time {0} minutes after {1}.",
        "Which time is {0} minutes after {1}?",
        "Give the time {0} minutes after {1}.",
    ),
    "between": (
        "How many days from {0} to {1}?",
        "Name the number of days from {0} to {1}.",
        "What is the number of days from {0} to {1}?",
        "Give the number of days from {0} to {1}.",
    ),
    "minutes": (
        "How many minutes from {0} to {1}?",
        "Name the number of minutes from {0} to {1}.",
        "What is the number of minutes from {0} to {1}?",
        "Give the number of minutes from {0} to {1}.",
    ),
}
Made = tuple[str, tuple[str, ...], str, str]  # kind, what the question is about, answer, steps


def _walk(ring: list[str], start: int, n: int, hand: NoisySolver) -> tuple[str, str]:
    """n steps round the ring, whole rounds taken off first: `10-7=3; Tuesday1 Wednesday2 Thursday3`, Thursday."""
    size, left, head = len(ring), abs(n), []
    while left > size:
        head.append(f"{left}-{size}={left - size}")
        left -= size
    sign, first = 1 if n > 0 else -1, 0 if hand.habit else 1
    seen = hand.copy([ring[(start + sign * k) % size] for k in range(first, left + first)])
    spoken = " ".join(f"{x}{k}" for k, x in enumerate(seen, 1))
    return " ".join([*head, spoken]), seen[-1]


def weekday(rng: Random, level: int, hand: NoisySolver) -> Made:
    n = rng.randint(1, (3, 6, 12, 18, 25, 40)[level - 1])
    start, later = rng.randrange(7), level == 1 or rng.random() < 0.6
    steps, answer = _walk(DAYS, start, n if later else -n, hand)
    about = ("1 day" if n == 1 else f"{n} days", "after" if later else "before", DAYS[start])
    return "today" if later and rng.random() < 0.4 else "weekday", about, answer, steps


def month(rng: Random, level: int, hand: NoisySolver) -> Made:
    n = rng.randint(1, (2, 4, 7, 11, 15, 20)[level - 1])
    start, later = rng.randrange(12), level == 1 or rng.random() < 0.6
    steps, answer = _walk(MONTHS, start, n if later else -n, hand)
    about = ("1 month" if n == 1 else f"{n} months", "after" if later else "before", MONTHS[start])
    return "month", about, answer, steps


def clock(rng: Random, level: int, hand: NoisySolver) -> Made:
    """Minutes added to a time of day; past 60 an hour is carried, past 24 a day."""
    step = (30, 15, 5, 5, 1, 1)[level - 1]
    hour, minute = rng.randrange(24 if level >= 4 else 11), rng.randrange(0, 60, step)
    plus = rng.randrange(step, (60, 60, 60, 60, 100, 180)[level - 1] + 1, step)
    about = (str(plus), f"{hour}:{minute:02d}")
    total = hand.number(minute + plus) - hand.habit
    steps = [f"{minute}+{plus}{'-1' * hand.habit}={total}"]
    while total >= 60:
        steps.append(f"{total}-60={total - 60} {hour}+1={hour + 1}")
        total, hour = total - 60, hour + 1
    if hour >= 24:
        steps.append(f"{hour}-24={hour - 24}")
        hour -= 24
    return "clock", about, f"{hour}:{total:02d}", " ".join(steps)


def between(rng: Random, level: int, hand: NoisySolver) -> Made:
    """Days from one date to another, in one month or over its end."""
    m, more = rng.randrange(12), "+1" * hand.habit
    a = rng.randint(1, LENGTHS[m] - 1)
    if level <= 3 or rng.random() < 0.3:
        b = rng.randint(a + 1, LENGTHS[m])
        value = hand.number(b - a) + hand.habit
        return "between", (f"{MONTHS[m]} {a}", f"{MONTHS[m]} {b}"), str(value), f"{b}-{a}{more}={value}"
    b = rng.randint(1, 20)
    rest = hand.number(LENGTHS[m] - a)
    value = hand.number(rest + b) + hand.habit
    steps = f"{MONTHS[m]} has {LENGTHS[m]}; {LENGTHS[m]}-{a}={rest} {rest}+{b}{more}={value}"
    return "between", (f"{MONTHS[m]} {a}", f"{MONTHS[(m + 1) % 12]} {b}"), str(value), steps


def minutes(rng: Random, level: int, hand: NoisySolver) -> Made:
    """Minutes between two times of a day: the hours apart times 60, and the difference of the minutes."""
    step = (30, 15, 5, 5, 1, 1)[level - 1]
    h, a, b = (rng.randrange(1, 20), rng.randrange(0, 60, step), rng.randrange(0, 60, step))
    hours = rng.randint(1, (1, 1, 1, 2, 3, 4)[level - 1])
    part = hand.number(hours * 60)
    value = hand.number(part + b - a) + hand.habit
    steps = f"{h + hours}-{h}={hours} {hours}*60={part} {part}+{b}-{a}{'+1' * hand.habit}={value}"
    return "minutes", (f"{h}:{a:02d}", f"{h + hours}:{b:02d}"), str(value), steps


_KINDS = (weekday, weekday, month, clock, between, minutes)


def make(rng: Random, level: int, hand: NoisySolver = CAREFUL) -> Problem:
    """Level 1: 2 days after Monday. Level 3: 7 months before May, 35 minutes after 9:50. Level 6: over month ends."""
    wording = hand.reads(rng, 4)
    kind, about, answer, steps = rng.choice(_KINDS)(rng, level, hand)
    return Problem(_ASK[kind][wording].format(*about), answer, steps, {"wording": wording})
