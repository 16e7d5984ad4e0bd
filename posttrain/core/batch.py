"""All that a loss sees: named streams whose shapes are their suffixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from posttrain.core.errors import UserError, nearest

_COMPARED = ("P", "L", "LK")  # suffixes of streams of pairs and of lists, which are cut as these are


class Batch:
    """Streams by name: `batch["adv_BT"]`. The suffix is the shape, checked once; a missing stream is named in the error.

    logp_BT  live log-probabilities       mask_BT  1.0 where credit flows: own actions of rollouts that could be scored
    old_logp_BT  the sampler's            ref_logp_BT  the reference's      adv_BT  credit      reward_BT  what was earned
    value_BT, old_value_BT, return_BT     critic: live, before the update, target; ..._BTK: of K rewards
    value_after_BT, old_value_after_BT    the critic's word on the state that an action leads to
    entropy_BT, dist_BTV, score_B         of the policy's distribution, and all of it (log-probabilities); a reward model's score
    hidden_BTD, head_VD, temperature_B    what that is made of, softmax(hidden head^T / temperature), for formulas that make it in chunks
    topk_id_BTK, topk_logp_BTK            a teacher's likeliest tokens and their log-probabilities
    start_logp_BT                         log-probabilities of the policy as it began, where the reference is a later one
    logz_BT, scores_BK, rating_BK         log-sum-exp of the logits; several scores of a reward model; numbers that came with an answer
    mixed_logp_BT                         log-probabilities where the policy has read its own guesses too
    chosen_P, rejected_P                  rows of preference pairs;  preferred_P  probability that the chosen one is preferred
    ranked_LK                             rows of ranked lists, best first, -1 after;  label_B  1 good, 0 bad, NaN neither
    group_B, version_B, written_B, task_B, length_B, token_BT, state_BT, node_BS, reward:<component>_B
    Only what the learner's forward pass gives (logp_BT, entropy_BT, value_BT, score_B, a policy's own) carries gradient.
    """

    def __init__(self, **streams: Tensor | None) -> None:
        self.streams: dict[str, Tensor] = {k: x for k, x in streams.items() if x is not None}
        mask_BT = self.streams["mask_BT"]
        size = {"B": mask_BT.shape[0], "T": mask_BT.shape[1]}
        for name, x in self.streams.items():
            letters = suffix(name)
            want = [size.get(c, "any") for c in letters]
            wrong = x.dim() != len(letters) or any(n != "any" and n != m for n, m in zip(want, x.shape, strict=True))
            if wrong and letters not in _COMPARED:
                raise UserError(f"the stream {name} has shape {tuple(x.shape)}, expected {tuple(want)} as mask_BT says")

    def __getitem__(self, name: str) -> Tensor:
        """A stream that the formula cannot do without; the error says which one is missing."""
        if name not in self.streams:
            close = nearest(name, self.streams)
            hint = f"did you mean {close!r}?" if close else f"it carries: {', '.join(sorted(self.streams))}"
            raise UserError(f"{name} is read here, but the batch does not carry it; {hint}")
        return self.streams[name]

    def get(self, name: str) -> Tensor | None:
        return self.streams.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self.streams

    def __iter__(self) -> Iterator[str]:
        return iter(self.streams)

    @property
    def logp_BT(self) -> Tensor:
        return self["logp_BT"]

    @property
    def mask_BT(self) -> Tensor:
        return self.streams["mask_BT"]

    def but(self, **changes: Tensor | None) -> Batch:
        """The same batch with some streams replaced; None takes one away."""
        return Batch(**{**self.streams, **changes})

    @property
    def lengths_B(self) -> Tensor:
        """How many actions of each row carry credit."""
        return self.mask_BT.sum(-1)

    @property
    def valid_B(self) -> Tensor:
        """Rows with any credit at all: a failed reward masks the whole row."""
        return (self.mask_BT > 0).any(-1)

    @property
    def returns_B(self) -> Tensor:
        """What each answer earned in all: the outcome sits on its last action, dense rewards where they fell."""
        return self["reward_BT"].sum(-1)

    def rows(self, index: Tensor) -> Batch:
        """These rows only, time trimmed to the longest of them; pairs and lists with all rows inside are kept."""
        T = max(int(self["length_B"][index].max()), 1) if "length_B" in self else self.mask_BT.shape[1]
        place_B = torch.full((self.mask_BT.shape[0],), -1, dtype=torch.long)
        place_B[index] = torch.arange(index.numel())
        out = {
            name: _cut(suffix(name), x, index, T) for name, x in self.streams.items() if suffix(name) not in _COMPARED
        }
        return Batch(**out, **self._comparisons(place_B))

    def _comparisons(self, place_B: Tensor) -> dict[str, Tensor]:
        """Streams of the pairs and lists whose rows are all inside; place_B: the new number of each row, -1 where it is not."""
        new: dict[str, Tensor] = {}
        inside: dict[str, Tensor] = {}
        if "chosen_P" in self:
            new |= {name: place_B[self.streams[name]] for name in ("chosen_P", "rejected_P")}
            inside["P"] = (new["chosen_P"] >= 0) & (new["rejected_P"] >= 0)
        if "ranked_LK" in self:
            old_LK = self.streams["ranked_LK"]
            new["ranked_LK"] = torch.where(old_LK >= 0, place_B[old_LK.clamp_min(0)], -1)
            inside["L"] = ((new["ranked_LK"] >= 0) == (old_LK >= 0)).all(-1)
        mine = {
            name: suffix(name)[0] for name in self.streams if suffix(name) in _COMPARED and suffix(name)[0] in inside
        }
        return {name: new.get(name, self.streams[name])[inside[kind]] for name, kind in mine.items()}


def suffix(name: str) -> str:
    """`ref_logp_BT` -> `BT`."""
    return name.rsplit("_", 1)[-1]


def _cut(letters: str, x: Tensor, index: Tensor, T: int) -> Tensor:
    if letters.startswith("BT"):
        return x[index, :T]
    return x[index, : T + 1] if letters == "BS" else x[index] if letters.startswith("B") else x


def pad(streams: Sequence[Tensor], T: int, value: float = 0.0) -> Tensor:
    """Streams of unequal length as one (B, T) tensor, (B, T, ...) where a moment is more than a number, padded on the right."""
    if not streams:
        return torch.zeros(0, T)
    out = pad_sequence(list(streams), batch_first=True, padding_value=value)
    return F.pad(out, (*[0, 0] * (out.dim() - 2), 0, T - out.shape[1]), value=value)
