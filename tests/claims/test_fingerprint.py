"""A fingerprint changes with the code that made the numbers, and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from claims.machinery import fingerprint as marks
from posttrain.core.index import rows

CLAIM = '''
"""A claim."""
from posttrain.losses.used import loss

claim(Claim(id="x", says="words", tried="", checks=(loss(2.0),)), __file__)
'''
USED = '''
from posttrain.losses.deeper import SCALE

def loss(x: float) -> float:
    """Half of it."""
    return x / factor()  # why

def factor():
    from posttrain.weights.late import late
    return SCALE * late()

def unrelated():
    return 1
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A project of four files; calling it with a file and two texts edits one and gives the new fingerprint."""
    files = {
        "claims/x.py": CLAIM, "losses/used.py": USED, "losses/deeper.py": "SCALE = 2\nOTHER = 3\n",
        "weights/late.py": "def late():\n    return 1\n", "core/registry.py": "X = 1\n",
    }  # fmt: skip
    for name, text in files.items():
        path = tmp_path / "posttrain" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(marks, "ROOT", tmp_path)

    def edited(name: str = "", old: str = "", new: str = "") -> str:
        if name:
            path = tmp_path / "posttrain" / name
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new))
        for cached in (marks._tree, marks._definitions, marks._named):
            cached.cache_clear()
        return marks.fingerprint("posttrain/claims/x.py")

    yield edited
    for cached in (marks._tree, marks._definitions, marks._named):
        cached.cache_clear()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("claims/x.py", "2.0", "2.5"),
        ("losses/used.py", "x / factor", "x * factor"),
        ("losses/deeper.py", "SCALE = 2", "SCALE = 4"),
        ("weights/late.py", "return 1", "return 2"),
    ],
)
def test_code_that_ran_counts(project, name: str, old: str, new: str) -> None:
    before = project()
    assert project(name, old, new) != before
    assert project(name, new, old) == before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("claims/x.py", '"words"', '"other words"'),
        ("claims/x.py", 'tried=""', 'tried="much"'),
        ("losses/used.py", "Half of it", "A half"),
        ("losses/used.py", "  # why", ""),
        ("losses/used.py", "return x / factor()", "return (\n        x / factor()\n    )"),
        ("losses/used.py", "def unrelated():\n    return 1", "def unrelated():\n    return 2"),
        ("losses/deeper.py", "OTHER = 3", "OTHER = 4"),
    ],
)
def test_words_form_and_other_definitions_do_not(project, name: str, old: str, new: str) -> None:
    before = project()
    assert project(name, old, new) == before


def test_words_at_the_top_of_a_file_do_not_count_and_records_by_the_earlier_rule_stay_good(project) -> None:
    before = project()
    new, earlier = marks.fingerprints("posttrain/claims/x.py")
    assert new == before != earlier
    assert project("claims/x.py", '"""A claim."""', '"""The same claim in other words."""') == before
    assert marks.fingerprints("posttrain/claims/x.py")[1] != earlier, "by the earlier rule they did"


def test_the_real_claims_reach_what_they_run() -> None:
    found = set(marks.reached("claims/preference/dpo.py"))
    assert ("posttrain/losses/preference/dpo.py", "dpo") in found
    machinery = {path for path, _ in found if path.startswith("claims/machinery")}
    assert machinery == {"claims/machinery/arms.py"}  # verdicts are computed on reading
    assert not any(path.startswith(("posttrain/commands", "posttrain/core")) for path, _ in found)
    near, whole = (set(marks.reached("posttrain/runs/in_memory.py", whole=w)) for w in (False, True))
    for place in (("posttrain/weights/learner.py", "Learner"), ("posttrain/train.py", "train")):
        assert place in whole and place not in near


def test_the_ground_has_a_hash_of_its_own(project, tmp_path: Path) -> None:
    """What a claim runs on does not make it stale; it is remembered apart."""
    learner = tmp_path / "posttrain/weights/learner.py"
    learner.write_text("def update():\n    return 1\n")
    before = project(
        "weights/late.py",
        "def late():\n    return 1",
        "from posttrain.weights.learner import update\n\ndef late():\n    return update()",
    )
    under = marks.ground("posttrain/claims/x.py")
    assert project("weights/learner.py", "return 1", "return 2") == before
    assert marks.ground("posttrain/claims/x.py") != under


def test_what_a_claim_names_in_text_counts(project, tmp_path: Path) -> None:
    """loss="late(x=1)" leads to the file of that name, since the keyword says it is a part; other texts lead to methods only."""
    before = project("claims/x.py", 'tried=""', 'tried="used", arm=run_arm(loss="late + cispo(high=4)", name="used")')
    reached = marks.reached("posttrain/claims/x.py")
    assert ("posttrain/weights/late.py", "") in reached and ("posttrain/losses/used.py", "") not in reached
    assert project("weights/late.py", "return 1", "return 2") != before
    (tmp_path / "posttrain/methods").mkdir()
    (tmp_path / "posttrain/methods/my_method.py").write_text("X = 1\n")
    with_method = project("claims/x.py", 'name="used"', 'name=f"my-method(steps={1})"')
    assert project("methods/my_method.py", "X = 1", "X = 2") != with_method


def test_arms_through_the_api_reach_what_they_name() -> None:
    from claims.machinery.claim import claims, file_of

    through_the_api = [c for c in claims() if "machinery.arms" in (marks.ROOT / file_of(c)).read_text()]
    assert {"lite-ppo", "par"} <= {c.id for c in through_the_api}
    for c in through_the_api:
        files = {path for path, _ in marks.reached(file_of(c))}
        assert "claims/machinery/arms.py" in files
        assert files & {r["file"] for r in rows("method", "plan", "rollout") if r["id"] == c.id}, c.id
    lite = {path for path, _ in marks.reached("claims/policy_gradient/lite_ppo.py")}
    assert "posttrain/environments/school/word_problems.py" in lite
