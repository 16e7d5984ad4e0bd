from __future__ import annotations

import textwrap
from dataclasses import replace

from posttrain.core.answers import final_answer
from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.types import Group, Prompt, Rollout

READ = (
    "Read one part of a long text and write down all that is needed to answer the question later.\n\n"
    "Question: {ask}\n\nNotes so far: {notes}\n\nPart: {part}"
)
PART = 1000  # characters, where a document does not come in parts
ANSWER = "Answer the question from your notes.\n\nQuestion: {ask}\n\nNotes: {notes}"


@rollout(title="Reading with a memory (QwenLong-L1.5)", paper="arXiv:2512.12967", base="sample", at_test=True)
def memory(ask: RolloutRequest, n: int = 8,
    reading: tuple[int, int] = (1, 0),
) -> list[Group]:  # fmt: skip
    """Reading with a memory (QwenLong-L1.5): the text is read part by part; of what came before, only the notes are known.

    notes_k = policy(question, parts k, notes_{k-1});  answer = policy(question, last notes)
    reading = (parts at a time, tokens that notes may have; 0: as many as an answer). Every turn has a context
    of its own and shares the last one's credit. The text of a prompt is `info["parts"]` (the task `documents`)
    or `info["document"]` (a column of your file), which is cut into parts; a prompt without is answered at once.
    """
    window, notes = reading
    if window < 1 or notes < 0:
        raise UserError(f"got reading={reading}; at least one part is read at a time, and notes have 0 tokens or more")
    prompts, policy, how = ask.prompts, ask.policy, ask.sampling
    if ask.step == 0 and not any(windows(p, window) for p in prompts):
        raise UserError("no prompt has a text to read in parts; use --task documents, or a file with a column document")
    writing = replace(how, max_tokens=notes or how.max_tokens)
    paths = [(p, i, list[Rollout]()) for p in prompts for i in range(n)]
    for k in range(max(len(windows(p, window)) for p in prompts)):
        going = [path for path in paths if k < len(windows(path[0], window))]
        asked = [turn(p, i, k, READ, noted(done), windows(p, window)[k]) for p, i, done in going]
        for (_, _, done), (made,) in zip(going, policy.sample(asked, 1, writing, ask.seed, ask.step), strict=True):
            done.append(made)
    last = [
        turn(p, i, len(done), ANSWER, noted(done)) if done else replace(p, id=f"{p.id}/{i}") for p, i, done in paths
    ]
    groups = [Group(p, []) for p in prompts]
    answers = policy.sample(last, 1, how, ask.seed, ask.step)
    for place, ((p, i, done), (made,)) in enumerate(zip(paths, answers, strict=True)):
        read = {"asked": made.prompt.last} if done else {}  # what it saw, notes and all: runs store it as the prompt
        turns = [t for r in (*done, made) for t in r.turns]
        groups[place // n].rollouts.append(replace(made, prompt=p, index=i, turns=turns, info=made.info | read))
    return groups


def windows(prompt: Prompt, size: int) -> list[str]:
    """The text as it is read, a few parts at a time."""
    parts = prompt.info.get("parts") or textwrap.wrap(
        str(prompt.info.get("document") or ""), PART, replace_whitespace=False
    )
    return [" ".join(parts[at : at + size]) for at in range(0, len(parts), size)]


def noted(done: list[Rollout]) -> str:
    """What was written last, without the thinking before it; a turn that wrote nothing leaves the notes as they were."""
    return next((notes for r in reversed(done) if (notes := final_answer(r.text))), "")


def turn(prompt: Prompt, index: int, k: int, template: str, notes: str, part: str = "") -> Prompt:
    """What the policy sees at one turn; its number is part of the identity of what is drawn."""
    ask = prompt.info.get("ask", prompt.last)
    text = template.format(ask=ask, notes=notes or "none", part=part)
    return Prompt.text(f"{prompt.id}/{index}/{k}", text, prompt.answer, ask=ask, notes=notes, part=part)
