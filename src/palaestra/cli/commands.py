"""The one table of commands; usage, help, parsing, completion and the page *Commands* are made from it.

It knows nothing of what a command does: a function and its options are imported when they are asked for.
"""

import importlib
import re
import typing
from collections.abc import Callable
from typing import Any, NamedTuple


class Argument(NamedTuple):
    """A word after the verb."""

    form: str
    """As usage shows it: `RUN`, `RUN...` for one or more, `[ALGORITHM]` for one that may be left out, and in small
    letters the words to choose from, as `bash|zsh|fish`."""

    @property
    def is_optional(self) -> bool:
        """Whether it may be left out."""
        return self.form[0] == "[" and self.form[-1] == "]"

    @property
    def choices(self) -> tuple[str, ...]:
        """What it can be; nothing where that is open."""
        return tuple(self.form.strip("[]").split("|")) if self.form.islower() else ()

    @property
    def called(self) -> str:
        """What messages call it.

        Examples:
            >>> Argument("RUN[@STEPS]...").called, Argument("MODEL|FOLDER").called
            ('the run', 'the model or folder')
        """
        form = self.form.strip("[]") if self.is_optional else re.sub(r"\[[^]]*\]|\.\.\.", "", self.form)
        return f"the {form.lower().replace('|', ' or ').replace('-', ' ')}"


class Command(NamedTuple):
    """A command: what people read of it, and where its function is."""

    name: str
    """The verb; or several words, of a group of commands."""
    forms: str
    """Its arguments, one word each: see `Argument`."""
    summary: str
    """What it does, in a few words."""
    function: str = ""
    """`module:function`, with a dot before a module of this package. It is called with the arguments (one or more as a
    list, one left out as an empty text) and then with `options`, a dataclass that its annotation names. Empty for a
    group."""
    example: str = ""
    """What works after the name."""
    instead: str = ""
    """The option with which its arguments are left out; several with `|` between them."""

    @property
    def arguments(self) -> list[Argument]:
        """What comes before the options."""
        return [Argument(form) for form in self.forms.split()]

    @property
    def takes_many(self) -> bool:
        """Whether its last argument stands for one or more."""
        return self.forms.endswith("...")

    @property
    def usage(self) -> str:
        """Usage line."""
        other = "".join(f", or palaestra {self.name} {one}" for one in self.instead.split("|") if one)
        return f"{' '.join(filter(None, ('palaestra', self.name, self.forms, '[options]')))}{other}"

    @property
    def members(self) -> list["Command"]:
        """The commands of a group."""
        return [command for command in COMMANDS.values() if command.name.rpartition(" ")[0] == self.name]

    def load(self) -> Callable[..., int]:
        """Its function."""
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(module, __package__), name)

    def option_class(self) -> type[Any]:
        """The dataclass of its options; the first of several."""
        hint = typing.get_type_hints(self.load())["options"]
        return (*typing.get_args(hint), hint)[0]


_TABLE = (
    Command(
        "train", "ALGORITHM ENVIRONMENT", "train an agent", ".train:train", "ppo CartPole-v1 --seeds 5", "--config FILE"
    ),
    Command("resume", "RUN", "continue a run", ".train:resume", "last"),
    Command("scale", "RUN", "learners join and leave it", ".scale:scale", "last --learners 4"),
    Command("eval", "RUN...", "evaluate its policy", ".results:evaluate", "last --episodes 100"),
    Command("rate", "RUN[@STEPS]...", "Elo of those that play", ".results:rate", "first second --baseline"),
    Command("play", "RUN", "watch it, or film it", ".play:play", "last"),
    Command("serve", "RUN", "answer over HTTP", ".deploy:serve", "last --port 8000"),
    Command("plot", "RUN...", "learning curves", ".results:plot", "last --output curve.svg"),
    Command("report", "RUN...", "all of it as one page", ".results:report", "last"),
    Command("compare", "RUN OTHER-RUN", "settings and curves", ".results:compare", "first second"),
    Command("stats", "[NAME=]LOGS...", "what seeds say", ".stats:stats", "ours=last theirs=sb3_logs --env CartPole-v1"),
    Command("share", "RUN", "a folder for others", ".deploy:share", "last --push me/my-agent"),
    Command("pull", "MODEL|FOLDER", "a policy of others", ".deploy:pull", "zoo:ppo/CartPole-v1"),
    Command("verify", "ROW", "compute a result again", ".verify:verify", "ppo_CartPole-v1", "--list|--run RUN"),
    Command("diagnose", "RUN", "why does it not learn", ".diagnose:diagnose", "last"),
    Command("tune", "ALGORITHM ENVIRONMENT", "search for settings", ".tune:tune", "dqn CartPole-v1 --trials 20"),
    Command("export", "RUN", "its policy as ONNX", ".deploy:export", "last --format onnx"),
    Command("data", "WHAT", "data to learn from", "", "collect random Pendulum-v1 FOLDER"),
    Command("data export", "RUN FOLDER", "the replay buffer of its checkpoint", ".data:export", "last own"),
    Command("data collect", "RUN FOLDER", "its policy acts", ".data:collect", "last expert --steps 100000"),
    Command("data collect random", "ENVIRONMENT FOLDER", "chance acts", ".data:collect_random", "Pendulum-v1 demo"),
    Command("data evaluate", "RUN FOLDER", "what data says its policy is worth", ".data:evaluate", "last expert"),
    Command(
        "data minari", "FOLDER DATASET", "complete episodes, for Minari", ".data:minari", "expert pendulum/expert-v0"
    ),
    Command("list", "[algorithms|envs|presets|policies|runs]", "what there is", ".inspect:list_all", "algorithms"),
    Command("show-code", "ALGORITHM", "the file that is the algorithm", ".inspect:show_code", "ppo --flat"),
    Command("bench", "[ALGORITHM] ENVIRONMENT", "env steps per second", ".inspect:bench", "CartPole-v1"),
    Command("check-env", "ENVIRONMENT", "check an environment", ".inspect:check_env", "my_package:MyEnvironment"),
    Command("venv", "WHAT", "Python environments", "", "create robotics"),
    Command("venv create", "FAMILY...", "one for packages that exclude others", ".environments:create", "robotics"),
    Command("doctor", "", "check this installation", ".inspect:doctor"),
    Command("completion", "bash|zsh|fish", "a script for the shell", ".completion:completion", "bash"),
)
COMMANDS: dict[str, Command] = {command.name: command for command in _TABLE}
"""Every command by its name, in the order in which they are shown."""

ELSEWHERE = {"enjoy": "play", "watch": "play", "test": "eval", "run": "train", "learn": "train", "optimize": "tune"}
"""What other programs call our verbs."""

_END = """
`palaestra VERB --help` has each verb's options (of `train` those that are set most; `--help-all` has all);
`palaestra --version` is this version. `--trust` opens runs of others that name code of their own.
exit codes: 0 done, 1 findings (`diagnose`), not verified (`verify`), requests unanswered (`serve`), 2 configuration,
3 environment or workers, 4 non-finite numbers, 5 checkpoint or storage, 129 SIGHUP, 130 Ctrl-C,
143 SIGTERM (all three saved; `serve` answers what it has accepted and ends with 0)
"""


def usage(group: str = "") -> str:
    """The commands of a group with what they do.

    Args:
        group: its name; by default all verbs.
    """
    inside = f"{group} " if group else ""
    shown = [command for name, command in COMMANDS.items() if name.startswith(inside) and (group or " " not in name)]
    first = [f"{command.name} {command.forms}" for command in shown]
    widths = max(map(len, first)), max(len(command.summary) for command in shown)
    lines = [
        f"  {words:<{widths[0]}}  {command.summary:<{widths[1]}}  palaestra {command.name} {command.example}"
        for words, command in zip(first, shown, strict=True)
    ]
    head = f"usage: palaestra {group} WHAT ..." if group else "usage: palaestra VERB ..."
    end = _END if not group else f"\n`palaestra {group} WHAT --help` has the options.\n"
    return "\n".join([head, "", *lines, end])
