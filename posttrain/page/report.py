"""A report: the page of one run as one HTML file with its data inside, to send to somebody.

It asks nothing of the network: scripts and styles are inside and named by their hashes in the file's own policy, and the data is not code.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from html import escape
from typing import Any
from urllib.parse import urlencode

from posttrain.core.errors import UserError
from posttrain.page.api import answer
from posttrain.page.app import static_files
from posttrain.page.folder import Folder
from posttrain.page.series import AXES

MOST_BYTES = 8_000_000
ANSWERS = 200
MODULES = (
    "dom",
    "source",
    "charts",
    "turns",
    "tree",
    "run",
    "runs",
    "compare",
    "rollouts",
    "tokens",
    "episode",
    "field",
    "sheets",
    "chat",
    "app",
)  # each after what it imports
_IMPORT = re.compile(r"^import .*?;\n", re.M)
_EXPORT = re.compile(r"^export (?=(async )?(function|class|const|let))", re.M)


def report(folder: Folder, name: str) -> str:
    """The whole file."""
    data = gathered(folder, name)
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    while len(text) > MOST_BYTES and data["answers"]:  # the answers are what grows
        data["answers"] = data["answers"][: len(data["answers"]) // 2]
        kept = {_key(k, a) for a in data["answers"] for k in ("group", "tree", "tokens", "episode")}
        data["data"] = {
            k: v
            for k, v in data["data"].items()
            if not k.startswith(("group?", "tree?", "tokens?", "episode?")) or k in kept
        }
        text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return page(text, f"{name} · posttrain")


def gathered(folder: Folder, name: str) -> dict[str, Any]:
    """What the page will ask for, by address, and the answers that a report keeps: the first, the last, the best and the worst."""

    def ask(address: str, **params: object) -> Any:
        found = answer(folder, address, {k: str(v) for k, v in params.items()})
        data[f"{address}?{urlencode(sorted((k, str(v)) for k, v in params.items()))}"] = found
        return found

    data: dict[str, Any] = {}
    about = ask("run", run=name)
    data["runs?"] = {"runs": [about["run"]]}
    for x in AXES:
        ask("metrics", run=name, **({} if x == "step" else {"x": x}))
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for stored in about["stored"]:
        ask("scatter", run=name, phase=stored["phase"])
        share = max(1, ANSWERS // len(about["stored"]) // 4)
        for order in ("step", "newest", "best", "worst"):
            asked = {"run": name, "phase": stored["phase"], "order": order, "limit": str(min(share, 200))}
            for row in answer(folder, "rollouts", asked)["rows"]:
                rows[tuple(row[k] for k in ("phase", "step", "group_index", "sample_index"))] = row
    for row in rows.values():
        key = {"run": name, "phase": row["phase"], "step": row["step"], "group": row["group_index"]}
        if row["stored"]:
            if any(a["at"] is not None for a in ask("group", **key)["answers"]):
                ask("tree", **key)
            found = ask("tokens", **key, sample=row["sample_index"])
            if len(found["turns"]) > 1 or found["others"]:
                ask("episode", **key, sample=row["sample_index"])
    kept = [row | {"run": name} for row in rows.values()]
    return {"about": {"run": name, "date": time.strftime("%Y-%m-%d")}, "data": data, "answers": kept}


def _key(address: str, row: dict[str, Any]) -> str:
    params = {"run": row["run"], "phase": row["phase"], "step": row["step"], "group": row["group_index"]}
    params |= {"sample": row["sample_index"]} if address in ("tokens", "episode") else {}
    return f"{address}?{urlencode(sorted((k, str(v)) for k, v in params.items()))}"


def page(data: str, title: str) -> str:
    """The file around the data, which cannot end its own element: every < in it is an escape."""
    static = {k: v[0].decode() for k, v in static_files().items()}
    script = bundled(static)
    library, style = static["uplot.js"], static["uplot.css"] + static["page.css"]
    for code in (script, library, style):
        if "</script" in code or "</style" in code:
            raise UserError("a file of the page would end its own element; the package is damaged, install it again")
    policy = (
        f"default-src 'none'; script-src {_sha(library)} {_sha(script)}; style-src {_sha(style)}; img-src data:; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    icon = base64.b64encode(static["icon.svg"].encode()).decode()
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{escape(title)}</title>
<link rel="icon" href="data:image/svg+xml;base64,{icon}">
<style>{style}</style>
</head>
<body>
<!-- charts by uPlot, copyright (c) Leon Sorokin, MIT licence -->
<a class="skip" href="#main">Skip to the content</a>
<header id="top"></header>
<main id="main" tabindex="-1"></main>
<noscript><p>This report draws with JavaScript.</p></noscript>
<script type="application/json" id="data">{data.replace("<", chr(92) + "u003c")}</script>
<script>{library}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def bundled(static: dict[str, str]) -> str:
    """The modules as one: each is written so that its names are its own, and a test holds them to that."""
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", static[f"{name}.js"])) for name in MODULES)


def _sha(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
