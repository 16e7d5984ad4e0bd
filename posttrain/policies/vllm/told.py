"""What a model behind a vLLM server says of given tokens: their log-probabilities, and its k likeliest at each place.

vLLM tells these of the tokens of a prompt (`prompt_logprobs`), so context and actions are sent as one prompt, as ids; at temperature 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from posttrain.core.batch import pad
from posttrain.core.errors import UserError
from posttrain.core.turn import Turn
from posttrain.policies.vllm.over_http import same_tokens, served
from posttrain.policies.vllm.server import Gone, Refused, Server

STREAMS = ("logp_BT", "topk_id_BTK", "topk_logp_BTK")
_SIDE_BY_SIDE = 64


class ToldByServer:
    """A frozen model that is asked over HTTP; `forward(rows, needs)` as a policy has it."""

    def __init__(self, server: Server, policy: Any, k: int) -> None:
        self.server, self.policy, self.k = server, policy, k
        self.model, self.window = served(server)
        self._compared = False

    def forward(self, rows: Sequence[Turn], needs: Sequence[str]) -> dict[str, Tensor]:
        """The streams of STREAMS that are asked for."""
        if self.policy.temperature != 1.0:
            raise UserError(
                f"{self.server.url} tells log-probabilities at temperature 1, and this run has {self.policy.temperature:g}; use "
                "--sampling.temperature 1, or a teacher that is loaded here"
            )
        if not self._compared and rows:
            same_tokens(self.server, self.model, self.policy, rows[0].context)
            self._compared = True
        k = self.k if any(name.startswith("topk") for name in needs) else 0
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            made = list(pool.map(lambda row: self._row(row, k), rows))
        T = max(map(len, rows))
        every = {name: pad([one[i] for one in made], T) for i, name in enumerate(STREAMS) if i == 0 or k}
        return {name: every[name] for name in needs}

    def _row(self, row: Turn, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of the row's actions, the k likeliest ids at each, theirs."""
        ids = [*row.context.tolist(), *row.actions.tolist()]
        body = {"model": self.model, "prompt": ids, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": k}
        try:
            choices = self.server.post("/v1/completions", body).get("choices")
        except Gone as why:
            raise UserError(f"nothing answers at {self.server.url} ({why}); is `vllm serve` running there?") from None
        except Refused as error:
            more = (
                f"; start it with --max-logprobs {k}, or ask for fewer: k={min(k, 20)}"
                if "logprobs" in str(error)
                else ""
            )
            raise UserError(f"{error}{more}") from None
        told = choices[0].get("prompt_logprobs") if isinstance(choices, list) and choices else None
        if not isinstance(told, list) or len(told) != len(ids):
            raise UserError(
                f"{self.server.url} sent no prompt_logprobs for {len(ids)} tokens; is it vLLM (0.24 or newer)?"
            )
        places = told[len(row.context) :]
        logp_T = torch.tensor(
            [float(at[str(i)]["logprob"]) for i, at in zip(row.actions.tolist(), places, strict=True)]
        )
        best = [sorted(at.items(), key=lambda one: int(one[1]["rank"]))[:k] for at in places]
        id_TK = torch.tensor([[int(i) for i, _ in some] for some in best], dtype=torch.long)
        return logp_T, id_TK, torch.tensor([[float(x["logprob"]) for _, x in some] for some in best])
