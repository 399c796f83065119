"""Checks of blocks, tensors and the parts of a training run as they enter: one wording."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from hopline.pipes.minibatch import MiniBatch, check_minibatch
from hopline.pipes.subgraph import Block

__all__ = [
    "check_block",
    "check_floating",
    "check_function",
    "check_kernel",
    "check_key",
    "check_list",
    "check_loader",
    "check_model",
    "check_on_block",
    "check_optimizer",
    "check_probability",
    "check_source_rows",
    "check_steps",
    "check_tensor",
    "feature_of",
    "is_plain",
]

LOADER = ("__iter__", "epoch", "state_dict", "load_state_dict")


def check_block(block: Any) -> None:
    """Raises TypeError where it is no block."""
    if not isinstance(block, Block):
        raise TypeError(
            f"block is a {type(block).__name__}; expected a Block, as in MiniBatch.blocks"
        )


def check_tensor(value: Any, name: str, verb: str = "is") -> None:
    """Raises TypeError where it is no tensor."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} {verb} a {type(value).__name__}; expected a torch.Tensor")


def check_on_block(block: Block, value: torch.Tensor, name: str) -> None:
    """Raises ValueError where a tensor is on another device than the block."""
    if value.device != block.device:
        raise ValueError(
            f"{name} is on {value.device}, {block} on {block.device}; expected one device: use "
            ".to(device)"
        )


def check_source_rows(block: Block, x: torch.Tensor, *row: int | str) -> None:
    """Raises where x is no floating-point tensor of a row a source on the block's device.

    Args:
        block: the edges.
        x: to be checked.
        row: the shape of a row; a name in place of a size that may be any.
    """
    check_block(block)
    check_tensor(x, "x")
    wanted = (block.num_src_nodes(), *row)
    if x.dim() != len(wanted) or any(
        not isinstance(size, str) and size != x.shape[i] for i, size in enumerate(wanted)
    ):
        raise ValueError(
            f"x has shape {tuple(x.shape)}; expected [{', '.join(map(str, wanted))}], one row for "
            f"each source of {block}"
        )
    check_floating(x, "x")
    check_on_block(block, x, "x")


def check_floating(x: torch.Tensor, name: str) -> None:
    """Raises TypeError where a tensor is not of a floating-point dtype."""
    if not x.dtype.is_floating_point:
        raise TypeError(
            f"{name} has dtype {x.dtype}; expected a floating-point dtype, e.g. {name}.float()"
        )


def check_kernel(bad: int, num_src: int, num_edges: int) -> None:
    """Raises IndexError where a kernel met a column that does not fit."""
    if bad >= 0:
        raise IndexError(
            f"destination {bad} of the block has a source outside [0, {num_src}) or more "
            f"edges than the {num_edges} of the block; was the block changed by hand?"
        )


def check_list(blocks: Any) -> None:
    """Raises TypeError where blocks do not come in a list."""
    if not isinstance(blocks, Sequence):
        raise TypeError(
            f"blocks are a {type(blocks).__name__}; expected a list, one block a layer, as "
            "MiniBatch.blocks"
        )


def check_probability(value: Any, name: str) -> None:
    """Raises TypeError or ValueError where it is no number in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}; expected a probability in [0, 1]")
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}; expected a probability in [0, 1]")


def check_key(key: Any) -> None:
    """Raises TypeError where it is no (seed, epoch, step)."""
    if (
        not isinstance(key, tuple)
        or len(key) != 3
        or any(isinstance(number, bool) or not isinstance(number, int) for number in key)
    ):
        raise TypeError(f"key is {key!r}; expected three ints, (seed, epoch, step)")


def check_model(model: Any, name: str = "model") -> None:
    """Raises TypeError where it is no module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name} is a {type(model).__name__}; expected a torch.nn.Module")


def check_optimizer(optimizer: Any) -> None:
    """Raises TypeError where it is no optimiser."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}; expected a torch.optim.Optimizer"
        )


def check_steps(optimizer: Any) -> None:
    """Raises TypeError where it is no optimiser whose `step()` takes gradients as they are."""
    check_optimizer(optimizer)
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}, whose step() calls the model itself; "
            "expected one that steps once a mini-batch, e.g. Adam"
        )


def check_loader(loader: Any) -> None:
    """Raises TypeError where it is no loader, nor like one."""
    if not all(hasattr(loader, name) for name in LOADER):
        raise TypeError(
            f"loader is a {type(loader).__name__}; expected a DataLoader, e.g. DataLoader(chain)"
        )


def check_function(function: Any, name: str) -> None:
    """Raises TypeError where it cannot be called."""
    if not callable(function):
        raise TypeError(f"{name} is a {type(function).__name__}; expected a function")


def feature_of(minibatch: MiniBatch, taker: str) -> torch.Tensor:
    """The node feature "feat" of a mini-batch.

    Args:
        minibatch: where it is.
        taker: who takes it, for messages.

    Raises:
        TypeError: it is no mini-batch.
        ValueError: it has no node features.
        KeyError: it has no such feature.
    """
    features = check_minibatch(minibatch, taker).node_features
    if features is None:
        raise ValueError(
            f"{taker}: the mini-batch has no node features; put fetch_feature(store, ['feat']) "
            "into the chain"
        )
    if "feat" not in features:
        raise KeyError(
            f"{taker}: no node feature 'feat' in the mini-batch, which has {list(features)}; pass "
            "a function of your own as forward"
        )
    return features["feat"]


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call of a module does what its class says and nothing else.

    Not so for a subclass (as `torch.nn.utils.parametrize` makes), with a `forward` of its own, or
    with hooks, be they of all modules.
    """
    return (
        type(module) is kind
        and "forward" not in module.__dict__
        and not (
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
        )
        and not nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
    )
