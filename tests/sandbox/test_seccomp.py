"""The filter, run by a small interpreter of its instructions, and its numbers against the kernel's headers."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from posttrain.core.errors import UserError
from posttrain.sandbox import seccomp
from posttrain.sandbox.syscalls import NUMBERS, RULED

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def verdict(program: bytes, number: int, arch: int, first: int = 0, second: int = 0) -> int:
    """What the kernel would answer to a call."""
    memory = struct.pack("<IIQQQ", number, arch, 0, first, second)
    steps, at, held = list(struct.iter_unpack("HBBI", program)), 0, 0
    while True:
        code, yes, no, k = steps[at]
        at += 1
        if code == 0x20:
            (held,) = struct.unpack_from("<I", memory, k)
        elif code == 0x06:
            return k
        else:
            at += yes if {0x15: held == k, 0x35: held >= k, 0x45: bool(held & k)}[code] else no


@pytest.mark.parametrize("machine", NUMBERS)
@pytest.mark.parametrize("fork", [False, True])
def test_every_call_gets_the_verdict_it_should(machine: str, fork: bool) -> None:
    program, numbers, arch = seccomp.program(fork, machine), NUMBERS[machine], ARCH[machine]
    refused = {number: "" for number in range(600)}
    for name, number in numbers.items():
        refused.pop(number)
        if name not in RULED:
            assert verdict(program, number, arch) == seccomp.ALLOW, name
    assert {verdict(program, number, arch) for number in refused} == {seccomp.error(errno.ENOSYS)}
    assert verdict(program, numbers["read"], 0x40000003) == seccomp.KILL  # a call of another architecture
    assert verdict(program, 0x40000000 | numbers["read"], arch) == seccomp.error(errno.ENOSYS)

    def says(name: str, first: int = 0, second: int = 0) -> int:
        return verdict(program, numbers[name], arch, first, second)

    thread, process, namespace = 0x003D0F00, 17, 0x10000000
    assert says("clone", thread) == seccomp.ALLOW
    assert says("clone", process) == (seccomp.ALLOW if fork else seccomp.error(errno.EAGAIN))
    assert says("clone", process | namespace) == says("clone", thread | namespace) == seccomp.error(errno.EPERM)
    assert says("execve") == (seccomp.ALLOW if fork else seccomp.error(errno.EPERM))
    assert says("clone3") == seccomp.error(errno.ENOSYS)
    assert says("socket", 1) == says("socket", 2) == seccomp.error(errno.EACCES)
    assert says("socketpair", 1, 1) == says("socketpair", 1, 0x80801) == seccomp.ALLOW
    assert says("socketpair", 2, 1) == seccomp.error(errno.EAFNOSUPPORT)
    assert says("socketpair", 1, 2) == says("socketpair", 1, 0x80005) == seccomp.error(errno.ESOCKTNOSUPPORT)
    assert says("ioctl", 0, 0x5401) == says("ioctl", 0, 0x5451) == seccomp.ALLOW
    assert says("ioctl", 0, 0x5412) == seccomp.error(errno.ENOTTY)  # TIOCSTI
    assert says("prctl", 15) == seccomp.ALLOW and says("prctl", 22) == seccomp.error(errno.EINVAL)


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_the_numbers_are_the_kernel_s(machine: str, header: str) -> None:
    if not Path(header).is_file():
        pytest.skip("the kernel's headers are not installed")
    known = {name: int(n) for name, n in re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", Path(header).read_text())}
    known |= (
        {"newfstatat": 79, "fadvise64": 223} if machine == "aarch64" else {}
    )  # defined there by way of another name
    assert {name: known[name] for name in NUMBERS[machine]} == NUMBERS[machine]


def test_another_processor_is_refused() -> None:
    with pytest.raises(UserError, match=r"x86_64 and aarch64, and this machine is riscv64"):
        seccomp.program(machine="riscv64")
