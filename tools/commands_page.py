"""Writes docs/commands.md, every command and option, and docs/coming_from/names.md, what others call our settings.

`make docs` does it.

python tools/commands_page.py
"""

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

from palaestra.algorithms import ALGORITHMS
from palaestra.cli.commands import COMMANDS, Command
from palaestra.cli.help import Option, grouped, options_of
from palaestra.cli.options import defaults_of
from palaestra.config.values import foreign_names

DOCS = Path(__file__).resolve().parent.parent / "docs"
HEAD = """\
# Commands

Every command and every option. Written by `tools/commands_page.py` from what `--help` shows.
`palaestra completion bash`, `zsh` or `fish` prints a script with which the shell completes verbs, algorithms,
environments, runs, options and their values.

"""
NAMES = """\
# Names of other libraries

What other libraries call our settings, and what differs in units. An option that is typed with such a name is refused,
with ours in the message. The pages *Coming from* say how calls and ideas correspond.

"""
LIBRARIES = {
    "sb3": "Stable-Baselines3",
    "cleanrl": "CleanRL",
    "rllib": "RLlib",
    "tianshou": "Tianshou",
    "skrl": "skrl",
    "rsl_rl": "rsl_rl",
    "alf": "ALF",
    "maro": "MARO",
    "parl": "PARL",
    "others": "others",
}
SETTINGS = """\
## Settings of a run

`train`, `tune` and `bench ALGORITHM ENVIRONMENT` take all of them; [Configuration](concepts/configuration.md) says
what belongs together. The values are those of PPO on CartPole: `palaestra train ALGORITHM ENVIRONMENT --help-all` has
those of any pair.

"""


def page() -> str:
    """The whole page."""
    commands = [command for command in COMMANDS.values() if command.function]
    rows = [
        (code(f"{one.name} {one.forms}".strip()), one.summary, code(f"palaestra {one.name} {one.example}".strip()))
        for one in commands
    ]
    groups = grouped(defaults_of(COMMANDS["train"]))
    settings = {name: options for name, options in groups.items() if name and name.partition(".")[0] != "algorithm"}
    parts = [HEAD, *table(("command", "what it does", "example"), rows), "\n", *map(section, commands), SETTINGS]
    for name, options in settings.items():
        parts += [f"### {name}\n\n", *options_table(options)]
    return "".join([*parts, "### algorithm\n\n", *of_algorithms()]).rstrip() + "\n"


def section(command: Command) -> str:
    """A command: its usage, what it does, its own options, and the groups of settings that it takes as well."""
    groups = grouped(defaults_of(command))
    text = inspect.cleandoc(command.load().__doc__ or "").split("\n\n")[0]
    more = list(dict.fromkeys(name.partition(".")[0] for name in groups if name))
    links = (
        ["all [settings of a run](#settings-of-a-run)"] if "run" in more else [f"[{name}](#{name})" for name in more]
    )
    also = f"It takes {' and '.join(links)} as well.\n\n" if more else ""
    body = "".join([*options_table(groups[""]), also])
    return f"## {command.name}\n\n`{command.usage}`\n\n{text}\n\n{body}"


def options_table(options: Iterable[Option]) -> Iterator[str]:
    """Options with what comes after them, their values if they are not given, and what they mean."""
    rows = []
    for one in options:
        names = ", ".join(f"`{name}`" for name in one.names)
        rows.append((names, code(one.metavar), code(one.default), one.text))
    if rows:
        yield from table(("option", "value", "default", "what it is"), rows)
        yield "\n"


def of_algorithms() -> Iterator[str]:
    """The settings of all algorithms, each with those that have it."""
    found: dict[str, tuple[Option, list[str]]] = {}
    for algorithm in ALGORITHMS:
        for option in options_of(defaults_of(COMMANDS["train"], [algorithm])):
            if option.setting.path.startswith("algorithm."):
                found.setdefault(option.setting.path, (option, []))[1].append(algorithm)
    rows = []
    for option, owners in found.values():
        whose = "all" if len(owners) == len(ALGORITHMS) else ", ".join(sorted(owners))
        rows.append((f"`{option.names[0]}`", code(option.metavar), whose, option.text))
    yield from table(("option", "value", "algorithms", "what it is"), rows)


def names_page() -> str:
    """The page of names."""
    rows = [
        (
            code(name),
            ", ".join(LIBRARIES[key] for key in row.libraries.split()),
            ", ".join(map(code, row.ours)),
            row.note,
        )
        for name, row in sorted(foreign_names().items())
    ]
    return "".join([NAMES, *table(("name", "of", "ours", "what differs"), rows)])


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A table in Markdown."""
    head = list(head)
    for cells in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def code(text: str) -> str:
    """As code; nothing where there is nothing."""
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    (DOCS / "commands.md").write_text(page(), encoding="utf-8")
    (DOCS / "coming_from/names.md").write_text(names_page(), encoding="utf-8")
