"""One reader for files that somebody else may have made."""

import json
import os
import socket
from pathlib import Path

import pytest

from palaestra.core import CheckpointError
from palaestra.core.files import write_json
from palaestra.core.reading import (
    LONGEST_LINE,
    NewLines,
    opened_text,
    parse_json,
    read_bytes,
    read_json,
    read_lines,
    read_text,
)


def pipe(path):
    os.mkfifo(path)


def endless(path):
    path.symlink_to("/dev/zero")


def listening(path):
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(path))


@pytest.mark.parametrize("make", [pipe, endless, listening, Path.mkdir, lambda path: None])
@pytest.mark.parametrize("read", [read_bytes, read_text, read_json, lambda path: [*read_lines(path)]])
def test_what_is_no_regular_file_is_refused_at_once(make, read, tmp_path):
    make(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"/file cannot be read: "):
        read(tmp_path / "file")


def test_a_link_to_a_file_is_read(tmp_path):
    (tmp_path / "file").write_text('{"a": 1}')
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_json(tmp_path / "link") == {"a": 1}


def test_a_file_is_read_up_to_a_size(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", 5) == b"12345"
    with pytest.raises(CheckpointError, match=r"/file cannot be read: it has 5 bytes, and at most 4 are read"):
        read_bytes(tmp_path / "file", 4)


@pytest.mark.needs_linux
def test_a_file_that_hides_its_size_is_read_up_to_it():
    assert read_bytes("/proc/self/status")
    with pytest.raises(CheckpointError, match=r"/status cannot be read: it has more than 8 bytes"):
        read_bytes("/proc/self/status", 8)


def test_bytes_that_are_no_text_are_refused_or_shown(tmp_path):
    (tmp_path / "file").write_bytes(b"a\xff")
    with pytest.raises(CheckpointError, match="no text in UTF-8"):
        read_text(tmp_path / "file")
    with pytest.raises(CheckpointError, match="no text in UTF-8"), opened_text(tmp_path / "file") as file:
        file.read()
    assert read_text(tmp_path / "file", errors="replace") == "a\ufffd"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 300_000, "nested deeper than 100 levels"),
        ("[" * 101 + "]" * 101, "nested deeper than 100 levels"),
        ('{"a":' * 500 + "1" + "}" * 500, "nested deeper than 100 levels"),
        ("9" * 5_000, "a number of 5,000 digits; at most 40"),
        ("{", "Expecting property name"),
    ],
)
def test_json_is_bounded_in_depth_and_numbers(text, why, tmp_path):
    (tmp_path / "file").write_text(text)
    with pytest.raises(CheckpointError, match=f"/file cannot be read: it is no JSON: .*{why}"):
        read_json(tmp_path / "file")


def test_json_as_deep_and_long_as_ours_is_read():
    deep, long = "[" * 100 + "]" * 100, str(2**128 - 1)
    assert parse_json(long) == 2**128 - 1
    assert json.dumps(parse_json(deep)) == deep


def test_what_could_not_be_read_back_is_not_written(tmp_path):
    nest = []
    for _ in range(100):
        nest = [nest]
    with pytest.raises(CheckpointError, match=r"/file cannot be written: it is nested deeper"):
        write_json(tmp_path / "file", nest)
    assert not (tmp_path / "file").exists()


def test_lines_are_bounded(tmp_path):
    (tmp_path / "file").write_bytes(b"one\ntwo")
    assert [*read_lines(tmp_path / "file")] == [b"one\n", b"two"]
    (tmp_path / "file").write_bytes(b"1" * (LONGEST_LINE + 1))
    with pytest.raises(CheckpointError, match="a line of more than"):
        [*read_lines(tmp_path / "file")]


def test_new_lines_are_read_once_and_whole(tmp_path):
    path = tmp_path / "output.txt"
    lines = NewLines(path)
    assert lines.read() == []
    with path.open("w") as output:
        for text, found in (("one\ntwo\nthr", ["one", "two"]), ("", []), ("ee\n", ["three"])):
            output.write(text)
            output.flush()
            assert lines.read() == found
        output.write("\r" * LONGEST_LINE + "\nfour\n")
        output.flush()
        assert (lines.read(), lines.read()) == ([], ["", "four"]), "a MiB without an end is passed over"
    assert NewLines(path).read() == []
