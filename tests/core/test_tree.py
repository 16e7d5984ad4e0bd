"""The tree: every folder has a layer, imports point down, and a part lives with its system until a second one uses it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from posttrain.core.registry import fold, parts

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "posttrain"
FILES = sorted(PACKAGE.rglob("*.py"))

# from the ground up: a folder or module imports its own layer and those before it
LAYERS = (
    ("core",),
    ("sandbox",),  # runs programs for rewards and tools alike, and knows of neither
    ("environments", "prompts", "select", "advantages", "losses",
     "rewards/rules", "rewards/shaping", "rewards/runtime", "rewards/auditing",
     "tools"),  # what an environment may let a model call; reads files as environments do
    ("models",),
    ("inference",),
    ("policies",),
    ("rollouts", "rewards/scorers", "weights", "decoding", "evals"),
    ("train", "runs", "distributed"),  # distributed builds workers from what runs builds a run from
    ("planning",),  # reads the table of cards in runs, and is asked by commands alone
    ("methods", "systems"),
    ("api",),
    # page: what `posttrain view` serves, read from run folders without torch; commands start it, and nothing below needs it
    ("commands", "serving", "view", "page", "cli", "__main__", "posttrain"),
    ("claims",),  # outside the package: there only in a checkout
)  # fmt: skip
RANK = {place: i for i, layer in enumerate(LAYERS) for place in layer}

# (file, what it imports against the order) -> why
EXCEPTIONS = {
    ("posttrain/core/registry.py", "posttrain"): "discovers the parts of every folder by its name",
    ("posttrain/view/index.py", "claims"): "writes the verdicts of a checkout into the index",
    ("posttrain/commands/check.py", "claims"): "repeats experiments, which only a checkout has",
    (
        "posttrain/tools/search.py",
        "environments",
    ): "reads rows of a file as tasks do; a task with tools needs no search",
    ("posttrain/commands/completion.py", "cli"): "writes down the commands, whose table is in cli.py",
}

# folders whose files are ideas of papers; environments are questions, not ideas
STAGES = ("prompts", "rollouts", "rewards/rules", "rewards/scorers", "rewards/shaping", "select", "advantages", "losses",
          "weights", "decoding", "evals")  # fmt: skip
BASES = {"grpo", "ppo", "dpo", "sft", "rloo", "reinforce", "reward_model"}

# used by one system so far, and still no idea of its paper alone
GENERAL = {
    "rewards/scorers/fine_grained": "rewards of segments that anybody may name",
    "advantages/dense": "any credit that was given token by token",
    "advantages/pure": "credit of steps, for any process reward",
    "select/best_worst": "makes pairs of any group, for any preference loss",
    "rollouts/memory": "a study of its own: reading a long text in parts",
    "rollouts/tree": "answers that share prefixes, for any advantage over trees",
    "rewards/rules/numeric": "a rule that anybody may name in a reward",
    "rewards/scorers/process_model": "pays by any process reward model",
    "evals/overoptimisation": "gold against proxy, for any reward model",
}


# ---- who imports whom


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules of this project that a file imports, in functions too, as texts too; not those for type checkers alone."""
    if isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.unparse(tree.test):
        for node in tree.orelse:
            yield from imported(node)
        return
    if isinstance(tree, ast.ImportFrom) and tree.module and not tree.level:
        for alias in tree.names:
            inner = f"{tree.module}.{alias.name}"
            yield (
                inner
                if (ROOT / inner.replace(".", "/")).with_suffix(".py").is_file() or is_folder(inner)
                else tree.module
            )
    elif isinstance(tree, ast.Import):
        yield from (alias.name for alias in tree.names)
    elif isinstance(tree, ast.Call) and ast.unparse(tree.func).endswith(("import_module", "__import__")) and tree.args:
        yield beginning(tree.args[0])
    for node in ast.iter_child_nodes(tree):
        yield from imported(node)


def beginning(name: ast.expr) -> str:
    """The module that a text names: all of it, or what stands before the first gap (`f"posttrain.commands.{name}"`)."""
    if isinstance(name, ast.JoinedStr):
        first = name.values[0]
        return first.value.rstrip(".") if isinstance(first, ast.Constant) else ""
    return str(name.value) if isinstance(name, ast.Constant) else ""


def is_folder(module: str) -> bool:
    return (ROOT / module.replace(".", "/") / "__init__.py").is_file()


def place(module: str) -> str:
    """Where a module stands: its folder, for rewards the folder in it, for a module of the package itself its name."""
    names = module.split(".")
    if names[0] != "posttrain" or len(names) == 1:
        return names[0]
    return "/".join(names[1:3]) if names[1] == "rewards" else names[1]


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def modules_of(file: Path) -> frozenset[str]:
    """What it imports of posttrain and claims."""
    return frozenset(m for m in imported(ast.parse(file.read_text())) if m.split(".")[0] in ("posttrain", "claims"))


def edges() -> Iterator[tuple[str, str, str]]:
    """(file, its place, the place of something it imports), where they differ."""
    for file in FILES:
        here = place(name_of(file))
        for there in {place(m) for m in modules_of(file)} - {here}:
            yield str(file.relative_to(ROOT)), here, there


def circles(pairs: set[tuple[str, str]]) -> set[str]:
    """Places from which imports lead back to themselves."""
    after: dict[str, set[str]] = defaultdict(set)
    for here, there in pairs:
        after[here].add(there)

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = list(after[start])
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo += after[at]
        return seen

    return {start for start in list(after) if start in reached(start)}


# ---- layers


def test_every_file_has_a_place() -> None:
    unplaced = {place(name_of(f)) for f in FILES} - set(RANK) - {"rewards"}
    assert not unplaced, f"give them a layer in LAYERS: {sorted(unplaced)}"


def test_layers_point_one_way() -> None:
    up = [f"{file} imports {there}" for file, here, there in edges()
          if RANK.get(there, 0) > RANK.get(here, 0) and (file, there) not in EXCEPTIONS]  # fmt: skip
    assert not up, "\n".join(up)


def test_folders_do_not_import_each_other_in_circles() -> None:
    found = circles({(here, there) for file, here, there in edges() if (file, there) not in EXCEPTIONS})
    assert not found, sorted(found)


def test_every_exception_is_still_one() -> None:
    there = {(file, to) for file, _, to in edges()}
    assert not set(EXCEPTIONS) - there, "these imports are gone; take them off EXCEPTIONS"


SNIPPET = """
from typing import TYPE_CHECKING
from posttrain.core import rng
if TYPE_CHECKING:
    from posttrain.api import run
else:
    import posttrain.view.live
def late():
    from posttrain import train
    import_module("posttrain.losses.objective")
    importlib.import_module(f"posttrain.commands.{late}")
"""


def test_imports_are_found_wherever_they_stand() -> None:
    found = {m for m in imported(ast.parse(SNIPPET)) if m.startswith("posttrain")}
    assert found == {"posttrain.core.rng", "posttrain.view.live", "posttrain.train", "posttrain.losses.objective",
                     "posttrain.commands"}  # fmt: skip
    assert [place(m) for m in ("posttrain.rewards.rules.math", "posttrain.train", "posttrain", "claims.worlds.sums")] == [
        "rewards/rules", "train", "posttrain", "claims",
    ]  # fmt: skip


def test_a_circle_is_found() -> None:
    assert circles({("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")}) == {"a", "b", "c"}
    assert circles({("a", "b"), ("b", "c"), ("a", "c")}) == set()


# ---- systems


def files_in(*folders: str) -> list[Path]:
    return [f for f in FILES for folder in folders if f.is_relative_to(PACKAGE / folder) and f.stem != "__init__"]


def test_methods_are_the_seven_bases() -> None:
    shared = {"settings", "members", "ensemble", "from_pairs", "nelder_mead", "rounds"}  # what plans are made with
    shared |= {"conditioned", "judged", "ratings", "self_training"}
    assert {f.stem for f in files_in("methods")} == BASES | shared


def test_a_part_of_one_system_lives_with_it() -> None:
    users: dict[str, set[Path]] = defaultdict(set)
    for file in FILES:
        for module in modules_of(file):
            users[module].add(file)
    alone = {}
    for file in files_in(*STAGES):
        who = users[name_of(file)]
        if len(who) == 1 and all(f.is_relative_to(PACKAGE / "systems") for f in who):
            alone[str(file.relative_to(PACKAGE).with_suffix(""))] = str(min(who).relative_to(PACKAGE))
    assert not {k: v for k, v in alone.items() if k not in GENERAL}, (
        "move each into the file of the system that uses it"
    )
    assert not set(GENERAL) - set(alone), "more or fewer than one system use these now; take them off GENERAL"


def wholes(file: Path) -> set[str]:
    """The names of the methods and plans that a file registers."""
    return {p.name for p in parts("method", "plan") if p.card.file == str(file.relative_to(ROOT))}


@pytest.mark.parametrize("file", files_in("systems"), ids=lambda f: f.stem)
def test_a_system_is_a_file_with_a_method_or_plan_of_its_name(file: Path) -> None:
    assert file.parent.parent == PACKAGE / "systems", "systems/<family>/<id>.py"
    assert fold(file.stem) in wholes(file)


@pytest.mark.parametrize("file", files_in("systems"), ids=lambda f: f.stem)
def test_a_system_takes_whole_methods_of_another_not_parts(file: Path) -> None:
    """What two systems use is in its stage folder."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("posttrain.systems."):
            other = ROOT / f"{(node.module or '').replace('.', '/')}.py"
            assert {fold(a.name) for a in node.names} <= wholes(other), ast.unparse(node)
