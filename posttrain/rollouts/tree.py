from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from random import Random

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.types import Branch, Group, Rollout
from posttrain.inference.remember import remembering
from posttrain.rollouts.resume import cut, resume, room, stem

SEGMENTS = 14  # of the longest answer, where their length is not given: the authors' 14 of 512 tokens
_SPAN = 32  # characters that come again


@rollout(title="Tree (TreePO)", paper="arXiv:2508.17445", base="sample")
def tree(ask: RolloutRequest, n: int = 16,
    fork: tuple[int, int] = (0, 2), root: tuple[int, int] = (2, 8), repeats: int = 8,
) -> list[Group]:  # fmt: skip
    """Tree (TreePO): n answers per prompt that grow together by segments and fork where one ends, so prefixes are shared.

    fork = (tokens of a segment, branches); 0 tokens: a fourteenth of the run's max_tokens. The root forks into a number of
    paths drawn from `root`; after each segment every path that goes on is forked, evenly and while there are fewer than n,
    and those that ended leave their branches to the rest. If all end too early, ended ones are forked again at a boundary
    drawn at random. A path that has said the same 32 characters `repeats` times is stopped (0: never). `Rollout.branch` says
    from whom and where. Where the engine samples (a GPU), a segment's prefix is not read again. The paper may also fork by
    likelihood; uniform is its robust choice.
    """
    segment, branch = fork
    if min(n, branch, root[0]) < 1 or min(segment, repeats) < 0 or root[0] > root[1]:
        raise UserError(
            f"got n={n}, fork={fork}, root={root}, repeats={repeats}; n, branches and paths of the root are each at least 1, "
            "root is (fewest, most), tokens of a segment and repeats 0 or more"
        )
    longest = min(ask.sampling.max_tokens, getattr(ask.policy, "T", ask.sampling.max_tokens))
    shape = Shape(n, segment or -(-longest // SEGMENTS), branch, root, repeats)
    trees = [Tree(ask, shape, [stem(ask.policy, p)]) for p in ask.prompts]
    room = max((len(t.paths[0].context) for t in trees), default=0) + longest
    with remembering(ask.policy, room):  # what was read of one segment is there for the next
        while any(tree.grows() for tree in trees):
            _grow(ask, shape.segment, trees)
    return [Group(p, tree.paths) for p, tree in zip(ask.prompts, trees, strict=True)]


@dataclass(frozen=True)
class Shape:
    """The parameters of a tree."""

    n: int
    segment: int
    branch: int
    root: tuple[int, int]
    repeats: int


@dataclass
class Tree:
    """The paths of one prompt so far."""

    ask: RolloutRequest
    shape: Shape
    paths: list[Rollout]
    ended: int = 0  # paths that ended with the last segment: their branches go to the others

    def live(self) -> list[int]:
        """The paths that go on."""
        going = [slot for slot, path in enumerate(self.paths) if room(self.ask.policy, path, self.ask.sampling)]
        return [slot for slot in going if not self.paths[slot].info.get("repeats")]

    def grows(self) -> bool:
        return bool(self.live()) or len(self.paths) < self.shape.n

    def forks(self) -> list[tuple[int, Rollout, list[int]]]:
        """What grows next: (path, where from, the paths that come of it, itself or new ones), in order."""
        live, free = self.live(), list(range(len(self.paths), self.shape.n))
        if not live:  # all have ended: the next paths start from a boundary inside the ones there are, in turn
            slots = range(min(len(free), len(self.paths)))
            return [(s, replace(self._again(s), branch=None), [free[s]]) for s in slots]
        if len(self.paths) == 1 and not len(self.paths[0]):
            count = self._draw("root").randint(*self.shape.root) - 1
            return [(0, self.paths[0], [0, *free[:count]])]
        most = min(len(free), (self.shape.branch - 1) * len(live) + self.shape.branch * self.ended)
        counts = [most // len(live) + (i < most % len(live)) for i in range(len(live))]
        order = []
        for slot, count in zip(live, counts, strict=True):
            order.append((slot, self.paths[slot], [slot, *free[:count]]))
            free = free[count:]
        return order

    def _again(self, slot: int) -> Rollout:
        """An ended path, cut at one of its boundaries, the start among them."""
        path, segment = self.paths[slot], self.shape.segment
        at = segment * self._draw("again", slot, len(self.paths)).randrange((max(len(path), 1) - 1) // segment + 1)
        return cut(self.ask.policy, path, at)

    def _draw(self, *what: str | int) -> Random:
        return rng.python(self.ask.seed, self.ask.step, self.paths[0].prompt.id, *what)

    def take(self, parent: int, begun: Rollout, slots: list[int], answers: list[Rollout]) -> None:
        """What has grown from a path, in the places of `forks`."""
        for slot, answer in zip(slots, answers, strict=True):
            if self.shape.repeats and answer.truncated and says_again(answer.text, self.shape.repeats):
                answer.info["repeats"] = True
            if slot == parent:
                self.paths[slot] = answer
            else:
                self.paths.append(replace(answer, index=slot, branch=Branch(parent, len(begun))))


def _grow(ask: RolloutRequest, segment: int, trees: list[Tree]) -> None:
    """One segment in every tree."""
    grow = [(tree, *begin) for tree in trees for begin in tree.forks()]
    keys = [[rng.key(ask.seed, ask.step, s.prompt.id, slot, len(s)) for slot in slots] for _, _, s, slots in grow]
    made = resume(ask.policy, [begun for _, _, begun, _ in grow], keys, ask.sampling, ask.step, more=segment)
    before = [len(tree.live()) for tree in trees]
    added = Counter(id(tree) for tree, _, _, slots in grow for _ in slots)
    for (tree, parent, begun, slots), answers in zip(grow, made, strict=True):
        tree.take(parent, begun, slots, answers)
    for tree, was in zip(trees, before, strict=True):
        tree.ended = added[id(tree)] - len(tree.live()) if was else 0


def says_again(text: str, times: int) -> bool:
    """Whether some 32 characters have come up `times` times or more."""
    spans = Counter(text[i : i + _SPAN] for i in range(len(text) - _SPAN + 1))
    return bool(spans) and max(spans.values()) >= times
