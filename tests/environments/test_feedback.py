"""Which kind of preferences a file holds, good and bad answers, one kind as another, rows on the disk."""

from __future__ import annotations

import pytest

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.environments.conversions import converted
from posttrain.environments.feedback import PreferenceFiles, feedback, kind_of
from posttrain.environments.presets import LABELS, PAIRS, SHIPPED
from posttrain.environments.task import DEFAULTS, default_task, of_rows, pair_task
from tests.environments.test_data import FOLDER, jsonl

PAIR = {"prompt": "q", "chosen": "a", "rejected": "b"}
LIST = {"prompt": "q", "responses": ["a", "b", "c"], "scores": [0, 2, 1]}
LABEL = {"prompt": "q", "completion": "a", "label": True}
CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (PAIR, "pairs"), (PAIR | {"label": 1, "response": "x"}, "pairs"),
        ({"chosen": CHAT, "rejected": CHAT}, "pairs"),
        (PAIR | {"chosen": ["a", "b"], "rejected": ["c"]}, "lists"),
        (LIST, "lists"), ({"prompt": "q", "responses": ["a", "b"], "ranking": [1, 0]}, "lists"),
        ({"prompt": "q", "answers": [{"answer": "a", "rank": 1}, {"answer": "b", "rank": 2}]}, "lists"),
        ({"prompt": "q", "outputs": {"m": "a", "n": "b"}}, ""),  # nothing says which is better
        ({"prompt": "q", "completions": ["a step", "another"], "labels": [True, False]}, ""),  # steps, for a process reward model
        (LABEL, "labels"), ({"messages": CHAT, "label": "bad"}, "labels"), ({"question": "q", "answer": "a", "label": 0}, "labels"),
        ({"question": "q", "answer": "a", "label": "easy"}, ""), ({"text": "a", "label": 1}, ""),
        ({"question": "q", "answer": "a"}, ""), ({}, ""),
    ],
)  # fmt: skip
def test_the_kind_of_a_file(row, kind):
    assert kind_of([row], {}) == kind


def test_columns_that_are_named_decide():
    assert kind_of([{"prompt": "q", "good": "a", "bad": "b"}], {"chosen": "good", "rejected": "bad"}) == "pairs"
    assert kind_of([{"prompt": "q", "text": "a", "verdict": 1}], {"response": "text", "label": "verdict"}) == "labels"
    assert (
        kind_of([PAIR | {"kept": ["a", "b"], "points": [1, 0]}], {"responses": "kept", "scores": "points"}) == "lists"
    )
    assert kind_of([], {}) == ""


# ---- good and bad answers


@pytest.mark.parametrize(
    "row",
    [
        LABEL,
        {"prompt": [CHAT[0]], "completion": [CHAT[1]], "label": "good"},  # TRL's, as messages
        {"messages": CHAT, "label": 1},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "kto_tag": "true"},
        {"instruction": "q", "input": "", "output": "a", "label": "desirable"},
        {"prompt": "\n\nHuman: q\n\nAssistant:", "response": " a", "label": True},
    ],
)
def test_labels_in_every_layout(row):
    env = feedback(PreferenceFiles([row], [LABEL | {"prompt": "t"}]), "labels")
    (prompt,) = env.train
    assert prompt.content == ({"role": "user", "content": "q"},)
    assert (prompt.info["response"], prompt.info["label"]) == ("a", True)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (LABEL | {"label": "meh"}, "a label is true or false.* desirable or undesirable$"),
        (LABEL | {"label": 4}, "a rating is none: say in a column of its own which ratings are good"),
        (LABEL | {"completion": None}, "no 'completion' in it"),
        ({"messages": CHAT[:1], "label": True}, "ends with the assistant"),
        ({"messages": CHAT[1:], "label": True}, "nothing that it answers"),
        ({"prompt": "q", "completion": CHAT, "label": True}, "a conversation of its own"),
        ({"prompt": "q", "completion": "a", "lable": True}, r"did you mean 'lable'\? add label='lable' in brackets"),
        ({"prompt": "q", "label": True}, "no response column"),
    ],
)
def test_bad_labels(row, told):
    with pytest.raises(UserError, match=told):
        feedback(PreferenceFiles([row], layout=of({"label": "label"} if "label" in row else {})), "labels")


def of(fields):
    from posttrain.environments.questions import Layout

    return Layout(fields=fields)


def test_odd_labels_are_told(tmp_path):
    rows = [LABEL, LABEL, LABEL | {"label": False}, LABEL | {"completion": ""}]
    env = feedback(PreferenceFiles(rows, [LABEL | {"prompt": "t"}]), "labels")
    told = "\n".join(env.understood.notes)
    for words in ("labels: 4 good and 1 bad", "repeated: 1 answers", "contradictory: 1 answers", "empty: 1 answers"):
        assert words in told
    more = [LABEL | {"prompt": f"q{i}"} for i in range(20)]
    once = pair_task(f"{jsonl(tmp_path / 'l.jsonl', [*more, *more])}(unique=True)", kind="labels")
    assert once.left_out["rows that repeat an earlier one"] == 20 and len(once.train) + len(once.test) == 20


# ---- one kind as another


def made(row, want, **more):
    return feedback(PreferenceFiles([row], [row | {"prompt": "t"}], **more), want)


def test_a_pair_as_a_list_and_as_two_labels():
    env = made(PAIR | {"score_chosen": 5, "score_rejected": 2, "note": "n"}, "lists")
    assert env.train[0].info["ranked"] == [{"text": "a", "score": 5.0}, {"text": "b", "score": 2.0}]
    assert made(PAIR, "lists").train[0].info["ranked"] == [{"text": "a", "score": 1.0}, {"text": "b", "score": 0.0}]
    assert env.understood.notes[-1] == "converted: each pair became a list of two"
    labels = made(PAIR | {"note": "n"}, "labels")
    assert [(p.id, p.info["response"], p.info["label"]) for p in labels.train] == [
        ("rows-train-0-good", "a", True), ("rows-train-0-bad", "b", False),
    ]  # fmt: skip
    assert labels.train[0].info["note"] == "n" and "chosen" not in labels.train[0].info and not labels.validate(4)
    assert "the preferred one good and the other bad" in labels.understood.notes[-1]


def test_a_tie_that_is_kept_is_no_list_and_no_label():
    pairs = [Prompt.text("q", "?", chosen="a", rejected="b", preferred=sure) for sure in (0.5, 0.6)]
    for want, n in (("lists", 1), ("labels", 2)):
        made, told = converted(pairs, "pairs", want)
        assert len(made) == n and told.endswith("; 1 ties are left out: they have no better answer")


def test_one_text_is_no_pair_with_itself():
    """Somebody called it good, and somebody else bad."""
    said = [
        Prompt.text("q", "?", response=text, label=label)
        for text, label in (("a", True), ("a", False), ("b", True), ("c", False))
    ]
    made, told = converted(said, "labels", "pairs")
    assert [(p.info["chosen"], p.info["rejected"]) for p in made] == [("b", "c")]
    assert "1 good answers were paired" in told and "2 answers have no partner" in told


def test_a_list_as_pairs_and_as_labels():
    env = made(LIST, "pairs")
    assert (env.train[0].info["chosen"], env.train[0].info["rejected"]) == ("b", "a")
    assert "its best and its worst answer; FILE(pairs='all')" in env.understood.notes[-1]
    labels = made(LIST, "labels")
    assert [(p.info["response"], p.info["label"]) for p in labels.train] == [("b", True), ("a", False)]


def test_labels_become_pairs_only_where_a_question_has_both():
    rows = [LABEL, LABEL | {"completion": "b", "label": False}, LABEL | {"prompt": "r"}]
    env = feedback(PreferenceFiles(rows, [LABEL | {"prompt": "t"}]), "pairs")
    assert [(p.info["chosen"], p.info["rejected"]) for p in env.train] == [("a", "b")] and env.test == ()
    assert (
        "1 good answers were paired with a bad one to the same question; 1 answers have no partner"
        in env.understood.notes[-1]
    )
    with pytest.raises(UserError, match="no question has one of both"):
        feedback(PreferenceFiles(rows[2:], [LABEL | {"prompt": "t"}]), "pairs")


def test_rows_of_python_generators_and_options(tmp_path):
    env = of_rows((LIST | {"prompt": f"q{i}"} for i in range(20)), "pairs")
    assert env.prompt(0).info["chosen"] == "b"
    file = jsonl(tmp_path / "l.jsonl", [LIST | {"prompt": f"q{i}"} for i in range(20)])
    every = pair_task(f"{file}(pairs='all')")
    assert len(every.train) + len(every.test) == 60  # three of each
    with pytest.raises(UserError, match="pairs is 'most'"):
        pair_task(f"{file}(pairs='most')")
    with pytest.raises(UserError, match="did you mean 'unique'"):
        pair_task(f"{file}(uniqe=True)")
    named = jsonl(tmp_path / "n.jsonl", [{"ask": f"q{i}", "said": "a", "ok": i % 2} for i in range(20)])
    labels = pair_task(f"{named}(question='ask', label='ok')", kind="labels", answer="said")
    assert labels.prompt(0).info["response"] == "a"


# ---- rows on the disk


def test_lists_and_labels_from_the_disk(tmp_path):
    lists = jsonl(tmp_path / "l.jsonl", [LIST | {"prompt": f"q{i}"} for i in range(30)])
    env = pair_task(str(lists), kind="lists", stream=True)
    assert [a["text"] for a in env.prompt(3).info["ranked"]] == ["b", "c", "a"] and len(env.test) == 3
    pairs = pair_task(str(lists), stream=True)
    assert pairs.prompt(3).info["chosen"] == "b" and any("converted" in note for note in pairs.understood.notes)
    with pytest.raises(UserError, match="one prompt of each row"):
        pair_task(str(lists), kind="labels", stream=True)
    with pytest.raises(UserError, match="one prompt of each row"):
        pair_task(f"{lists}(pairs='all')", stream=True)
    with pytest.raises(UserError, match="takes no merge"):
        pair_task(f"{jsonl(tmp_path / 'p.jsonl', [PAIR] * 3)}(merge=True)", stream=True)
    labels = pair_task(
        str(jsonl(tmp_path / "k.jsonl", [LABEL | {"prompt": f"q{i}"} for i in range(30)])), kind="labels", stream=True
    )
    assert labels.prompt(0).info["label"] is True


# ---- what ships, and public files


def test_what_ships_is_of_the_kind_that_is_learned_from():
    for kind, name in DEFAULTS.items():
        env = pair_task(name, kind=kind)
        assert name in SHIPPED and default_task("arithmetic", kind) == name
        assert not [note for note in env.understood.notes if note.startswith("converted")] and len(env.test) > 10


@pytest.mark.skipif(not FOLDER.is_dir(), reason="no data folder; set POSTTRAIN_DATA")
@pytest.mark.parametrize(
    ("file", "kind", "rows"),
    [
        ("hh_rlhf/harmless_base_test.jsonl.gz", "pairs", 2312), ("hh_rlhf/relabeled_helpful_test.jsonl.gz", "pairs", 2157),
        ("llamafactory_demo/dpo_pairs.jsonl.gz", "pairs", 300), ("llamafactory_demo/kto_binary.jsonl.gz", "labels", 300),
        ("rm_bench/chat.jsonl.gz", "lists", 129), ("rm_bench/code.jsonl.gz", "lists", 228),
        ("truthfulqa/judge_info.jsonl.gz", "labels", 22434),
    ],
)  # fmt: skip
def test_public_files(file, kind, rows):
    env = pair_task(str(FOLDER / file), kind=kind)
    left_out = sum(n for reason, n in env.left_out.items() if not reason.startswith("answers"))
    assert len(env.train) + len(env.test) + left_out == rows
    assert not [note for note in env.understood.notes if note.startswith("converted")]


@pytest.mark.skipif(not FOLDER.is_dir(), reason="no data folder; set POSTTRAIN_DATA")
def test_public_sets_by_name_and_truthfulqa_by_its_columns():
    assert LABELS and not set(LABELS) & set(PAIRS)
    assert len(pair_task("kto_demo", FOLDER, kind="labels").train) > 200
    spec = f"{FOLDER}/truthfulqa/test.jsonl.gz(chosen='correct_answers', rejected='incorrect_answers')"
    env = pair_task(spec, kind="lists")
    assert len(env.train) + len(env.test) == 817 and env.train[0].info["ranked"][0]["score"] == 1.0
