"""Who agrees with whom: the same two answers compared twice, contradictions, votes as one soft label, agreement beyond chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from posttrain.environments.data import question_of

if TYPE_CHECKING:
    from posttrain.environments.preferences import Pair

Item = TypeVar("Item")
REPEATS = "rows that repeat an earlier one"
_SCORES = ("score_chosen", "score_rejected")


@dataclass(frozen=True)
class Agreement:
    """How far people who judged the same thing agree."""

    judged: int  # things that two or more judged
    votes: int  # their judgements
    majority: float  # mean share of the majority
    agreed: float  # share of pairs of judgements of one thing that are the same
    alpha: float  # Krippendorff's, for two categories: 1 is perfect, 0 what chance would give


def compared(pair: Pair) -> tuple[str, str, str]:
    """What a pair compares, in whatever order: the question and both answers, sorted."""
    first, second = sorted((pair.chosen, pair.rejected))
    return question_of(pair), first, second


def together(pairs: Iterable[Pair]) -> dict[tuple[str, str, str], list[Pair]]:
    """The pairs that compare the same two answers, in the order of the file."""
    out: dict[tuple[str, str, str], list[Pair]] = {}
    for p in pairs:
        out.setdefault(compared(p), []).append(p)
    return out


def votes_of(pair: Pair) -> list[float]:
    """The votes for the preferred answer that a pair stands for: of its annotators, or one."""
    several: list[float] | None = pair.prompt.info.get("votes")
    return several or [1.0 if pair.preferred is None else pair.preferred]


def voted(pairs: Sequence[Pair]) -> list[Pair]:
    """One pair for all that compare the same two answers: preferred is the mean of their votes, a score the mean of the answer's scores, and
    the first row's id stays."""
    out = []
    for some in together(pairs).values():
        if len(some) == 1:
            out.append(some[0])
            continue
        first = some[0]
        votes = [v if p.chosen == first.chosen else 1 - v for p in some for v in votes_of(p)]
        names = [name for p in some for name in _names(p)]
        share = sum(votes) / len(votes)
        info = {k: v for k, v in first.prompt.info.items() if k not in ("annotator", "annotators", "votes", *_SCORES)}
        info |= {"annotators": names} if len(names) == len(votes) else {}
        best, other = (first.chosen, first.rejected) if share >= 0.5 else (first.rejected, first.chosen)
        info |= {
            k: _mean(told) for k, text in zip(_SCORES, (best, other), strict=True) if (told := _scores(text, some))
        }
        votes = votes if share >= 0.5 else [1 - v for v in votes]
        made = replace(first.prompt, info={**info, "votes": votes})
        out.append(
            replace(first, prompt=made, chosen=best, rejected=other, preferred=max(share, 1 - share), turned=False)
        )
    return out


def _scores(text: str, pairs: Iterable[Pair]) -> list[float]:
    """What the rows say that an answer scores, whichever side it stands on."""
    found = [p.prompt.info.get(_SCORES[text != p.chosen]) for p in pairs]
    return [score for score in found if score is not None]


def _names(pair: Pair) -> list[str]:
    info = pair.prompt.info
    return list(info.get("annotators", ())) or ([info["annotator"]] if "annotator" in info else [])


def once(items: Sequence[Item], key: Callable[[Item], object], gone: dict[str, int]) -> list[Item]:
    """Without the rows that repeat an earlier one, which are counted."""
    first: dict[object, Item] = {}
    for x in items:
        first.setdefault(key(x), x)
    gone[REPEATS] = gone.get(REPEATS, 0) + len(items) - len(first)
    return list(first.values())


def row_key(pair: Pair) -> tuple[object, ...]:
    """What makes a row the same as another: the question, both answers, who says so."""
    return question_of(pair), pair.chosen, pair.rejected, pair.prompt.info.get("annotator")


def repeats(pairs: Iterable[Pair]) -> tuple[int, int, int]:
    """(rows that repeat an earlier one of the same annotator, comparisons with rows both ways, those by one annotator or by nobody named)."""
    twice = both = alone = 0
    for some in together(pairs).values():
        said = Counter((p.chosen, p.prompt.info.get("annotator")) for p in some)
        twice += sum(said.values()) - len(said)
        if len({chosen for chosen, _ in said}) > 1:
            both += 1
            alone += max(Counter(who for _, who in said).values()) > 1
    return twice, both, alone


def doubts(pairs: Sequence[Pair]) -> list[str]:
    """What is odd about pairs, one sentence each; nothing where all is well."""
    twice, both, alone = repeats(pairs)
    empty = [sum(not getattr(p, side) for p in pairs) for side in ("chosen", "rejected")]
    scores = [(p.prompt.info.get("score_chosen"), p.prompt.info.get("score_rejected")) for p in pairs]
    against = sum(a is not None and b is not None and a < b for a, b in scores)
    soft = [p.preferred for p in pairs if p.preferred is not None]
    said = {
        f"repeated: {twice:,} pairs stand there twice; FILE(unique=True) leaves them out": twice,
        f"contradictory: {both:,} pairs of answers are compared in both ways, {alone:,} of them by the same annotator or by nobody who is "
        "named; FILE(merge=True) makes one pair with a soft label of each": both,
        f"turned round: {(n := sum(p.turned for p in pairs)):,} pairs whose other answer is preferred by more than half": n,
        f"empty: {empty[0]:,} preferred answers and {empty[1]:,} others have no text": sum(empty),
        f"scores: in {against:,} pairs the answer that is not preferred has the higher score": against,
        f"how sure: {len(soft):,} of {len(pairs):,} pairs say how likely the first answer is preferred, on average {_mean(soft):.2f}; a "
        "loss that does not read preferred_P takes each as certain": sum(p < 1 for p in soft),
    }  # fmt: skip
    return [sentence for sentence, count in said.items() if count]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def judgements(pairs: Iterable[Pair]) -> list[list[float]]:
    """The votes on each comparison, for the answer that sorts first."""
    out = []
    for (_, first, _), some in together(pairs).items():
        out.append([v if p.chosen == first else 1 - v for p in some for v in votes_of(p)])
    return out


def agreement(units: Iterable[Sequence[Any]]) -> Agreement | None:
    """Of judgements (0 or 1; ties do not count) on each thing; None where nobody judged what another did.

    alpha = 1 - observed / expected disagreement: observed, over ordered pairs of judgements of one thing, each thing weighted by
    its number of judgements; expected, over all pairs of judgements whatsoever.
    """
    counts = [(sum(v > 0.5 for v in some), sum(v < 0.5 for v in some)) for some in units]
    counts = [(a, b) for a, b in counts if a + b > 1]
    if not counts:
        return None
    n, ones = sum(a + b for a, b in counts), sum(a for a, _ in counts)
    apart = sum(2 * a * b / (a + b - 1) for a, b in counts) / n
    chance = 2 * ones * (n - ones) / (n * (n - 1))
    same = sum(a * (a - 1) + b * (b - 1) for a, b in counts) / sum((a + b) * (a + b - 1) for a, b in counts)
    majority = sum(max(a, b) / (a + b) for a, b in counts) / len(counts)
    return Agreement(len(counts), n, majority, same, 1 - apart / chance if chance else float("nan"))
