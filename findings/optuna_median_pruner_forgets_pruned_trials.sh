#!/usr/bin/env bash
# Optuna 5.0.0: `MedianPruner` compares a trial with those that were completed, and not with those it has pruned.
#
# Guess: the bar at a step is the median of all earlier trials' values there. So a search in which half of the trials
# are pruned keeps the bar that a search without pruning would have.
# Seen: pruned trials, the worse half, are left out. With 10, 20, 30, 40 completed and 1, 2, 3, 4 pruned at a step, a new
# trial at 22 is above the median of all eight (7) and is pruned, because the median of the four completed is 25. The bar
# rises with every trial that is pruned, and `n_startup_trials` counts completed trials, too: after four completed and any
# number of pruned ones nothing is pruned yet with the default of five.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check optuna==5.0.0
"$folder/venv/bin/python" - <<'PYTHON'
import statistics

import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)
COMPLETED, PRUNED, NEW = (10.0, 20.0, 30.0, 40.0), (1.0, 2.0, 3.0, 4.0), 22.0
states = optuna.trial.TrialState


def verdict(startup: int) -> bool:
    pruner = optuna.pruners.MedianPruner(n_startup_trials=startup, n_warmup_steps=0)
    study = optuna.create_study(direction="maximize", pruner=pruner)
    for value in COMPLETED:
        study.add_trial(optuna.trial.create_trial(state=states.COMPLETE, value=value, intermediate_values={1: value}))
    for value in PRUNED:
        study.add_trial(optuna.trial.create_trial(state=states.PRUNED, value=value, intermediate_values={1: value}))
    trial = study.ask()
    trial.report(NEW, 1)
    return trial.should_prune()


everybody, survivors = statistics.median(COMPLETED + PRUNED), statistics.median(COMPLETED)
print(f"optuna {optuna.__version__}: new {NEW}, median of all {everybody}, of the completed {survivors}")
print(f"pruned after 4 start-up trials: {verdict(4)}; after 5, with 8 trials there: {verdict(5)}")
assert optuna.__version__ == "5.0.0"
assert everybody < NEW < survivors
assert verdict(4), "pruned trials count: the behaviour has changed"
assert not verdict(5), "pruned trials count as start-up trials: the behaviour has changed"
PYTHON
