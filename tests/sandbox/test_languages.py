"""Other languages: they run, they start processes, and a cgroup bounds all of those together."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from posttrain.core.errors import UserError
from posttrain.sandbox import cgroups
from posttrain.sandbox.available import why_not
from posttrain.sandbox.bubblewrap import Bubblewrap
from posttrain.sandbox.types import Finished, Limits, Program

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no sandbox here: {why_not()}")
counted = pytest.mark.skipif(
    not cgroups.parents(), reason="this user may make no cgroup, so other languages are refused"
)
TOOLS = {"bash": "bash", "c": "gcc", "javascript": "node"}
DOUBLE = {
    "bash": 'read x; echo $((x * 2)); cat note.txt',
    "c": '#include <stdio.h>\nint main() { int x; scanf("%d", &x); printf("%d\\n", 2 * x); FILE *f = fopen("note.txt", "r"); char b[9]; fputs(fgets(b, 9, f), stdout); }',
    "javascript": 'const fs = require("fs"); console.log(2 * Number(fs.readFileSync(0, "utf8"))); process.stdout.write(fs.readFileSync("note.txt"))',
}  # fmt: skip


def play(language: str, source: str, limits: Limits = Limits(processes=32), **more: object) -> Finished:  # noqa: B008
    if shutil.which(TOOLS[language]) is None:
        pytest.skip(f"{TOOLS[language]} is not installed")
    return Bubblewrap().run(Program(language, source, **more), limits)  # type: ignore[arg-type]


@counted
@pytest.mark.parametrize("language", DOUBLE)
def test_a_program_reads_its_input_and_its_files(language: str) -> None:
    done = play(language, DOUBLE[language], files={"note.txt": b"noted"}, stdin=b"21\n")
    assert (done.stdout, done.exit, done.why) == ("42\nnoted", 0, "ended"), done


@counted
def test_a_compiler_error_is_the_program_s() -> None:
    done = play("c", "int main( { }")
    assert (done.exit, done.why) == (1, "ended") and "error" in done.stderr


@counted
def test_a_fork_bomb_is_counted() -> None:
    done = play("bash", "for i in $(seq 30); do sleep 1 & done; jobs -p | wc -l", Limits(processes=12, seconds=5))
    assert "fork" in done.stderr and "Resource temporarily unavailable" in done.stderr, done


@counted
def test_memory_is_counted_over_all_processes() -> None:
    hold = (
        "for i in 1 2 3 4 5 6 7 8; do (x=$(head -c 40000000 /dev/zero | tr '\\0' x); echo held) & done; wait; echo all"
    )
    source = hold.replace("/dev/zero", "/usr/lib/os-release").replace("head -c 40000000 /usr/lib/os-release", "yes")
    done = play("bash", source, Limits(processes=64, memory=100 << 20, seconds=8))
    assert done.stdout.count("held") < 8 or done.why == "memory", done


@counted
def test_what_is_left_behind_ends_with_the_program() -> None:
    before = set(cgroups.parents()[-1].glob("posttrain-*"))
    done = play("bash", "(trap '' TERM HUP; sleep 30) >/dev/null 2>&1 & disown; echo left")
    assert (done.stdout, done.why) == ("left\n", "ended") and done.seconds < 5
    assert set(cgroups.parents()[-1].glob("posttrain-*")) == before


@counted
@pytest.mark.parametrize(
    ("source", "safe"),
    [("cat /etc/passwd /proc/1/environ", ""), ("echo x > /usr/bin/x; echo x > /x; ls /root /home", ""), ("unshare -r id; mount -t tmpfs x /work", ""),
     ("exec 3<>/dev/tcp/127.0.0.1/22 && echo in", ""), ("echo $SECRET; env | grep -v -E '^(PATH|HOME|LANG|PWD|SHLVL|_|PYTHONHASHSEED)='", "\n"),
     ("kill -9 -1; echo alive", "alive\n")],
)  # fmt: skip
def test_the_same_walls_stand_around_a_shell(source: str, safe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "of the host")
    assert play("bash", source).stdout == safe


def test_without_a_cgroup_they_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "parents", lambda: [])
    with pytest.raises(
        UserError, match=r"start processes, which only a memory and pids cgroup can bound.*use Python programs"
    ):
        play("bash", "echo hi")


def test_where_a_group_can_be_made(tmp_path: Path) -> None:
    """Unified: beside one's own group, where both controllers are handed on; else one folder per controller, both writable."""
    own = tmp_path / "user" / "mine"
    own.mkdir(parents=True)
    for folder, handed_on in ((own, ""), (own.parent, "cpu memory pids"), (tmp_path, "memory")):
        (folder / "cgroup.procs").touch()
        (folder / "cgroup.subtree_control").write_text(handed_on)
    assert cgroups.parents(tmp_path, "0::/user/mine\n") == [own.parent]
    (own.parent / "cgroup.subtree_control").write_text("memory")
    assert cgroups.parents(tmp_path, "0::/user/mine\n") == []
    for name in ("memory", "pids"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    assert cgroups.parents(tmp_path, "8:pids:/\n4:memory:/x\n") == [tmp_path / "memory", tmp_path / "pids"]
    assert os.access(tmp_path, os.W_OK)
