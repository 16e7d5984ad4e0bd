"""SPO (self-supervised preference degree): DPO beside which the policy must tell how much of an answer's content was removed.

Of both answers of a pair, versions are made with ever more of their key phrases removed. A small head on the policy's own last states, averaged over an answer, says which version it reads;
what it learns teaches the policy by how much one answer is worse than another, not only that it is. The head is left behind when the run has ended.

Departures: the number of versions, their shares, the pooling and the weights of the paper could not be checked (its authors' code is not public): here 3 versions with 0, a third and two thirds of the
key phrases gone, the mean over an answer's states, and weights of 0.1 on each side; the head begins at zero and has a rate of its own, 0.01 (`--critic-lr`), since at the policy's it would stay
near zero and teach nothing. Key phrases are RAKE's, as in the paper, with this package's own list of English stop words; other languages are
divided at punctuation alone. Steps, rate and beta are `dpo`'s. It is shown for DPO here; the paper adds it to other losses too (`--loss simpo`). Pairs must be given (`--task pairs.jsonl`), with answers of some
words; without a task the school pairs that ship are learned.
"""

from __future__ import annotations

import math
import re
from collections import Counter

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.credit import component
from posttrain.core.critic import CriticSettings
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout, term
from posttrain.core.types import Group
from posttrain.losses.aggregate import token_mean
from posttrain.methods.dpo import dpo
from posttrain.rollouts.written import pairs

PAPER = "arXiv:2409.17791"
DEGREES = ("whole", "a third less", "two thirds less")  # versions of an answer, by the key phrases that are gone

# ---- answers with less and less in them

STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a about above after again against all am an and any are as at be because been before being below between both but by can could did do does doing down
        during each few for from further had has have having he her here hers him his how i if in into is it its itself just me more most my no nor not now of
        off on once only or other our out over own same she should so some such than that the their them then there these they this those through to too under
        until up very was we were what when where which while who whom why will with would you your
        """,
    )
)


def key_phrases(text: str) -> list[tuple[int, int]]:
    """Where the key phrases of a text stand, the most telling first (RAKE, doi:10.1002/9780470689646.ch1): runs of words between stop words and
    punctuation, each worth the sum over its words of degree / frequency, degree being the lengths of all phrases that a word is in."""
    phrases: list[list[re.Match[str]]] = [[]]
    for found in re.finditer(r"\w+(?:[-'’]\w+)*|[^\w\s]", text):
        if not re.match(r"\w", found[0]) or found[0].lower() in STOP_WORDS:
            phrases.append([])
        else:
            phrases[-1].append(found)
    phrases = [p for p in phrases if p]
    often, degree = Counter[str](), Counter[str]()
    for phrase in phrases:
        for word in phrase:
            often[word[0].lower()] += 1
            degree[word[0].lower()] += len(phrase)
    worth = [sum(degree[w[0].lower()] / often[w[0].lower()] for w in p) for p in phrases]
    order = sorted(range(len(phrases)), key=lambda i: -worth[i])
    return [(phrases[i][0].start(), phrases[i][-1].end()) for i in order]


def without(text: str, share: float) -> str:
    """The text without that share of its key phrases, the most telling ones (a part of one counts as one)."""
    spans = key_phrases(text)
    for start, end in sorted(spans[: math.ceil(share * len(spans))], reverse=True):
        text = f"{text[:start]} {text[end:]}"
    return re.sub(r"[^\S\n]+([.,;:!?])?", lambda found: found[1] or " ", text).strip()


def versions(text: str) -> list[tuple[int, str]]:
    """(degree, text) of an answer and of what is left of it; versions that are empty, or as the one before, are left out."""
    out = [(0, text)]
    for degree in range(1, len(DEGREES)):
        left = without(text, degree / len(DEGREES))
        if left and left != out[-1][1]:
            out.append((degree, left))
    return out


@rollout(data="pairs", paper=PAPER, provides=("chosen_P", "rejected_P", "preferred_P"))  # fmt: skip
def degraded_pairs(ask: RolloutRequest) -> list[Group]:
    """Degraded pairs (SPO): written pairs, and beside both answers their versions without a third and without two thirds of the key phrases."""
    groups = pairs(ask)
    for g in groups:
        made = []
        for place, side in enumerate(("chosen", "rejected")):
            told = g.prompt.info[side]
            if not isinstance(told, str):
                raise UserError(
                    f"prompt {g.prompt.id!r}: SPO removes phrases from answers that are texts, and its {side} one is not"
                )
            for degree, text in versions(told):
                r = ask.policy.written(g.prompt, text) if degree else g.rollouts[place]
                r.reward, r.rewards = 1.0 - place, {"degree": float(degree), "side": 1.0 - place}
                made += [r] if degree else []
        g.rollouts.extend(made)
    if not any(len(g.rollouts) > 2 for g in groups):
        raise UserError(
            f"none of the {2 * len(groups)} answers of this step has a phrase that could be removed and leave something, so there are no degrees to tell; "
            "SPO wants answers of some words (a number alone has none)"
        )
    return groups


# ---- what is minimised beside the preference


@term(paper=PAPER, reads=("value_BTK",))
def degree(batch: Batch, chosen: float = 0.1, rejected: float = 0.1, per: str = "answer") -> Tensor:
    """Degree (SPO): tell from the states of an answer how much of it was removed.

    L = -gamma log softmax(1/|y| sum_t W h_t)[degree];  gamma: `chosen` for versions of preferred answers, `rejected` for the others
    The mean over all versions of both. W is the head of a critic on the policy's own network, with an output for each degree.
    """
    own_BT1 = (batch.mask_BT > 0).unsqueeze(-1)
    mean_BK = torch.where(own_BT1, batch["value_BTK"], 0.0).sum(1) / batch.lengths_B.clamp_min(1).unsqueeze(-1)
    told_B1 = torch.where(batch.valid_B, component(batch, "degree"), 0.0).long().unsqueeze(-1)
    loss_B = -mean_BK.log_softmax(-1).gather(-1, told_B1).squeeze(-1)
    gamma_B = torch.where(component(batch, "side") > 0.5, chosen, rejected)
    return (gamma_B * loss_B).unsqueeze(-1).expand_as(batch.mask_BT)


# ---- the method

spo_selfsup_degree = method(
    dpo.but(
        name="spo-selfsup-degree", title="SPO (preference degree)", paper=PAPER, doc=__doc__,
        rollout=degraded_pairs, terms=degree, aggregate=token_mean, critic=CriticSettings("shared", lr=1e-2, rewards=DEGREES),
    )
)  # fmt: skip
