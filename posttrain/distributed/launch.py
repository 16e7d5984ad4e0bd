"""`posttrain run --gpus N`: the same command in N processes of this machine, as torchrun would start them, with one line when one of them ends badly."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from posttrain.core.errors import UserError
from posttrain.distributed import spokesman

LAUNCHER = "POSTTRAIN_LAUNCHER"  # the variable with the number of the process that starts them
_LOOK = 0.1  # seconds between looks at the processes
_GRACE = 20.0  # seconds that the others have to end by themselves


def launch(count: int, argv: Sequence[str], device: str = "") -> int:
    """Start them, wait, pass signals on; the exit code of the first process, or of the one that failed."""
    check(count, device)
    words = without_gpus(argv)
    place = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }
    with tempfile.TemporaryDirectory(prefix="posttrain-") as told:
        place |= {spokesman.FOLDER: told, LAUNCHER: str(os.getpid())}
        all_of_them: list[subprocess.Popen[bytes]] = []
        asked: list[int] = []  # signals, also those that come while processes are being started

        def passed_on(number: int, frame: object) -> None:
            asked.append(number)
            send(all_of_them, number)

        before = {s: signal.signal(s, passed_on) for s in (signal.SIGTERM, signal.SIGINT)}
        try:
            for r in range(count):
                if asked:
                    return 128 + asked[0]
                env = os.environ | place | {"RANK": str(r), "LOCAL_RANK": str(r)}
                all_of_them.append(subprocess.Popen([sys.executable, "-m", "posttrain", *words], env=env))
            return wait(all_of_them)
        except OSError as error:
            raise UserError(
                f"process {len(all_of_them)} of {count} could not be started ({error}); use fewer --gpus"
            ) from None
        finally:
            stop(all_of_them)
            for number, handler in before.items():
                signal.signal(number, handler)


def check(count: int, device: str) -> None:
    """So many processes can be started here."""
    if count < 1:
        raise UserError(f"--gpus is {count}; it must be at least 1")
    if device == "cpu":
        return
    import torch

    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count > there:
        raise UserError(
            f"--gpus is {count}, and there {'is 1 GPU' if there == 1 else f'are {there} GPUs'} here; "
            "give at most as many, or --device cpu for as many processes on the CPU"
        )


def without_gpus(argv: Sequence[str]) -> list[str]:
    """The command for one of the processes."""
    out, skip = [], False
    for word in argv:
        if not skip and word != "--gpus" and not word.startswith("--gpus="):
            out.append(word)
        skip = word == "--gpus"
    return out


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait(all_of_them: Sequence[subprocess.Popen[bytes]]) -> int:
    """Until all have ended, or one has ended badly: then the others are ended too."""
    while True:
        codes = [p.poll() for p in all_of_them]
        bad = [(r, code) for r, code in enumerate(codes) if code not in (None, 0)]
        if bad:
            return failed(all_of_them, *bad[0])
        if all(code == 0 for code in codes):
            return 0
        time.sleep(_LOOK)


def failed(all_of_them: Sequence[subprocess.Popen[bytes]], rank: int, code: int) -> int:
    """Others may be about to end for the same reason; what is left after that is stopped. The first process has told what was wrong where
    it could."""
    deadline = time.monotonic() + (_GRACE if code > 0 else 1.0)
    while time.monotonic() < deadline and any(p.poll() is None for p in all_of_them):
        time.sleep(_LOOK)
    stop(all_of_them)
    first = all_of_them[0].returncode
    if code < 0 or (rank and first in (0, -signal.SIGTERM, -signal.SIGKILL)):
        how = f"was killed (signal {-code})" if code < 0 else f"ended with code {code}"
        print(
            f"process {rank} of {len(all_of_them)} {how}; the others were stopped. The same command goes on from the last checkpoint.",
            file=sys.stderr,
        )
    return code if code > 0 else 128 - code


def send(all_of_them: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    for p in all_of_them:
        if p.poll() is None:
            p.send_signal(number)


def end_with_launcher() -> None:
    """In one of the processes: end when the one that started it is gone, also by a kill -9. Nobody would stop it, and it holds the run's folder."""
    launcher = os.environ.get(LAUNCHER)
    if launcher is None:
        return

    def watch() -> None:
        while os.getppid() == int(launcher):
            time.sleep(_LOOK)
        os._exit(1)

    threading.Thread(target=watch, name="launcher", daemon=True).start()


def stop(all_of_them: Sequence[subprocess.Popen[bytes]]) -> None:
    """None of them outlives this one."""
    send(all_of_them, signal.SIGTERM)
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline and any(p.poll() is None for p in all_of_them):
        time.sleep(_LOOK / 2)
    send(all_of_them, signal.SIGKILL)
    for p in all_of_them:
        p.wait()
