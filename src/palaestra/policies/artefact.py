"""A policy as a directory to deploy: `policy.json` says what it is, `weights.safetensors` holds its tensors."""

import contextlib
import dataclasses
import json
import shutil
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from palaestra.core import SpecTree, load_tensors, save_tensors, spec_from_json, spec_layout, spec_to_json
from palaestra.core.computing import BoundedTensors
from palaestra.core.errors import CheckpointError, ConfigError, did_you_mean
from palaestra.core.files import fingerprint, replace_text
from palaestra.core.importing import code_of, strange_code
from palaestra.core.reading import read_json
from palaestra.core.seeding import seeded_initialisation
from palaestra.core.spec import spec_leaves
from palaestra.nn import EncoderOption, NetworkConfig, encoder_name, module_maker
from palaestra.policies import team
from palaestra.policies.given import parts_of, require_parts
from palaestra.policies.latent import LatentPolicy
from palaestra.policies.normalizer import ObservationNormalizer
from palaestra.policies.policy import NetworkPolicy, Policy
from palaestra.policies.population import PopulationPolicy
from palaestra.policies.search import SearchPolicy
from palaestra.policies.squashed import DeterministicPolicy, OneStepPolicy, SquashedGaussianPolicy
from palaestra.policies.stochastic import CategoricalPolicy, CompositePolicy, GaussianPolicy, ReturnConditionedPolicy
from palaestra.policies.value_greedy import ValueGreedyPolicy

__all__ = [
    "copy_policy",
    "in_saved_order",
    "load_policy",
    "load_weights",
    "require_order",
    "save_policies",
    "save_policy",
]

_FORMAT = 1
_CLASSES: tuple[type[NetworkPolicy], ...] = (
    *(CategoricalPolicy, CompositePolicy, DeterministicPolicy, GaussianPolicy, LatentPolicy),
    *(
        OneStepPolicy,
        PopulationPolicy,
        ReturnConditionedPolicy,
        SearchPolicy,
        SquashedGaussianPolicy,
        ValueGreedyPolicy,
    ),
    *(team.TeamCategoricalPolicy, team.TeamDeterministicPolicy, team.TeamGreedyPolicy, team.TeamSquashedGaussianPolicy),
)
_Read = TypeVar("_Read")
_JSON, _WEIGHTS = "policy.json", "weights.safetensors"
_MOST_SEEN = 10**7
"""Numbers of an observation that count for what building may ask for: two of four pictures of 4K are 20 times that."""


def save_policy(policy: Policy, directory: str | Path) -> None:
    """Writes everything that is needed to act: no pickle, no training state, no exploration.

    Args:
        policy: made by its class's `build`.
        directory: made where it does not exist; an artefact in it is replaced.

    Raises:
        ConfigError: the policy was not made by `build`, so nothing says how to make its network again.
    """
    save_policies({Path(directory): policy})


def save_policies(policies: Mapping[Path, Policy]) -> None:
    """Saves policies that belong together: each is written whole before the first takes the place of another.

    At any moment, and if this process dies, `load_policy` finds what was there before or what is saved here.

    Args:
        policies: by directory; see `save_policy`.
    """
    written: list[Path] = []
    try:
        for directory, policy in policies.items():
            kind = _kind(policy)
            directory.mkdir(parents=True, exist_ok=True)
            _end_killed(directory)
            weights, text = directory / f"{_WEIGHTS}.tmp", directory / f"{_JSON}.tmp"
            written += [weights, text]
            save_tensors(weights, policy.state_dict())
            description = {"format": _FORMAT, **kind, "wrappers": policy.wrappers}
            description["weights_sha256"] = fingerprint(weights)["sha256"]
            replace_text(text, json.dumps(description, indent=2) + "\n")
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    for path in written:  # the weights first: until their description has its name, readers look at both
        path.replace(path.with_suffix(""))


def _end_killed(directory: Path) -> None:
    """Gives a description its name, whose weights have theirs: a process died between the two, and left only this."""
    begun, weights = directory / f"{_JSON}.tmp", directory / _WEIGHTS
    if begun.is_file() and weights.is_file():
        with contextlib.suppress(CheckpointError):  # of others: no save can make them whole
            if _description(directory, fingerprint(weights)["sha256"])[1] == begun:
                begun.replace(directory / _JSON)


def copy_policy(source: Path, target: Path) -> str:
    """Copies an artefact, whatever another process saves in its place meanwhile.

    Args:
        source: its directory.
        target: another one, which exists.

    Returns:
        The SHA-256 of the file of weights.

    Raises:
        CheckpointError: a file is missing or damaged.
    """

    def copy() -> str:
        shutil.copyfile(source / _WEIGHTS, target / _WEIGHTS)
        sha256 = fingerprint(target / _WEIGHTS)["sha256"]
        data, path = _description(source, sha256)
        shutil.copyfile(path, target / _JSON)
        return str(data["weights_sha256"])

    return _undisturbed(source, copy)


def load_policy(
    directory: str | Path, *, classes: Sequence[type[NetworkPolicy]] = (), network: EncoderOption = None
) -> NetworkPolicy:
    """The policy that `save_policy` wrote, in `Phase.EVAL`.

    Args:
        classes: policy classes of your own that the artefact may name.
        network: the encoder of your own that the policy has. It is needed where the artefact has no name for it that
            this process could import: a class of the script that saved it, a lambda, or a module.

    Raises:
        CheckpointError: a file is missing, damaged, or of a format that this version cannot read.
        ConfigError: the artefact names a policy class that is not known, code that is not trusted (`core.trust`), or an
            encoder that cannot be found.
    """
    directory = Path(directory)
    data, tensors = _undisturbed(directory, lambda: _parts(directory))
    _require_trust(data, directory / _JSON, network)
    known = {cls.__name__: cls for cls in (*_CLASSES, *classes)}
    name = data.get("policy")
    if not isinstance(name, str) or name not in known:
        raise ConfigError(
            f"{directory / _JSON} holds a policy of class {name!r}{did_you_mean(str(name), known)}. "
            "Pass a class of your own as load_policy(directory, classes=[...])"
        )
    config = _network_config(data, directory / _JSON, network)
    policy = _built(known[name], data, config, directory / _JSON, tensors)
    try:
        policy.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(f"the weights in {directory} do not fit {name}: {error}") from error
    wrappers = data.get("wrappers")  # older ones do not say it
    policy.wrappers = tuple(map(str, wrappers)) if isinstance(wrappers, list) else ()
    return policy.eval()


def load_weights(policy: Policy, directory: str | Path) -> str:
    """Puts the weights and observation statistics that `save_policy` wrote into a policy of the same kind.

    Args:
        policy: made by its class's `build`; changed in place.

    Returns:
        The SHA-256 of the file of weights.

    Raises:
        CheckpointError: a file is missing, damaged, or of a format that this version cannot read.
        ConfigError: the artefact is of another kind: the message says what differs, as (there, here).
    """
    directory = Path(directory)
    saved, tensors = _undisturbed(directory, lambda: _parts(directory))
    kind = json.loads(json.dumps(_kind(policy)))
    differences = [
        _unlike_spec(path, there, here) or f"{path} is {_brief(there)} there and {_brief(here)} here"
        for path, there, here in _differing(saved, kind)
    ]
    if differences:
        raise ConfigError(f"the policy in {directory} does not fit: {'; '.join(differences)}")
    require_order(policy, directory)
    try:
        policy.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(f"the weights in {directory} do not fit: {error}") from error
    return str(saved["weights_sha256"])


def in_saved_order(specs: tuple[SpecTree, SpecTree], directory: str | Path) -> tuple[SpecTree, SpecTree]:
    """Specs of observations and actions with keys in the order of a saved policy, whose weights count by it.

    Gymnasium calls spaces equal whose keys come in another order.

    Args:
        specs: of an environment.
        directory: that `save_policy` wrote; where there is no policy, or it has keys that are not here, order stays.

    Raises:
        CheckpointError: it is damaged.
    """
    if not (Path(directory) / _JSON).is_file():
        return specs
    observation_spec, action_spec = map(_in_order_of, specs, _saved_specs(directory))
    return observation_spec, action_spec


def _in_order_of(spec: SpecTree, other: SpecTree) -> SpecTree:
    if isinstance(spec, dict) and isinstance(other, dict) and spec.keys() >= other.keys():
        ordered = {key: _in_order_of(spec[key], other[key]) for key in other}  # what the policy sees, and then the rest
        return ordered | {key: spec[key] for key in spec if key not in ordered}
    same = isinstance(spec, tuple) and isinstance(other, tuple) and len(spec) == len(other)
    return tuple(map(_in_order_of, spec, other)) if same else spec


def _saved_specs(directory: str | Path) -> tuple[SpecTree, SpecTree]:
    data, _ = _description(Path(directory))
    return spec_from_json(data.get("observation_spec")), spec_from_json(data.get("action_spec"))


def require_order(policy: Policy, directory: str | Path) -> None:
    """Refuses a policy whose inputs or actions come in another order than those of the weights that it is to have.

    Args:
        policy: that is to have the weights in
        directory: that `save_policy` wrote.

    Raises:
        ConfigError: keys come in another order, which the message shows.
    """
    require_parts(policy, parts_of(*_saved_specs(directory)), f"the weights in {directory}")


def _kind(policy: Policy) -> dict[str, Any]:
    """What a policy is apart from its weights, as JSON values."""
    if not isinstance(policy, NetworkPolicy) or policy.network_config is None:
        raise ConfigError(
            f"this {type(policy).__name__} was not made by `build`, so an artefact could not say how to make it again: "
            "build it, or save `policy.state_dict()` with `core.save_tensors` and construct the policy yourself"
        )
    normalizer = policy.normalizer
    return {
        "policy": type(policy).__name__,
        "observation_spec": spec_to_json(policy.observation_spec),
        "action_spec": spec_to_json(policy.action_spec),
        "network": _described(policy.network_config),
        "options": policy.build_options,
        "normalizer": None if normalizer is None else {"clip": normalizer.clip},
    }


def _differing(saved: Mapping[str, Any], kind: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """What an artefact says otherwise than a policy: settings of the network one by one, specs as a whole."""
    for name, here in kind.items():
        there = saved.get(name)
        if name == "network" and isinstance(there, dict):
            for key in sorted((here.keys() & there.keys()) | {"encoder"}):  # versions may differ in what they know
                if there.get(key) != here.get(key) and not isinstance(here.get(key), dict):  # one shown has no name
                    yield f"network.{key}", there.get(key), here.get(key)
        elif there != here:
            yield name, there, here


def _unlike_spec(path: str, there: Any, here: Any) -> str:
    """How specs differ, in words; empty of anything else."""
    if path not in ("observation_spec", "action_spec"):
        return ""
    saved, own = map(spec_layout, map(spec_from_json, (there, here)))
    what = "sees" if path == "observation_spec" else "does"
    said = f"it {what} {saved} there and {own} here"
    if saved == own:
        return f"{said}, within other bounds"
    if (
        path == "observation_spec"
        and saved.keys() != own.keys()
        and (saved.keys() <= own.keys() or own.keys() <= saved.keys())
    ):
        keys = " ".join(dict.fromkeys(key.partition(".")[0] for key in saved))
        said += f"; where the environment has all of them, --algorithm.network.policy-sees {keys} lets it see the same"
    return said


def _brief(value: Any) -> str:
    return text if len(text := json.dumps(value)) <= 300 else f"{text[:300]}..."


def _undisturbed(directory: Path, read: Callable[[], _Read]) -> _Read:
    """What is read, or the error of it, once no other process has saved in the meantime."""
    while True:
        before, found, error = _stamps(directory), None, None
        try:
            found = read()
        except (CheckpointError, OSError) as caught:
            error = caught
        if _stamps(directory) != before:
            continue
        if error is not None:
            raise error
        return typing.cast("_Read", found)


def _stamps(directory: Path) -> list[tuple[int, int, int]]:
    """What changes when a policy is saved."""
    found: list[tuple[int, int, int]] = []
    for name in (_WEIGHTS, _JSON):
        with contextlib.suppress(OSError):
            stat = (directory / name).stat()
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return found


def _parts(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Description and weights of an artefact."""
    data, _ = _description(directory)
    tensors = load_tensors(directory / _WEIGHTS)
    if (sha256 := fingerprint(directory / _WEIGHTS)["sha256"]) != data.get("weights_sha256"):
        data, _ = _description(directory, sha256)
    return data, tensors


def _description(directory: Path, sha256: str | None = None) -> tuple[dict[str, Any], Path]:
    """What describes an artefact, or the weights of this hash: the newest may not have its name yet."""
    if sha256 is not None:
        for path in (directory / _JSON, directory / f"{_JSON}.tmp"):
            if path.is_file() and (data := _read_description(path)).get("weights_sha256") == sha256:
                return data, path
        raise CheckpointError(
            f"{directory / _WEIGHTS} is not the file that {_JSON} was written with; save the policy again"
        )
    path = directory / _JSON
    for needed in (path, directory / _WEIGHTS):
        if not needed.is_file():
            inside = directory / "policy"
            meant = f"did you mean {inside}? G" if (inside / needed.name).is_file() else "g"
            raise CheckpointError(
                f"there is no {needed.name} in {directory}; {meant}ive the directory that save_policy wrote, "
                "for example the `policy` directory of a run"
            )
    return _read_description(path), path


def _read_description(path: Path) -> dict[str, Any]:
    data = read_json(path)
    version = data.get("format") if isinstance(data, dict) else None
    if version != _FORMAT:
        raise CheckpointError(
            f"{path} has the format {version!r}; this version reads format {_FORMAT}: "
            "load it with the version of palaestra that wrote it, and save it again"
        )
    return data


def _described(config: NetworkConfig) -> dict[str, Any]:
    """The network's layers as JSON values; an encoder by its name, or shown where it has none."""
    described = dataclasses.asdict(dataclasses.replace(config, encoder=None))
    for name in ("encoder", "policy_sees", "value_sees"):  # the spec holds what is seen, and nothing else
        del described[name]
    if config.encoder is not None:
        described["encoder"] = encoder_name(config.encoder) or {"shown": " ".join(repr(config.encoder).split())}
    return described


def _network_config(data: dict[str, Any], path: Path, own: EncoderOption) -> NetworkConfig:
    try:
        fields = dict(data["network"])
        saved: Any = fields.pop("encoder", None)
        config = NetworkConfig(**{**fields, "hidden_sizes": tuple(map(int, fields["hidden_sizes"]))})
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} does not describe a {data['policy']} ({type(error).__name__}: {error}); save the policy again"
        ) from error
    if saved is None and own is not None:
        raise ConfigError(f"the policy in {path.parent} has no encoder of your own; leave out network={own!r}")
    if own is None and isinstance(saved, str):
        own = saved
        try:
            module_maker(saved)
        except ConfigError as error:
            raise ConfigError(
                f"{path} names the encoder {saved!r}: {error}. Or pass it as load_policy(directory, network=...)"
            ) from error
    elif own is None and saved is not None:
        shown = dict(saved)["shown"]
        raise ConfigError(
            f"the policy in {path.parent} has an encoder of your own without a name that could be imported: {shown}. "
            "Pass it as load_policy(directory, network=...)"
        )
    return dataclasses.replace(config, encoder=own)


def _require_trust(data: dict[str, Any], path: Path, own: EncoderOption) -> None:
    for place, name in strange_code(data, path.parent):
        if place != "network.encoder" or own is None:  # an encoder that is given takes its place
            raise ConfigError(
                f"{path} has {place} = {name!r} ({code_of(name)}), which is neither part of palaestra nor in the "
                "working directory. If you know where the policy comes from, call palaestra.core.trust(directory), or "
                "give --trust"
            )


def _built(
    cls: type[NetworkPolicy], data: dict[str, Any], config: NetworkConfig, path: Path, tensors: Mapping[str, Any]
) -> NetworkPolicy:
    try:
        observation_spec, options = spec_from_json(data["observation_spec"]), data.get("options", {})
        # the seed is of weights that those of the file replace
        with _bounded(observation_spec, tensors), seeded_initialisation(0, gpus=False):
            policy = cls.build(observation_spec, spec_from_json(data["action_spec"]), config, **options)
            if data["normalizer"] is not None:
                policy.normalizer = ObservationNormalizer(observation_spec, float(data["normalizer"]["clip"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path} does not describe a {cls.__name__} ({reason}); save the policy again") from error
    return policy


def _bounded(observation_spec: SpecTree, tensors: Mapping[str, Any]) -> BoundedTensors:
    """In proportion to the weights, and to observations, of which each encoder is given two."""
    seen = min(sum(leaf.size for leaf in spec_leaves(observation_spec).values()), _MOST_SEEN)
    most = 20 * (sum(tensor.numel() for tensor in tensors.values()) + seen) + 10**7
    reason = "far more than its weights and observations do, or less than nothing"
    return BoundedTensors(most, 20 * len(tensors) + 1000, reason)
