"""The windows of `benchmarks.kills`: stretches of a command's life in which it is struck."""

from typing import NamedTuple

from tests.faults.campaign import COMMON, OF_ALGORITHM

SIGNALS = ("KILL", "KILL", "TERM", "INT")
FULL = "full disk"
CODES = {"KILL": {-9}, "TERM": {143, -15}, "INT": {130, -2}, FULL: {5}}
"""How a command that was struck may end; one that was quicker ends with 0."""


class Window(NamedTuple):
    """A stretch of a command's life."""

    name: str
    command: tuple[str, ...]
    place: str = ""
    """`module:Class.method` that opens the window when it is called. Else `victim` does."""
    victim: str = ""
    """Title of the process that is struck as soon as it is there; by default that of the command."""
    hows: tuple[str, ...] = SIGNALS
    codes: frozenset[int] = frozenset()
    """Others that a strike may end with."""
    most_visits: int = 6
    delay_s: float = 0.01
    fresh: bool = False
    """Whether the command imports the library itself, and is struck from outside."""
    begins: tuple[str, ...] = ("run/config.yaml",)
    """What there must be for a resume; else the command is given again."""
    setup: tuple[str, ...] = ()
    """A run that is there before."""
    replaces: bool = False
    """Whether the run replaces what is struck, with new episodes, or without rows; it has to say so."""
    keeps: bool = False
    """Whether the command, given again, goes on with what is there."""
    lowered: tuple[tuple[str, int], ...] = ()
    """Numbers of modules that the command has otherwise, by `module:NAME`, so that the window comes early."""
    left_s: float = 30.0
    """After which no process may be left: on a busy machine one imports for long before it sees that nobody waits."""

    def may_end(self, how: str) -> set[int]:
        """Exit codes, besides 0, of a command that was struck."""
        return {*self.codes, *(() if self.victim else CODES[how])}


def train(algorithm: str, env: str, *more: str) -> tuple[str, ...]:
    """A small run."""
    return ("train", algorithm, env, "--env.num-envs", "2", *COMMON, *OF_ALGORITHM[algorithm], *more)


PPO = train("ppo", "CartPole-v1")
DQN = train("dqn", "CartPole-v1", "--algorithm.unroll-length", "4", "--algorithm.gradient-steps", "2")
PROCESS = ("--distributed.runtime", "process", "--distributed.num-workers", "2", "--run.num-threads", "1")
LEARNERS = (*PROCESS, "--distributed.num-learners", "2", "--distributed.gradient-shards", "2")
RAY = ("--distributed.runtime", "ray", "--distributed.num-workers", "2")
SOON = (("palaestra.training:COMPILED_AFTER", 30), ("palaestra.training:LEAST_COMPILED", 60))
TUNED = (
    *("--trials", "2", "--seeds", "1", "--top", "1", "--fresh-seeds", "2", "--fresh-episodes", "2", "--no-prune"),
    *("--trainer.total-env-steps", "200", "--trainer.eval-every-steps", "100", "--trainer.eval-episodes", "2"),
)
LOST = frozenset({3})  # a process that a run cannot do without
OF_RAY = LOST | {1}  # Ray itself ends a program whose head is lost while it joins, after 60 s, and says so
OF_RAY_S = 75.0  # its agents look a minute long for a head that was lost before this process knew of them
WINDOWS = (
    Window("import", PPO, fresh=True, delay_s=4.0),
    Window("start", PPO, "palaestra.experiments.run:make_learner", most_visits=1, delay_s=0.05),
    Window("warm-up", DQN, "palaestra.rollout:Collector.unroll", most_visits=7, delay_s=0.002),
    Window("unroll", PPO, "palaestra.rollout:Collector.unroll", most_visits=35, delay_s=0.005),
    Window("update", PPO, "palaestra.training.learning:LearningRecord.sources", most_visits=35),
    Window("update of a replay", DQN, "palaestra.training.learning:LearningRecord.sources", most_visits=60),
    Window("evaluation", PPO, "palaestra.training:Trainer._begin_evaluation", most_visits=3, delay_s=0.05),
    Window(
        "evaluation beside",
        (*PPO, "--trainer.eval-async"),
        victim="palaestra: evaluation",
        most_visits=1,
        delay_s=0.3,
    ),
    Window("saving", PPO, "palaestra.training:CheckpointStore._write", hows=(*SIGNALS, FULL)),
    Window("saving a replay", DQN, "palaestra.training:CheckpointStore._write", hows=(*SIGNALS, FULL), delay_s=0.03),
    Window("logging", PPO, "palaestra.training.loggers:LoggerGroup.metrics", most_visits=25, hows=(*SIGNALS, FULL)),
    Window("ending", PPO, "palaestra.experiments.run:_end", most_visits=1, delay_s=0.02),
    Window(
        "start of workers",
        (*PPO, *PROCESS),
        "palaestra.runtime:SupervisedProcess.__init__",
        most_visits=2,
        delay_s=0.3,
    ),
    Window(
        "fork server",
        (*PPO, *PROCESS),
        "palaestra.runtime:SupervisedProcess.__init__",
        "forkserver",
        ("KILL",),
        LOST,
        most_visits=2,
        delay_s=0.3,
        replaces=True,
    ),
    Window(
        "a worker",
        (*PPO, *PROCESS),
        victim="palaestra: rollout-1",
        hows=("KILL",),
        most_visits=1,
        delay_s=0.5,
        replaces=True,
    ),
    Window("a learner", (*PPO, *LEARNERS), victim="palaestra: learner 2 of 2", hows=("KILL",), codes=LOST, delay_s=0.5),
    Window(
        "a shard of replay",
        (*DQN, *PROCESS, "--distributed.replay-shards", "2"),
        victim="palaestra: replay shard 2 of 2",
        hows=("KILL",),
        codes=LOST,
        delay_s=0.5,
        replaces=True,
    ),
    Window(
        "environments",
        (*PPO, "--env.vectorization", "process"),
        victim="palaestra: worker of environments 0 to 0",
        hows=("KILL",),
        codes=LOST,
        delay_s=0.5,
    ),
    Window(
        "several seeds",
        (*PPO, "--seeds", "2"),
        "palaestra.experiments.seeds:_Seed.refresh",
        most_visits=30,
        delay_s=0.2,
        begins=("run/seed_0/config.yaml", "run/seed_1/config.yaml", "run/group.json"),
    ),
    Window(
        "data collect",
        ("data", "collect", "random", "CartPole-v1", "data", "--steps", "3000"),
        "palaestra.rollout:Collector.collect",
        most_visits=2,
        delay_s=0.5,
        begins=(),
    ),
    Window(
        "tune",
        ("tune", "ppo", "CartPole-v1", "--output", "data", *TUNED, *OF_ALGORITHM["ppo"]),
        "palaestra.experiments.seeds:_Seed.refresh",
        most_visits=20,
        delay_s=0.3,
        keeps=True,
    ),
    Window(
        "export",
        ("export", "run", "--root", ".", "--output", "data"),
        "palaestra.deployment.exporting:_exported",
        most_visits=1,
        delay_s=2.0,
        setup=PPO,
    ),
    Window(
        "share",
        ("share", "run", "--root", ".", "--output", "data", "--no-film", "--episodes", "2"),
        "palaestra.deployment.sharing:_require_alike",
        most_visits=1,
        delay_s=0.5,
        setup=PPO,
    ),
    Window(
        "first compilation",
        (*PPO, "--compile", "true"),
        "palaestra.training.learning:LearningRecord.sources",
        most_visits=1,
        delay_s=8.0,
    ),
    Window("resume of a resume", DQN, "palaestra.training:CheckpointStore._newest", most_visits=1, delay_s=0.05),
    Window(
        "upload",
        ("share", "run", "--root", ".", "--output", "data", "--no-film", "--episodes", "2", "--push", "me/policy"),
        "palaestra.deployment.sharing:_push",
        most_visits=1,
        delay_s=0.15,
        setup=PPO,
    ),
    Window(
        "switch to compiled",
        DQN,
        "palaestra.training:CompiledLater._switch",
        most_visits=1,
        delay_s=4.0,
        lowered=SOON,
    ),
    Window(
        "compiler beside",
        DQN,
        "palaestra.training:CompiledLater._start",
        most_visits=1,
        delay_s=4.0,
        lowered=SOON,
    ),
    Window("the compiler", DQN, victim="palaestra: compiler", hows=("KILL",), delay_s=4.0, lowered=SOON),
    Window(
        "Ray's head",
        (*PPO, *RAY),
        victim="ray/core/src/ray/gcs/gcs_server",
        hows=("KILL",),
        codes=OF_RAY,
        delay_s=3.0,
        left_s=OF_RAY_S,
    ),
    Window(
        "Ray's helpers",
        (*PPO, *RAY),
        victim="ray/dashboard",
        hows=("KILL",),
        codes=OF_RAY,
        delay_s=3.0,
        left_s=OF_RAY_S,
    ),
)
FIRST = 25
"""Windows of the first 500 trials; those that came later share the trials after these."""
