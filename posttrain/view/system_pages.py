"""docs/systems/<family>/<id>.md from the index: idea, formula, command, evidence with every attempt, departures, parts.

python -m posttrain.view.methods_page          writes them too
"""

from __future__ import annotations

import re
from pathlib import Path

from posttrain.core.config import Config
from posttrain.core.evidence import attempts_file, evidence, in_words
from posttrain.core.index import Row, index, row
from posttrain.view.attempts import span, spent, tried
from posttrain.view.methods_page import PAGE, page_of, paper, systems

_UP = "../../../"  # from a page to the project
_FORMULAS = ("loss", "advantage", "shaping", "select", "terms")  # fields whose parts are the method's mathematics
_DEPARTURES = re.compile(r"^Departures\b[^\n:]*:?\s*", re.IGNORECASE)


def system_pages() -> dict[Path, str]:
    """The pages by file."""
    return {PAGE.parent / page_of(r): system_page(r) for r in systems()}


def system_page(r: Row) -> str:
    rest, departures = sections(r["doc"])
    out = [f"# {r['title']}", "", r["idea"], "", *facts(r), ""]
    for title, lines in (
        ("Formula", formulas(r, rest)),
        ("Run it", commands(r)),
        ("What you should see", expected(r)),
        ("Evidence", proof(r)),
        ("Departures from the paper", differences(r, departures)),
        ("Phases", r.get("outline", [])),
        ("Parts", part_links(r)),
    ):
        out += [f"## {title}", "", *lines, ""] if lines else []
    return "\n".join(out)


def sections(doc: str) -> tuple[str, str]:
    """What follows the idea in a docstring, and its section on departures from the paper, without their titles."""
    some = [p for p in doc.strip().split("\n\n")[1:] if p.strip()]
    at = next((i for i, p in enumerate(some) if _DEPARTURES.match(p)), len(some))
    return "\n\n".join(some[:at]), _DEPARTURES.sub("", "\n\n".join(some[at:])).strip()


def differences(r: Row, departures: str) -> list[str]:
    """What its docstring says, and the settings of a run, which are the same for all systems and no paper's."""
    if not departures:
        return []
    told = [departures[0].upper() + departures[1:]]
    if r["stage"] == "claim":
        return told
    c = Config()
    steps = f"{c.steps} steps of {c.prompts} prompts" if r["stage"] == "method" else f"{c.prompts} prompts per step"
    shared = f"{steps}, answers of at most {c.sampling.max_tokens} tokens at temperature {c.sampling.temperature:g}"
    learned = "a learning rate by the size of the model that falls to 0"
    return [*told, "", f"Settings that all runs share are no paper's: {shared}, {learned} (`posttrain run --help`)."]


def facts(r: Row) -> list[str]:
    kind = {"method": "Method", "plan": "Plan of several phases", "claim": "Tested as a claim"}[r["stage"]]
    out = [f"- {kind} in [{r['file']}]({_UP}{r['file']})"]
    if r["paper"]:
        title = r.get("paper_title") or ""
        out.append(f"- Paper: {paper(r)}{', ' + title if title else ''}")
    return out


def formulas(r: Row, rest: str) -> list[str]:
    """What the docstring says after its idea, then the cards of the parts that make the method what it is, each once."""
    out = ["```", rest, "```", ""] if rest else []
    for part in dict.fromkeys(p["part"] for f in _FORMULAS for p in r["parts"] if p["field"] == f):
        found = row(*part.split("/"))
        more = "\n\n".join(found["doc"].split("\n\n")[1:]) if found else ""
        out += [f"{found['idea']} (`{part}`)", "", "```", more, "```", ""] if found and more else []
    return out[:-1]


def commands(r: Row) -> list[str]:
    if r["stage"] == "claim":
        return []
    return ["```", f"posttrain run {r['name']}", f"posttrain show {r['name']}", "```"]


def expected(r: Row) -> list[str]:
    """The experiment behind its claim, how to repeat it, and the numbers it gave."""
    claim = index()["claims"].get(r["id"])
    if claim is None or not claim["attempts"]:
        return []
    last = claim["attempts"][-1]
    lines = [f"`posttrain check {claim['id']}` (in a checkout) repeats this experiment: {claim['experiment']}", ""]
    if last.get("earlier"):
        lines += [
            f"These are the numbers of attempt {last['attempt']}, at an earlier claim with other checks or seeds:",
            "",
        ]
    for c in last["checks"]:
        numbers = f"{c['difference']:+.3g} {span(c)} in the claimed direction{spent(c)}"
        lines.append(f"- {c['name']}: {c['metric']} differs by {numbers}: {'shown' if c['shown'] else 'not shown'}")
    return lines


def proof(r: Row) -> list[str]:
    """Levels in words, then what each rests on."""
    out = [f"{in_words(evidence(r))}.", ""] if in_words(evidence(r)) != "-" else ["None is recorded yet.", ""]
    for level in ("derived", "learns"):
        out += [f"{level}: {', '.join(f'`{t}`' for t in r[level])}", ""] if r[level] else []
    claim, measured = index()["claims"].get(r["id"]), index()["real"].get(r["id"])
    if claim:
        made = f", [attempts]({_UP}{attempts_file(claim)})" if claim["attempts"] else ""
        out += [f"The claim: {claim['says']} ([experiment]({_UP}{claim['file']}){made})", ""]
        out += [*tried(claim), ""] if made else []
        out += ["As the experiment stands now it has not been run yet.", ""] if claim.get("waiting") else []
    if measured:
        setup = f"{measured['model']}, {measured['task']}, {measured['samples']:,} answers, {measured['hardware']}"
        out += [f"With a real model ({setup}, [file]({_UP}{measured['file']})): {measured['found']}", ""]
    return out[:-1]


def part_links(r: Row) -> list[str]:
    """Each part as the system uses it, with its place in the stage's page and its source."""
    out = []
    for p in r["parts"]:
        stage, name = p["part"].split("/")
        found = row(stage, name)
        file = f", [source]({_UP}{found['file']})" if found else ""
        out.append(f"- {p['field']}: [`{p['as']}`]({_UP}docs/stages/{stage}.md#{name}){file}")
    return out
