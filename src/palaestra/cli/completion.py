"""`palaestra completion`: scripts that let a shell complete what is typed after `palaestra`.

One program for `sh`, made from the table of commands, answers all three shells in milliseconds: what a word can be is
written into it, but for names of runs, which it looks up.
"""

from pathlib import Path

from palaestra.algorithms import ALGORITHMS
from palaestra.cli.commands import COMMANDS, Argument, Command
from palaestra.cli.help import Option, choices, options_of
from palaestra.cli.options import NoOptions, defaults_of
from palaestra.envs.suites.gym import own_environments, registered_environments

_RUNS = "RUNS"  # which the program looks up
_SHELLS = Path(__file__).parent / "shells"


def completion(shell: str, options: NoOptions) -> int:
    """Prints a script; its first lines say where to write it."""
    words = {"": [name for name in COMMANDS if " " not in name]}
    for command in COMMANDS.values():
        words |= _words(command)
    verbs = "|".join(f'"1 {group} {verb}"' for group, _, verb in (name.rpartition(" ") for name in COMMANDS))
    keys: dict[tuple[str, ...], list[str]] = {}
    for key, given in words.items():
        keys.setdefault(tuple(given), []).append(f'"{key[:-1]}"[1-9]*' if key.endswith(" *") else f'"{key}"')
    entries = "\n".join(_entry(of, given) for given, of in keys.items() if given)
    program = (_SHELLS / "program.sh").read_text().replace("COMMANDS", verbs).replace("ENTRIES", entries)
    print((_SHELLS / f"palaestra.{shell}").read_text().replace("PROGRAM", program), end="")
    return 0


def _words(command: Command) -> dict[str, list[str]]:
    """What can be typed after a command: members of a group, arguments by number, options, and values by option."""
    name, words = command.name, dict[str, list[str]]()
    words[name] = [member.name.rpartition(" ")[2] for member in command.members]
    if not command.function:
        return words
    for number, argument in enumerate(command.arguments, 1):
        following = command.arguments[number : number + 1] if argument.is_optional else []
        words[f"{name} {number}"] = [word for one in (argument, *following) for word in _values(one)]
    if command.takes_many:
        words[f"{name} *"] = words[f"{name} {len(command.arguments)}"]
    shown = options_of(defaults_of(command))
    if command.forms == "ALGORITHM ENVIRONMENT":  # whose options depend on the algorithm
        shown = [option for option in shown if not _is_of_algorithm(option)]
        for algorithm in ALGORITHMS:
            own = [option for option in options_of(defaults_of(command, [algorithm])) if _is_of_algorithm(option)]
            words[f"{name} -- {algorithm}"] = [option.names[0] for option in own]
            words |= _choices(name, own)
    words[f"{name} --"] = ["--help", *(typed for option in shown for typed in option.names)]
    return words | _choices(name, shown)


def _is_of_algorithm(option: Option) -> bool:
    return option.setting.path.startswith("algorithm.")


def _choices(command: str, options: list[Option]) -> dict[str, list[str]]:
    """The values of options."""
    return {f"{command} {typed}": choices(option.setting.hint) for option in options for typed in option.names}


def _values(argument: Argument) -> list[str]:
    """What an argument can be; empty where that is a file, or open."""
    if "ALGORITHM" in argument.form:
        return list(ALGORITHMS)
    if "ENVIRONMENT" in argument.form:
        return [env.name for env in (*own_environments(), *registered_environments())]
    if argument.form in ("RUN", "RUN...", "RUN[@STEPS]...", "OTHER-RUN", "[NAME=]LOGS..."):
        return [_RUNS]
    return list(argument.choices)


def _entry(keys: list[str], words: tuple[str, ...]) -> str:
    """The words of some keys in the program."""
    lookup = "runs" if words == (_RUNS,) else f'printf "%s\\n" {" ".join(words)}'
    return f"  {'|'.join(keys)}) {lookup} ;;"
