"""A frozen model that a prompt of a few letters can turn into a good classifier, and a table of Q-values that writes prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from claims.worlds.tabular import LETTERS, TabularPolicy
from posttrain.core import rng
from posttrain.core.turn import Turn
from posttrain.core.types import Prompt, Rollout
from posttrain.runs.in_memory import Listed
from posttrain.systems.policy_gradient.rlprompt import gap

X, K, T, V, D = 16, 3, 5, 20, 8  # inputs, labels, letters of a prompt, alphabet, width
LABELS = [str(k) for k in range(K)]


class Writer(TabularPolicy):
    """V = log sum exp of the logits is its own critic; every input has the same row, so it is not seen."""

    def forward(self, rows: Sequence[Turn | Rollout], needs: Iterable[str] = ("logp_BT",)) -> dict[str, Tensor]:
        out = super().forward(rows, set(needs) - {"value_BT"})
        if "value_BT" in needs:
            row_B, letters_BT = torch.cat([r.context for r in rows]), torch.stack([r.actions for r in rows])
            out["value_BT"] = torch.logsumexp(self._look_up(self.table, row_B, letters_BT), -1)
        return out

    def with_critic(self) -> Writer:
        return self


class FrozenNet:
    """Random weights that read five letters and an input. The labels are what it says after a secret prompt, so some prompt
    is right everywhere; how sure it is differs from input to input, from 0.003 to 10 nats."""

    def __init__(self, *identity: object) -> None:
        draw = rng.torch_generator(*identity)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw)

        self.letter_TVD, self.mix_XD, self.bias_XD = normal(T, V, D), normal(X, D), 0.5 * normal(X, D)
        self.head_DK, self.lean_XK = normal(D, K), normal(X, K)
        self.label_X = self.says(torch.randint(0, V, (1, T), generator=draw))[0].argmax(-1)
        self.inputs = Listed([self.asked(x) for x in range(X)])

    def asked(self, x: int, copy: int | str = "") -> Prompt:
        """The prompt of an input; `copy` gives the same input another identity."""
        return Prompt(f"input{x}/{copy}", (), LABELS[int(self.label_X[x])], {"row": 0, "x": x})

    def says(self, letters_NT: Tensor) -> Tensor:
        """The probability of each label for each input after each prompt (N, X, K)."""
        read_ND = self.letter_TVD[torch.arange(T), letters_NT].sum(1) * (3 / T) ** 0.5
        hidden_NXD = torch.tanh(0.6 * read_ND.unsqueeze(1) * self.mix_XD + self.bias_XD)
        sure_X1 = torch.logspace(-2.5, 1.0, X).unsqueeze(-1)
        return torch.softmax(sure_X1 * (hidden_NXD @ self.head_DK + self.lean_XK), -1)

    def gaps(self, letters_NT: Tensor) -> Tensor:
        """P(right label) - max P(another), of every input after every prompt (N, X)."""
        p_NXK = self.says(letters_NT)
        return gap(p_NXK.view(-1, K), self.label_X.repeat(len(p_NXK))).view(-1, X)

    def read(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Tensor:
        """Label probabilities of inputs, each after its own prompt."""
        letters_BT = torch.tensor([[LETTERS.index(c) for c in z] for z in texts])
        x_B = torch.tensor([p.info["x"] for p in prompts])
        return self.says(letters_BT)[torch.arange(len(x_B)), x_B]

    def right(self, letters_NT: Tensor) -> dict[str, float]:
        """How often it is right after these prompts, on all inputs and on the half of which it is unsure."""
        right_NX = (self.gaps(letters_NT) > 0).float()
        return {"right": float(right_NX.mean()), "unsure": float(right_NX[:, : X // 2].mean())}
