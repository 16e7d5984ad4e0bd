"""The language policy: a decoder with its tokenizer. It samples answers and gives their log-probabilities."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.types import Prompt, Rollout
from posttrain.inference.sampling import Sampling, generate
from posttrain.models.decoder import Decoder
from posttrain.models.four_bit import FourBit
from posttrain.models.heads import Critic, ScalarHead
from posttrain.models.layout import Rows, states
from posttrain.models.likelihood import CHUNK, likelihood


class LanguagePolicy(nn.Module):
    """A causal language model as a policy: the actions are tokens.

    `critic` (values per action) and `score` (a reward model's head) are there when a method asked for them.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, name: str = "", stops: Iterable[int] = ()) -> None:
        super().__init__()
        self.model, self.tokenizer, self.name, self.stops = model, tokenizer, name, tuple(stops)
        self._native: Any = None
        self.critic: Critic | None = None
        self.score: ScalarHead | None = None
        self.temperature = 1.0  # of the distribution that is sampled and trained: one place, so they cannot differ
        self.layout = "shared"  # shared, packed or padded: changes speed, never the result

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def width(self) -> int:
        return self.model.width  # type: ignore[return-value]

    # ---- text <-> tokens

    def encode(self, prompt: Prompt) -> Tensor:
        """The prompt as the policy sees it: its chat template, ending where the answer begins."""
        if getattr(self.tokenizer, "chat_template", None):
            text = self.tokenizer.apply_chat_template(list(prompt.content), tokenize=False, add_generation_prompt=True)
        else:
            text = "\n".join(str(m["content"]) for m in prompt.content)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if not ids:
            raise UserError(f"prompt {prompt.id!r} is empty after tokenisation")
        return torch.tensor(ids, dtype=torch.long)

    def decode(self, tokens: Tensor) -> str:
        return self.tokenizer.decode(tokens.tolist(), skip_special_tokens=True)

    def decode_all(self, many: Sequence[Tensor]) -> list[str]:
        """The same of many at once, where the tokenizer can on all cores."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None or getattr(self.tokenizer, "clean_up_tokenization_spaces", False):
            return [self.decode(tokens) for tokens in many]
        return backend.decode_batch([tokens.tolist() for tokens in many], skip_special_tokens=True)

    @property
    def stop_ids(self) -> list[int]:
        """Ids that end an answer: the tokenizer's end, and others that the model's folder names (an end of turn)."""
        extra = getattr(self.model, "stop_ids", ())
        return sorted(i for i in {self.tokenizer.eos_token_id, *self.stops, *extra} if i is not None)

    def written(self, prompt: Prompt, text: str) -> Rollout:
        """An answer that somebody else wrote, as a rollout: the end token is an action too."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"] + [self.tokenizer.eos_token_id]
        actions = torch.tensor(ids, dtype=torch.long)
        T = len(ids)
        return Rollout(
            prompt,
            self.encode(prompt),
            actions,
            torch.zeros(T),
            torch.ones(T, dtype=torch.bool),
            text,
            info={"written": True},
        )

    # ---- sampling

    def sample(
        self, prompts: Sequence[Prompt], n: int, how: Sampling, seed: int = 0, step: int = 0, chunk: int = 512
    ) -> list[list[Rollout]]:
        """n answers a prompt, as a function of (seed, step, prompt id, sample index) alone."""
        was, out = self.training, []
        self.eval()
        engine = self._engine()
        per_call = max(1, len(prompts) if engine else chunk // max(n, 1))
        for start in range(0, len(prompts), per_call):
            part = prompts[start : start + per_call]
            contexts = [self.encode(p) for p in part]
            keys = [[rng.key(seed, step, p.id, i) for i in range(n)] for p in part]
            if engine is not None:
                made = engine.generate(contexts, keys, how, self.stop_ids)
            else:
                made = generate(self.model, contexts, keys, how, self.stop_ids, self.device)  # type: ignore[arg-type]
            texts = iter(self.decode_all([s.tokens for samples in made for s in samples]))
            for prompt, context, samples in zip(part, contexts, made, strict=True):
                out.append([self._rollout(prompt, context, s, next(texts), i, step) for i, s in enumerate(samples)])
        self.train(was)
        return out

    def _engine(self) -> Any:
        """The native engine where it pays: our decoder on a GPU, or with packed weights, which it unpacks once a call and not
        at every token. Made once; it reads the live weights."""
        packed = any(isinstance(m, FourBit) for m in self.model.modules())
        if not isinstance(self.model, Decoder) or (self.device.type != "cuda" and not packed):
            return None
        from posttrain.inference.engine import Engine

        if self._native is None or self._native.model is not self.model:
            self._native = Engine(self.model)
        return self._native

    @staticmethod
    def _rollout(prompt: Prompt, context: Tensor, s: Any, text: str, index: int, step: int) -> Rollout:
        mask_T = torch.ones(len(s.tokens), dtype=torch.bool)
        return Rollout(
            prompt, context, s.tokens, s.logp_T, mask_T, text, version=step, index=index, stopped=s.stopped
        )  # fmt: skip

    # ---- log-probabilities

    def forward(self, rollouts: Sequence[Rollout], needs: Iterable[str] = ("logp",)) -> dict[str, Tensor]:
        """The streams asked for: logp_BT (always when asked for entropy too), entropy_BT, value_BT, score_B."""
        needs = set(needs)
        rows = Rows.of(rollouts, self.device)
        out: dict[str, Tensor] = {}
        if needs & {"logp", "entropy", "score"}:
            h_BTD, last_BD = states(self.model, rows, self.layout)
            if needs & {"logp", "entropy"}:
                out |= self._likelihood(h_BTD, rows, "entropy" in needs)
            if "score" in needs:
                if self.score is None:
                    raise UserError("this policy has no score head; train it in the role of a reward model")
                out["score_B"] = self.score(last_BD)
        if "value" in needs:
            if self.critic is None:
                raise UserError("this policy has no critic; the method must ask for one (critic=True)")
            out["value_BT"] = self.critic(rows, self.layout) * rows.real_BT
        return out

    def _likelihood(self, h_BTD: Tensor, rows: Rows, entropy: bool) -> dict[str, Tensor]:
        """Log-probability (and entropy) of real actions; the head runs on no padding, and in chunks where it is large."""
        real_BT = rows.real_BT
        h_ND, token_N = h_BTD[real_BT], rows.actions_BT[real_BT]
        weight_VD = getattr(self.model, "head_weight", None)
        if weight_VD is not None and (h_ND.is_cuda or len(h_ND) * len(weight_VD) > CHUNK):
            logp_N, entropy_N = likelihood(h_ND, weight_VD, token_N, self.temperature)
        else:
            logits_NV = self.model.logits(h_ND).float() / self.temperature  # type: ignore[operator]
            logz_N = torch.logsumexp(logits_NV, -1)
            logp_N = logits_NV.gather(-1, token_N.unsqueeze(-1)).squeeze(-1) - logz_N
            entropy_N = logz_N - (torch.softmax(logits_NV, -1) * logits_NV).sum(-1) if entropy else logz_N
        streams = {"logp_BT": logp_N} | ({"entropy_BT": entropy_N} if entropy else {})
        empty_BT = torch.zeros(real_BT.shape, device=logp_N.device)
        return {name: empty_BT.masked_scatter(real_BT, x_N) for name, x_N in streams.items()}

    # ---- roles

    def with_critic(self) -> LanguagePolicy:
        """Add a value network that starts as a copy of the policy."""
        if self.critic is None:
            self.critic = Critic(self.model, self.width).to(self.device)
        return self

    def as_reward_model(self) -> LanguagePolicy:
        """A copy with a score head."""
        other = self.clone()
        other.score = ScalarHead(self.width).to(self.device)
        return other

    def clone(self) -> LanguagePolicy:
        """An independent copy (tokenizer shared, critic left behind)."""
        other = LanguagePolicy(copy.deepcopy(self.model), self.tokenizer, self.name, self.stops)
        other.score = copy.deepcopy(self.score)
        other.temperature, other.layout = self.temperature, self.layout
        return other
