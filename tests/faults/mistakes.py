"""What new users type wrongly, and what they are told: the whole message, word for word (F27).

`...` stands for what changes as the library grows, or differs from machine to machine.
"""

MISTAKES: dict[str, tuple[str, int, str]] = {
    "unknown option": (
        "train ppo CartPole-v1 --algorithm.learnin-rate 3",
        2,
        "ConfigError unknown option --algorithm.learnin-rate — did you mean --algorithm.learning-rate? "
        "(number or schedule, linear(0.001, 0))",
    ),
    "several unknown options": (
        "train ppo CartPole-v1 --algorithm.gama 3 --trainer.total-steps 5",
        2,
        "ConfigError unknown option --algorithm.gama — did you mean --algorithm.gamma? (number or "
        "schedule, 0.98)\n"
        "ConfigError unknown option --trainer.total-steps — did you mean --trainer.total-env-steps? "
        "(int, 100000); over all environments",
    ),
    "an option without its group": (
        "train ppo CartPole-v1 --gamma 0.9",
        2,
        "ConfigError unknown option --gamma — did you mean --algorithm.gamma? (number or schedule, 0.98)",
    ),
    "an option of another algorithm": (
        "train ppo CartPole-v1 --algorithm.epsilon 0.1",
        2,
        "ConfigError unknown option --algorithm.epsilon; it is a setting of ...dqn, ...",
    ),
    "a stray word": (
        "train ppo CartPole-v1 fast --seed 1",
        2,
        "ConfigError unexpected 'fast'; options begin with --",
    ),
    "a module that is not there": (
        "train ppo nosuchmod:Foo-v0",
        2,
        "ConfigError 'nosuchmod:Foo-v0' names the module 'nosuchmod', which cannot be imported: No module named "
        "'nosuchmod'. It must be installed or on the Python path (...)",
    ),
    "a file instead of a module": (
        "train ppo ../d/lift.py:Lift",
        2,
        "ConfigError '../d/lift.py:Lift' names a file, and code is named by its module, as in an import statement. Run "
        "from the folder '../d', or put it on PYTHONPATH, and write lift:Lift",
    ),
    "half a name": (
        "train ppo a:",
        2,
        "ConfigError the environment's name is 'a:'; give an id of Gymnasium's registry, such as CartPole-v1, or "
        "my_package:MyEnvironment for one of your own",
    ),
    "unknown algorithm": (
        "train ppoo CartPole-v1",
        2,
        "ConfigError unknown algorithm 'ppoo' — did you mean 'ppo'?",
    ),
    "an offline algorithm without data": (
        "train cql Pendulum-v1",
        2,
        "ConfigError cql learns from data that it does not collect; name some by offline.data: a folder, "
        "minari:DATASET or d4rl:FILE. `palaestra data collect random Pendulum-v1 FOLDER --steps 10000` makes such a "
        "folder, as does `palaestra data export RUN FOLDER`",
    ),
    "data that is not there": (
        "train cql Pendulum-v1 --offline.data demos",
        2,
        "ConfigError offline.data is 'demos', but there is no such folder (looked in ...)",
    ),
    "data for an on-policy algorithm": (
        "train ppo CartPole-v1 --offline.data demos",
        2,
        "ConfigError ppo learns only from its own newest steps and cannot use offline.data; leave it out, or choose an "
        "algorithm that `palaestra list algorithms` shows with replay or offline data",
    ),
    "a share of no data": (
        "train sac Pendulum-v1 --offline.fraction 0.25",
        2,
        "ConfigError offline.fraction is 0.25, but there is no offline.data to take it from",
    ),
    "a share out of range": (
        "train sac Pendulum-v1 --offline.data demos --offline.fraction 1.5",
        2,
        "ConfigError offline.fraction is 1.5; it must be above 0 and below 1",
    ),
    "a share that is less than a row": (
        "train sac Pendulum-v1 --offline.data demos --offline.fraction 0.001",
        2,
        "ConfigError offline.fraction is 0.001, so that of a minibatch of 256 rows 0 would be loaded ones; give at "
        "least one row to each side",
    ),
    "steps of its own for what only imitates": (
        "train behaviour_cloning Pendulum-v1 --offline.data demos --offline.fraction 0.5",
        2,
        "ConfigError behaviour_cloning imitates its data, so that steps of its own would teach it nothing; leave out "
        "offline.fraction. What behaviour cloning has learned can go on in PPO: `palaestra train ppo ENV --from RUN`",
    ),
    "neither of several kinds of value": (
        "train ppo CartPole-v1 --compile atuo",
        2,
        "ConfigError run.compile is 'atuo': true or false or 'auto' is needed",
    ),
    "unknown verb": (
        "trian ppo CartPole-v1",
        2,
        "ConfigError unknown verb 'trian' — did you mean 'train'?",
    ),
    "environment missing": (
        "train ppo",
        2,
        "ConfigError the environment is missing: palaestra train ALGORITHM ENVIRONMENT [options], "
        "or palaestra train --config FILE",
    ),
    "run missing": (
        "eval",
        2,
        "ConfigError the run is missing: palaestra eval RUN... [options]",
    ),
    "wrong type": (
        "train ppo CartPole-v1 --algorithm.gamma high",
        2,
        "ConfigError algorithm.gamma is 'high': give a number, linear(start, end), linear(start, end, "
        "fraction) or piecewise(0: a, 0.5: b)",
    ),
    "no whole number": (
        "train ppo CartPole-v1 --env.num-envs 2.5",
        2,
        "ConfigError env.num_envs is 2.5: a whole number is needed",
    ),
    "no value": (
        "train ppo CartPole-v1 --algorithm.gamma",
        2,
        "ConfigError --algorithm.gamma: one value is needed, and none was given",
    ),
    "two values": (
        "train ppo CartPole-v1 --algorithm.gamma 0.9 0.99",
        2,
        "ConfigError --algorithm.gamma: one value is needed, and 2 were given: 0.9 0.99",
    ),
    "wrong list": (
        "train ppo CartPole-v1 --algorithm.network.hidden-sizes 64,wide",
        2,
        "ConfigError algorithm.network.hidden_sizes is [64, 'wide']: a whole number is needed at place 2",
    ),
    "out of range": (
        "train ppo CartPole-v1 --algorithm.gamma 1.5",
        2,
        "ConfigError algorithm.gamma is 1.5; it must lie in [0, 1]",
    ),
    "not positive": (
        "train dqn CartPole-v1 --algorithm.target-period 0",
        2,
        "ConfigError algorithm.target_period is 0; it must be greater than 0",
    ),
    "no budget": (
        "train ppo CartPole-v1 --trainer.total-env-steps 0",
        2,
        "ConfigError trainer.total_env_steps is 0; it must be greater than 0",
    ),
    "no environments": (
        "train ppo CartPole-v1 --env.num-envs 0",
        2,
        "ConfigError env.num_envs is 0; it must be at least 1",
    ),
    "negative seed": (
        "train ppo CartPole-v1 --seed -1",
        2,
        "ConfigError run.seed is -1; it must be at least 0",
    ),
    "no seeds": (
        "train ppo CartPole-v1 --seeds 0",
        2,
        "ConfigError --seeds is 0; it must be at least 1",
    ),
    "no schedule": (
        "train ppo CartPole-v1 --algorithm.learning-rate 'linear(1)'",
        2,
        "ConfigError algorithm.learning_rate is 'linear(1)': give a number, linear(start, end), "
        "linear(start, end, fraction) or piecewise(0: a, 0.5: b)",
    ),
    "not one of the choices": (
        "train ppo CartPole-v1 --env.vectorization threads",
        2,
        "ConfigError env.vectorization is 'threads': 'auto', 'serial', 'thread', 'process', 'native' or 'batch' is "
        "needed",
    ),
    "an unroll without end": (
        "train ppo CartPole-v1 --algorithm.unroll-length 1000000000 --env.num-envs 2 --trainer.total-env-steps 1500",
        2,
        "ConfigError algorithm.unroll_length makes one unroll 2,000,000,000 env steps, and the run has 1,500 "
        "(trainer.total_env_steps); give a shorter one",
    ),
    "a value for nothing": (
        "train ppo CartPole-v1 --env.kwargs size",
        2,
        "ConfigError --env.kwargs: 'size' has no value; give names and values in turn, or one {name: value}",
    ),
    "impossible pair": (
        "train dqn Pendulum-v1",
        2,
        "ConfigError dqn does not fit Pendulum-v1: ValueGreedyPolicy needs a discrete action space and "
        "was given BoundedSpec(...Algorithms that fit: ...ppo, ...",
    ),
    "impossible schedule": (
        "train dqn CartPole-v1 --algorithm.epsilon 2",
        2,
        "ConfigError algorithm.epsilon is 2.0; it must lie in [0, 1]",
    ),
    "no such environment": (
        "train ppo CartPol-v1",
        2,
        "ConfigError no environment 'CartPol-v1' in Gymnasium's registry: Environment `CartPol` doesn't "
        "exist. — did you mean 'CartPole-v1'? An environment of your own is named \"my_package:MyEnvironment\"",
    ),
    "no such version": (
        "train ppo CartPole-v7",
        2,
        "ConfigError no environment 'CartPole-v7' in Gymnasium's registry: Environment version `v7` for "
        "environment `CartPole` doesn't exist. It provides versioned environments: [ `v0`, `v1` ]. — "
        "did you mean 'CartPole-v1'? An environment of your own is named \"my_package:MyEnvironment\"",
    ),
    "no such module": (
        "train ppo nothing.here:Env",
        2,
        "ConfigError 'nothing.here:Env' names the module 'nothing.here', which cannot be imported: No "
        "module named 'nothing'. It must be installed or on the Python path (...)",
    ),
    "no such class": (
        "train ppo palaestra.envs.tiny:Catsh",
        2,
        "ConfigError module 'palaestra.envs.tiny' has no 'Catsh' — did you mean 'Catch'?",
    ),
    "arguments that do not fit": (
        "train ppo palaestra.envs.tiny:Catch --env.kwargs rows 3",
        2,
        "ConfigError 'palaestra.envs.tiny:Catch' cannot be called with {'num_pixels': 64, 'rows': 3}: got an "
        "unexpected keyword argument 'rows'",
    ),
    "no such file": (
        "train ppo CartPole-v1 --config missing.yaml",
        2,
        "ConfigError the configuration missing.yaml cannot be read: No such file or directory",
    ),
    "an option without its file": (
        "train ppo CartPole-v1 --config",
        2,
        "ConfigError --config: one value is needed, and none was given",
    ),
    "no episodes": (
        "eval last --episodes 0",
        2,
        "ConfigError --episodes is 0; it must be at least 1",
    ),
    "no film": (
        "play last --output film.avi",
        2,
        "ConfigError --output is 'film.avi'; give a file that ends with .mp4 or .gif",
    ),
    "no picture": (
        "plot last --output curve.jpeg",
        2,
        "ConfigError --output is 'curve.jpeg'; give a file that ends with .png, .svg or .csv",
    ),
    "no table": (
        "stats last --output curve.csv",
        2,
        "ConfigError --output is 'curve.csv'; give a file that ends with .png or .svg (--json prints the numbers)",
    ),
    "no page": (
        "report last --output page.pdf",
        2,
        "ConfigError --output is 'page.pdf'; give a file that ends with .html",
    ),
    "no axis": (
        "plot last --x frames",
        2,
        "ConfigError x is 'frames': 'steps', 'time' or 'episodes' is needed",
    ),
    "no run": (
        "resume last",
        5,
        "CheckpointError there is no run 'last'; runs in runs: none yet; start one with `palaestra "
        "train ppo CartPole-v1`",
    ),
    "no duration": (
        "train ppo CartPole-v1 --time-limit soon",
        2,
        "ConfigError --time-limit: 'soon' is no duration; give a duration such as 90s, 30m or 2h",
    ),
    "no override": (
        "resume last --override algorithm.gamma",
        2,
        "ConfigError --override was given 'algorithm.gamma'; give PATH=VALUE, such as algorithm.gamma=0.9",
    ),
    "no list": (
        "list algos",
        2,
        "ConfigError `palaestra list` has no 'algos' — did you mean 'algorithms'?",
    ),
    "a name without a fork": (
        "resume last --name x",
        2,
        "ConfigError --name names the new run of --fork; give both, or neither",
    ),
    "everything at once": (
        "train ppo CartPole-v1 --algorithm.gamma 2 --env.num-envs no --sed 1 --run.eval-num-envs 0",
        2,
        "ConfigError unknown option --sed — did you mean --seed? (int, 0)\n"
        "ConfigError algorithm.gamma is 2.0; it must lie in [0, 1]\n"
        "ConfigError env.num_envs is False: a whole number is needed\n"
        "ConfigError run.eval_num_envs is 0; it must be at least 1",
    ),
}
"""By name: what is typed, the exit code, what is said."""
