"""What networks are made of, in a line each: layers and parameters."""

from torch import nn

from palaestra.nn.attention import AttentionMemory
from palaestra.nn.batch_norm import BatchNorm
from palaestra.nn.blocks import InvertedBlock, NoisyMLP, ResidualBlock, SphereBlock, UnitScale
from palaestra.nn.cnn import ConvolutionalNetwork, NatureCNN, SmallCNN
from palaestra.nn.core_model import CoreModel
from palaestra.nn.encoder import Integers, OwnEncoder
from palaestra.nn.ensemble import EnsembleBlock, EnsembleLinear, EnsembleNorm, EnsembleScale
from palaestra.nn.recurrent import RecurrentCell

__all__ = ["model_summary", "network_summary"]


_Layer = tuple[str, int | None, int | None]


def model_summary(model: CoreModel) -> dict[str, str]:
    """The networks of a model that learn, by name, each as `network_summary` writes it; not single numbers.

    Args:
        model: of an algorithm; where nothing in it has an optimizer, all of it is meant.
    """
    names = [name for name in model.component if name in model.optimizers]
    parts = {name: model.component[name] for name in names or model.component}
    return {name: network_summary(part) for name, part in parts.items() if _num_parameters(part) > 1}


def network_summary(network: nn.Module) -> str:
    """Layers in the order in which they were made, and how many parameters there are.

    Arrows lead from a layer to one that takes as many numbers as it gives. What follows `|` takes something else: more
    numbers than one layer gives, or those of an earlier one.

    Args:
        network: any module.

    Examples:
        >>> from palaestra.nn import MLP
        >>> network_summary(MLP(4, (64, 64), 2))
        '4 → 64 → 64 → 2, 4,610 parameters'
    """
    shown = ""
    for part in network.children() if isinstance(network, nn.ModuleDict) else (network,):
        last = None
        for kind, size_in, size_out in _layers(part):
            layer = kind if size_out is None else f"{kind}{size_out}"
            if size_in is None:
                shown += f" | {layer}" if shown else layer
            else:
                before = "" if size_in == last else f" | {size_in}" if shown else f"{size_in}"
                shown += f"{before} → {layer}"
            last = size_out
    return f"{shown}, {_num_parameters(network):,} parameters"


def _num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _layers(module: nn.Module) -> list[_Layer]:
    """Name, empty for fully connected layers, and how many numbers it takes and gives."""
    match module:
        case ConvolutionalNetwork():
            small = isinstance(module, SmallCNN) and not NatureCNN.fits(module.shape)
            why = f" (below the {NatureCNN.smallest} pixels of NatureCNN)" if small else ""
            size = "x".join(map(str, module.shape))
            return [(f"{type(module).__name__} {size}{why} → ", None, module.out_size)]
        case Integers():
            return [(f"{module.text} → ", None, module.out_size)]
        case OwnEncoder():
            return [(f"{type(module.module).__name__} → ", None, module.out_size)]
        case RecurrentCell():
            return [(f"{type(module.cells).__name__} ", module.in_size, module.out_size)]
        case AttentionMemory():
            return [(f"attention {len(module.layers)} x {module.window} ", module.in_size, module.out_size)]
        case NoisyMLP():
            return [("noisy ", size_in, size_out) for _, size_in, size_out in _layers(module.mean)]
        case EnsembleLinear():
            members, size_in, size_out = module.weight.shape
            return [(f"{members} x " if members > 1 else "", size_in, size_out)]
        case EnsembleBlock(up=EnsembleLinear() as up):
            members, size, _ = up.weight.shape
            return [(f"{members} x block ", size, size)]
        case ResidualBlock() | SphereBlock() | InvertedBlock():
            return [("block ", module.up.in_features, module.up.in_features)]
        case nn.Linear():
            return [("", module.in_features, module.out_features)]
        case nn.LayerNorm() | BatchNorm() | EnsembleNorm() | UnitScale() | EnsembleScale():
            return []
    inside = [layer for child in module.children() for layer in _layers(child)]
    return inside if inside or not _num_parameters(module) else [(type(module).__name__, None, None)]
