"""The supported ways to write a reward, recognised by signature.

    one answer      (prompt, text) -> float                          registered rules and plain functions
    many answers    (prompts, texts) -> list[float]                  prompts are Prompt objects
    TRL             (prompts, completions, **columns) -> list[float] columns come from prompt.info and prompt.answer

Each may be `async`. In TRL a completion is a string, or a list of one chat message when the data set is conversational.
A signature does not say which: an annotation decides, else strings are tried first and messages when those raise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from posttrain.core.errors import UserError, nearest
from posttrain.core.prompt import Prompt
from posttrain.core.registry import Part

_TRL = {"completions", "completion_ids", "completions_ids", "prompts"}
# columns that stand for prompt.answer when info has none of that name
_GOLD = ("answer", "answers", "ground_truth", "solution", "target", "label", "reference")
_HOW = "write def f(prompt, text) -> float, or def f(prompts, completions, **columns) -> list[float]"
_WRONG_FORM = (TypeError, KeyError, AttributeError)  # what code for messages raises on strings, and the other way round


@dataclass
class Answers:
    """What is to be scored: the prompts and texts side by side, and their token ids for who asks."""

    prompts: Sequence[Prompt]
    texts: Sequence[str]
    ids: Callable[[], list[list[int]]] = list
    index: Sequence[int] = ()  # of each among its prompt's answers; empty for texts that were not sampled

    def one(self, call: Call, i: int) -> tuple[Prompt, str]:
        """The arguments for one answer; a rule of the package changes none, so it needs no copy."""
        return (self.prompts[i] if isinstance(call.fn, Part) else own(self.prompts[i])), self.texts[i]


def part(answers: Answers, places: list[int]) -> Answers:
    """The answers at these places."""
    if len(places) == len(answers.texts):
        return answers
    texts, prompts = answers.texts, answers.prompts
    return Answers([prompts[i] for i in places], [texts[i] for i in places], lambda: _at(answers.ids(), places))


def _at(rows: list[list[int]], places: list[int]) -> list[list[int]]:
    return [rows[i] for i in places]


def own(prompt: Prompt) -> Prompt:
    """A copy whose lists and dicts a reward may sort, clear or fill without anybody noticing."""
    return replace(prompt, content=fresh(prompt.content), answer=fresh(prompt.answer), info=fresh(prompt.info))


def fresh(x: Any) -> Any:
    """Lists, tuples, dicts and sets copied all the way down; whatever else they hold is shared."""
    kind = type(x)
    if kind is dict:
        return {k: fresh(v) for k, v in x.items()}
    if kind in (list, tuple):
        return kind(map(fresh, x))
    return set(x) if kind is set else x


@dataclass
class Call:
    """A reward function and how it wants to be called. kind is "one", "many" or "trl"."""

    fn: Callable[..., Any]
    kind: str
    asynchronous: bool
    names: tuple[str, ...] = ()  # TRL: the keywords it takes
    needed: tuple[str, ...] = ()  # TRL: those without a default
    open: bool = False  # TRL: takes **columns
    chat: bool | None = field(default=None, compare=False)  # TRL: completions as messages; None until it is known


def adapt(fn: Any) -> Call:
    """How to call a reward; a UserError when its signature fits no convention."""
    if isinstance(fn, Part):
        fn = fn.live()
    inner = fn.fn if isinstance(fn, Part) else fn
    if not callable(inner):
        raise UserError(f"a reward is a function, got {inner!r}; {_HOW}")
    asynchronous = inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)
    try:
        given = inspect.signature(inner).parameters
    except (TypeError, ValueError):
        raise UserError(f"the reward {_name(inner)} does not say what it takes; {_HOW}") from None
    return _by_signature(fn, asynchronous, given)


def _by_signature(fn: Any, asynchronous: bool, given: Any) -> Call:
    kinds = inspect.Parameter
    names = tuple(n for n, p in given.items() if p.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD))
    needed = tuple(n for n in names if given[n].default is kinds.empty)
    open_ = any(p.kind is kinds.VAR_KEYWORD for p in given.values())
    if names[:2] == ("prompts", "texts"):
        return Call(fn, "many", asynchronous)
    if _TRL & set(names) or (open_ and not names):
        noted = str(given["completions"].annotation) if "completions" in given else ""
        chat = True if "dict" in noted.lower() else False if "str" in noted and "empty" not in noted else None
        return Call(fn, "trl", asynchronous, names, needed, open_, chat)
    positional = [n for n in names if given[n].kind is not kinds.KEYWORD_ONLY]
    if len(positional) < 2 or len(needed) > 2:
        raise UserError(f"the reward {_name(fn)}({', '.join(given)}) cannot be called with a prompt and a text; {_HOW}")
    return Call(fn, "one", asynchronous)


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", None) or getattr(fn, "name", None) or type(fn).__name__


def columns(call: Call, answers: Answers, chat: bool) -> dict[str, Any]:
    """The keyword arguments of a TRL reward, restricted to those it takes."""
    prompts = [own(p) for p in answers.prompts]
    texts: list[Any] = list(answers.texts)
    table: dict[str, Any] = {key: [p.info.get(key) for p in prompts] for key in {k: 0 for p in prompts for k in p.info}}
    for alias in _GOLD:
        if alias == "answer" or alias in call.names:
            table.setdefault(alias, [p.answer for p in prompts])
    table["prompts"] = [list(p.content) for p in prompts] if chat else [p.last for p in prompts]
    table["completions"] = [[{"role": "assistant", "content": t}] for t in texts] if chat else texts
    for ids in ("completion_ids", "completions_ids"):
        if ids in call.names:
            table[ids] = answers.ids()
    for extra in ("trainer_state", "log_extra", "log_metric"):
        if extra in call.needed:
            table[extra] = None if extra == "trainer_state" else lambda *_: None
    for name in call.needed:
        if name not in table:
            close = nearest(name, table)
            hint = f"did you mean {close!r}?" if close else f"the prompts carry: {', '.join(sorted(table))}"
            raise UserError(f"the reward {_name(call.fn)} asks for the column {name!r}; {hint}")
    return table if call.open else {k: v for k, v in table.items() if k in call.names}


def many(call: Call, answers: Answers) -> tuple[list[Prompt], list[str]]:
    """The arguments for all answers: lists of its own, which no other reward will see."""
    prompts = answers.prompts if isinstance(call.fn, Part) else map(own, answers.prompts)
    return list(prompts), list(answers.texts)


def call_many(call: Call, answers: Answers) -> Any:
    """All answers in one call of a synchronous function."""
    if call.kind == "many":
        return call.fn(*many(call, answers))
    if call.chat is not None:
        return call.fn(**columns(call, answers, call.chat))
    plain, messages = columns(call, answers, False), columns(call, answers, True)
    try:
        result = call.fn(**plain)
    except _WRONG_FORM as error:
        try:
            result = call.fn(**messages)
        except Exception:  # whatever it is, the first error is the one to tell
            raise error from None
        call.chat = True
        return result
    call.chat = False
    return result


async def call_many_async(call: Call, answers: Answers) -> Any:
    """The same for an asynchronous function."""
    if call.kind == "many":
        return await call.fn(*many(call, answers))
    if call.chat is not None:
        return await call.fn(**columns(call, answers, call.chat))
    plain, messages = columns(call, answers, False), columns(call, answers, True)
    try:
        result = await call.fn(**plain)
    except _WRONG_FORM as error:
        try:
            result = await call.fn(**messages)
        except Exception:  # whatever it is, the first error is the one to tell
            raise error from None
        call.chat = True
        return result
    call.chat = False
    return result
