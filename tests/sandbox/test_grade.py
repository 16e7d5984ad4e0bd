"""The grader: what it reads in rows, and thirteen ways (and some more) to cheat it."""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from typing import Any

import pytest

from posttrain.sandbox.available import why_not
from posttrain.sandbox.bubblewrap import Bubblewrap
from posttrain.sandbox.grade import Grade, grade
from posttrain.sandbox.row_tests import Call, Exchange, Script, call_of, has_tests, read_tests
from posttrain.sandbox.types import Limits, Program, Sandbox
from posttrain.sandbox.values import DEEPEST, LARGEST, Ref, dumps, loads, pack, unpack
from posttrain.sandbox.warm import Warm

needs_sandbox = pytest.mark.skipif(bool(why_not()), reason=f"no sandbox here: {why_not()}")
ASSERTS = {"test_list": ["assert square(3) == 9", "assert square(12) == 144"]}
CHECK = {
    "test": "def check(candidate):\n    assert candidate(3) == 9\n    assert candidate(12) == 144\n",
    "entry_point": "square",
}
PRINTS = {"tests": [{"input": "3\n", "output": "9"}, {"input": "12\n", "output": "144"}]}


@pytest.fixture(scope="module")
def box() -> Iterator[Warm]:
    warm = Warm()
    yield warm
    warm.close()


def graded(box: Sandbox, source: str, row: dict[str, Any], seconds: float = 3.0) -> Grade:
    return grade(box, Program("python", source), read_tests(row), Limits(seconds=seconds, cpu=5))


HONEST = "def square(x):\n    return x * x\n"
# a program that does not square, and how it hopes to be paid
HACKS = {
    "exit-0": "import sys\nsys.exit(0)",
    "exit-0-when-called": "import sys\ndef square(x): sys.exit(0)",
    "_exit-0": "import os\ndef square(x): os._exit(0)",
    "print-pass": "print('PASS', 'OK', '2 passed', 9, 144, flush=True)\ndef square(x): print('PASS'); return None",
    "equals-everything": "class E(int):\n    __eq__ = lambda s, o: True\n    __ne__ = lambda s, o: False\n    __hash__ = lambda s: 9\ndef square(x): return E(5)",
    "object-that-equals": "class E:\n    __eq__ = lambda s, o: True\ndef square(x): return E()",
    "patched-builtins": "import builtins\nbuiltins.AssertionError = ValueError\nbuiltins.all = builtins.isinstance = builtins.bool = lambda *a: True\ndef square(x): return 5",
    "patched-driver": "import sys\nm = sys.modules['__main__'].__dict__\nfor n in ('pack', 'dumps', 'done'):\n    if n in m: m[n] = lambda *a: b'{\"value\": true}'\ndef square(x): return 5",
    "search-frames": "import sys\ndef square(x):\n    f, seen = sys._getframe(), []\n    while f:\n        seen += [repr(v) for v in f.f_locals.values()]\n        f = f.f_back\n    text = ' '.join(seen)\n    return 9 if '== 1' + '44' in text else 5",
    "search-heap": "import gc\ndef square(x):\n    for o in gc.get_objects():\n        if isinstance(o, list) and 144 in [v for v in o if isinstance(v, int)]: return {3: 9, 12: 144}[x]\n    return 5",
    "search-files": "import os\ndef square(x):\n    text = ''.join(open(f).read() for f in os.listdir('.'))\n    return {3: 9, 12: 144}[x] if '= 1' + '44' in text else 5",
    "atexit": "import atexit, os\natexit.register(lambda: os._exit(0))\ndef square(x): return 5",
    "excepthook": "import sys\nsys.excepthook = lambda *a: print('PASS')\ndef square(x): raise ValueError",
    "forged-frames": "import os, json\nfor fd in range(3, 64):\n    for v in (9, 144):\n        d = json.dumps({'id': '0', 'value': v}).encode()\n        try: os.write(fd, len(d).to_bytes(4, 'big') + d)\n        except OSError: pass\ndef square(x): return 5",
    "forged-verdict": "import os, json\nfor fd in range(3, 64):\n    d = json.dumps({'told': ['', ''], 'passed': 2}).encode()\n    try: os.write(fd, len(d).to_bytes(4, 'big') + d)\n    except OSError: pass\ndef square(x): return 5",
    "huge-frame": "import os\ndef square(x):\n    for fd in range(3, 64):\n        try: os.write(fd, b'\\x7f\\xff\\xff\\xff' + b'x' * 4096)\n        except OSError: pass\n    return 5",
    "huge-value": "def square(x): return [0] * 600000",
    "deep-value": "def square(x):\n    v = []\n    for _ in range(5000): v = [v]\n    return v",
    "endless-digits": "def square(x): return 10 ** 9000",
    "read-ahead": "import os\ndef square(x):\n    for fd in range(3, 64):\n        try:\n            os.set_blocking(fd, False)\n            if b'12' in os.read(fd, 4096): return 9\n        except OSError: pass\n    return 5",
    "silence": "import time\ndef square(x): time.sleep(60)",
    "error-that-is-eval": "import json, os, sys\ndef square(x):\n    f = sys._getframe()\n    while 'question' not in f.f_locals or 'fd' not in f.f_locals: f = f.f_back\n    run = 'send(self._fd, dumps({\"told\": [\"\", \"\"]}))'\n    d = json.dumps({'id': f.f_locals['question']['id'], 'error': ['eval', run]}).encode()\n    os.write(f.f_locals['fd'], len(d).to_bytes(4, 'big') + d)\n    os._exit(0)",
    "delete-the-tests": "import os, shutil\nshutil.rmtree('.', ignore_errors=True)\ndef square(x): return 5",
    "wrong-container": "def square(x): return [x * x]",
    "text-of-the-answer": "def square(x): return str(x * x)",
}  # fmt: skip


@needs_sandbox
@pytest.mark.parametrize("row", [ASSERTS, CHECK], ids=["calls", "script"])
@pytest.mark.parametrize("hack", HACKS)
def test_a_hack_is_not_paid(hack: str, row: dict[str, Any], box: Warm) -> None:
    found = graded(box, HACKS[hack], row, seconds=0.5 if hack == "silence" else 3.0)
    assert found.passed == 0 and found.why, found


@needs_sandbox
@pytest.mark.parametrize("kind", ["fresh", "warm"])
@pytest.mark.parametrize("row", [ASSERTS, CHECK], ids=["calls", "script"])
def test_an_honest_program_passes(kind: str, row: dict[str, Any], box: Warm) -> None:
    found = graded(Bubblewrap() if kind == "fresh" else box, HONEST, row)
    assert found.passed == found.total > 0, found


@needs_sandbox
def test_programs_that_print(box: Warm) -> None:
    assert graded(box, "print(int(input()) ** 2)", PRINTS).passed == 2
    assert graded(box, "x = int(input())\nprint(9 if x == 3 else 1)", PRINTS) == Grade(1, 2, "printed '1'")
    assert graded(box, "print(9, end='  \\n\\n')", PRINTS).passed == 1  # spaces at the end of a line count for nothing
    assert graded(box, "print(9); raise SystemExit(3)", PRINTS).passed == 0
    slow = graded(box, "import time\ntime.sleep(9)", PRINTS, seconds=0.3)
    assert slow.passed == 0 and slow.total == 2  # the tests share their time


@needs_sandbox
def test_a_hard_coded_answer_fails_the_test_it_has_not_seen(box: Warm) -> None:
    found = graded(box, "def square(x): return 9", ASSERTS)
    assert (found.passed, found.total, found.why) == (1, 2, "square returned 9")


@needs_sandbox
def test_objects_of_the_program_stay_there(box: Warm) -> None:
    row = {"test_list": [
        "assert total([Pair(1, 2), Pair(3, 4)]) == 10", "assert list(firsts([Pair(1, 2)])) == [1]", "assert Pair(5, 6).a == 5",
        "p = Pair(1, 1)\np.a = 7\nassert total([p]) == 8", "assert size((1, 2)) == sys.getsizeof((1, 2))",
        "try:\n    total(None)\n    assert False\nexcept TypeError:\n    pass",
    ]}  # fmt: skip
    source = (
        "import sys as real\nclass Pair:\n    def __init__(s, a, b): s.a, s.b = a, b\ndef total(ps): return sum(p.a + p.b for p in ps)\n"
        "def firsts(ps):\n    for p in ps: yield p.a\ndef size(t): return real.getsizeof(t)\n"
    )
    assert graded(box, source, row) == Grade(6, 6)
    fake = source + "class sys:\n    getsizeof = staticmethod(lambda t: 1)\ndef size(t): return 1\n"
    assert graded(box, fake, row).passed == 5  # the tests' own modules are not the program's to replace


@needs_sandbox
def test_tests_that_do_not_run_are_no_verdict(box: Warm) -> None:
    with pytest.raises(ValueError, match="tests of this row do not run"):
        graded(box, HONEST, {"test_list": ["assert square(3) =="]})


# ---- rows


def test_asserts_become_calls() -> None:
    assert call_of("assert f(1, [2], k={'a': (3,)}) == {4}, 'why'") == Call("f", [1, [2]], {"k": {"a": (3,)}}, {4})
    for more in (
        "assert f(x) == 1",
        "assert f(1) != 1",
        "assert f(1) == g(1)",
        "x = 1",
        "assert f(*[1]) == 1",
        "assert f(",
        "assert f(**{}) == 1",
    ):
        assert call_of(more) is None, more


def test_rows_of_the_known_data_sets() -> None:
    assert read_tests(ASSERTS).each == [Call("square", [3], {}, 9), Call("square", [12], {}, 144)]
    assert read_tests({**ASSERTS, "test_setup_code": "x = 1"}).each[0] == Script("assert square(3) == 9")
    assert read_tests(CHECK).each == [Script(CHECK["test"] + "\ncheck(square)")]
    apps = {"input_output": '{"inputs": ["1\\n"], "outputs": ["2\\n"]}'}
    assert read_tests(apps).each == [Exchange("1\n", "2\n")]
    named = {"input_output": {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}}
    assert read_tests(named).each == [Call("add", [1, 2], {}, 3)]
    assert read_tests({"tests": [{"args": [1], "expected": 2}], "entry_point": "f"}).each == [Call("f", [1], {}, 2)]
    assert (
        has_tests(ASSERTS)
        and has_tests(CHECK)
        and not has_tests({"test": "x", "answer": 1})
        and not has_tests({"tests": []})
    )


@pytest.mark.parametrize(
    "row",
    [{}, {"tests": [3]}, {"tests": [{"args": [1], "expected": 2}]}, {"input_output": {"inputs": [1], "outputs": []}}],
)
def test_a_row_without_tests_says_so(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"a test is|no tests|input_output"):
        read_tests(row)


# ---- values


def refuse(thing: Any) -> int:
    raise ValueError(type(thing).__name__)


@pytest.mark.parametrize("value", [None, True, 0, -(10**30), 1.5, float("inf"), "\u00e9\n\"\ud83d", b"\x00\xff", [1, (2, [3])], {"a": {1: (2,)}}, {1, 2}, frozenset({3}), 2 - 1j, {(1, 2): [None]}])  # fmt: skip
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    back = unpack(loads(dumps(pack(value, refuse))))
    assert back == value and type(back) is type(value)


def test_subclasses_leave_as_what_they_hold() -> None:
    class Liar(int):
        def __eq__(self, other: object) -> bool:
            return True

        def __add__(self, other: int) -> int:
            return 99

        __hash__ = int.__hash__

    back = unpack(pack(Liar(5), refuse))
    assert type(back) is int and back + 0 == 5
    assert isinstance(unpack(pack(object(), lambda _: 3)), Ref)


@pytest.mark.parametrize(
    "frame",
    [b"", b"{", b'{"x": [1]}', b'{"s": [[1]]}', b'{"d": [1]}', b'{"b": "zz"}', b'{"c": [1, 2, 3]}', b'{"r": "1"}', b"[" * 99999, b"1" * 9999,
     b"[" * (DEEPEST + 2) + b"]" * (DEEPEST + 2), b"\xff", b'{"t": 3}', b'{"c": ["x", 1]}', b'{"d": [[1, 2, 3]]}', b'{"a": 1, "b": 2}'],
)  # fmt: skip
def test_bytes_that_are_no_value_are_an_error_of_one_kind(frame: bytes) -> None:
    with pytest.raises(ValueError):
        unpack(loads(frame))


def test_what_is_too_large_is_not_sent() -> None:
    with pytest.raises(ValueError, match="more than"):
        dumps("x" * (LARGEST + 1))
    assert marshal.loads(marshal.dumps({"id": 1}, 4)) == {"id": 1}
