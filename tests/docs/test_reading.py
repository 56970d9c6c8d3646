"""The page that leads through the code names few files, all of which exist."""

import re

from tests.architecture.source import ROOT

PAGE = (ROOT / "docs/concepts/reading.md").read_text(encoding="utf-8")


def test_an_hour_of_reading_is_twelve_files_that_exist():
    files = re.findall(r"^\| (\d+) \| `([^`]+\.py)` \|", PAGE, re.MULTILINE)
    assert [int(number) for number, _ in files] == list(range(1, len(files) + 1))
    assert 8 <= len(files) <= 12
    missing = [path for _, path in files if not (ROOT / path).is_file()]
    assert not missing, f"docs/concepts/reading.md leads to {missing}"


def test_what_the_page_says_to_look_for_is_there():
    for path, text in re.findall(r"^\| \d+ \| `([^`]+\.py)` \| (.*) \|$", PAGE, re.MULTILINE):
        code = (ROOT / path).read_text(encoding="utf-8")
        missing = [name for name in re.findall(r"`(\w+)`", text) if not re.search(rf"\b{name}\b", code)]
        assert not missing, f"{path} has no {missing}"
