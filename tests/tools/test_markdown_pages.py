"""Tests of `tools/markdown_pages.py`."""

import re
import shutil

import yaml

from tools import markdown_pages


def test_every_page_is_there_as_markdown_and_listed_with_its_first_sentence(tmp_path, monkeypatch):
    shutil.copytree(markdown_pages.DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("assets"))
    for name in ("commands.md", "coming_from/names.md"):  # written by `make docs`
        (tmp_path / "docs" / name).write_text("# Written\n")
    monkeypatch.setattr(markdown_pages, "DOCS", tmp_path / "docs")
    pages = sorted(path.relative_to(markdown_pages.DOCS) for path in markdown_pages.DOCS.rglob("*.md"))
    markdown_pages.write(tmp_path)
    text = (tmp_path / "llms.txt").read_text()
    assert sorted(re.findall(r"^- \[.+?\]\(([^)]+)\)", text, re.MULTILINE)) == [path.as_posix() for path in pages]
    assert all((tmp_path / path).read_text() == (markdown_pages.DOCS / path).read_text() for path in pages)
    assert "- [Words](words.md): The code, the documentation and the logs use one word per idea." in text
    sections = [
        name for part in yaml.safe_load((markdown_pages.ROOT / "mkdocs.yml").read_text())["nav"] for name in part
    ]
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == sections
