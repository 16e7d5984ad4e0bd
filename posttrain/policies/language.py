"""The language policy: a decoder with its tokenizer. It samples answers and gives their log-probabilities."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.core.conditioning import Wanted
from posttrain.core.critic import VALUES
from posttrain.core.errors import UserError, unknown
from posttrain.core.thinking import without_lead
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Message, Origin, Prompt, Rollout
from posttrain.models.captured import Passes, of_rows
from posttrain.models.heads import Critic, ScalarHead, trunk_beside
from posttrain.models.layout import Rows, hidden_states
from posttrain.models.likelihood import CHUNK, normalised
from posttrain.models.rows import in_rows, load_whole, wholes
from posttrain.policies.conversation import as_read, between, only_text, turns_of
from posttrain.policies.divided import divided_streams
from posttrain.policies.guessed import mixed_states
from posttrain.policies.read_ahead import Ahead, read_ahead
from posttrain.policies.sampled import Samples
from posttrain.policies.template import opened
from posttrain.policies.token_ids import token_ids
from posttrain.policies.tool_use import offered, shown_ids
from posttrain.policies.window import check_rows, positions

# from which models/divergence.py makes distributions in chunks
WHOLE = frozenset({"hidden_BTD", "head_VD", "temperature_B"})
SCORES = ("score_B", "scores_BK")  # of a reward model: its score, all of them where it has several
STREAMS = frozenset({"logp_BT", "entropy_BT", "logz_BT", "mixed_logp_BT", "dist_BTV", *WHOLE, *VALUES, *SCORES})


class LanguagePolicy(Samples):
    """A causal language model as a policy: the actions are tokens.

    `critic` (values per action) and `score` (a reward model's head) are there when a method asked for them.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, name: str = "", stops: Iterable[int] = ()) -> None:
        super().__init__()
        self.model, self.tokenizer, self.name, self.stops = model, tokenizer, name, tuple(stops)
        self.critic: Critic | None = None
        self.score: ScalarHead | None = None
        self.temperature = 1.0  # of the distribution that is sampled and trained: one place, so they cannot differ
        self.thinking: bool | None = None  # what a chat template with `enable_thinking` is told; None: its own way
        self.wanted: Wanted | None = None  # of a policy that is told so in its prompt: a class, a direction
        self.layout = "shared"  # shared, packed or padded: changes speed, never the result
        self.passes: Passes | None = None  # captured training passes, where a learner has asked for them
        self.ahead = Ahead()
        self._shown = shown_ids(tokenizer)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def width(self) -> int:
        return self.model.width  # type: ignore[return-value]

    # ---- text <-> tokens

    def rendered(self, prompt: Prompt) -> str:
        """The prompt as text: its chat template and its prefill, ending where the policy goes on."""
        return as_read(self.tokenizer, self._told(prompt), self.thinking)[0]

    def lead(self, prompt: Prompt) -> str:
        """How the answer begins where that is written for it: a thought that the chat template opens, the prompt's prefill."""
        return as_read(self.tokenizer, self._told(prompt), self.thinking)[1]

    def _told(self, prompt: Prompt) -> Prompt:
        return prompt if self.wanted is None else replace(prompt, content=self.wanted.begins(prompt.content))

    def encode(self, prompt: Prompt) -> Tensor:
        """The prompt as the policy sees it."""
        ids = self._ids(self.rendered(prompt), f"prompt {prompt.id!r}")
        if not ids:
            raise UserError(f"prompt {prompt.id!r} is empty after tokenisation")
        return torch.tensor(ids, dtype=torch.long)

    def _ids(self, text: str, what: str) -> list[int]:
        return self.ahead.ids.get(text) or token_ids(self.tokenizer, [(text, what)])[0]

    def read_ahead(self, prompts: Sequence[Prompt], known: Ahead | None = None) -> None:
        """Prompts with written answers that are about to be asked for, in one call. known: they were read already."""
        self.ahead = known or self.reading(prompts)

    def reading(self, prompts: Sequence[Prompt]) -> Ahead:
        """The same without keeping it."""
        return read_ahead(self, prompts)

    def decode(self, tokens: Tensor) -> str:
        """The text of actions: without special tokens, except tags around calls of tools."""
        ids: list[int] = tokens.tolist()
        if self._shown and not self._shown.isdisjoint(ids):
            hidden = set(self.tokenizer.all_special_ids) - self._shown
            return str(self.tokenizer.decode([i for i in ids if i not in hidden], skip_special_tokens=False))
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def decode_all(self, many: Sequence[Tensor]) -> list[str]:
        """The same of many at once, where the tokenizer can on all cores."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None or getattr(self.tokenizer, "clean_up_tokenization_spaces", False):
            return [self.decode(tokens) for tokens in many]
        ids = [tokens.tolist() for tokens in many]
        texts: list[str] = backend.decode_batch(ids, skip_special_tokens=True)
        tagged = [i for i, some in enumerate(ids) if self._shown and not self._shown.isdisjoint(some)]
        for i in tagged:
            texts[i] = self.decode(many[i])
        return texts

    @property
    def stop_ids(self) -> list[int]:
        """Ids that end an answer: the tokenizer's end, and others that the model's folder names (an end of turn)."""
        every = {self.tokenizer.eos_token_id, *self.stops, *getattr(self.model, "stop_ids", ())}
        return sorted(i for i in every if i is not None)

    def written(self, prompt: Prompt, text: str) -> Rollout:
        """An answer that somebody else wrote, as a rollout: the end token is an action too, what is written for the policy is not."""
        seen = self.observe(prompt)
        rest = without_lead(seen.lead, text)
        ids = self._ids(rest, f"an answer to prompt {prompt.id!r}") + [self.tokenizer.eos_token_id]
        actions, own_T = torch.tensor(ids, dtype=torch.long), torch.ones(len(ids), dtype=torch.bool)
        none_T = torch.zeros(len(ids))
        return Rollout.single(prompt, seen, actions, none_T, own_T, seen.lead + rest, origin=Origin.WRITTEN)

    def imitated(self, prompt: Prompt, messages: Sequence[Message]) -> Rollout:
        """A conversation that somebody else wrote: every turn of the assistant is an action, all else is only read."""
        told = messages if self.wanted is None else self.wanted.begins(messages)
        said, tools = offered(self.tokenizer, prompt, only_text(told))
        return Rollout(prompt, turns_of(self.tokenizer, said, tools), origin=Origin.WRITTEN)

    # ---- sampling

    @property
    def window(self) -> int:
        """Positions of the model: a prompt and its answer together have at most so many tokens; 0: it does not say."""
        return positions(self.model)

    def observe(self, prompt: Prompt) -> Observation:
        """The prompt as the policy perceives it, up to where it goes on by itself."""
        return self.ahead.observation(prompt) or Observation(self.encode(prompt), lead=self.lead(prompt))

    def extend(self, turns: Sequence[Turn], messages: Sequence[Message]) -> Observation:
        """The ids that messages add after a turn: what the template writes after an answer, then the messages, up to where the
        next answer begins. A turn that was cut off gets its end first."""
        said = messages if self.wanted is None else self.wanted.goes_on(messages)
        ids = self._ids(text := between(self.tokenizer, said, self.thinking), "a message")
        lead = opened(self.tokenizer, text, self.thinking)
        cut_off = not len(turns[-1]) or int(turns[-1].actions[-1]) not in self.stop_ids
        return Observation(torch.tensor([self.tokenizer.eos_token_id] * cut_off + ids, dtype=torch.long), lead=lead)

    # ---- log-probabilities

    @property
    def provides(self) -> frozenset[str]:
        """Streams that `forward` can give; a critic is made when a method asks for one."""
        return STREAMS if self.score is not None else STREAMS - set(SCORES)

    def forward(self, rows: Sequence[Turn | Rollout], needs: Iterable[str] = ("logp_BT",)) -> dict[str, Tensor]:
        """The streams asked for: logp_BT (always when asked for entropy too), entropy_BT, logz_BT (of all logits), mixed_logp_BT (having
        read its own guesses), dist_BTV, hidden_BTD with head_VD and temperature_B (softmax(hidden head^T / temperature) is the
        distribution), those of a critic, score_B and scores_BK."""
        needs = set(needs)
        for name in sorted(needs - STREAMS):
            raise unknown("stream of a language model", name, STREAMS)
        turns = [r.row for r in rows]
        check_rows(turns, self.window)
        graded = needs == {"logp_BT"} and torch.is_grad_enabled() and self.layout != "padded"
        if graded and self.passes and (made := self.passes.logp_BT(Rows.of(turns), self.temperature)) is not None:
            return {"logp_BT": made}
        laid = Rows.of(turns, self.device)
        if (context := getattr(self.model, "context", None)) is not None:
            return divided_streams(self, laid, needs, context)
        out: dict[str, Tensor] = {}
        valued, states = needs & set(VALUES), None
        if needs - valued or (self.critic is not None and self.critic.model is None):
            states = h_BTD, last_BD = hidden_states(self.model, laid, self.layout)
            if asked := needs & {"logp_BT", "entropy_BT", "logz_BT"}:
                out |= self._likelihood(h_BTD, laid, asked)
            if "mixed_logp_BT" in needs:
                mixed_BTD = mixed_states(self.model, turns, laid, h_BTD.detach())
                out["mixed_logp_BT"] = self._likelihood(mixed_BTD, laid, set())["logp_BT"]
            if "dist_BTV" in needs:
                out["dist_BTV"] = self._distribution(h_BTD, laid)
            out |= self._whole(h_BTD, needs & WHOLE)
            if needs & set(SCORES):
                if self.score is None:
                    raise UserError("this policy has no score head; train it in the role of a reward model")
                scores_BK = self.score(last_BD).view(len(last_BD), -1)
                out |= {k: x for k, x in (("score_B", scores_BK[:, 0]), ("scores_BK", scores_BK)) if k in needs}
        if valued:
            if self.critic is None:
                raise UserError("this policy has no critic; the method must ask for one (critic=True)")
            out |= self.critic.values(laid, self.critic.states(laid, self.layout, states), valued)
        return out

    def _likelihood(self, h_BTD: Tensor, rows: Rows, asked: set[str]) -> dict[str, Tensor]:
        """Log-probability (and entropy, and log-sum-exp) of real actions; the head runs on no padding, and in chunks where it is large."""
        real_BT = rows.real_BT
        streams = self.token_likelihood(h_BTD[real_BT], rows.actions_BT[real_BT], asked)
        return {name: of_rows(x_N, real_BT) for name, x_N in streams.items()}

    def token_likelihood(self, h_ND: Tensor, token_N: Tensor, asked: set[str]) -> dict[str, Tensor]:
        """The same of single tokens, from the states that chose them."""
        weight_VD = getattr(self.model, "head_weight", None)
        if weight_VD is not None and (h_ND.is_cuda or len(h_ND) * len(weight_VD) > CHUNK):
            logp_N, entropy_N, logz_N = normalised(h_ND, weight_VD, token_N, self.temperature)
        else:
            logits_NV = self.model.logits(h_ND).float() / self.temperature  # type: ignore[operator]
            logz_N = torch.logsumexp(logits_NV, -1)
            logp_N = logits_NV.gather(-1, token_N.unsqueeze(-1)).squeeze(-1) - logz_N
            entropy_N = logz_N
            if "entropy_BT" in asked:
                entropy_N = logz_N - (torch.softmax(logits_NV, -1) * logits_NV).sum(-1)
        every = {"logp_BT": logp_N, "entropy_BT": entropy_N, "logz_BT": logz_N}
        return {name: x_N for name, x_N in every.items() if name == "logp_BT" or name in asked}

    def _distribution(self, h_BTD: Tensor, rows: Rows) -> Tensor:
        """log pi(. | s_t) over the whole vocabulary at every real action, 0 at padding: for terms that sum over tokens not taken."""
        logp_NV = torch.log_softmax(self.model.logits(h_BTD[rows.real_BT]).float() / self.temperature, -1)  # type: ignore[operator]
        empty_BTV = torch.zeros(*rows.real_BT.shape, logp_NV.shape[-1], device=logp_NV.device)
        return empty_BTV.masked_scatter(rows.real_BT.unsqueeze(-1), logp_NV)

    def _whole(self, h_BTD: Tensor, needs: Iterable[str]) -> dict[str, Tensor]:
        """What a distribution over the vocabulary is made of: the states before each action, the head, the temperature."""
        made = {
            "hidden_BTD": lambda: h_BTD,
            "head_VD": lambda: head_of(self.model, self.name),
            "temperature_B": lambda: torch.full((len(h_BTD),), float(self.temperature), device=h_BTD.device),
        }
        return {name: made[name]() for name in needs}

    # ---- roles

    def with_critic(self, heads: int = 1, shared: bool = False) -> LanguagePolicy:
        """Add a value network: a copy of the policy (of its adapters, if any), or a head on the policy's own network."""
        if self.critic is None:
            trunk = None if shared else trunk_beside(self.model)
            self.critic = Critic(trunk, ScalarHead(self.width, heads).to(self.device))
        return self

    def as_reward_model(self, scores: int = 1) -> LanguagePolicy:
        """A copy with a score head; scores: how many numbers it gives."""
        other = self.clone()
        other.score = ScalarHead(self.width, scores).to(self.device)
        return other

    def clone(self) -> LanguagePolicy:
        """An independent copy (tokenizer shared, critic left behind)."""
        other = type(self)(copied(self), self.tokenizer, self.name, self.stops)
        other.score = copy.deepcopy(self.score)
        other.temperature, other.layout, other.thinking = self.temperature, self.layout, self.thinking
        other.wanted = self.wanted
        return other

    # ---- weights; whole tensors, also where each process has only rows of them

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        found: dict[str, Any] = super().state_dict(*args, **kwargs)
        return wholes(found) if in_rows(self.model) else found

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        if not in_rows(self.model):
            return super().load_state_dict(state, strict, assign)
        if self.whole is not None:
            self.whole.stale = True
        return load_whole(super().state_dict(), state)


def copied(policy: LanguagePolicy) -> nn.Module:
    """The model of a policy, an independent one; where it is in rows, of the whole copy that samples."""
    if not in_rows(policy.model):
        return copy.deepcopy(policy.model)
    learns = {name for name, p in policy.model.named_parameters() if p.requires_grad}
    other = copy.deepcopy(policy.acting)
    for name, p in other.named_parameters():
        p.requires_grad_(name in learns)
    found: nn.Module = other
    return found


def head_of(model: Any, name: str = "") -> Tensor:
    """The matrix W of which the logits are h W^T; a sentence where they are more than that."""
    found = getattr(model, "head_weight", None)
    found = getattr(model, "head_matrix", None) if found is None else found
    if found is None:
        raise UserError(
            f"the logits of {name or 'this model'} are more than a product with one matrix (they are capped, or shifted), so its whole "
            "distribution cannot be compared with another's; sampled tokens can: posttrain run on-policy-distillation"
        )
    matrix: Tensor = found
    return matrix
