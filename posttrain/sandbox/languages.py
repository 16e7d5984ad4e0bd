"""What each language needs to see of the machine, and how its programs are started in the sandbox."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from posttrain.core.errors import UserError
from posttrain.sandbox.host import box_uid

FOLDER = "/work"  # the program's own folder in the sandbox
_SHARED = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/lib", "/lib32", "/lib64")
# the shell says that the sandbox stands, then the program takes its place; 0 is the link until then
_READY = "printf started >&0; "
_SCRIPTS = {
    "bash": _READY + "exec /usr/bin/bash main.bash < .stdin",
    "c": _READY + "exec < .stdin; /usr/bin/gcc -O1 -o main main.c -lm || exit 1; exec ./main",
    "javascript": _READY + "exec /usr/bin/node main.js < .stdin",
}
ENDINGS = {"bash": "bash", "c": "c", "javascript": "js"}
_NEEDS = {"bash": "bash", "c": "gcc", "javascript": "node"}
_PACKAGES = {"bash": "bash", "c": "gcc libc6-dev", "javascript": "nodejs"}


@dataclass(frozen=True)
class Start:
    """A command in the sandbox, and what of the machine it may read."""

    command: tuple[str, ...]
    reads: tuple[str, ...]
    forks: bool  # it is a shell, or starts one: it needs a cgroup that counts
    packages: tuple[str, ...] = ()


def shell(language: str) -> Start:
    """How a program of another language is compiled and started."""
    tool = f"/usr/bin/{_NEEDS[language]}"
    if not os.path.exists(tool):
        raise UserError(
            f"programs in {language} need {tool}, which is not there; type: apt-get install {_PACKAGES[language]}"
        )
    return Start(
        ("/bin/sh", "-c", _SCRIPTS[language]), ("/bin", "/usr/bin", "/usr/include", "/usr/libexec", *_SHARED), True
    )


@cache
def python() -> Start:
    """The interpreter for Python programs: this one's, if that user may read it, else the machine's."""
    own = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    others = [Path(p) for p in (shutil.which("python3", path="/usr/bin:/usr/local/bin"),) if p]
    tried = [*([Path(p)] if (p := os.environ.get("POSTTRAIN_SANDBOX_PYTHON")) else [own, *others])]
    for path in tried:
        if readable(path, box_uid()):
            return interpreter(path.resolve())
    raise UserError(
        f"the sandbox runs programs as a user of few rights, who cannot read {' or '.join(map(str, tried))}; install Python "
        "for all (apt-get install python3), or name one: export POSTTRAIN_SANDBOX_PYTHON=/path/to/bin/python3"
    )


def interpreter(path: Path) -> Start:
    """Its binary and its standard library, not what else was installed beside it."""
    prefix = path.parent.parent

    own = [] if str(prefix) == "/usr" else [str(prefix / "lib")]
    return Start((str(path), "-s", "-S", "-B", "-X", "utf8"), (str(path), *own, *_SHARED), False)


def readable(path: Path, uid: int) -> bool:
    """Whether a user of no group in common may run the file: every folder above it lets others through."""
    try:
        real = path.resolve(strict=True)
        if uid == os.getuid():
            return os.access(real, os.X_OK)
        return all(p.stat().st_mode & stat.S_IXOTH for p in (real, *real.parents))
    except OSError:
        return False
