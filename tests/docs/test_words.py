"""The page of words: one meaning each, and names that exist."""

import re

from tests.architecture.source import ROOT, sources

TABLE = (ROOT / "docs/words.md").read_text(encoding="utf-8").partition("## Letters")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines() if line.startswith("|")]


def test_every_word_has_one_meaning_and_says_what_others_call_it():
    header, _, *rows = ROWS
    assert header == ["word", "meaning", "elsewhere called"]
    assert all(len(row) == 3 and row[0] and row[1] for row in rows)
    words = [row[0] for row in rows]
    assert len(words) == len(set(words))


def test_classes_and_settings_that_meanings_name_exist():
    text = "\n".join(source.text for source in sources("src/palaestra"))
    named = {name for row in ROWS[2:] for cell in row[:2] for name in re.findall(r"`([A-Za-z_.]+)`", cell)}
    missing = {name for name in named if not re.search(rf"\b{name.split('.')[-1]}\b", text)}
    assert not missing, f"docs/words.md names {sorted(missing)}, which the package does not have"
