"""The page that leads through the code leads to what is there, and its first hour is one."""

import re

from tests.architecture.source import LAYERS, ROOT

PAGE = (ROOT / "docs/concepts/reading.md").read_text(encoding="utf-8")
FIRST, REST = PAGE.split("## Then the rooms")
LINES_OF_AN_HOUR = 800


def paths(text: str) -> list[str]:
    return re.findall(r"`((?:src|examples|tests|docs)/[\w/.]+|[A-Z]+\.md)`", text)


def test_every_file_that_is_named_exists():
    missing = [path for path in paths(PAGE) if not (ROOT / path).exists()]
    assert not missing, f"docs/concepts/reading.md leads to {missing}"


def test_the_first_hour_is_three_files():
    files = [ROOT / path for path in re.findall(r"^\| \d \| `(\S+)` \|", FIRST, re.MULTILINE)]
    assert len(files) == 3
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    assert lines <= LINES_OF_AN_HOUR, f"{lines} lines in {[path.name for path in files]}"


def test_every_room_is_on_the_map():
    rooms = {room for layer in LAYERS[1:] for room in layer}
    assert {room for room in rooms if not re.search(rf"\| {room} \||{room}/", REST)} == set()


def test_what_the_page_says_to_look_for_is_there():
    for path, text in re.findall(r"\| `([^`]+\.py)` \| (.*) \|$", PAGE, re.MULTILINE):
        code = (ROOT / path).read_text(encoding="utf-8")
        missing = [name for name in re.findall(r"`(\w+)`", text) if not re.search(rf"\b{name}\b", code)]
        assert not missing, f"{path} has no {missing}"
