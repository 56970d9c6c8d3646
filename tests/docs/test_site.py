"""Every page can be reached, and every package has its page."""

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    inside = entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ()
    return [page for child in inside for page in pages(child)]


def test_the_navigation_lists_every_page_once():
    written = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
    assert sorted(pages(CONFIG["nav"])) == sorted(
        {*written, "commands.md", "coming_from/names.md"}
    )  # `make docs` writes those two


def test_every_package_has_a_reference_page():
    packages = {path.parent.name for path in (ROOT / "src/palaestra").glob("*/__init__.py")}
    missing = {f"docs/api/{package}.md" for package in packages if not (ROOT / f"docs/api/{package}.md").exists()}
    assert not missing, f"write {sorted(missing)}, each with the line `::: palaestra.<package>`"
