"""broadcast_optimizer_state: gives every rank the optimiser state of one.

`Join` lets a rank that is out of mini-batches answer the others' collectives, and at the end hands
it the model of the rank that went on longest. It knows nothing of the optimiser: the moments of
such a rank would stay behind, and from the next step on the ranks' models would differ.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

from hopline.models.checks import check_optimizer
from hopline.models.metrics import DTYPES, group_device, num_ranks, rank_of

__all__ = ["broadcast_optimizer_state"]


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, src: int, group: Any = None
) -> None:
    """Overwrites the state of every parameter, on all ranks, with that of rank src.

    Learning rates and other settings of the parameter groups stay as each rank has them. What the
    state holds travels as JSON and tensors; nothing is unpickled.

    Args:
        optimizer: over the same parameters, in the same order, on all ranks.
        src: the rank whose state is taken.
        group: a process group; None for the default one.

    Raises:
        IndexError: src is no rank.
        TypeError: an argument is of wrong kind; the state holds something else than tensors and
            plain values (on rank src).
    """
    check_optimizer(optimizer)
    if isinstance(src, bool) or not isinstance(src, int):
        raise TypeError(f"src is {src!r}; expected a rank")
    if dist.is_initialized() and not 0 <= src < num_ranks(group):
        raise IndexError(f"src is {src}; expected a rank in [0, {num_ranks(group)})")
    device = group_device(group)
    own = optimizer.state_dict()
    is_source = rank_of(group) == src
    text = json.dumps(_describe(own["state"])).encode() if is_source else b""
    length = torch.tensor([len(text)], dtype=torch.int64, device=device)
    dist.broadcast(length, src=src, group=group)
    if is_source:
        payload = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
    else:
        payload = torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.broadcast(payload, src=src, group=group)
    described = json.loads(bytes(payload.tolist()))

    state: dict[int, dict[str, Any]] = {}
    for number, values in described:
        entry = state.setdefault(number, {})
        for name, value in values:
            if not isinstance(value, dict):
                entry[name] = value
                continue
            dtype, shape = DTYPES[value["dtype"]], value["shape"]
            tensor = torch.empty(shape, dtype=dtype, device=device)
            if is_source:
                tensor.copy_(own["state"][number][name])
            dist.broadcast(tensor, src=src, group=group)
            entry[name] = tensor
    if not is_source:
        optimizer.load_state_dict({"state": state, "param_groups": own["param_groups"]})


def _describe(state: dict[int, dict[str, Any]]) -> list[tuple[int, list[tuple[str, Any]]]]:
    """Names and plain values of the state; tensors by dtype and shape."""
    described = []
    for number, values in state.items():
        entry: list[tuple[str, Any]] = []
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                shape = list(value.shape)
                entry.append((name, {"dtype": DTYPES.index(value.dtype), "shape": shape}))
            elif value is None or isinstance(value, bool | int | float | str):
                entry.append((name, value))
            else:
                raise TypeError(
                    f"the optimiser keeps a {type(value).__name__} under {name!r}; ranks with "
                    "different numbers of mini-batches need one that keeps tensors and numbers, or "
                    "a sampler with drop_uneven_inputs=True"
                )
        described.append((number, entry))
    return described
