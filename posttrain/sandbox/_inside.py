"""What runs in a Python sandbox before and around the program. Its text is sent in after that of values.py.

A job comes as the first frame on a descriptor. "run" plays the source as a script, with the descriptor closed. "calls" loads
it and answers one call after another. "tests" runs test code whose functions are elsewhere: each call of one is asked of
whoever holds the other end, so that tests and expected values are never in one process with the program they test.
"""

from __future__ import annotations

import builtins
import marshal  # frames that come from outside are Python's own format, those that go out are JSON
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # in the sandbox these stand above
    from typing import Any

    from posttrain.sandbox._confine import confine, limit
    from posttrain.sandbox.values import dumps, pack, receive, send, unpack

HELD: list[dict[str, Any]] = []  # the names of the program


def begin(fd: int) -> dict[str, Any]:
    """Take the job, take the last steps into the sandbox, write the program's files, and say that the sandbox stands."""
    job: dict[str, Any] = marshal.loads(receive(fd))
    if job["folder"]:
        confine(job["folder"], job["disk"], job["limits"], job["filter"])
    else:
        limit(job["limits"])
    for name, content in {**job["files"], "main.py": job["source"].encode("utf-8", "replace")}.items():
        with open(name, "wb") as file:
            file.write(content)
    sys.argv[:] = ["main.py"]
    sys.path[:] = [posix.getcwd(), *[p for p in sys.path if p], *job["packages"]]
    send(fd, b"started")
    return job


def play(fd: int) -> None:
    """The job from its beginning to the end of this process, which ends as an interpreter would, without taking itself apart."""
    code = 0
    try:
        perform(fd, begin(fd))
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 0 if leave.code is None else 1
        if code == 1 and leave.code != 1:
            print(leave.code, file=sys.stderr)
    except EOFError:  # whoever talked with the program is gone
        code = 1
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    import atexit

    atexit._run_exitfuncs()
    let_go()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # closed or replaced by the program
            code = code or 120
    posix._exit(code & 0xFF)


def let_go() -> None:
    """Drop what the program still holds, the last thing first: a __del__ may print. Functions, classes and modules stay, since it may use them."""
    stays = (type, type(let_go), type(sys))
    for names in HELD:
        for name in reversed(list(names)):
            if not issubclass(type(names[name]), stays):
                names[name] = None


def perform(fd: int, job: dict[str, Any]) -> None:
    """What the job asks for."""
    if job["mode"] == "run":
        posix.close(fd)
        module("__main__", job["source"])
    elif job["mode"] == "calls":
        answer_calls(fd, job["source"])
    else:
        run_tests(fd, job["source"])


def module(name: str, source: str) -> dict[str, Any]:
    """The names of the source, run as a module of that name; an error is printed without the lines of this file."""
    made = type(sys)(name)
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # which `site` would have added
    made.__file__ = "main.py"
    HELD.append(made.__dict__)
    sys.modules[name] = made
    try:
        exec(compile(source, "main.py", "exec", dont_inherit=True), made.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        shown = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
        sys.excepthook(type(shown), shown, shown.__traceback__)
        sys.exit(1)
    return made.__dict__


def answer_calls(fd: int, source: str) -> None:
    """Replies to {"id", "name" | "ref", "attribute"?, "args"?, "kwargs"?}, one at a time, each with the id of its question."""
    objects: list[Any] = []
    names = module("solution", source)

    def keep(thing: Any) -> int:
        objects.append(thing)
        return len(objects) - 1

    while True:
        question = marshal.loads(receive(fd))
        try:
            frame = dumps({"id": question["id"], "value": pack(done(question, names, objects), keep)})
        except Exception as error:
            kinds = [c.__name__ for c in type(error).__mro__ if vars(builtins).get(c.__name__) is c]
            frame = dumps({"id": question["id"], "error": [kinds[0] if kinds else "Exception", str(error)[:500]]})
        send(fd, frame)


def done(question: dict[str, Any], names: dict[str, Any], objects: list[Any]) -> Any:
    """What a question asks for: a thing by its name or number, one of its attributes, or what calling it gives."""
    if "name" in question:
        name = question["name"]
        thing = names[name] if name in names else getattr(builtins, name)
    else:
        thing = objects[question["ref"]]
    args = unpack(question.get("args", []), objects.__getitem__)
    if "set" in question:
        return setattr(thing, question["set"], *args)
    if "attribute" in question:
        thing = getattr(thing, question["attribute"])
    return thing(*args, **unpack(question["kwargs"], objects.__getitem__)) if "args" in question else thing


class Remote:
    """A thing of the program under test: calling it, reading it or setting an attribute asks the program. It equals only itself."""

    def __init__(self, fd: int, where: dict[str, Any]) -> None:
        self.__dict__.update(_fd=fd, _where=where)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask(self._where, args=pack(list(args), self._keep), kwargs=pack(kwargs, self._keep))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask(self._where, attribute=name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask(self._where, set=name, args=pack([value], self._keep))

    def __iter__(self) -> Any:
        return iter(self._ask({"name": "list"}, args=[pack(self, self._keep)], kwargs={"d": []}))

    def __len__(self) -> int:
        return self._ask({"name": "len"}, args=[pack(self, self._keep)], kwargs={"d": []})  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return True

    def _ask(self, where: dict[str, Any], **more: Any) -> Any:
        send(self._fd, dumps({"ask": {**where, **more}}))
        reply = marshal.loads(receive(self._fd))
        if "error" in reply:
            kind = getattr(builtins, reply["error"][0], None)  # a program that names `eval` here must not be obeyed
            raise (kind if isinstance(kind, type) and issubclass(kind, Exception) else Exception)(reply["error"][1])
        return unpack(reply["value"], lambda number: Remote(self._fd, {"ref": number}))

    def _keep(self, thing: Any) -> int:
        if isinstance(thing, Remote) and "ref" in thing._where:
            return thing._where["ref"]  # type: ignore[no-any-return]
        raise TypeError(
            f"a test cannot send a {type(thing).__name__} to the program, only plain data and its own objects"
        )


def run_tests(fd: int, source: str) -> None:
    """Run tests, given as the text of a list whose first entry is run before the others; the last frame says which passed.

    A name that they use and do not define is a module of the standard library, or else a thing of the program.
    """
    import ast

    scripts: list[str] = ast.literal_eval(source)
    used = {n.id for script in scripts for n in ast.walk(ast.parse(script)) if isinstance(n, ast.Name)}
    names: dict[str, Any] = {"__name__": "tests"}
    for name in used - set(vars(builtins)):
        names[name] = __import__(name) if name in sys.stdlib_module_names else Remote(fd, {"name": name})
    told: list[str] = []
    for script in scripts:
        try:
            exec(compile(script, "tests.py", "exec", dont_inherit=True), names)
            told.append("")
        except BaseException as error:
            told.append(f"{type(error).__name__}: {error}"[:300])
    send(fd, dumps({"told": told}))
