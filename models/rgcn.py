"""RelGraphConv and RGCN: relational graph convolution over one block an edge type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from hopline.models.activation import relu_dropout
from hopline.models.aggregate import mean_aggregate
from hopline.models.checks import check_floating, check_tensor
from hopline.models.dropout import Dropout
from hopline.models.layers import check_blocks, check_sizes, in_dtype_of, sums_first
from hopline.pipes.checks import check_count
from hopline.pipes.etypes import etype_str_to_tuple
from hopline.pipes.subgraph import Block

__all__ = ["RGCN", "RelGraphConv"]

Rows = dict[str, torch.Tensor]


class _ZeroOf(torch.autograd.Function):
    """A zero that depends on parameters, so that each has a gradient, of zeros where unused."""

    @staticmethod
    def forward(ctx: Any, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.like = [(each.shape, each.dtype, each.device) for each in parameters]
        return parameters[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            torch.zeros((), dtype=dtype, device=device).expand(shape)
            for shape, dtype, device in ctx.like
        )


class _Tie(torch.autograd.Function):
    """Rows as they are, made to depend on a zero; unlike a sum it works for NaN and no rows."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return grad_out, grad_out.new_zeros(())


class RelGraphConv(nn.Module):
    """Relational convolution: `out_i = W_type(i) h_i + sum over r of W_r mean_r(h) + b`.

    Schlichtkrull, Kipf, Bloem, van den Berg, Titov, Welling: "Modeling relational data with graph
    convolutional networks", ESWC 2018. `mean_r` is over the in-neighbours of i by edge type r, and
    0 where there are none. With `num_bases`, `W_r = sum over b of c_rb V_b`, where relations whose
    sources have rows of the same size share the bases V. Sum and linear map commute, so the layer
    does whichever is cheaper first for each relation.

    Rows of a node type's output: as many as destinations in the blocks that end in the type. Where
    no block ends in it, nothing says how many of its rows are destinations: then the output has all
    its rows of x (without `self_loop`: the type has no output), and the destinations are the first.

    Every parameter has a gradient after `backward`, of zeros for a type that the batch lacks.

    Args:
        in_sizes: values of an input row of each node type; or one number for all types in etypes.
        out_size: values of an output row.
        etypes: edge types, "source:relation:destination". Their order is that of the weights.
        num_bases: number of bases, or None for a weight of its own for each relation.
        self_loop: whether to add `W_type(i) h_i`, with a weight for each node type.
        bias: whether to add b, which all types share.

    Raises:
        ValueError: an edge type is not of that form, occurs twice or has a node type without a
            size; there are no edge types; a size or num_bases is below 1.

    >>> block = Block(torch.tensor([0, 2, 2]), torch.tensor([2, 1], dtype=torch.int32), 3, 2)
    >>> conv = RelGraphConv({"user": 4, "item": 3}, 5, ["user:buys:item"])
    >>> out = conv({"user:buys:item": block}, {"user": torch.ones(3, 4), "item": torch.ones(2, 3)})
    >>> {ntype: rows.shape for ntype, rows in out.items()}
    {'user': torch.Size([3, 5]), 'item': torch.Size([2, 5])}
    """

    def __init__(
        self,
        in_sizes: int | Mapping[str, int],
        out_size: int,
        etypes: Sequence[str],
        num_bases: int | None = None,
        *,
        self_loop: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if isinstance(etypes, str) or not isinstance(etypes, Sequence):
            raise TypeError(f"etypes is {etypes!r}; expected a list of edge types")
        self.etypes = {etype: _ends(etype) for etype in etypes}
        if len(self.etypes) != len(etypes) or not etypes:
            raise ValueError(f"etypes are {list(etypes)}; expected at least one, and each once")
        self.in_sizes = _sizes_by_type(in_sizes, self.etypes)
        check_sizes(*self.in_sizes.values(), out_size)
        if num_bases is not None:
            check_count(num_bases, "num_bases", 1)
        self.out_size = out_size
        self.num_bases = num_bases
        self.self_loop = self_loop
        sources = [self.in_sizes[source] for source, _ in self.etypes.values()]
        if num_bases is None:
            self.weights = nn.ParameterList(_parameter(out_size, size) for size in sources)
        else:
            self.bases = nn.ParameterDict(
                {
                    str(size): _parameter(num_bases, out_size, size)
                    for size in dict.fromkeys(sources)
                }
            )
            self.coefficients = _parameter(len(sources), num_bases)
        if self_loop:
            self.self_weights = nn.ParameterList(
                _parameter(out_size, size) for size in self.in_sizes.values()
            )
        self.bias = _parameter(out_size) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weights anew: Glorot and Bengio's uniform, with the gain for ReLU; 0 for b."""
        gain = nn.init.calculate_gain("relu")
        matrices = list(self.self_weights) if self.self_loop else []
        if self.num_bases is None:
            matrices += self.weights
        else:
            matrices += [basis for bases in self.bases.values() for basis in bases]
            nn.init.xavier_uniform_(self.coefficients, gain=gain)
        for matrix in matrices:
            nn.init.xavier_uniform_(matrix, gain=gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, blocks: Mapping[str, Block], x: Mapping[str, torch.Tensor]) -> Rows:
        """Applies the layer.

        Args:
            blocks: the edges of each edge type; a type may be left out when it has none. The first
                rows of a node type among its sources are its destinations.
            x: [num_src, in_size] of each node type; a type may be left out when it has no rows.
                Another floating-point dtype than the weights' is converted.

        Returns:
            [num_dst, out_size] of each node type, in the order of in_sizes, of the weights' dtype;
            of autocast's under autocast.

        Raises:
            ValueError: a type of blocks or x is not known; x has another shape than its blocks
                tell; blocks differ in the number of destinations of a type.
        """
        rows = self._rows(blocks, x)
        counts = self._destinations(blocks, rows)
        zero = _ZeroOf.apply(*self.parameters())  # type: ignore[no-untyped-call]
        out = {}
        for i, (ntype, h) in enumerate(rows.items()):
            if ntype not in counts:
                continue
            total = h.new_zeros((counts[ntype], self.out_size))
            if self.self_loop:
                total = F.linear(h[: counts[ntype]], self.self_weights[i])
            for r, (etype, (source, destination)) in enumerate(self.etypes.items()):
                if destination == ntype and etype in blocks and blocks[etype].num_edges():
                    total = total + self._neighbors(r, source, blocks[etype], rows)
            if self.bias is not None:
                total = total + self.bias.to(total.dtype)
            out[ntype] = _Tie.apply(total, zero)  # type: ignore[no-untyped-call]
        return out

    def _neighbors(self, relation: int, source: str, block: Block, rows: Rows) -> torch.Tensor:
        h, in_size = rows[source], self.in_sizes[source]
        weight = self._weight(relation, in_size)
        if sums_first(block, in_size, self.out_size):
            return F.linear(mean_aggregate(block, h), weight)
        return mean_aggregate(block, F.linear(h, weight))

    def _weight(self, relation: int, in_size: int) -> torch.Tensor:
        if self.num_bases is None:
            own: torch.Tensor = self.weights[relation]
            return own
        bases: torch.Tensor = self.bases[str(in_size)]
        mixed: torch.Tensor = torch.tensordot(self.coefficients[relation], bases, dims=1)
        return mixed

    def _rows(self, blocks: Mapping[str, Block], x: Mapping[str, torch.Tensor]) -> Rows:
        """Input of every node type, checked, of the weights' dtype."""
        _check_known("blocks", blocks, self.etypes)
        _check_known("x", x, self.in_sizes)
        like = next(self.parameters())
        rows = {}
        for ntype, size in self.in_sizes.items():
            h = x.get(ntype)
            if h is not None:
                check_tensor(h, f"x[{ntype!r}]")
                check_floating(h, f"x[{ntype!r}]")
            rows[ntype] = like.new_empty((0, size)) if h is None else in_dtype_of(h, like)
            if rows[ntype].dim() != 2 or rows[ntype].shape[1] != size:
                raise ValueError(
                    f"x[{ntype!r}] has shape {tuple(rows[ntype].shape)}; expected [rows, {size}]"
                )
        for etype, block in blocks.items():
            source = self.etypes[etype][0]
            if len(rows[source]) != block.num_src_nodes():
                raise ValueError(
                    f"x has {len(rows[source])} rows of node type {source!r}; expected "
                    f"{block.num_src_nodes()}, one for each source of edge type {etype!r}"
                )
        return rows

    def _destinations(self, blocks: Mapping[str, Block], rows: Rows) -> dict[str, int]:
        """Number of output rows of each node type that has an output."""
        counts: dict[str, int] = {}
        for etype, block in blocks.items():
            ntype = self.etypes[etype][1]
            count = counts.setdefault(ntype, block.num_dst_nodes())
            if count != block.num_dst_nodes():
                raise ValueError(
                    f"blocks have {count} and {block.num_dst_nodes()} destinations of node type "
                    f"{ntype!r}; expected as many in each, as one hop of sampling gives"
                )
        if self.self_loop:
            for ntype, h in rows.items():
                if len(h) < counts.setdefault(ntype, len(h)):
                    raise ValueError(
                        f"x has {len(h)} rows of node type {ntype!r}, of which {counts[ntype]} are "
                        "destinations; expected the rows of all sources, destinations first"
                    )
        return counts

    def extra_repr(self) -> str:
        """Sizes and types, for print."""
        return (
            f"{self.in_sizes}, {self.out_size}, etypes={list(self.etypes)}, "
            f"num_bases={self.num_bases}, self_loop={self.self_loop}"
        )


class RGCN(nn.Module):
    """A stack of `RelGraphConv`, with ReLU and dropout between layers.

    A node type without features can have rows of a `torch.nn.Embedding` for its input.

    Args:
        in_sizes: values of an input row of each node type; or one number for all types in etypes.
        hidden_size: values of a row between layers.
        out_size: values of an output row, e.g. the number of classes.
        etypes: edge types, as in `RelGraphConv`.
        num_layers: number of layers, and of sets of blocks that a call takes.
        dropout: probability with which a value between layers is set to 0 in training.
        num_bases: as in `RelGraphConv`.

    Raises:
        ValueError: num_layers is below 1, dropout is not in [0, 1], or as in `RelGraphConv`.

    >>> block = Block(torch.tensor([0, 2, 2]), torch.tensor([2, 1], dtype=torch.int32), 3, 2)
    >>> model = RGCN({"user": 4, "item": 3}, 8, 5, ["user:buys:item"], num_layers=1)
    >>> x = {"user": torch.ones(3, 4), "item": torch.ones(2, 3)}
    >>> model([{"user:buys:item": block}], x)["item"].shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        in_sizes: int | Mapping[str, int],
        hidden_size: int,
        out_size: int,
        etypes: Sequence[str],
        num_layers: int = 2,
        dropout: float = 0.5,
        *,
        num_bases: int | None = None,
    ) -> None:
        super().__init__()
        check_count(num_layers, "num_layers", 1)
        sizes: list[int | Mapping[str, int]] = [in_sizes]
        if not isinstance(in_sizes, int):
            sizes += [dict.fromkeys(in_sizes, hidden_size)] * (num_layers - 1)
        else:
            sizes += [hidden_size] * (num_layers - 1)
        self.layers = nn.ModuleList(
            RelGraphConv(size, hidden_size if i < num_layers - 1 else out_size, etypes, num_bases)
            for i, size in enumerate(sizes)
        )
        self.dropout = Dropout(dropout)

    def forward(self, blocks: Sequence[Mapping[str, Block]], x: Mapping[str, torch.Tensor]) -> Rows:
        """Applies the layers.

        Args:
            blocks: the edges by edge type, one dict a layer, outermost hop first, as
                `MiniBatch.blocks` gives them.
            x: input rows of each node type, as `MiniBatch.input_nodes` names them.

        Returns:
            [n, out_size] of each node type. n is the number of destinations in the last blocks; for
            a type that none of them ends in, all its rows there, seeds first.

        Raises:
            ValueError: there is not one dict of blocks a layer, or as in `RelGraphConv`.
        """
        check_blocks(blocks, len(self.layers))
        for i, hop in enumerate(blocks):
            x = self.apply_layer(i, hop, x)
        return dict(x)

    def apply_layer(
        self, i: int, blocks: Mapping[str, Block], x: Mapping[str, torch.Tensor]
    ) -> Rows:
        """Applies layer i, and what stands between it and the next one.

        Args:
            i: number of the layer.
            blocks: its edges by edge type.
            x: rows of each node type; those behind the sources of the blocks are left aside.

        Returns:
            Rows of each node type, as `RelGraphConv` gives them.
        """
        out: Rows = self.layers[i](blocks, _cut(x, blocks))
        if i < len(self.layers) - 1:
            out = {ntype: relu_dropout(rows, self.dropout) for ntype, rows in out.items()}
        return out


def _cut(x: Mapping[str, torch.Tensor], blocks: Mapping[str, Block]) -> Rows:
    """The first rows of each type, as many as blocks have sources; see `RelGraphConv` for why.

    Only types whose number of destinations the layer before could not know have more.
    """
    if not isinstance(blocks, Mapping) or not isinstance(x, Mapping):
        return x
    sources = {_ends(etype)[0]: block.num_src_nodes() for etype, block in blocks.items()}
    return {
        ntype: rows[: sources[ntype]] if len(rows) > sources.get(ntype, len(rows)) else rows
        for ntype, rows in x.items()
    }


def _ends(etype: str) -> tuple[str, str]:
    source, _, destination = etype_str_to_tuple(etype)
    return source, destination


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape))


def _sizes_by_type(
    in_sizes: int | Mapping[str, int], etypes: Mapping[str, tuple[str, str]]
) -> dict[str, int]:
    types = dict.fromkeys(ntype for ends in etypes.values() for ntype in ends)
    if not isinstance(in_sizes, int | Mapping):
        raise TypeError(f"in_sizes is {in_sizes!r}; expected an int, or {{node type: int}}")
    if isinstance(in_sizes, int):
        return dict.fromkeys(types, in_sizes)
    missing = [ntype for ntype in types if ntype not in in_sizes]
    if missing:
        raise ValueError(
            f"in_sizes has {list(in_sizes)}; expected the node types of all edge types, also "
            f"{missing}"
        )
    return dict(in_sizes)


def _check_known(name: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    if not isinstance(given, Mapping):
        kind = "edge" if name == "blocks" else "node"
        raise TypeError(
            f"{name} has the type {type(given).__name__}; expected {{{kind} type: "
            f"{'Block' if name == 'blocks' else 'rows'}}}"
        )
    unknown = [each for each in given if each not in known]
    if unknown:
        raise ValueError(f"{name} has {unknown}; expected some of {list(known)}")
