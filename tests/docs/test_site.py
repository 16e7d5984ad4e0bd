"""The site: its pages exist, nothing is asked of another host when it is read, links of GitHub's pages lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
WRITTEN = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs/tutorials").glob("*.md"),
]


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs/hooks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [leaf for item in (nav.values() if isinstance(nav, dict) else nav) for leaf in leaves(item)]


def test_every_page_of_the_navigation_exists(hooks: ModuleType) -> None:
    config = hooks.on_config({"nav": CONFIG["nav"]})
    pages = leaves(config["nav"])
    assert not {"systems", "stages"} & set(pages)  # they were filled in
    assert any(p.startswith("systems/") for p in pages) and any(p.startswith("stages/") for p in pages)
    made = set(hooks.ROOT_PAGES.values())
    assert [p for p in pages if p not in made and not (ROOT / "docs" / p).exists()] == []


def test_reading_asks_nothing_of_other_hosts() -> None:
    assert CONFIG["theme"]["font"] is False  # else Google's fonts
    assert "repo_url" not in CONFIG  # else the theme asks GitHub for stars
    assert "extra_javascript" not in CONFIG
    for style in CONFIG["extra_css"]:  # a file of ours that names no other host
        assert "//" not in re.sub(r"/\*.*?\*/", "", (ROOT / "docs" / style).read_text()) + style
    assert CONFIG["strict"] is True


def test_pictures_of_other_hosts_stay_on_github(hooks: ModuleType) -> None:
    class Page:
        class file:
            src_uri = "index.md"

    shown = hooks.on_page_markdown((ROOT / "README.md").read_text(), Page)
    assert "img.shields.io" in (ROOT / "README.md").read_text()
    assert not re.search(r"!\[[^\]]*\]\(https?:", shown)
    assert "no-test" not in shown


@pytest.mark.parametrize(
    ("link", "here", "want"),
    [
        ("docs/quickstart.png", "index.md", "quickstart.png"),
        ("METHODS.md", "index.md", "methods.md"),
        ("../METHODS.md", "from-trl.md", "methods.md"),
        (
            "../../examples/guess.py",
            "tutorials/your-environment.md",
            "https://github.com/posttrain/posttrain/blob/main/examples/guess.py",
        ),
        ("../../../docs/stages/prompts.md", "systems/base/grpo.md", "../../stages/prompts.md"),
        ("https://arxiv.org/abs/2402.03300", "index.md", "https://arxiv.org/abs/2402.03300"),
    ],
)
def test_links(hooks: ModuleType, link: str, here: str, want: str) -> None:
    assert hooks.target(link, here) == want


@pytest.mark.parametrize("page", WRITTEN, ids=lambda p: p.stem)
def test_links_of_written_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(
        r"\]\(([^)\s#]+)", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    )
    lost = [t for t in targets if not t.startswith("http") and not (page.parent / t).exists()]
    assert lost == []
