"""STaR: learn from one's own rationales that led to the right answer, and, where none did, from one found with the answer as a hint."""

from __future__ import annotations

from dataclasses import replace

from posttrain.core.answers import golds
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Cycle, Do, Phase, Plan, plan, round_of
from posttrain.core.types import Prompt
from posttrain.methods.self_training import (
    FROM_BASE,
    TO_BASE,
    collected,
    good,
    graded,
    imitating,
    keep,
    questions_of,
    scored,
)
from posttrain.methods.settings import asked_task, written


def hinted(prompt: Prompt, hint: str) -> Prompt:
    """The same question with its answer shown, as a prompt of its own."""
    *before, last = prompt.content
    said = {**last, "content": f"{last['content']}{hint.format(answer=golds(prompt)[0])}"}
    return replace(prompt, id=f"{prompt.id}-hint", content=(*before, said))


def reason(context: Context, questions: int, n: int, hint: str, least: float) -> None:
    """Answers of the policy to every question; those it gets wrong it is asked again with the answer shown. Right ones are kept, as if no
    answer had been shown."""
    i, prompts = round_of(context), questions_of(context, questions)
    groups = scored(context, prompts, n, "star", i)
    found = [good(g.rollouts, least) for g in groups]
    failed = [k for k, some in enumerate(found) if not some] if hint else []
    again = scored(context, [hinted(prompts[k], hint) for k in failed], n, "star", i, "hint") if failed else []
    for k, g in zip(failed, again, strict=True):
        found[k] = good(g.rollouts, least)
    context.notes.setdefault("rationalised", {})[f"round {i}"] = sum(bool(found[k]) for k in failed)
    keep(context, [{"question": k, "answers": some} for k, some in enumerate(found)], len(prompts), n, least)


@plan(paper="arXiv:2203.14465", title="STaR")
def star(
    rounds: int = 3, steps: int = 40, growth: float = 1.2, n: int = 1, questions: int = 0, hint: str = "\n(The answer is {answer}.)",
    least: float = 1.0,
) -> Plan:  # fmt: skip
    """STaR: the base model is fine-tuned, round after round, on the latest policy's rationales that end in the right answer.

    D = {(x, y) : y ~ pi(. | x), right} + {(x, y) : y ~ pi(. | x, hint), right, for x that failed};  pi <- SFT of the base model on D
    steps: of SFT in the first round, `growth` times more in each that follows. hint: what is appended to a question whose answer was wrong ('' leaves such
    questions out: STaR without rationalisation). n: answers to a question. questions: the first so many (0: all; 500 where the task never ends).

    Departures: the paper shows the base model ten worked examples with every question, and with every hint; here there are none, so the model must
    reason without (SFT first, or instructions in `--system`). Its rounds go on until accuracy stalls (up to 36); here 3. Its hint stands beside the right
    choice, or in brackets after the question; here behind the question. It samples almost greedily (temperature 0.01), and so does this (the plan sets
    `--sampling.temperature 0`, another may be given). The base model as the start of every round, hints that are not learned and right answers alone are
    the paper's; 40 steps that grow by a fifth, one answer, the ten examples, 36 rounds and the temperature are of the authors' code or second-hand, not checked against its text.
    """
    if rounds < 1 or steps < 1 or growth < 1 or n < 1 or questions < 0:
        raise UserError(
            f"got rounds={rounds}, steps={steps}, growth={growth}, n={n}, questions={questions}; growth is 1 or more, questions 0 or more, the others 1 or more"
        )
    if hint and "{answer}" not in hint:
        raise UserError(
            f"the hint is {hint!r}; it must hold {{answer}}, where the answer goes, or be empty for no hints"
        )
    env, faster = collected(), growth if rounds > 1 else 1.0
    parts = (
        Do("reason", lambda context: reason(context, questions, n, hint, least)),
        FROM_BASE,
        Phase("sft", imitating, lambda c: round(steps * faster ** (round_of(c) - 1)), env, rewards=written),
    )

    def ready(context: Context) -> None:
        graded(context)
        task = asked_task(context)
        if hint and task.prompt(0).answer in (None, [], ()):
            raise UserError(
                f"star shows the answer of a question that was answered wrongly, and {task.name} has no gold answers; give rows with one, or go "
                "without hints: --plan.hint ''"
            )

    settings = (("sampling.temperature", 0.0),) if n == 1 else ()
    return Plan((TO_BASE, Cycle(parts, times=rounds)), ready=ready, settings=settings)
