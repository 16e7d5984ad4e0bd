"""Which column is the question, which the answer; and dialogues in every common layout as chat messages."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from posttrain.core.errors import UserError, nearest
from posttrain.core.types import Message

# what each field is called in the data sets people use, in the order they are tried
NAMES: dict[str, tuple[str, ...]] = {
    "question": ("question", "prompt", "problem", "instruction", "query", "quiz", "input"),
    "input": ("input",),  # Alpaca: what an instruction is about, written under it
    "answer": (
        "answer", "answers", "answerKey", "ground_truth", "target", "ideal", "solution", "output", "response", "completion",
    ),
    "messages": ("messages", "conversations", "conversation", "dialogue"),
    "chosen": ("chosen", "preferred", "response_chosen"),
    "rejected": ("rejected", "dispreferred", "response_rejected"),
    "choices": ("choices", "options"),
    "system": ("system", "system_prompt"),
    "prefill": ("prefill",),
    "demonstration": ("demonstration",),  # imitated in place of the answer
}  # fmt: skip
_ASKED = {field: NAMES[field] for field in ("question", "input", "messages", "system")}
_SIDES = {field: NAMES[field] for field in ("chosen", "rejected")}
_WHO = {"annotator": ("annotator", "annotator_id", "user", "user_id", "worker", "worker_id")}
# kind of preferences -> the same for its files
PREFERENCES: dict[str, dict[str, tuple[str, ...]]] = {
    "pairs": {
        **_ASKED, **_SIDES, **_WHO,
        "preferred": ("preferred", "probability", "p_chosen", "chosen_probability", "soft_label"),  # P(chosen is preferred)
        "chosen_votes": ("chosen_votes", "votes_chosen"), "rejected_votes": ("rejected_votes", "votes_rejected"),
        "votes": ("votes", "annotator_labels", "labels"),  # of each annotator: is chosen better?
        "annotators": ("annotators", "annotator_ids"),  # their names
        "score_chosen": ("score_chosen", "chosen_score", "chosen_rating"),
        "score_rejected": ("score_rejected", "rejected_score", "rejected_rating"),
    },
    "lists": {
        **_ASKED, **_SIDES,
        "responses": ("responses", "completions", "candidates", "outputs", "generations", "answers"),
        "scores": ("scores", "rewards", "ratings"),
        "ranks": ("ranks", "rank"),  # of each answer, 1 for the best
        "ranking": ("ranking",),  # places of the answers, the best first
    },
    "labels": {
        **_ASKED, **_WHO,
        "response": ("completion", "response", "answer", "output"), "label": ("label", "kto_tag", "desirable"),
    },
}  # fmt: skip
PREFERENCE_FIELDS: dict[str, tuple[str, ...]] = {f: names for some in PREFERENCES.values() for f, names in some.items()}
_ROLES = {
    "human": "user", "user": "user", "prompter": "user", "gpt": "assistant", "assistant": "assistant",
    "model": "assistant", "function_call": "assistant", "bot": "assistant", "system": "system",
    "observation": "tool", "tool": "tool", "function": "tool", "developer": "system",
}  # fmt: skip
_TURN = re.compile(r"(?:\A|\n\n)\s*(Human|Assistant):[ \t]?")


def resolve(
    columns: Iterable[str], given: Mapping[str, str], source: str, usual: Mapping[str, tuple[str, ...]] = NAMES
) -> dict[str, str]:
    """field -> column: what the user gave, else the first usual name that is there; an empty name means none."""
    known = list(columns)
    for field, column in given.items():
        if field not in usual:
            raise UserError(f"no field called {field!r}; {_hint(field, usual, 'fields are')}")
        if column and column not in known:
            close = nearest(column, known)
            hint = f"did you mean {close!r}? " if close else ""
            raise UserError(f"{source} has no column {column!r}; {hint}it has: {', '.join(known) or 'none'}")
    found = {field: next((n for n in names if n in known), "") for field, names in usual.items()}
    found |= dict(given)
    if "input" in usual and "input" not in given and found["question"] != "instruction":
        found["input"] = ""  # only Alpaca's; elsewhere it is the question itself, or something of the user's
    if given.get("question") and "messages" not in given:
        found["messages"] = ""  # the user says where the question is
    if found.get("preferred") and found["preferred"] == found.get("chosen"):
        found["preferred"] = ""  # the column is the preferred answer itself
    return {field: column for field, column in found.items() if column}


def need(field: str, columns: Mapping[str, str], seen: Iterable[str], source: str) -> str:
    """The column of a field that cannot be done without."""
    if field in columns:
        return columns[field]
    known = list(seen)
    usual = NAMES[field] if field in NAMES else PREFERENCE_FIELDS[field]
    close = [hit for name in usual for hit in get_close_matches(name, known, n=1, cutoff=0.75)]
    named = f"--{field} %s" if field in NAMES else f"{field}='%s' in brackets after the file"
    hint = f"did you mean {close[0]!r}? add {named % close[0]}" if close else f"add {named % 'COLUMN'}"
    raise UserError(f"{source} has no {field} column; it has {', '.join(map(repr, known)) or 'none'}; {hint}")


def _hint(word: str, known: Iterable[str], otherwise: str) -> str:
    close = nearest(word, known)
    return f"did you mean {close!r}?" if close else f"{otherwise}: {', '.join(known)}"


def messages(value: Any) -> tuple[Message, ...]:
    """Chat messages from a text, an HH dialogue, a message, or a list of {role, content} or {from, value}.

    ValueError says what is wrong with the value.
    """
    if isinstance(value, str):
        return dialogue(value)
    if isinstance(value, Mapping):
        return (_message(value),)
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(f"expected a text or a list of messages, got {value!r:.80}")
    return tuple(_message(m) for m in value)


def _message(value: Any) -> Message:
    if not isinstance(value, Mapping):
        raise ValueError(f"a message is an object with role and content, got {value!r:.80}")
    role = value.get("role", value.get("from"))
    content = value.get("content", value.get("value"))
    if str(role).lower() not in _ROLES:
        raise ValueError(f"a message's role is one of {', '.join(_ROLES)}, got {role!r}")
    if content is None and value.get("tool_calls"):
        content = ""  # a call alone; what was called is in tool_calls
    if not isinstance(content, (str, list)):
        raise ValueError(f"a message's content is a text, got {content!r:.80}")
    checked_text(content if isinstance(content, str) else "")
    extra = {k: v for k, v in value.items() if k not in ("role", "from", "content", "value") and v is not None}
    return {"role": _ROLES[str(role).lower()], "content": content, **extra}


def conversation_of(value: Any) -> tuple[Message, ...]:
    """The same, also where a list of messages is written as a JSON text, the only way that a CSV file can hold one."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            listed = json.loads(value)
        except (ValueError, RecursionError):
            return messages(value)
        if isinstance(listed, list) and listed and all(_looks_said(m) for m in listed):
            return messages(listed)
    return messages(value)


def _looks_said(value: Any) -> bool:
    return isinstance(value, dict) and bool({"role", "from"} & set(value)) and bool({"content", "value"} & set(value))


def cell(row: Mapping[str, Any], columns: Mapping[str, str], field: str) -> Any:
    """What a row has for a field; None where the field has no column, or the cell is empty (NaN in a data frame)."""
    value = row.get(columns[field]) if field in columns else None
    return None if isinstance(value, float) and math.isnan(value) else value


def checked_text(text: str) -> str:
    """The text, if it is one that can be written down; half of a surrogate pair (`\\ud800`) cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"not a text: a lone surrogate {text[error.start]!r} at character {error.start}") from None
    return text


def under(content: tuple[Message, ...], more: Any) -> tuple[Message, ...]:
    """The messages with Alpaca's `input` on a line of its own under the last one; an empty one adds nothing."""
    if more is None or (isinstance(more, str) and not more.strip()):
        return content
    if not isinstance(more, str) or not isinstance(content[-1]["content"], str):
        raise ValueError(f"the input of an instruction is a text, got {more!r:.80}")
    return (*content[:-1], {**content[-1], "content": f"{content[-1]['content']}\n{checked_text(more)}"})


def with_system(content: tuple[Message, ...], system: Any) -> tuple[Message, ...]:
    """The messages with a system message in front, in place of one that they have."""
    if system is None or system == "":
        return content
    rest = content[1:] if content and content[0]["role"] == "system" else content
    return ({"role": "system", "content": checked_text(str(system))}, *rest)


def dialogue(text: str) -> tuple[Message, ...]:
    """`\\n\\nHuman: hi\\n\\nAssistant: hello` as messages, less an empty last turn; any other text is one question."""
    turns = list(_TURN.finditer(checked_text(text)))
    if not turns or turns[0].start() != 0 or turns[0][1] != "Human":
        if not text.strip():
            raise ValueError("the text is empty")
        return ({"role": "user", "content": text},)
    ends = [t.start() for t in turns[1:]] + [len(text)]
    said = [(_ROLES[t[1].lower()], text[t.end() : end].strip()) for t, end in zip(turns, ends, strict=True)]
    if not said[-1][1]:
        said.pop()
    return tuple({"role": role, "content": content} for role, content in said)


def reply(value: Any) -> tuple[tuple[Message, ...], str]:
    """An answer as (what came before it, its text): a bare text, a message, or a whole dialogue that ends with it."""
    if isinstance(value, str) and not _TURN.match(value):
        return (), checked_text(value).strip()
    said = messages(value)
    if said[-1]["role"] != "assistant" or not isinstance(said[-1]["content"], str):
        raise ValueError(f"expected a dialogue that ends with the assistant's text, it ends with {said[-1]!r:.80}")
    return said[:-1], said[-1]["content"].strip()
