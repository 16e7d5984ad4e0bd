"""Names import only what they name; what the index does not know is found all the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from posttrain.core import index, registry
from posttrain.core.errors import UserError, edits, nearest
from posttrain.core.registry import _PARTS, Card, find, modules

ROOT = Path(__file__).parent.parent.parent


def run(code: str, root: Path = ROOT) -> str:
    env = os.environ | {"PYTHONPATH": str(root)}
    made = subprocess.run([sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return made.stdout


def test_a_name_imports_only_what_it_names() -> None:
    run(
        "import sys\n"
        "from posttrain.core.index import index, module_of\n"
        "from posttrain.core.registry import find\n"
        "part = find('ppo(high=0.4)', 'policy_loss')\n"
        "assert part.params == {'high': 0.4} and part.card.stage == 'policy_loss'\n"
        "read = [m for m in index()['modules'] if m in sys.modules]\n"
        "assert module_of('policy_loss', 'ppo') in read and len(read) < 10, read\n"
        "assert not any(m.partition('.')[0] == 'claims' for m in sys.modules)\n"
    )


def test_stages_are_searched_in_order_though_nothing_is_imported_yet() -> None:
    out = run(
        "from posttrain.core.registry import find\n"
        "print(find('grpo').card.stage, find('grpo', 'method').card.stage, find('grpo', 'method', 'advantage').card.stage)\n"
    )
    assert out.split() == ["advantage", "method", "method"]


def test_every_row_leads_to_its_part() -> None:
    """By the lazy way alone: the module that the row names registers it."""
    for row in index.rows():
        found = registry._lookup(row["stage"], row["name"])
        assert found is not None and found.card.file == row["file"], row["name"]
        assert (found.card.title, found.card.paper) == (row["title"], row["paper"])


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An index in place of the committed one."""

    def tell(**changes: Any) -> None:
        made = index.index() | changes
        monkeypatch.setattr(index, "index", lambda: made)

    return tell


@pytest.mark.parametrize(
    "module", ["posttrain.losses.policy.moved_away", "posttrain.gone.cispo", "posttrain.losses.policy.ppo"]
)
def test_an_index_that_is_wrong_about_a_place_is_survived(
    told: Any, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    row = index.row("policy_loss", "cispo")
    assert row is not None
    held = _PARTS["policy_loss"].pop("cispo", None) or find("cispo", "policy_loss")
    _PARTS["policy_loss"].pop("cispo", None)
    told(parts=index.index()["parts"] | {"policy_loss/cispo": row | {"module": module}})
    monkeypatch.setattr(registry, "discover", lambda: _PARTS["policy_loss"].update(cispo=held))
    try:
        assert find("cispo", "policy_loss").card.file == row["file"]
    finally:
        _PARTS["policy_loss"]["cispo"] = held


def test_an_empty_index_finds_everything_by_importing_everything(told: Any) -> None:
    told(parts={}, modules=[])
    assert find("gspo", "policy_loss").name == "gspo"
    with pytest.raises(UserError, match="did you mean 'cispo'"):
        find("csipo", "policy_loss")


def test_an_error_inside_a_module_is_not_taken_for_a_missing_one(
    told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needy_part.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    row = index.row("policy_loss", "cispo")
    assert row is not None
    told(parts=index.index()["parts"] | {"policy_loss/needy": row | {"module": "needy_part"}})
    with pytest.raises(ModuleNotFoundError, match="a_package_that_nobody_has"):
        find("needy", "policy_loss")


def test_a_new_file_is_found_listed_and_shown_before_the_index_is_made(tmp_path: Path) -> None:
    """In a copy of the package: tests that run beside this one must not see the file."""
    shutil.copytree(ROOT / "posttrain", tmp_path / "posttrain", ignore=shutil.ignore_patterns("__pycache__", "pocket"))
    (tmp_path / "posttrain" / "losses" / "policy" / "brand_new_thing.py").write_text(
        "from posttrain.core.registry import policy_loss\n\n\n"
        "@policy_loss()\ndef brand_new_thing(batch):\n"
        '    """Brand new: as it is."""\n    return -batch.logp_BT\n'
    )
    code = (
        "import posttrain\n"
        f"assert posttrain.__file__.startswith({str(tmp_path)!r})\n"
        "from posttrain.cli import main\n"
        "assert main(['find', 'brand_new_thing']) == 0 and main(['list', '--stage', 'policy_loss']) == 0\n"
        "assert main(['show', 'brand-new-thing']) == 0\n"
        "from posttrain.core.registry import find\nassert find('brand-new-thing', 'policy_loss').name\n"
    )
    out = run(code, tmp_path)
    assert out.count("Brand new: as it is.") >= 3 and "def brand_new_thing(batch)" in out


def test_modules_are_read_off_the_disk_without_importing() -> None:
    out = run(
        "import sys\nfrom posttrain.core.registry import modules\nprint(len(modules()))\n"
        "assert not any(m.startswith('posttrain.losses') for m in sys.modules)\n"
    )
    assert int(out) == len(modules()) > 150
    assert "posttrain.losses.policy.ppo" in modules() and "posttrain.losses" in modules()
    assert set(index.index()["modules"]) == set(modules()), "run `make index`"


def test_a_users_part_may_not_take_a_name_of_the_package(tmp_path: Path) -> None:
    """Whether or not the part of the package was imported before."""
    file = tmp_path / "mine_own.py"
    file.write_text(
        "from posttrain.core.registry import policy_loss\n@policy_loss()\ndef cispo(batch):\n    '''Mine: x.'''\n"
    )
    code = f"import sys\nfrom posttrain.cli import main\nsys.exit(main(['show', 'cispo', '--use', {str(file)!r}]))"
    made = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 2 and "two policy_loss parts are named 'cispo'" in made.stderr
    row = index.row("policy_loss", "cispo")
    assert row is not None and row["file"] in made.stderr


def test_a_family_is_the_folder() -> None:
    def family(file: str, stage: str = "method", name: str = "some-thing") -> str:
        return str(index.described(Card(name, stage, "T", file=file))["family"])

    assert family("posttrain/systems/reward_model/some_thing.py") == "reward-model"
    assert family("posttrain/systems/reward_model/dpo.py", name="dpo") == "reward-model"  # the folder has the last word
    assert family("posttrain/methods/some_thing.py") == "base" == family("posttrain/methods/dpo.py", name="dpo")
    assert family("/home/me/x.py") == "" == family("posttrain/losses/x.py", "policy_loss")


def test_a_row_of_a_stranger_is_its_card() -> None:
    stranger = Card("cispo", "policy_loss", "Mine", file="/somewhere/else.py", doc="Mine: not\nthe other.\n\nMore.")
    row = index.row_of(stranger)
    assert row["idea"] == "Mine: not the other." and row["derived"] == [] and row["module"] == ""
    listed = index.row("policy_loss", "cispo")
    assert listed is not None and set(row) <= set(listed)


def test_neighbours_swapped_are_one_edit() -> None:
    assert (
        edits("gpro", "grpo") == 1 and edits("gpro", "gspo") == 2 and edits("", "abc") == 3 and edits("ab", "ab") == 0
    )
    assert edits("dpo", "ppo") == 1 and edits("kitten", "sitting") == 3
    assert nearest("gpro", ["gspo", "grpo", "gmpo"]) == "grpo" and nearest("zzzz", ["grpo"]) is None
