"""Values on the edges of a block: attention scores, their softmax, edges to oneself."""

from __future__ import annotations

from typing import Any

import torch

from hopline.models.block_edges import destinations_of_edges
from hopline.models.checks import (
    check_block,
    check_floating,
    check_kernel,
    check_on_block,
    check_tensor,
)
from hopline.models.edge_value_kernels import (
    add_by_destination,
    add_by_source,
    add_turned,
    join_edge_values,
    softmax_edges,
    softmax_edges_gradient,
)
from hopline.models.kept_block import turned_of
from hopline.models.operators import HALF, operator
from hopline.models.ranges import bounds_by_edges, in_ranges
from hopline.models.sums import sum_segments
from hopline.pipes.subgraph import Block

__all__ = ["add_self_edges", "edge_scores", "edge_softmax"]


def _softmax_run(logits: torch.Tensor, indptr: torch.Tensor, num_src: int) -> torch.Tensor:
    logits = logits.contiguous()
    out = torch.zeros_like(logits)
    arrays = indptr.numpy(), logits.numpy()

    def run(low: int, high: int) -> int:
        bad: int = softmax_edges(*arrays, low, high, out.numpy())
        return bad

    bounds = bounds_by_edges(indptr, logits.shape[1])
    check_kernel(in_ranges(bounds, run), num_src, len(logits))
    return out


def _softmax_gradient_run(
    grad_out: torch.Tensor, out: torch.Tensor, indptr: torch.Tensor
) -> torch.Tensor:
    out, grad_out = out.contiguous(), grad_out.contiguous()
    grad_logits = torch.zeros_like(out)
    arrays, target = (indptr.numpy(), out.numpy(), grad_out.numpy()), grad_logits.numpy()
    bounds = bounds_by_edges(indptr, out.shape[1])
    in_ranges(bounds, lambda low, high: softmax_edges_gradient(*arrays, low, high, target))
    return grad_logits


def _softmax_save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(output, inputs[1])


def _softmax_backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    return _softmax_gradient_on_cpu(grad_out, *ctx.saved_tensors), None, None


# Softmax over the edges of each destination, float32 and float64.
_softmax_on_cpu = operator(
    "softmax_edges(Tensor logits, Tensor indptr, SymInt num_src) -> Tensor",
    _softmax_run,
    lambda logits, indptr, num_src: logits.new_empty(logits.shape),
    save=_softmax_save,
    backward=_softmax_backward,
)
_softmax_gradient_on_cpu = operator(
    "softmax_edges_gradient(Tensor grad_out, Tensor out, Tensor indptr) -> Tensor",
    _softmax_gradient_run,
    lambda grad_out, out, indptr: out.new_empty(out.shape),
)


def _scores_run(
    source: torch.Tensor,
    destination: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    *turned: torch.Tensor | None,
) -> torch.Tensor:
    source, destination = source.contiguous(), destination.contiguous()
    out = source.new_zeros((len(indices), source.shape[1]))
    arrays = indptr.numpy(), indices.numpy(), source.numpy(), destination.numpy()

    def run(low: int, high: int) -> int:
        bad: int = join_edge_values(*arrays, low, high, out.numpy())
        return bad

    bounds = bounds_by_edges(indptr, source.shape[1])
    check_kernel(in_ranges(bounds, run), len(source), len(indices))
    return out


def _scores_gradient_run(
    grad_out: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    num_src: int,
    starts: torch.Tensor | None,
    edges: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_out = grad_out.contiguous()
    grad_source, grad_destination = _scores_gradient_empty(grad_out, indptr, indices, num_src)
    array, target = grad_out.numpy(), grad_destination.numpy()
    bounds = bounds_by_edges(indptr, grad_out.shape[1])
    in_ranges(
        bounds, lambda low, high: add_by_destination(indptr.numpy(), array, low, high, target)
    )
    if starts is None or edges is None:  # few values an edge: turning edges would cost more
        add_by_source(indptr.numpy(), indices.numpy(), array, grad_source.zero_().numpy())
        return grad_source, grad_destination
    arrays, sums = (starts.numpy(), edges.numpy(), array), grad_source.numpy()
    bounds = bounds_by_edges(starts, grad_out.shape[1])
    in_ranges(bounds, lambda low, high: add_turned(*arrays, low, high, sums))
    return grad_source, grad_destination


def _scores_gradient_empty(
    grad_out: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    num_src: int,
    *turned: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    heads = grad_out.shape[1]
    return grad_out.new_empty((num_src, heads)), grad_out.new_empty((indptr.shape[0] - 1, heads))


def _scores_save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    source, _, indptr, indices, starts, edges = inputs
    ctx.save_for_backward(indptr, indices, starts, edges)
    ctx.num_src = source.shape[0]


def _scores_backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    indptr, indices, *turned = ctx.saved_tensors
    ends = _scores_gradient_on_cpu(grad_out, indptr, indices, ctx.num_src, *turned)
    return *ends, None, None, None, None


# Source's value plus destination's value, for each edge, float32 and float64. The last arguments
# are of `turned_of`.
_scores_on_cpu = operator(
    "join_edge_values(Tensor source, Tensor destination, Tensor indptr, Tensor indices, "
    "Tensor? starts, Tensor? edges) -> Tensor",
    _scores_run,
    lambda source, destination, indptr, indices, *turned: source.new_empty(
        (indices.shape[0], source.shape[1])
    ),
    save=_scores_save,
    backward=_scores_backward,
)
_scores_gradient_on_cpu = operator(
    "add_edge_values(Tensor grad_out, Tensor indptr, Tensor indices, SymInt num_src, "
    "Tensor? starts, Tensor? edges) -> (Tensor, Tensor)",
    _scores_gradient_run,
    _scores_gradient_empty,
)


def _softmax_on_device(logits: torch.Tensor, indptr: torch.Tensor) -> torch.Tensor:
    """The same by torch's own operations."""
    columns = destinations_of_edges(indptr, len(logits))
    with torch.no_grad():
        shape = (len(indptr) - 1, logits.shape[1])
        largest = logits.new_full(shape, -torch.inf).scatter_reduce(
            0, columns.unsqueeze(1).expand(logits.shape), logits, "amax"
        )
        largest = largest.masked_fill(largest == -torch.inf, 0)
    powers = torch.exp(logits - largest.index_select(0, columns))
    total = sum_segments(powers, indptr)
    return powers / total.masked_fill(total == 0, 1).index_select(0, columns)


def _scores_on_device(
    source: torch.Tensor, destination: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    columns = destinations_of_edges(indptr, len(indices))
    return source.index_select(0, indices) + destination.index_select(0, columns)


def edge_softmax(block: Block, logits: torch.Tensor) -> torch.Tensor:
    """Softmax over the in-edges of each destination, head by head.

    The largest logit of a destination is subtracted first, so no logit is too large. An edge whose
    logit is -inf gets 0, also where all edges of a destination have it.

    Args:
        block: the edges.
        logits: float[num_edges] or float[num_edges, heads], on the block's device. Half precision
            is computed in float32.

    Returns:
        As logits: weights that sum to 1 for each destination that has in-edges.

    Raises:
        IndexError: the block has edges that are not there (checked on the CPU only).
        TypeError: logits is not a floating-point tensor, or block no block.
        ValueError: logits does not have one row an edge, or is on another device.

    >>> block = Block(torch.tensor([0, 2, 3]), torch.tensor([2, 1, 1], dtype=torch.int32), 3, 2)
    >>> edge_softmax(block, torch.tensor([0.0, 0.0, 9.0]))
    tensor([0.5000, 0.5000, 1.0000])
    """
    check_block(block)
    check_tensor(logits, "logits")
    if logits.dim() not in (1, 2) or len(logits) != block.num_edges():
        raise ValueError(
            f"logits has shape {tuple(logits.shape)}; expected [{block.num_edges()}] or "
            f"[{block.num_edges()}, heads], one row for each edge of {block}"
        )
    check_floating(logits, "logits")
    check_on_block(block, logits, "logits")
    if logits.dim() == 1:
        return edge_softmax(block, logits.unsqueeze(1)).squeeze(1)
    if logits.dtype in HALF:
        return edge_softmax(block, logits.float()).to(logits.dtype)
    if logits.device.type != "cpu":
        return _softmax_on_device(logits, block.indptr)
    out: torch.Tensor = _softmax_on_cpu(logits, block.indptr, block.num_src_nodes())
    return out


def edge_scores(block: Block, source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
    """For each edge, its source's value plus its destination's value.

    Args:
        block: the edges.
        source: float[num_src, heads], on the block's device. Half precision is computed in float32.
        destination: [num_dst, heads], of the same dtype.

    Returns:
        float[num_edges, heads], of the same dtype.

    Raises:
        IndexError: the block's edges point outside source (checked on the CPU only).
        TypeError: dtypes differ, or are not of floating point; or not a block and two tensors.
        ValueError: there is not one row a source and a destination, the heads differ, or the
            devices.

    >>> block = Block(torch.tensor([0, 2, 3]), torch.tensor([2, 1, 1], dtype=torch.int32), 3, 2)
    >>> edge_scores(block, torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[10.0], [20.0]]))
    tensor([[14.],
            [12.],
            [22.]])
    """
    check_block(block)
    check_tensor(source, "source")
    check_tensor(destination, "destination")
    heads = source.shape[1:2]
    want = [(block.num_src_nodes(), *heads), (block.num_dst_nodes(), *heads)]
    if source.dim() != 2 or [source.shape, destination.shape] != want:
        raise ValueError(
            f"source and destination have shapes {tuple(source.shape)} and "
            f"{tuple(destination.shape)}; expected [{block.num_src_nodes()}, heads] and "
            f"[{block.num_dst_nodes()}, heads], one row for each source and destination of {block}"
        )
    check_floating(source, "source")
    check_on_block(block, source, "source")
    check_on_block(block, destination, "destination")
    if source.dtype != destination.dtype:
        raise TypeError(
            f"source and destination have dtypes {source.dtype} and {destination.dtype}; expected "
            "the same"
        )
    if source.dtype in HALF:
        return edge_scores(block, source.float(), destination.float()).to(source.dtype)
    if source.device.type != "cpu":
        return _scores_on_device(source, destination, block.indptr, block.indices)
    starts, _, edges = turned_of(block, source)
    out: torch.Tensor = _scores_on_cpu(
        source, destination, block.indptr, block.indices, starts, edges
    )
    return out


def add_self_edges(block: Block) -> Block:
    """A block with one more edge a destination, its last: from its own row among the sources.

    An edge from a destination to itself that the block has already stays, and counts beside the new
    one.

    Args:
        block: edges among nodes of one type, so that the destinations are the first sources.

    Returns:
        A new block; it has no `original_edge_ids`, since the new edges have none.

    Raises:
        TypeError: block is no block.
        ValueError: the block has fewer sources than destinations.

    >>> block = Block(torch.tensor([0, 2, 2]), torch.tensor([2, 1], dtype=torch.int32), 3, 2)
    >>> add_self_edges(block).indices
    tensor([2, 1, 0, 1], dtype=torch.int32)
    """
    check_block(block)
    num_dst = block.num_dst_nodes()
    if block.num_src_nodes() < num_dst:
        raise ValueError(
            f"{block} has fewer sources than destinations, so these are of another type; expected "
            "destinations that are the first sources; leave self edges out here"
        )
    rows = torch.arange(num_dst + 1, device=block.device)
    indptr = block.indptr + rows
    # Edge e of column i moves to e + i. A boolean mask would make the host wait for a GPU.
    edges = torch.arange(block.num_edges(), device=block.device)
    edges = edges + destinations_of_edges(block.indptr, block.num_edges())
    indices = block.indices.new_empty(block.num_edges() + num_dst)
    indices = indices.index_copy(0, edges, block.indices)
    indices = indices.index_copy(0, indptr[1:] - 1, rows[:-1].to(indices.dtype))
    return Block(indptr, indices, block.num_src_nodes(), num_dst)
