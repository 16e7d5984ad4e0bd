"""The smallest policy with everything a policy has: a table of logits, so that every quantity is also known exactly.

The real loop, losses, advantages and learner drive it as they drive a language model. Answers are strings of letters.
"""

from __future__ import annotations

import copy
import string
from collections.abc import Iterable, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from posttrain.core import rng
from posttrain.core.acting import Actor
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Observation, Turn, join
from posttrain.core.types import Origin, Prompt, Rollout
from posttrain.models.sampling import draw

LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits + "+-"


class TabularPolicy(Actor, nn.Module):
    """logits(prompt, t, previous token) = sum_f feature(prompt, f) table(f, t, previous, :).

    features_PF is the identity unless given (each prompt has a table of its own); shared features make prompts teach
    one another. With memory the table also depends on the previous token. `end` is the letter that stops an answer;
    without it every answer has T letters.
    """

    def __init__(
        self, P: int, T: int, V: int, memory: bool = True, end: int | None = None, features_PF: Tensor | None = None
    ) -> None:
        super().__init__()
        if len(LETTERS) < V:
            raise UserError(f"a tabular policy has at most {len(LETTERS)} letters, got V={V}")
        self.P, self.T, self.V, self.end, self.memory = P, T, V, end, memory
        self.features_PF: Tensor
        self.register_buffer("features_PF", torch.eye(P) if features_PF is None else features_PF)
        self.table = nn.Parameter(torch.zeros(self.features_PF.shape[1], T, V + 1 if memory else 1, V))
        self.critic: nn.Parameter | None = None  # value of each state, same shape without the letters
        self.score: nn.Parameter | None = None  # worth of each letter in each state: a reward model's table
        self.temperature = 1.0

    def randomise(self, scale: float, *identity: object) -> TabularPolicy:
        """Normal logits of that scale, drawn by identity."""
        with torch.no_grad():
            self.table.copy_(scale * torch.randn(self.table.shape, generator=rng.torch_generator(*identity)))
        return self

    # ---- text <-> letters

    def encode(self, prompt: Prompt) -> Tensor:
        """All that the policy sees of a prompt: its row."""
        return torch.tensor([prompt.info["row"]])

    def observe(self, prompt: Prompt) -> Observation:
        return Observation(self.encode(prompt))

    def decode(self, tokens: Tensor) -> str:
        return "".join(LETTERS[i] for i in tokens.tolist() if i != self.end)

    def written(self, prompt: Prompt, text: str) -> Rollout:
        """An answer that somebody else wrote, as a rollout; the end letter is an action too where there is room."""
        actions, logp_T, mask_T = _letters(text, self.T, self.V, self.end)
        return Rollout.single(prompt, self.encode(prompt), actions, logp_T, mask_T, text, origin=Origin.WRITTEN)

    # ---- sampling

    @torch.no_grad()
    def sample(
        self, prompts: Sequence[Prompt], n: int, how: Sampling, seed: int = 0, step: int = 0
    ) -> list[list[Rollout]]:
        """n answers per prompt, as a function of (seed, step, prompt id, sample index) alone."""
        row_B = torch.tensor([p.info["row"] for p in prompts]).repeat_interleave(n)
        key_B = torch.tensor([rng.key(seed, step, p.id, i) for p in prompts for i in range(n)])
        tokens: list[Tensor] = []
        logps: list[Tensor] = []
        for t in range(self.T):
            before_B = tokens[-1] if tokens else None
            token_B, logp_B = draw(self._logits_at(row_B, t, before_B), key_B, t, how)
            tokens.append(token_B)
            logps.append(logp_B)
        tokens_BT, logp_BT = torch.stack(tokens, 1), torch.stack(logps, 1)
        length_B, stopped_B = self._lengths(tokens_BT)
        made = []
        for b, T in enumerate(length_B):
            p, ids = prompts[b // n], tokens_BT[b, :T]
            mask_T = torch.ones(T, dtype=torch.bool)
            made.append(Rollout.single(
                p, row_B[b : b + 1], ids, logp_BT[b, :T], mask_T, self.decode(ids),
                version=step, index=b % n, stopped=stopped_B[b],
            ))  # fmt: skip
        return [made[i : i + n] for i in range(0, len(made), n)]

    @torch.no_grad()
    def act(
        self, pending: Sequence[Sequence[Turn]], keys: Sequence[Sequence[int]], how: Sampling, version: int = 0
    ) -> list[list[Turn]]:
        """Letters that follow what each answer has, one way to go on per key, at most how.max_tokens more."""
        out: list[list[Turn]] = [[] for _ in pending]
        begun = [join(turns) for turns in pending]
        for length in sorted({len(b) for b in begun}):
            which = [i for i, b in enumerate(begun) if len(b) == length]
            self._extend([begun[i] for i in which], [keys[i] for i in which], how, version, [out[i] for i in which])
        return out

    def _extend(
        self, begun: list[Turn], keys: list[Sequence[int]], how: Sampling, version: int, out: list[list[Turn]]
    ) -> None:
        """Answers of one length, all at once."""
        start, which = len(begun[0]), [i for i, k in enumerate(keys) for _ in k]
        row_B = torch.cat([b.context for b in begun])[which]
        key_B = torch.tensor([k for some in keys for k in some])
        before_B = torch.stack([b.actions[-1] for b in begun])[which] if start else None
        tokens, logps = [], []
        for t in range(start, min(self.T, start + how.max_tokens)):
            before_B, logp_B = draw(self._logits_at(row_B, t, before_B), key_B, t, how)
            tokens.append(before_B)
            logps.append(logp_B)
        for i, ids, logp_T in zip(which, torch.stack(tokens, 1), torch.stack(logps, 1), strict=True):
            out[i].append(self._turn(begun[i], ids, logp_T, version))

    def _turn(self, begun: Turn, ids: Tensor, logp_T: Tensor, version: int) -> Turn:
        """Up to the first end letter; without one an answer has stopped when it is whole."""
        ends = (ids == self.end).nonzero() if self.end is not None else torch.zeros(0)
        n = int(ends[0]) + 1 if len(ends) else len(ids)
        new = Turn.of(begun.observation, ids[:n], logp_T[:n], version=version)
        new.stopped = bool(len(ends)) if self.end is not None else len(begun) + n == self.T
        for name in ("actions", "logp_T", "mask_T", "version_T"):
            setattr(new, name, torch.cat([getattr(begun, name), getattr(new, name)]))
        new.text = self.decode(new.actions)
        return new

    def _logits_at(self, row_B: Tensor, t: int, before_B: Tensor | None) -> Tensor:
        """Logits of the t-th letter of each row."""
        state_B = torch.full_like(row_B, self.V) if before_B is None else before_B
        table_PWV = torch.einsum("pf,fwv->pwv", self.features_PF, self.table[:, t])
        return table_PWV[row_B, state_B if self.memory else torch.zeros_like(row_B)]

    def _lengths(self, tokens_BT: Tensor) -> tuple[list[int], list[bool]]:
        """How many letters each answer has, its end letter included, and whether it ended by itself."""
        if self.end is None:
            return [self.T] * len(tokens_BT), [True] * len(tokens_BT)
        ended_BT = tokens_BT == self.end
        stopped_B = ended_BT.any(-1)
        length_B = torch.where(stopped_B, ended_BT.to(torch.uint8).argmax(-1) + 1, self.T)
        return length_B.tolist(), stopped_B.tolist()

    # ---- log-probabilities

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"logp_BT", "entropy_BT", "value_BT"} | ({"score_B"} if self.score is not None else set()))

    def forward(self, rows: Sequence[Turn | Rollout], needs: Iterable[str] = ("logp_BT",)) -> dict[str, Tensor]:
        """The streams asked for: logp_BT, entropy_BT, value_BT, score_B."""
        needs, rollouts = set(needs), [r.row for r in rows]
        row_B = torch.cat([r.context for r in rollouts])
        actions_BT = nn.utils.rnn.pad_sequence([r.actions for r in rollouts], batch_first=True)
        real_BT = torch.arange(actions_BT.shape[1]) < torch.tensor([len(r) for r in rollouts]).unsqueeze(-1)
        out: dict[str, Tensor] = {}
        if needs & {"logp_BT", "entropy_BT"}:
            logp_BTV = self.logp_all(row_B, actions_BT)
            out["logp_BT"] = logp_BTV.gather(-1, actions_BT.unsqueeze(-1)).squeeze(-1) * real_BT
            if "entropy_BT" in needs:
                out["entropy_BT"] = -(logp_BTV.exp() * logp_BTV).sum(-1) * real_BT
        if "value_BT" in needs:
            out["value_BT"] = self._look_up(_there(self.critic, "critic"), row_B, actions_BT) * real_BT
        if "score_B" in needs:
            worth_BTV = self._look_up(_there(self.score, "score table"), row_B, actions_BT)
            out["score_B"] = (worth_BTV.gather(-1, actions_BT.unsqueeze(-1)).squeeze(-1) * real_BT).sum(-1)
        return out

    def logp_all(self, row_B: Tensor, actions_BT: Tensor) -> Tensor:
        """Log-probability of every letter in every state that an answer passes through (B, T, V)."""
        return torch.log_softmax(self._look_up(self.table, row_B, actions_BT) / self.temperature, -1)

    def _look_up(self, table: Tensor, row_B: Tensor, actions_BT: Tensor) -> Tensor:
        """A table's entries in the states before each action."""
        T = actions_BT.shape[1]
        per_prompt = torch.einsum("pf,f...->p...", self.features_PF, table[:, :T])
        state_BT = torch.zeros_like(actions_BT)
        if self.memory:
            state_BT[:, 0] = self.V
            state_BT[:, 1:] = actions_BT[:, :-1]
        return per_prompt[row_B.unsqueeze(-1), torch.arange(T), state_BT]

    # ---- roles

    def with_critic(self) -> TabularPolicy:
        """Add a table of values, all 0."""
        if self.critic is None:
            self.critic = nn.Parameter(torch.zeros(self.table.shape[:-1]))
        return self

    def as_reward_model(self) -> TabularPolicy:
        """A copy whose score is a sum over an answer's letters, each read in its own table, all 0."""
        other = self.clone()
        other.score = nn.Parameter(torch.zeros_like(self.table))
        return other

    def clone(self) -> TabularPolicy:
        """An independent copy; the critic is left behind."""
        other = copy.deepcopy(self)
        other.critic = None
        return other


@lru_cache(maxsize=100_000)
def _letters(text: str, T: int, V: int, end: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """A written answer as ids, zeros for its unknown log-probabilities, and a mask; kept, since pairs come again."""
    ids = [LETTERS.index(c) for c in text]
    if end is not None and len(ids) < T:
        ids.append(end)
    if not 0 < len(ids) <= T or max(ids) >= V:
        raise UserError(f"{text!r} is no answer of 1 to {T} letters out of {LETTERS[:V]!r}")
    return torch.tensor(ids), torch.zeros(len(ids)), torch.ones(len(ids), dtype=torch.bool)


def _there(x: nn.Parameter | None, what: str) -> nn.Parameter:
    if x is None:
        raise UserError(f"this tabular policy has no {what}; ask for one with with_critic() or as_reward_model()")
    return x
