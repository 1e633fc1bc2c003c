"""Fail on phrases that the project has replaced: `python -m tests.vocabulary`, part of `make check`.

Each phrase comes with what to write instead; docs/glossary.md lists them for readers. Searched are all Python, Markdown
and SQL files, the Makefile and `.ci`, without regard to case.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

EXCLUDED = (
    "tests/vocabulary.py",
    "tests/unit/test_vocabulary.py",
    # Landed migrations are never edited: databases have their checksums.
    "langgraph_durable/migrations/0001_initial.sql",
    "langgraph_durable/migrations/0002_effects.sql",
    "langgraph_durable/migrations/0003_reading.sql",
)
GLOSSARY = "docs/glossary.md"
REPLACED_WORDS = "## Replaced words"
"""The glossary's heading of the list that may name them."""

_PHRASES = {
    # Idioms and metaphors -> the field's noun, or a plain verb.
    r"collectors? of garbage": "garbage collector",
    r"(?:tell|tells|told|telling) whether": 'return whether; "says whether" of a message',
    r"(?<![`'\"])\bnobody\b(?![`'\"])": "no caller, no one; name the actor (the account `nobody` goes in backticks)",
    r"\bwhoever\b": "the caller, anyone who",
    r"\bwhomever\b": "the caller, anyone who",
    r"\bno more\b(?! than)": "no longer; not ... any more",
    r"\b(?:is|are|be|was|were|been|being) told\b": "gets, receives, is reported; be told apart -> be distinguished",
    r"\btold apart\b": "distinguished",
    r"\bof (?:its|their|his|her|our|my|your|one's) own\b": "own, separate, private; for itself",
    r"\bdoubles? (?:nothing|none)\b": "never duplicates rows; is idempotent",
    r"\bdoubl(?:ed|ing)\b": "duplicated, duplicating; twice as many",
    r"what is not stored is not": "only stored data appears",
    r"\bto be had\b": "available",
    r"\b(?:hung|hangs|hang|hanging) on\b": "belongs to; is stored with",
    r"\b(?:kept|keeps?|keeping)(?: \w+){0,4} to once\b": "runs at most once",
    r"\brooms? (?:that|which) waits?\b": "the database layer; execution of database work",
    r"\bunder way\b": "in flight, running",
    r"\bgo(?:es|ing)? on elsewhere\b": "in flight elsewhere",
    r"\b(?:gives?|gave|given|giving) no sign\b": "stopped renewing its lease",
    r"\bsigns? of life\b": "renewal of the lease",
    r"\ball else\b": "everything else",
    r"(?<!there\s)\b(?:is|are|was|were) no (?!longer\b|such\b|more\b|one\b)\w": '"is not a" instead of "is no"',
    r"\bmust not wait long for anybody\b": "holds locks only briefly",
    r"\bhas (?:its|their) own way\b": "differs",
    r"\bby halves\b": "partly",
    r"\bby chance\b": "at random; by a hash of the content",
    # Words of ours that the field has others for, also inside identifiers.
    r"(?<![a-z])heed(?:s|ed|ing)?(?![a-z])": "apply, obey, check",
    r"(?<![a-z])twins?(?![a-z])": "possible duplicate; of sync and async: counterpart",
    r"(?<![a-z])run_now(?![a-z])": "run_sync",
    r"(?<![a-z])settle_": "recover_",
}

_OLD_NAMES = {
    # Public names that changed: no page, example or error message may show them.
    r"\bvendor_key\b": "idempotency_key",
    r"\bvendor_window\b": "idempotency_window",
    r"\bfilter_keys\b": "indexed_metadata",
    r"\bhash_key\b": "segment_key",
    r"\bEffectLog\.from_saver\b": "saver.effects",
    r"\bEffectHandle\b": "RunningEffect, Effect, AsyncEffect",
    r"\b(?:EraseReceipt|a?erase\()": "DeleteReceipt, delete_thread(",
    r"\b(?:SweepReport|SweepProgress|a?sweep\()": "PruneAllReport, PruneProgress, prune_all(",
    r"\b(?:SchemaOutOfDate|CheckpointCorrupted|InvalidConfig|UnserializableValue|ThreadDeleted|ParentPruned|ThreadExists"
    r"|CompactionRefused|PruneFailed|SaverClosed|Effect(?:Conflict|InFlight|Unknown|Unresolved|Abandoned|Forked"
    r"|Superseded))\b": "the same name with Error at its end",
}


@dataclass(frozen=True)
class Finding:
    """A phrase in a file."""

    path: str
    line: int
    phrase: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.phrase!r}: write {self.instead}"


def _compiled(phrases: dict[str, str], flags: int) -> list[tuple[re.Pattern[str], str]]:
    # A phrase may go on in the next line, behind the mark of a comment or a quotation.
    return [
        (re.compile(phrase.replace(" ", r"(?:[ \t]|\n[ \t]*(?:#|--|>|\*)?[ \t]*)+"), flags), instead)
        for phrase, instead in phrases.items()
    ]


_PATTERNS = _compiled(_PHRASES, re.IGNORECASE)
_NAME_PATTERNS = _compiled(_OLD_NAMES, 0)


def findings_in(path: str, text: str) -> Iterator[Finding]:
    """Yield what is wrong with a file's text, by line."""
    if path == GLOSSARY:
        text = text.partition(REPLACED_WORDS)[0]
    found = [
        Finding(path, text.count("\n", 0, match.start()) + 1, " ".join(match[0].split()), instead)
        for pattern, instead in [*_PATTERNS, *_NAME_PATTERNS]
        for match in pattern.finditer(text)
    ]
    yield from sorted(found, key=lambda finding: finding.line)


def files() -> list[str]:
    """Return the files to look at: those that git knows or would add, else all."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = listed.stdout.splitlines()
    if listed.returncode != 0:  # not a clone, but what an archive holds
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if ".venv" not in str(path)]
    return sorted(
        name
        for name in names
        if (name.endswith((".py", ".md", ".sql")) or name == "Makefile" or name.startswith(".ci/"))
        and name not in EXCLUDED
        and (ROOT / name).is_file()
    )


def main(names: Iterable[str] = ()) -> int:
    """Print what is found in some files, or in all.

    Returns:
        1 if anything was found, else 0.
    """
    found = [
        finding
        for name in names or files()
        for finding in findings_in(name, (ROOT / name).read_text(encoding="utf-8"))
    ]
    for finding in found:
        print(finding)
    if found:
        print(f"{len(found)} replaced phrases", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
