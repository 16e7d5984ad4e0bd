"""What git says of a claim: margins are fixed, and public, before the seeds that decide are run.

On a machine without git (a copy of the working tree) the file COMMIT at its root may hold the hash: `git rev-parse HEAD > COMMIT`
before it is copied. Nothing is recorded there; the results are merged, and recorded, where the history is.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from claims.machinery import fingerprint as marks
from posttrain.core.errors import UserError

STAMP = "COMMIT"


def git(*words: str) -> str | None:
    """What git answers; None where there is no git, no repository, or no such thing."""
    try:
        found = subprocess.run(["git", *words], cwd=marks.ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return found.stdout if found.returncode == 0 else None


def commit() -> str:
    """The commit of this checkout; of a copy without its history, what its file COMMIT says; else empty."""
    if has_history():
        return (git("rev-parse", "HEAD") or "").strip()
    stamp = marks.ROOT / STAMP
    return stamp.read_text().strip() if stamp.is_file() else ""


def has_history() -> bool:
    """Whether this is a checkout with its own history, and no copy that lies in somebody else's."""
    top = git("rev-parse", "--show-toplevel")
    return (
        top is not None and Path(top.strip()).resolve() == marks.ROOT.resolve() and git("rev-parse", "HEAD") is not None
    )


def must_be_committed(files: list[str]) -> None:
    """An error unless git has these files as they are: a margin that is not committed could still be moved."""
    for file in files:
        if git("ls-files", "--error-unmatch", file) is None:
            raise UserError(
                f"{file} is not committed; commit it before its seeds are run, or try it out with --no-write"
            )
    if changed := (git("diff", "HEAD", "--name-only", "--", *files) or "").split():
        raise UserError(
            f"{changed[0]} differs from what is committed; commit it before its seeds are run, or try it out with --no-write"
        )


def must_have_been_committed(file: str, then: str) -> None:
    """An error unless the file was the same at the commit with which results were made, and that commit is one of ours."""
    if git("merge-base", "--is-ancestor", then, "HEAD") is None:
        raise UserError(
            f"the results were made with the commit {then[:12] or 'unknown'}, which is none of this branch's"
        )
    if (marks.ROOT / file).read_text() != git("show", f"{then}:{file}"):
        raise UserError(f"{file} has changed since {then[:12]}, with which the results were made; run it again")
