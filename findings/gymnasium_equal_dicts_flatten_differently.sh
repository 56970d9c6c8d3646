#!/usr/bin/env bash
# Guess: two Gymnasium spaces that are equal flatten an observation to the same vector.
# Seen with gymnasium 1.4.0: `Dict({"b": ..., "a": ...})` sorts its keys, `Dict(b=..., a=...)` keeps their order, `==` calls
# both equal, each contains the observations of the other, and `flatten` gives [b, a] for one and [a, b] for the other.
# So an equality check before weights are loaded does not notice inputs that have changed places.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check gymnasium==1.4.0 numpy==2.4.0
"$folder/venv/bin/python" - <<'PY'
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, flatten

one = {"low": 0.0, "high": 9.0, "shape": (1,), "dtype": np.float32}
by_keywords, by_mapping = Dict(b=Box(**one), a=Box(**one)), Dict({"b": Box(**one), "a": Box(**one)})
seen = {"a": np.array([1.0], np.float32), "b": np.array([2.0], np.float32)}
first, second = flatten(by_keywords, seen), flatten(by_mapping, seen)
print(gymnasium.__version__, by_keywords == by_mapping, list(by_keywords), list(by_mapping), first, second)
assert gymnasium.__version__ == "1.4.0"
assert by_keywords == by_mapping
assert by_keywords.contains(seen) and by_mapping.contains(seen)
assert list(by_keywords) == ["b", "a"] and list(by_mapping) == ["a", "b"]
assert first.tolist() == [2.0, 1.0] and second.tolist() == [1.0, 2.0]
PY
