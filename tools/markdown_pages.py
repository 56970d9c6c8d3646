"""Puts into the site every page as Markdown beside its HTML, and `llms.txt`, which lists them for programs that read.

python -m tools.markdown_pages     # after `zensical build`; `make docs` does it
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCS, SITE = ROOT / "docs", ROOT / "site"


def write(site: Path = SITE) -> None:
    """Copies the pages and writes the list.

    Args:
        site: the built documentation.
    """
    config: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}.", ""]
    lines += ["Every page is here as Markdown. The reference is written from docstrings, which the source holds.", ""]
    for section in config["nav"]:
        ((title, entries),) = section.items()
        lines += [f"## {title}", ""]
        for page in pages(entries):
            text = (DOCS / page).read_text(encoding="utf-8")
            (site / page).parent.mkdir(parents=True, exist_ok=True)
            (site / page).write_text(text, encoding="utf-8")
            name, first = summary(text)
            lines.append(f"- [{name}]({page}){f': {first}' if first else ''}")
        lines.append("")
    (site / "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def pages(entry: Any) -> Iterator[str]:
    """The pages of a part of the navigation, in its order."""
    if isinstance(entry, str):
        yield entry
        return
    for inside in entry.values() if isinstance(entry, dict) else entry:
        yield from pages(inside)


def summary(text: str) -> tuple[str, str]:
    """The heading of a page, and its first sentence.

    Examples:
        >>> summary("# Words\\n\\nThe code uses [one](a.md) word. More.\\n")
        ('Words', 'The code uses one word.')
    """
    heading, _, rest = text.partition("\n")
    paragraphs = (part.strip() for part in re.split(r"\n\s*\n", rest))
    prose = next((part for part in paragraphs if re.match(r"[A-Za-z`*]", part)), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split()))
    sentence = re.match(r".*?[.:](?= |$)", plain)
    return heading.removeprefix("# ").strip(), sentence[0].rstrip(":") if sentence else plain


if __name__ == "__main__":
    write()
