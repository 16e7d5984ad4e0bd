"""Which sandbox there is on this machine; a refusal that says what to do where there is none."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import cache

from posttrain.core.errors import UserError
from posttrain.sandbox import seccomp
from posttrain.sandbox.bubblewrap import Bubblewrap
from posttrain.sandbox.types import USUAL, Conversation, Finished, Limits, Program, Sandbox, SandboxBroken
from posttrain.sandbox.unsafe import WARNING, Unsafe
from posttrain.sandbox.warm import Warm

_OTHERWISE = (
    "on a machine that is thrown away afterwards, allow_unsafe_code=True runs programs unisolated, with your rights"
)
# what bwrap says -> what is the matter, what to do
_CAUSES = (
    ("max_user_namespaces", "this machine allows no user namespaces; as root type: sysctl user.max_user_namespaces=10000"),
    ("creating new namespace failed", "this container or kernel allows no user namespaces; start the container with "
     "--security-opt seccomp=unconfined --security-opt apparmor=unconfined, or as root type: sysctl user.max_user_namespaces=10000"),
    ("no permissions to creat", "this container or kernel allows no user namespaces; start the container with --security-opt "
     "seccomp=unconfined, or as root type: sysctl kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0"),
    ("setting up uid map", "AppArmor forbids user namespaces here; as root type: sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
    ("mount", "this container may not mount; start it with --security-opt seccomp=unconfined --security-opt apparmor=unconfined"),
    ("setpriv", "this root user may not become another one, and a sandbox of the host's root could be left; start the container "
     "with --cap-add SETUID --cap-add SETGID"),
)  # fmt: skip


def sandbox(allow_unsafe_code: bool = False) -> Sandbox:
    """The sandbox of this machine. Where it cannot be made there is a UserError, and never something less in its place."""
    if allow_unsafe_code:
        _warn()
        return Unsafe()
    if told := why_not():
        raise UserError(told)
    return Isolated()


@dataclass(frozen=True)
class Isolated:
    """Python programs in forks of a warm interpreter, those of other languages each in a fresh sandbox."""

    python: Warm | Bubblewrap = field(default_factory=lambda: _python())
    others: Bubblewrap = field(default_factory=Bubblewrap)

    def run(self, program: Program, limits: Limits = USUAL) -> Finished:
        """What comes of a program."""
        return (self.python if program.language == "python" else self.others).run(program, limits)

    def talk(self, program: Program, limits: Limits = USUAL, mode: str = "calls") -> Conversation:
        """A Python program that answers calls."""
        return (self.python if program.language == "python" else self.others).talk(program, limits, mode)


def _python() -> Warm | Bubblewrap:
    """Where a namespace cannot be made in another (some containers), each program starts an interpreter: as isolated, slower."""
    warm = Warm()
    try:
        if warm.run(Program("python", "print(6 * 7)")).stdout == "42\n":
            return warm
    except SandboxBroken:
        pass
    warm.close()
    return Bubblewrap()


@cache
def why_not() -> str:
    """Why there is no sandbox here, and what to do; "" where there is one. It is found out by running a program in one."""
    if not sys.platform.startswith("linux"):
        return f"the sandbox for programs needs Linux, and this is {sys.platform}; {_OTHERWISE}"
    try:
        seccomp.supported()
        done = Bubblewrap().run(Program("python", "print(6 * 7)"), Limits())
    except UserError as error:
        return f"{error}; {_OTHERWISE}"
    except SandboxBroken as error:
        return f"{cause(str(error))}; {_OTHERWISE}"
    if done.stdout != "42\n":
        return f"the sandbox does not work here: {done.why}, {done.stderr.strip()[-300:] or 'no output'}; {_OTHERWISE}"
    return ""


def cause(said: str) -> str:
    """What bwrap said in words that help."""
    for words, told in _CAUSES:
        if words in said.lower():
            return f"programs of a model run only in a sandbox, and {told} ({said})"
    return f"programs of a model run only in a sandbox, and none can be made here: {said}"


@cache
def _warn() -> None:
    print(f"warning: {WARNING}", file=sys.stderr)
