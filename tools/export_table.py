"""Exports a policy of every algorithm in both formats; writes how far each is from the policy to docs/export_table.md.

python tools/export_table.py            # all of them, about ten minutes
python tools/export_table.py ppo dqn    # asks these alone, and prints their lines
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

import palaestra
from palaestra.core import PalaestraError
from palaestra.policies import SearchPolicy, save_policy

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.algorithms.parts import CASES, collected  # noqa: E402

PAGE = ROOT / "docs/export_table.md"
HEAD = """\
# Exported policies beside the policies

A small policy of every algorithm, for each kind of actions that it takes, with statistics of observations, was exported
and asked for at least 1,000 observations. Written by `tools/export_table.py`; not edited by hand. The difference is
the largest of any number that came out, relative where it is above 1; more than 1e-5 is refused. "Ties" are discrete
actions that differ where the policy itself decides either way, by the size of the batch.
Policies that search, of `alphazero` and `muzero`, are not exported.

| algorithm | actions | ONNX | ties | torch | ties |
|---|---|---|---|---|---|
"""


def line(name: str, kind: str) -> str:
    """One line of the table; none for a policy that searches.

    Args:
        name: of the algorithm.
        kind: of the environment.
    """
    algorithm, collector = collected(name, kind, normalize_observation=True)
    policy = algorithm.policy.eval()
    if isinstance(policy, SearchPolicy):
        return ""
    if policy.normalizer is not None:
        policy.normalizer.merge(policy.normalizer.increment(collector.buffer.newest(4).observation))
    cells: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        save_policy(policy, Path(folder) / "policy")
        for format in ("onnx", "torch"):
            try:
                (made,) = palaestra.export(Path(folder) / "policy", Path(folder) / format, format=format)
                cells += [f"{made.parity.largest_difference:.1e}", str(made.parity.other_choices)]
            except PalaestraError as error:
                cells += [f"**refused**: {error}", ""]
    return f"| `{name}` | {kind} | {' | '.join(cells)} |\n"


def main(names: Sequence[str]) -> int:
    """Writes the page, or prints the lines of some algorithms.

    Args:
        names: of these; all if none.

    Returns:
        1 if an export was refused.
    """
    torch.set_num_threads(1)
    lines: list[str] = []
    for name, kind in CASES:
        if not names or name in names:
            lines.append(line(name, kind))
            print(lines[-1], end="", flush=True)
    if not names:
        PAGE.write_text(HEAD + "".join(lines), encoding="utf-8")
    return int(any("refused" in each for each in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
