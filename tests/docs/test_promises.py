"""What a requirement says that the documentation must say."""

from tests.architecture.source import ROOT


def test_alf_58_the_page_of_wrappers_says_which_kind_is_for_what():
    """ALF-58: and that a new environment's time limit is looked at, with the command that does."""
    page = " ".join((ROOT / "docs/concepts/wrappers.md").read_text(encoding="utf-8").split())
    assert "A Gymnasium wrapper changes the task" in page
    assert "An `EnvironmentWrapper` changes time steps" in page
    assert "palaestra check-env" in page.split("## Time limits that pretend to be ends")[1]
