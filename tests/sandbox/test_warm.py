"""The warm interpreter: what one of its forks does is nobody else's, and ends as a script would."""

from __future__ import annotations

import json
import marshal
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from posttrain.sandbox import _zygote
from posttrain.sandbox.available import why_not
from posttrain.sandbox.bubblewrap import Bubblewrap
from posttrain.sandbox.types import Limits, Program
from posttrain.sandbox.warm import Warm

needs_sandbox = pytest.mark.skipif(bool(why_not()), reason=f"no sandbox here: {why_not()}")


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    made = Warm()
    yield made
    made.close()


@needs_sandbox
def test_a_program_that_is_ended_takes_no_other_with_it(warm: Warm) -> None:
    talk = warm.talk(Program("python", "def f(x): return x + 1"))
    assert warm.run(Program("python", "import time; time.sleep(99)"), Limits(seconds=0.2)).why == "wall time"
    assert warm.run(Program("python", "import os; os.abort()")).why in ("signal 6", "signal 11")
    reply = talk.ask(marshal.dumps({"id": 1, "name": "f", "args": [41], "kwargs": {"d": []}}))
    assert reply is not None and json.loads(reply) == {"id": 1, "value": 42}
    assert talk.close().why == "signal 9"


@needs_sandbox
def test_forks_draw_numbers_of_their_own_and_have_threads(warm: Warm) -> None:
    """Without the interpreter's own steps after a fork, each would draw what the first one does."""
    source = (
        "import random, threading\nt = threading.Thread(target=print, args=(random.random(),))\nt.start()\nt.join()"
    )
    assert len({warm.run(Program("python", source)).stdout for _ in range(3)} - {""}) == 3


@needs_sandbox
@pytest.mark.parametrize("kind", ["fresh", "warm"])
def test_what_is_held_at_the_end_is_let_go(warm: Warm, kind: str) -> None:
    """The last thing first, while the functions and modules that it uses are still there; after what was registered to be done at exit."""
    source = (
        "import atexit, math\natexit.register(print, 'registered')\n"
        "def say(n): print('gone', n, math.floor(2.5))\n"
        "class A:\n    def __init__(self, n): self.n = n\n    def __del__(self): say(self.n)\n"
        "a, b = A(1), A(2)\nprint('end')\nraise SystemExit(3)"
    )
    done = (warm if kind == "warm" else Bubblewrap()).run(Program("python", source))
    assert done.stdout == "end\nregistered\ngone 2 2\ngone 1 2\n" and done.exit == 3 and not done.stderr


def test_where_no_namespace_can_be_made_only_that_program_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork(number: int) -> int:
        raise OSError(28, "no new namespaces: No space left on device")

    monkeypatch.setattr(_zygote, "fork", fork)
    out, inside = os.pipe()
    given = [os.dup(inside) for _ in range(5)]
    os.close(inside)
    assert _zygote.begun(56, given) is None
    assert b"no new namespaces" in os.read(out, 200) and os.read(out, 1) == b""  # all its ends are closed
    os.close(out)


@pytest.mark.parametrize("how", ["time", "hung up", "by itself"])
def test_a_program_is_waited_for_and_told_of(how: str) -> None:
    """Its time is up, the other side has hung up, or it ends: the exit code or the signal, and the seconds of processor."""
    control, other = socket.socketpair()
    status, mine = socket.socketpair()
    child = subprocess.Popen(["sleep", "0" if how == "by itself" else "60"])
    kept = _zygote.Kept(control.fileno())
    one = _zygote.Keeper(child.pid, status.detach(), 0.0 if how == "time" else 20.0)
    kept.take(one)
    if how == "hung up":
        mine.shutdown(socket.SHUT_WR)
    for _ in range(50):
        for fd in kept.ready() & kept.keys():
            kept.look(fd)
        if how == "time" and kept:
            assert one.due <= time.monotonic()  # `ready` came back for this
            one.kill()
            how = "killed"
        if not kept:
            break
    assert not kept
    code, cpu = json.loads(mine.recv(100))
    assert code == (0 if how == "by itself" else -signal.SIGKILL) and 0 <= cpu < 60
    child.returncode = code
    for end in (control, other, mine):
        end.close()
