"""Where the loop's rollouts come from: a source proposes prompts, samples and scores answers, and updates its curriculum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.core.protocols import Curriculum, Environment, Policy, RolloutRequest, Scorer
from posttrain.core.registry import Part
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group


class LocalSource:
    """Samples in this process from the policies being trained, so the version of every rollout is the current step."""

    def __init__(
        self, policies: Mapping[str, Policy], env: Environment, rollout: Part, scorer: Scorer, curriculum: Curriculum,
        how: tuple[Sampling, int, int],
    ) -> None:  # fmt: skip
        self.policies, self.env, self.rollout, self.scorer, self.curriculum = policies, env, rollout, scorer, curriculum
        self.sampling, self.prompts, self.seed = how  # how answers are drawn, prompts per step, the seed of all draws
        self.curriculum.start(env, self.seed)
        self._last: list[Group] = []

    def next(self, step: int) -> tuple[list[Group], Any]:
        """prompts -> rollouts -> rewards; a failed reward is masked and counted, never taken as 0."""
        policy = next(iter(self.policies.values()))
        prompts = self.curriculum.propose(self.prompts, step, policy)
        begin = getattr(self.scorer, "begin", None)  # grades an answer while others are sampled
        asked = RolloutRequest(self.policies, prompts, self.sampling, self.seed, step, self.env, finished=begin)
        self._last = self.rollout(asked)
        return self._last, self.scorer.score(self._last)

    def publish(self, version: int) -> None:
        """The policies were updated: the curriculum sees the groups of the step."""
        self.curriculum.observe(self._last)

    def state_dict(self) -> dict[str, Any]:
        return {"curriculum": self.curriculum.state_dict()} if hasattr(self.curriculum, "state_dict") else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "curriculum" in state and hasattr(self.curriculum, "load_state_dict"):
            self.curriculum.load_state_dict(state["curriculum"])
