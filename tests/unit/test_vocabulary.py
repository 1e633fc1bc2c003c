"""The check of the vocabulary finds what it is for, and lets proper English pass."""

from __future__ import annotations

import pytest

from tests import vocabulary
from tests.vocabulary import findings_in


@pytest.mark.parametrize(
    "text",
    [
        "the collector of garbage rests",
        "Tell whether it is one",
        "nobody asked",
        "whoever calls",
        "is no more",
        "the run is told so",
        "a database of its own",
        "a run of\n# their own",
        "a retry doubles nothing",
        "nothing is doubled",
        "What is not stored is not told.",
        "where one is to be had",
        "writes hung on a checkpoint",
        "keeps one call to once",
        "the one room that waits",
        "heed_twins",
        "a batch under way",
        "an effect that is no such thing is no error",
        "record.vendor_key",
        "raise InvalidConfig",
    ],
)
def test_replaced_phrase_is_found(text: str) -> None:
    assert list(findings_in("page.md", text))


@pytest.mark.parametrize(
    "text",
    [
        "is no longer there",
        "there is no such effect",
        "no more than three",
        "not any more",
        "runs as `nobody`",
        'user="nobody"',
        "the answer is no.",
        "between two",
        "its own pool",
        "raise InvalidConfigError",
        "the model is asked",
    ],
)
def test_proper_english_passes(text: str) -> None:
    assert not list(findings_in("page.md", text))


def test_finding_names_file_line_and_replacement() -> None:
    [finding] = findings_in("a.py", "one\ntwo whoever\n")
    assert str(finding) == "a.py:2: 'whoever': write the caller, anyone who"


def test_glossarys_list_of_replaced_words_may_name_them() -> None:
    text = f"nobody\n{vocabulary.REPLACED_WORDS}\nwhoever\n"
    assert [finding.phrase for finding in findings_in(vocabulary.GLOSSARY, text)] == ["nobody"]


def test_every_kind_of_file_is_looked_at() -> None:
    files = vocabulary.files()
    assert {"README.md", "Makefile", ".ci/run", "langgraph_durable/__init__.py"} <= set(files)
    assert "tests/vocabulary.py" not in files


def test_exit_status_says_whether_anything_was_found(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vocabulary, "ROOT", tmp_path)
    (vocabulary.ROOT / "good.md").write_text("no longer")
    (vocabulary.ROOT / "bad.md").write_text("nobody")
    assert vocabulary.main(["good.md"]) == 0
    assert vocabulary.main(["good.md", "bad.md"]) == 1
    assert capsys.readouterr().out.startswith("bad.md:1: ")
