"""Written answers: demonstrations for supervised learning; pairs, ranked lists, good and bad ones for preference learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from posttrain.core.answers import conversation, demonstration
from posttrain.core.errors import UserError
from posttrain.core.protocols import Policy, RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.policies.written_rows import written_all


@rollout(data="demonstrations")
def demonstrations(ask: RolloutRequest) -> list[Group]:
    """Demonstrations: the answer that comes with the prompt (`info["demonstration"]`, or its gold answer); of a conversation
    (`info["imitated"]`, its last message) every turn of the assistant."""
    made: dict[int, Rollout] = {}
    texts: dict[int, str] = {}
    for i, p in enumerate(ask.prompts):
        said = conversation(p)
        if said is not None and hasattr(ask.policy, "imitated"):
            made[i] = ask.policy.imitated(p, said)
            continue
        text = demonstration(p)
        if text is None:
            raise UserError(f"prompt {p.id!r} has no demonstration: supervised learning needs an answer text per row")
        texts[i] = text
    every = written_all(ask.policy, [(ask.prompts[i], (text,)) for i, text in texts.items()])
    made |= {i: one for i, (one,) in zip(texts, every, strict=True)}
    for one in made.values():
        one.reward = 1.0
    return [Group(p, [made[i]]) for i, p in enumerate(ask.prompts)]


@rollout(data="pairs", provides=("chosen_P", "rejected_P", "preferred_P"))
def pairs(ask: RolloutRequest) -> list[Group]:
    """Pairs: the preferred and the other answer that come with the prompt (`info["chosen"]`, `info["rejected"]`: texts, or segments of behaviour,
    mappings that the policy can read), and how sure that is (`info["preferred"]`, the probability that the first is preferred; 1 where nobody says)."""
    groups = []
    for p in ask.prompts:
        missing = [k for k in ("chosen", "rejected") if not isinstance(p.info.get(k), str | Mapping)]
        if missing:
            raise UserError(f"prompt {p.id!r} has no {' or '.join(missing)} answer: preference learning needs pairs")
    every = written_all(ask.policy, [(p, (p.info["chosen"], p.info["rejected"])) for p in ask.prompts])
    for p, (chosen, rejected) in zip(ask.prompts, every, strict=True):
        chosen.reward, rejected.reward = 1.0, 0.0
        groups.append(Group(p, [chosen, rejected], pairs=((0, 1),), strengths=(float(p.info.get("preferred", 1.0)),)))
    return groups


@rollout(data="lists", provides=("ranked_LK",))
def lists(ask: RolloutRequest, least: int = 2) -> list[Group]:
    """Ranked lists: all answers that come with the prompt, best first (`info["ranked"]`, a list of {"text", "score"}); an answer's reward
    is its score, or minus its place where it has none. least: answers that a list must have."""
    groups = []
    for p in ask.prompts:
        ranked = p.info.get("ranked")
        if not isinstance(ranked, (list, tuple)) or len(ranked) < max(least, 2):
            got = f"{len(ranked)} ranked answers" if isinstance(ranked, (list, tuple)) else "no ranked answers"
            raise UserError(f"prompt {p.id!r} has {got}, and this learns from lists of at least {max(least, 2)}")
        (made,) = written_all(ask.policy, [(p, [answer["text"] for answer in ranked])])
        for place, (answer, one) in enumerate(zip(ranked, made, strict=True)):
            score = answer.get("score")
            one.reward = -float(place) if score is None else float(score)
        groups.append(Group(p, made, ranking=tuple(range(len(made)))))
    return groups


@rollout(data="labels", provides=("label_B",))
def labels(ask: RolloutRequest, mismatched: bool = False) -> list[Group]:
    """Good and bad answers: the one that comes with each prompt (`info["response"]`), with the component `label` 1 or 0.

    mismatched: beside it in its group, without a label, the answer of the next prompt of the batch that asks something else, as an
    answer to this prompt; KTO's estimate of how far the policy is from its reference. It is cut where the model's window ends.
    """
    groups = []
    for p in ask.prompts:
        if not isinstance(p.info.get("response"), str) or not isinstance(p.info.get("label"), bool):
            raise UserError(
                f"prompt {p.id!r} has no answer with a label: this learns from a response and whether it is good"
            )
        made = ask.policy.written(p, p.info["response"])
        made.reward = float(p.info["label"])
        made.rewards = {"label": made.reward}
        groups.append(Group(p, [made]))
    if mismatched:
        for i, group in enumerate(groups):
            other = next_asking_else(ask.prompts, i)
            group.rollouts.append(within_window(ask.policy, ask.policy.written(group.prompt, other.info["response"])))
    return groups


def next_asking_else(prompts: Sequence[Prompt], at: int) -> Prompt:
    """The next prompt of a batch that asks something else, beginning anew at its end."""
    asked = prompts[at].content
    for p in (*prompts[at + 1 :], *prompts[:at]):
        if p.content != asked:
            return p
    raise UserError(
        "mismatched answers are those of another prompt of the batch, and this one has no two different prompts; use --prompts 2 or more, and a file that "
        "asks more than one question"
    )


def within_window(policy: Policy, made: Rollout) -> Rollout:
    """A written answer of one turn, cut where the model's window ends."""
    window, turn = int(getattr(policy, "window", 0)), made.turns[0]
    room = window - len(turn.observation.tokens)
    if not window or len(turn) <= room:
        return made
    cut = {name: getattr(turn, name)[:room] for name in ("actions", "logp_T", "mask_T", "version_T")}
    return made.but_turn(**cut)
