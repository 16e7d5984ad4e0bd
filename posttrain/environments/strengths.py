"""How sure a preference is, and who says so: soft labels, votes, a score for each side, annotators; good and bad in every wording."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from posttrain.environments.fields import cell

_GOOD = frozenset(
    ("good", "desirable", "true", "yes", "chosen", "positive", "up", "thumbs_up", "1", "+1", "like", "correct")
)
_BAD = frozenset(
    (
        "bad",
        "undesirable",
        "false",
        "no",
        "rejected",
        "negative",
        "down",
        "thumbs_down",
        "0",
        "-1",
        "dislike",
        "incorrect",
    )
)
_TIE = frozenset(("tie", "equal", "both", "same"))


def number(value: Any, what: str) -> float | None:
    """A score; None where there is none (null, NaN, an empty text, N/A). ValueError where it is something else."""
    if value is None or (isinstance(value, str) and value.strip().lower() in ("", "n/a", "na", "none", "null", "nan")):
        return None
    try:
        found = float(value) if isinstance(value, (int, float, str)) else math.inf
    except (ValueError, OverflowError):
        found = math.inf
    if math.isinf(found):
        raise ValueError(f"{what} is {value!r:.60}; a score is a finite number")
    return None if math.isnan(found) else found


def good(value: Any) -> bool | None:
    """Whether a label says good; None where it is no label: a boolean, 1 and 0 (or -1), good and bad, desirable and undesirable ..."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return True if value == 1 else False if value in (0, -1) else None
    word = value.strip().lower().replace(" ", "_") if isinstance(value, str) else ""
    return True if word in _GOOD else False if word in _BAD else None


def strength(row: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[float | None, list[float]]:
    """(P(chosen is preferred), the votes it comes from): of a soft label, of two counts of votes, or of a vote from each annotator;
    (None, []) where the row has none of them."""
    said = cell(row, columns, "preferred")
    try:
        told = number(said, "")
    except ValueError:
        told = math.inf
    if told is not None:
        if not 0 <= told <= 1:
            raise ValueError(
                f"{columns['preferred']!r} is {said!r:.60}; it is the probability from 0 to 1 that the chosen answer is preferred; where the "
                "column is something else, write FILE(preferred='')"
            )
        return told, []
    ours, theirs = (number(cell(row, columns, f), repr(columns.get(f))) for f in ("chosen_votes", "rejected_votes"))
    if ours is not None and theirs is not None:
        if min(ours, theirs) < 0 or not ours + theirs:
            raise ValueError(
                f"{ours:g} votes for one answer and {theirs:g} for the other; votes are counted from 0, and somebody votes"
            )
        return ours / (ours + theirs), _each(ours, theirs)
    listed = cell(row, columns, "votes")
    if listed is None:
        return None, []
    votes = [_vote(v) for v in listed] if isinstance(listed, (list, tuple)) and listed else [None]
    if None in votes:
        raise ValueError(
            f"{columns['votes']!r} is {listed!r:.60}; it is a list with a vote of each annotator, 1 where the chosen answer is better, 0 "
            "where it is not; where the column is something else, write FILE(votes='')"
        )
    return sum(votes) / len(votes), votes  # type: ignore[arg-type,return-value]


def _each(ours: float, theirs: float) -> list[float]:
    """Single votes of two counts, where they are whole and few."""
    whole = ours == int(ours) and theirs == int(theirs) and ours + theirs <= 1000
    return [1.0] * int(ours) + [0.0] * int(theirs) if whole else []


def _vote(value: Any) -> float | None:
    if isinstance(value, str) and value.strip().lower() in _TIE:
        return 0.5
    if isinstance(value, float) and 0 <= value <= 1:
        return value
    found = good(value)
    return None if found is None else float(found)


def who(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """`annotator`, and `annotators` where a row has a vote of each; nothing where nobody is named."""
    one, several = cell(row, columns, "annotator"), cell(row, columns, "annotators")
    out: dict[str, Any] = {} if one is None or one == "" else {"annotator": str(one)}
    if several is not None:
        if not isinstance(several, (list, tuple)):
            raise ValueError(
                f"{columns['annotators']!r} is {several!r:.60}; it is a list with the name of each who voted"
            )
        out["annotators"] = [str(name) for name in several]
    return out


def sure(row: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[float | None, dict[str, Any]]:
    """P(chosen is preferred) of a pair, and what is known about it beside: `votes`, `annotator`, `annotators`, scores of both sides."""
    found, votes = strength(row, columns)
    info = who(row, columns) | ({"votes": votes} if votes else {})
    if "annotators" in info and len(info["annotators"]) != len(votes):
        raise ValueError(f"{len(info['annotators'])} annotators for {len(votes)} votes; each has one")
    for side in ("score_chosen", "score_rejected"):
        score = number(cell(row, columns, side), repr(columns.get(side)))
        info |= {} if score is None else {side: score}
    return found, info


def turned(info: Mapping[str, Any]) -> dict[str, Any]:
    """What is known about a pair, with the other answer as the preferred one."""
    swap = {"score_chosen": "score_rejected", "score_rejected": "score_chosen"}
    return {swap.get(k, k): [1 - v for v in x] if k == "votes" else x for k, x in info.items()}
