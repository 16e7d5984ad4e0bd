"""A browser on local pages: a folder of yours, or servers on this machine, and nothing else of the network.

    site = browser("handbook/")                             # three tools: open_page, follow_link, find_in_page
    app = browser(servers=["http://127.0.0.1:8000"])

Chromium shows a page as a person would see it, scripts included; a model reads its text, with links numbered. Every call says which page
it means and gets a fresh window, so nothing is kept between calls: episodes run side by side, are forked and are replayed.
Requests for any other host are refused before they leave the browser.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urljoin

from posttrain.core.errors import UserError
from posttrain.tools.chromium import Chromium, Seen, Site
from posttrain.tools.tool import Tool, ToolError, tool

_PART = 3000  # characters of a page at a time
_LINES = 20  # that find_in_page shows
_LOCAL = re.compile(r"https?://(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?")


def browser(folder: str = "", servers: Sequence[str] = (), seconds: float = 15.0) -> list[Tool]:
    """The tools: pages of a folder, by their path in it, or of servers on this machine, by their address."""
    if not folder and not servers:
        raise UserError(
            'browser() shows local pages; name their folder, browser("site/"), or servers=["http://127.0.0.1:8000"]'
        )
    if folder and not Path(folder).is_dir():
        raise UserError(f"there is no folder of pages at {folder}")
    for address in servers:
        if not _LOCAL.fullmatch(address.rstrip("/")):
            raise UserError(f"{address} is no server on this machine; give its address like http://127.0.0.1:8000")
    site = Site(Path(folder).resolve() if folder else None, tuple(s.rstrip("/") for s in servers))
    window = Chromium(site, seconds)

    def open_page(address: str, part: int = 1) -> str:
        """Open a page and read it. Links are numbered in brackets.

        address: of the page, such as / or guide/index.html
        part: of a long page, from 1 on
        """
        return read(window.see(address), part)

    def follow_link(address: str, link: int) -> str:
        """Open the page that a numbered link of a page leads to.

        address: of the page with the link
        link: its number
        """
        links = window.see(address).links
        if not 1 <= link <= len(links):
            raise ToolError(f"the page has links 1 to {len(links)}, got {link}" if links else "the page has no links")
        return read(window.see(urljoin(site.address(address), links[link - 1])), 1)

    def find_in_page(address: str, words: str) -> str:
        """Find lines of a page.

        address: of the page
        words: that a line must have, all of them
        """
        asked = words.lower().split()
        lines = [line.strip() for line in window.see(address).text.splitlines()]
        found = [line for line in lines if asked and all(word in line.lower() for word in asked)]
        more = [f"... and {len(found) - _LINES} more lines"] if len(found) > _LINES else []
        return "\n".join([*found[:_LINES], *more]) or "no line of the page has these words"

    made = (open_page, follow_link, find_in_page)
    return [tool(function, seconds=2 * seconds + 35.0) for function in made]


def read(seen: Seen, part: int) -> str:
    """A part of a page, its address and title first."""
    count = max(-(-len(seen.text) // _PART), 1)
    if not 1 <= part <= count:
        raise ToolError(f"the page has {count} parts, got {part}")
    text = seen.text[(part - 1) * _PART : part * _PART]
    head = f"{seen.address} {seen.title}".strip()
    return f"{head}\n{text}" + (f"\n(part {part} of {count})" if count > 1 else "")
