"""Tests of `tools/requirement_coverage.py`."""

import hashlib

import pytest

from tools import requirement_coverage
from tools.requirement_coverage import ids_in_name, ids_in_text, ids_of_tests


def test_the_committed_page_is_up_to_date():
    assert requirement_coverage.main(["--check"]) == 0


def test_the_catalogue_has_every_id_once():
    ids = [id_ for section in requirement_coverage.catalogue() for id_ in section.ids]
    dashed = {"ALF": 58, "MARO": 47, "TS": 29, "PARL": 32}
    expected = [f"{system}-{number:02d}" for system, last in dashed.items() for number in range(1, last + 1)]
    assert ids == [*expected, *(f"F{number}" for number in range(1, 37)), *(f"S{number}" for number in range(1, 11))]


def test_a_departure_says_of_which_promise_it_is():
    for section in requirement_coverage.catalogue():
        assert section.departures.keys() <= section.ids.keys()
        assert all(requirement_coverage.page().count(text) == 1 for text in section.departures.values())


def test_the_catalogue_has_the_words_of_the_requirements():
    """What a requirement says is not fitted to what the library does; compared with its source on 2026-11-29."""
    words = "".join(
        f"{id_} {text}\n" for section in requirement_coverage.catalogue() for id_, text in section.ids.items()
    )
    assert hashlib.sha256(words.encode()).hexdigest()[:16] == "c94f4dedb38990fc"


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("test_alf_12_the_algorithm_comes_first", {"ALF-12"}),
        ("test_ts_02_ts_03_maro_40_snippets", {"TS-02", "TS-03", "MARO-40"}),
        ("test_f9_kill_while_writing", {"F9"}),
        ("test_s4", {"S4"}),
        ("test_float_in_f32_precision", set()),
        ("test_returns_over_2_steps", set()),
    ],
)
def test_ids_in_a_name(name, ids):
    assert ids_in_name(name) == ids


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("ALF-12 holds", {"ALF-12"}),
        ("(TS-02..04)", {"TS-02", "TS-03", "TS-04"}),
        ("TS-02..TS-04", {"TS-02", "TS-03", "TS-04"}),
        ("ALF-23, 24, MARO-40/41", {"ALF-23", "ALF-24", "MARO-40", "MARO-41"}),
        ("ALF-01, 33, 47..49", {"ALF-01", "ALF-33", "ALF-47", "ALF-48", "ALF-49"}),
        ("ALF-23, 128 rows", {"ALF-23"}),
        ("F9 and F25..F27", {"F9", "F25", "F26", "F27"}),
        ("Acceptance scenario 4; scenarios 1, 3 and 10", {"S4", "S1", "S3", "S10"}),
        ("state S1 moves to S2", set()),
        ("Issue 21, F9: then", {"F9", "Issue 21, F9"}),
    ],
)
def test_ids_in_text(text, ids):
    assert ids_in_text(text) == ids


def test_ids_are_read_from_name_docstring_and_comments_of_tests_only(tmp_path):
    file = tmp_path / "test_file.py"
    file.write_text('''
"""ALF-01 of a module counts for nothing."""
import pytest

def helper():
    """ALF-02"""

def test_alf_03_name():
    """ALF-04"""
    assert True  # ALF-05
    text = "ALF-06"

@pytest.mark.skip(reason="not yet")
def test_alf_07(): ...

class TestGroup:
    def test_method(self):
        """F9"""
''')
    assert [(name, ids) for name, _, ids in ids_of_tests(file)] == [
        ("test_alf_03_name", {"ALF-03", "ALF-04", "ALF-05"}),
        ("TestGroup::test_method", {"F9"}),
    ]


def test_an_unknown_id_is_an_error_that_names_the_test(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_file.py").write_text("def test_alf_99_nothing(): ...\n")
    with pytest.raises(SystemExit, match=r"tests/test_file\.py:1: test_alf_99_nothing names ALF-99, which"):
        requirement_coverage.proofs(tmp_path, {"ALF-01"})


def test_an_id_of_an_issue_is_refused_though_the_catalogue_has_one_like_it(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_file.py").write_text("def test_it(): ...  # Issue 21, F9\n")
    with pytest.raises(SystemExit, match=r"test_it names Issue 21, F9, which docs/requirements\.yaml does not list"):
        requirement_coverage.proofs(tmp_path, {"F9"})
