"""The site is made from the repository as it stands: pages at its root come in, links to code lead to the repository.

mkdocs calls these functions by name (`make docs`). Markdown stays as GitHub shows it; what differs is rewritten here.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BROWSE = "https://github.com/posttrain/posttrain"
ROOT_PAGES = {
    "README.md": "index.md",
    "METHODS.md": "methods.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
_FROM = {site: source for source, site in ROOT_PAGES.items()}
_FENCE = re.compile(r"(^(````?)[^`\n]*\n.*?^\2[ \t]*$)", re.MULTILINE | re.DOTALL)
_BADGE = re.compile(r"^\[!\[[^\]]*\]\(https?:[^)]*\)\]\([^)]*\)\n", re.MULTILINE)  # a picture from another host
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
log = logging.getLogger("mkdocs.hooks")


def on_config(config: Any) -> Any:
    """The places marked `stages` and `systems` in the navigation become the pages that are there, systems by family."""
    stages = ["stages/README.md", *_pages(ROOT / "docs" / "stages")]
    families = sorted(folder for folder in (ROOT / "docs" / "systems").iterdir() if folder.is_dir())
    named = [{folder.name.replace("-", " ").capitalize(): _pages(folder)} for folder in families]
    config["nav"] = _filled(config["nav"], {"stages": stages, "systems": named})
    return config


def _pages(folder: Path) -> list[str]:
    return [p.relative_to(ROOT / "docs").as_posix() for p in sorted(folder.glob("*.md")) if p.name != "README.md"]


def _filled(item: Any, marks: dict[str, list[Any]]) -> Any:
    if isinstance(item, list):
        return [_filled(x, marks) for x in item]
    if isinstance(item, dict):
        return {name: marks.get(x, x) if isinstance(x, str) else _filled(x, marks) for name, x in item.items()}
    return item


def on_files(files: Any, config: Any) -> Any:
    """Pages that live at the root of the repository."""
    from mkdocs.structure.files import File

    for source, site in ROOT_PAGES.items():
        files.append(File.generated(config, site, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as the site has them; marks for the test of snippets go."""
    here = page.file.src_uri
    out, at = [], 0
    text = _BADGE.sub("", markdown)
    for fence in _FENCE.finditer(text):
        out += [_linked(text[at : fence.start()], here), _shown(fence[0])]
        at = fence.end()
    return "".join([*out, _linked(text[at:], here)])


def _shown(fence: str) -> str:
    """```bash no-test is ```bash: the mark is for tests/docs."""
    first, _, rest = fence.partition("\n")
    return f"{first.replace(' no-test', '')}\n{rest}"


def _linked(text: str, here: str) -> str:
    return _LINK.sub(lambda m: f"{m[1]}{target(m[2], here)}{m[3] or ''}{m[4]}", text)


def target(link: str, here: str) -> str:
    """Where a link of the page `here` leads on the site; what is no page of it is looked up in the repository."""
    if re.match(r"[a-z]+:", link):
        return link
    source = _FROM.get(here, f"docs/{here}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if path in ROOT_PAGES:
        site = ROOT_PAGES[path]
    elif (ROOT / path).is_dir() or not path.startswith("docs/"):
        site = "stages/README.md" if path == "docs/stages" else ""
    else:
        site = path.removeprefix("docs/")
    if site:
        return posixpath.relpath(site, posixpath.dirname(here) or ".")
    if not (ROOT / path).exists():
        log.warning("%s links to %s, which is not in the repository", source, path)
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{BROWSE}/{kind}/main/{path}"
