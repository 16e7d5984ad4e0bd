"""Programs that attack the sandbox, each run in both kinds; what is asserted is what the program saw, or what became of it.

An attack prints what it got; `safe` is what it may print. "error" stands for any exception, printed by its errno or type.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.sandbox.available import why_not
from posttrain.sandbox.bubblewrap import Bubblewrap
from posttrain.sandbox.types import Limits, Program, Sandbox
from posttrain.sandbox.warm import Warm

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no sandbox here: {why_not()}")

SYSCALL = "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\ndef call(*a):\n    r = libc.syscall(*a)\n    print('refused' if r == -1 else f'did {r}')\n"
TRY = "def attempt(f):\n    try:\n        print('did', f())\n    except Exception as e:\n        print('refused', type(e).__name__)\n"

# name -> (what the program does after TRY or SYSCALL, the words that its output must consist of)
SEEN: dict[str, tuple[str, str]] = {
    # files of the host
    "read-passwords": (TRY + "attempt(lambda: open('/etc/shadow').read())\nattempt(lambda: open('/etc/passwd').read())",
                       "refused FileNotFoundError " * 2),
    "list-home": (TRY + "import os\nattempt(lambda: os.listdir('/root'))\nattempt(lambda: os.listdir('/home'))", "refused FileNotFoundError " * 2),
    "read-proc-environment": (TRY + "attempt(lambda: open('/proc/1/environ').read())\nattempt(lambda: open('/proc/self/environ').read())",
                              "refused FileNotFoundError " * 2),
    "read-proc-machine": (TRY + "for f in ('cpuinfo', 'meminfo', 'loadavg', 'self/mountinfo', 'kcore'): attempt(lambda: open('/proc/' + f).read(9))",
                          "refused FileNotFoundError " * 5),
    "read-sys": (TRY + "import os\nattempt(lambda: os.listdir('/sys'))", "refused FileNotFoundError"),
    "climb-by-dots": (TRY + "attempt(lambda: open('/work/../../../../etc/hostname').read())", "refused FileNotFoundError"),
    "symlink-out": (TRY + "import os\nos.symlink('/etc/passwd', 'link')\nattempt(lambda: open('link').read())", "refused FileNotFoundError"),
    "hard-link-out": (TRY + "import os\nattempt(lambda: os.link('/usr/lib/os-release', 'mine'))", "refused OSError"),
    # writing outside
    "write-root": (TRY + "attempt(lambda: open('/x', 'w'))\nattempt(lambda: open('/dev/x', 'w'))", "refused OSError refused OSError"),
    "write-library": (TRY + "import json\nattempt(lambda: open(json.__file__, 'w'))", "refused OSError|refused PermissionError"),
    "write-kernel-settings": (TRY + "attempt(lambda: open('/proc/sys/kernel/core_pattern', 'w').write('|/x'))", "refused FileNotFoundError"),
    "remount-writable": (SYSCALL + "print('refused' if libc.mount(None, b'/', None, 32 | 4096, None) else 'did')", "refused"),
    # environment
    "own-environment": ("import os\nprint(sorted(os.environ))", "['HOME', 'LANG', 'PATH', 'PWD', 'PYTHONHASHSEED']"),
    # network
    "tcp": (TRY + "import socket\nattempt(lambda: socket.create_connection(('127.0.0.1', PORT), 1))", "refused PermissionError"),
    "udp": (TRY + "import socket\nattempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))", "refused PermissionError"),
    "unix-socket": (TRY + "import socket\nattempt(lambda: socket.socket(socket.AF_UNIX).connect('PATH'))", "refused PermissionError"),
    "abstract-socket": (TRY + "import socket\nattempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0ABSTRACT'))", "refused PermissionError"),
    "netlink-vsock-packet": (TRY + "import socket\nfor kind in (16, 40, 17): attempt(lambda: socket.socket(kind, socket.SOCK_RAW))",
                             "refused PermissionError " * 3),
    "socketpair-of-another-family": (TRY + "import socket\nattempt(lambda: socket.socketpair(socket.AF_INET))", "refused OSError"),
    "datagrams-to-another-program": (TRY + "import socket\nfor kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET): attempt(lambda: socket.socketpair(socket.AF_UNIX, kind))",
                                     "refused OSError " * 2),
    "resolve-a-name": (TRY + "import socket\nattempt(lambda: socket.gethostbyname('example.com'))", "refused gaierror"),
    # processes
    "fork": (TRY + "import os\nattempt(os.fork)", "refused BlockingIOError"),
    "subprocess": (TRY + "import subprocess\nattempt(lambda: subprocess.run(['/usr/bin/env']))", "refused BlockingIOError|refused FileNotFoundError"),
    "another-program": (TRY + "import os\nattempt(lambda: os.execv('/usr/lib/ld-linux.so.2', ['x']))\nattempt(lambda: os.posix_spawn('/usr/bin/env', ['x'], {}))",
                        "refused PermissionError refused BlockingIOError|refused PermissionError refused PermissionError"),
    "multiprocessing": (TRY + "import multiprocessing as m\nattempt(lambda: m.Process(target=print).start())", "refused BlockingIOError|refused OSError"),
    "signal-everyone": (TRY + "import os, signal\nsignal.signal(15, signal.SIG_IGN)\nattempt(lambda: os.kill(-1, 15))\nattempt(lambda: os.kill(HOST, 0))",
                        "refused ProcessLookupError refused ProcessLookupError"),
    "kill-the-parent": (TRY + "import os\nprint(os.getppid())\nattempt(lambda: os.kill(2, 9))", "0 refused ProcessLookupError"),
    # system calls (numbers of x86-64)
    "ptrace": (SYSCALL + "call(101, 0, 0, 0, 0)", "refused"),
    "read-another-memory": (SYSCALL + "call(310, 1, 0, 0, 0, 0, 0)", "refused"),
    "new-user-namespace": (SYSCALL + "print('refused' if libc.unshare(0x10000000) else 'did')", "refused"),
    "clone-into-a-namespace": (SYSCALL + "call(56, 0x10000000 | 17, 0, 0, 0, 0)\ncall(435, 0, 0)", "refused refused"),
    "join-a-namespace": (SYSCALL + "call(308, 0, 0)", "refused"),
    "chroot-and-pivot": (SYSCALL + "call(161, b'/work')\ncall(155, b'/work', b'/work')", "refused refused"),
    "make-a-device": (TRY + "import os\nattempt(lambda: os.mknod('sda', 0o60600, os.makedev(8, 0)))\nattempt(lambda: os.mkfifo('f'))", "refused OSError refused OSError"),
    "become-root": (TRY + "import os\nattempt(lambda: os.setuid(0))\nattempt(lambda: os.setgroups([0]))\nprint(os.getuid() != 0)", "refused OSError refused OSError True"),
    "setuid-file": ("import os\nopen('s', 'w')\nos.chmod('s', 0o6755)\nprint(os.statvfs('.').f_flag & os.ST_NOSUID > 0, os.statvfs('/usr/lib').f_flag & os.ST_NOSUID > 0)", "True True"),
    "capabilities": (SYSCALL + "h, d = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()\nprint(libc.capget(h, d), sum(d))", "0 0"),
    "keyring": (SYSCALL + "call(250, 0, -3, 0)\ncall(248, b'user', b'x', b'y', 1, -3)", "refused refused"),
    "io-uring": (SYSCALL + "call(425, 1, ctypes.create_string_buffer(200))", "refused"),
    "userfaultfd-bpf-perf": (SYSCALL + "call(323, 0)\ncall(321, 0, 0, 0)\ncall(298, 0, 0, 0, 0, 0)", "refused " * 3),
    "system-v-memory": (SYSCALL + "call(29, 0, 4096, 0o1600)\ncall(64, 0, 1, 0o1600)\ncall(68, 0, 0o1600)", "refused " * 3),
    "memory-files": (TRY + "import os\nattempt(lambda: os.memfd_create('x'))", "refused OSError"),
    "32-bit-calls": (SYSCALL + "call(0x40000000 | 39)", "refused"),
    "type-into-the-terminal": (TRY + "import fcntl\nattempt(lambda: fcntl.ioctl(0, 0x5412, b'x'))\nattempt(lambda: open('/dev/tty'))", "refused OSError refused FileNotFoundError|refused OSError refused OSError"),
    "undo-the-filter": (SYSCALL + "call(317, 1, 0, 0)\nprint(libc.prctl(38, 0, 0, 0, 0), libc.prctl(22, 0, 0, 0, 0))", "refused -1 -1"),
    "raise-the-limits": (TRY + "import resource as r\nfor k in (r.RLIMIT_AS, r.RLIMIT_CPU, r.RLIMIT_NPROC, r.RLIMIT_FSIZE): attempt(lambda: r.setrlimit(k, (-1, -1)))", "refused ValueError " * 4),
    "other-descriptors": ("import os\nopen_ = []\nfor fd in range(3, 200):\n    try: os.fstat(fd); open_.append(fd)\n    except OSError: pass\nprint(open_)", "[]"),
    "change-its-input": (TRY + "import os\nattempt(lambda: os.pwrite(0, b'x', 0))\nattempt(lambda: os.ftruncate(0, 1 << 20))", "refused PermissionError refused PermissionError"),
    "host-name": ("import os\nprint(os.uname().nodename)", "sandbox"),
    "uptime": (SYSCALL + "call(99, ctypes.create_string_buffer(200))", "refused"),
}  # fmt: skip

# name -> (program, how it ends, limits)
ENDED: dict[str, tuple[str, str, Limits]] = {
    "endless-loop": ("while True: pass", "wall time", Limits(seconds=0.3)),
    "spin-past-the-signal": ("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass", "CPU time", Limits(cpu=1)),
    "sleep": ("import time\ntime.sleep(99)", "wall time", Limits(seconds=0.2)),
    "ignore-every-signal": ("import signal, time\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n    except OSError: pass\ntime.sleep(99)",
                            "wall time", Limits(seconds=0.2)),
    "threads-that-never-end": ("import threading, time\n[threading.Thread(target=time.sleep, args=(99,)).start() for _ in range(3)]", "wall time", Limits(seconds=0.3)),
    "endless-output": ("while True: print('x' * 9999)", "output", Limits(output=1 << 16)),
    "endless-errors": ("import os\nwhile True: os.write(2, b'x' * 9999)", "output", Limits(output=1 << 16)),
    "closed-pipes": ("import os, time\nos.close(1); os.close(2)\ntime.sleep(99)", "wall time", Limits(seconds=0.3)),
}  # fmt: skip

# name -> (program, the error that it must be told, limits)
TOLD: dict[str, tuple[str, str, Limits]] = {
    "memory-bomb": ("x = bytearray(2 << 30)", "MemoryError", Limits()),
    "memory-drop-by-drop": ("x = []\nwhile True: x.append(bytearray(1 << 22))", "MemoryError", Limits(memory=1 << 28)),
    "shared-memory": ("import mmap\nx = [mmap.mmap(-1, 1 << 28) for _ in range(9)]", "OSError: [Errno 12]", Limits()),
    "huge-file": ("open('big', 'wb').write(b'x' * (80 << 20))", "OSError: [Errno 2", Limits(memory=1 << 30)),
    "many-files": ("for i in range(99): open(str(i), 'wb').write(b'x' * (1 << 20))", "No space left", Limits(disk=8 << 20)),
    "empty-files": ("i = 0\nwhile True:\n    open(str(i), 'w').close(); i += 1", "No space left", Limits(disk=1 << 18)),
    "many-descriptors": ("x = [open('/dev/null') for _ in range(999)]", "Too many open files", Limits()),
    "thread-bomb": ("import threading, time\nthreading.stack_size(1 << 16)\nfor _ in range(999): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()", "can't start new thread", Limits(memory=1 << 34)),
    "deep-recursion": ("def f(): f()\nf()", "RecursionError", Limits()),
}  # fmt: skip


@pytest.fixture(scope="module", params=["fresh", "warm"])
def box(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    if request.param == "fresh":
        yield Bubblewrap()
    else:
        warm = Warm()
        yield warm
        warm.close()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Things on the host that a program could reach if it were let out: they are there, so that a refusal means something."""
    path = str(tmp_path_factory.mktemp("host") / "socket")
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix, socket.socket(socket.AF_UNIX) as abstract:
        tcp.bind(("127.0.0.1", 0))
        unix.bind(path)
        abstract.bind(f"\0posttrain-{os.getpid()}")
        for one in (tcp, unix, abstract):
            one.listen()
        yield {
            "PORT": str(tcp.getsockname()[1]),
            "PATH": path,
            "ABSTRACT": f"posttrain-{os.getpid()}",
            "HOST": str(os.getpid()),
        }


@pytest.mark.parametrize("name", SEEN)
def test_the_program_sees(name: str, box: Sandbox, host: dict[str, str]) -> None:
    source, safe = SEEN[name]
    if "call(" in source and os.uname().machine != "x86_64":
        pytest.skip("the numbers of these system calls are those of x86-64")
    for word, value in host.items():
        source = source.replace(word, value) if word != "PATH" or "connect" in source else source
    done = box.run(Program("python", source))
    assert " ".join(done.stdout.split()) in [" ".join(s.split()) for s in safe.split("|")], done


@pytest.mark.parametrize("name", ENDED)
def test_a_limit_ends_it(name: str, box: Sandbox) -> None:
    source, why, limits = ENDED[name]
    done = box.run(Program("python", source), limits)
    assert done.why == why
    assert done.seconds < 8
    assert len(done.stdout) + len(done.stderr) <= 2 * limits.output


@pytest.mark.parametrize("name", TOLD)
def test_an_error_tells_it(name: str, box: Sandbox) -> None:
    source, error, limits = TOLD[name]
    done = box.run(Program("python", source), limits)
    assert (done.why, done.exit) == ("ended", 1)
    assert error in done.stderr


def test_an_attack_on_the_host_would_be_seen(host: dict[str, str]) -> None:
    """The same programs outside of a sandbox do reach those things."""
    with socket.create_connection(("127.0.0.1", int(host["PORT"])), 1), socket.socket(socket.AF_UNIX) as unix:
        unix.connect(host["PATH"])
    assert Path("/etc/passwd").read_text() and Path("/proc/self/environ").exists()


def test_there_are_forty_attacks() -> None:
    assert len(SEEN) + len(ENDED) + len(TOLD) >= 60
