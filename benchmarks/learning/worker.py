"""One training run in a fresh process: `python -m benchmarks.learning.worker ALGORITHM ENV SEED DIRECTORY SETTINGS`.

`SETTINGS` are further keyword arguments of `palaestra.train`, as JSON. Prints one line of JSON.
"""

import json
import sys

from palaestra.experiments import train_published

if __name__ == "__main__":
    algorithm, env, seed, directory, settings = sys.argv[1:]
    print(json.dumps(train_published(algorithm, env, int(seed), directory, **json.loads(settings))))
