"""Link prediction: decoders that score pairs of rows, and LinkPredictor around an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from hopline.models.activation import relu_dropout
from hopline.models.checks import check_model, check_tensor, feature_of
from hopline.models.dropout import Dropout
from hopline.models.link_kernels import (
    first_bad_link,
    link_dots,
    link_products,
    spread_link_grads,
)
from hopline.models.operators import HALF, operator
from hopline.pipes.checks import check_count
from hopline.pipes.etypes import seed_type_str_to_ntypes
from hopline.pipes.minibatch import MiniBatch

__all__ = ["DotPredictor", "LinkPredictor", "MLPPredictor", "forward_links"]


def _products_run(h: torch.Tensor, links: torch.Tensor, dot: bool) -> torch.Tensor:
    h, links = h.contiguous(), links.contiguous()
    bad = first_bad_link(links.numpy(), len(h))
    if bad >= 0:
        raise IndexError(
            f"link {bad} is {links[bad].tolist()}; expected positions in [0, {len(h)}), rows of h: "
            "pass compacted_seeds, not seeds"
        )
    out = h.new_empty(len(links) if dot else (len(links), h.shape[1]))
    if dot:
        link_dots(h.numpy(), links.numpy(), h.new_empty(h.shape[1]).numpy(), out.numpy())
    else:
        link_products(h.numpy(), links.numpy(), out.numpy())
    return out


def _products_gradient_run(
    grad_out: torch.Tensor, h: torch.Tensor, links: torch.Tensor
) -> torch.Tensor:
    h, links, grad_out = h.contiguous(), links.contiguous(), grad_out.contiguous()
    grad_h = torch.zeros_like(h)
    room = h.new_empty(h.shape[1])
    spread_link_grads(h.numpy(), links.numpy(), grad_out.numpy(), room.numpy(), grad_h.numpy())
    return grad_h


def _products_save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    # Rows are read where they are: what is kept for the gradient is h and the links.
    h, links, ctx.dot = inputs
    ctx.save_for_backward(h, links)


def _products_backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    grad_out = grad_out.unsqueeze(1) if ctx.dot else grad_out
    return _products_gradient_on_cpu(grad_out, *ctx.saved_tensors), None, None


# Products of the rows of each link; summed over the width for `dot`.
_products_on_cpu = operator(
    "link_products(Tensor h, Tensor links, bool dot) -> Tensor",
    _products_run,
    lambda h, links, dot: h.new_empty(links.shape[:1] if dot else (links.shape[0], h.shape[1])),
    save=_products_save,
    backward=_products_backward,
)
_products_gradient_on_cpu = operator(
    "spread_link_grads(Tensor grad_out, Tensor h, Tensor links) -> Tensor",
    _products_gradient_run,
    lambda grad_out, h, links: h.new_empty(h.shape),
)


def _products(h: torch.Tensor, links: torch.Tensor, *, dot: bool) -> torch.Tensor:
    """[n, width], or [n] for dot; checks what a decoder is given."""
    check_tensor(h, "h")
    check_tensor(links, "links", "are")
    if h.dim() != 2 or not h.dtype.is_floating_point:
        raise ValueError(
            f"h is {h.dtype}{list(h.shape)}; expected floating-point rows of two dimensions"
        )
    if links.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"links have dtype {links.dtype}; expected int32 or int64 positions in h")
    if links.dim() != 2 or links.shape[1] < 2:
        raise ValueError(
            f"links have shape {list(links.shape)}; expected [n, 2], or [n, k] for hyperlinks"
        )
    if h.device != links.device:
        raise ValueError(f"h is on {h.device}, links on {links.device}; expected one device")
    if h.dtype in HALF:  # a sum of rounded products would be rounded again and again
        return _products(h.float(), links, dot=dot).to(h.dtype)
    if h.device.type == "cpu":
        out: torch.Tensor = _products_on_cpu(h, links, dot)
        return out
    product = h.index_select(0, links[:, 0])
    for j in range(1, links.shape[1]):
        product = product * h.index_select(0, links[:, j])
    return product.sum(1) if dot else product


class DotPredictor(nn.Module):
    """Scores a link by the dot product of its ends' rows.

    A hyperlink of k ends is scored by the sum over the width of the product of its k rows. The
    score does not depend on the order of the ends.

    >>> h = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> DotPredictor()(h, torch.tensor([[0, 1], [2, 2]]))
    tensor([11., 61.])
    """

    def forward(self, h: torch.Tensor, links: torch.Tensor) -> torch.Tensor:
        """Scores links.

        Args:
            h: float[rows, width].
            links: int32 or int64[n, k], positions in h; k is 2 but for hyperlinks.

        Returns:
            float[n], of h's dtype.

        Raises:
            IndexError: a position is outside h. TypeError, ValueError: h or links are no such
                tensors.
        """
        return _products(h, links, dot=True)


class MLPPredictor(nn.Module):
    """Scores a link by layers of ReLU over the product of its ends' rows, element by element.

    The score does not depend on the order of the ends, and hyperlinks of any number of ends have
    one.

    Args:
        in_size: values of a row of h.
        hidden_size: values between two layers.
        num_layers: number of linear layers.
        dropout: probability with which a value between layers is set to 0 in training.

    Raises:
        TypeError: a size or num_layers is no int.
        ValueError: a size or num_layers is below 1, or dropout is not in [0, 1].

    >>> MLPPredictor(2, 8)(torch.ones(3, 2), torch.tensor([[0, 1], [2, 2]])).shape
    torch.Size([2])
    """

    def __init__(
        self, in_size: int, hidden_size: int, num_layers: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        for name, size in (
            ("in_size", in_size),
            ("hidden_size", hidden_size),
            ("num_layers", num_layers),
        ):
            check_count(size, name, None)
        if min(in_size, hidden_size, num_layers) < 1:
            raise ValueError(
                f"in_size, hidden_size and num_layers are {in_size}, {hidden_size} and "
                f"{num_layers}; expected 1 or more"
            )
        sizes = [in_size, *[hidden_size] * (num_layers - 1), 1]
        self.in_size = in_size
        self.layers = nn.ModuleList(nn.Linear(sizes[i], sizes[i + 1]) for i in range(num_layers))
        self.dropout = Dropout(dropout)

    def forward(self, h: torch.Tensor, links: torch.Tensor) -> torch.Tensor:
        """Scores links; arguments, result and errors are those of `DotPredictor.forward`.

        Args:
            h: float[rows, in_size].
            links: int32 or int64[n, k], positions in h.

        Returns:
            float[n].

        Raises:
            IndexError: a position is outside h. TypeError, ValueError: h or links are no such
                tensors.
        """
        check_tensor(h, "h")
        if h.dim() == 2 and h.shape[1] != self.in_size:
            raise ValueError(f"h has rows of {h.shape[1]} values; expected {self.in_size}")
        first: nn.Linear = self.layers[0]  # type: ignore[assignment]
        x = _products(h, links, dot=False).to(first.weight.dtype)
        for i, layer in enumerate(self.layers):
            x = layer(x if i == 0 else relu_dropout(x, self.dropout))
        return x.squeeze(1)


class LinkPredictor(nn.Module):
    """An encoder that gives rows, and a decoder that scores links between them.

    With a heterogeneous encoder, h and the links are dicts by type. Rows of all node types then
    have one width, and one decoder scores the links of all edge types.

    Args:
        encoder: called with (blocks, x); gives h, e.g. `SAGE`.
        decoder: called with (h, links); gives a score a link, e.g. `DotPredictor()`.

    Raises:
        TypeError: encoder or decoder is no module.

    >>> from hopline.models import SAGE
    >>> from hopline.pipes import Block
    >>> block = Block(torch.tensor([0, 1, 2]), torch.tensor([1, 0], dtype=torch.int32), 2, 2)
    >>> model = LinkPredictor(SAGE(4, 8, 8, num_layers=1), DotPredictor())
    >>> model([block], torch.ones(2, 4), torch.tensor([[0, 1], [1, 1], [1, 0]])).shape
    torch.Size([3])
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        check_model(encoder, "encoder")
        check_model(decoder, "decoder")
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, blocks: Any, x: Any, compacted_seeds: Any) -> Any:
        """Scores links.

        Args:
            blocks: what the encoder takes, as `MiniBatch.blocks` gives them.
            x: input rows, as the encoder takes them.
            compacted_seeds: int[n, k], positions in the encoder's output; or `{"source:relation:
                destination": int[n, 2]}`, in the rows of each column's own node type.

        Returns:
            float[n]; or `{type: float[n]}`.

        Raises:
            TypeError: links come by type and rows do not, or the reverse; or not as tensors.
            KeyError: a link's type names a node type of which the encoder gave no rows.
            ValueError: a mini-batch without compacted seeds, or what the decoder refuses.
        """
        if compacted_seeds is None:
            raise ValueError(
                "compacted_seeds is None; links are seeds of two dimensions, and the sampler gives "
                "their positions"
            )
        h = self.encoder(blocks, x)
        if not isinstance(compacted_seeds, Mapping):
            return self.decoder(h, compacted_seeds)
        if not isinstance(h, Mapping):
            raise TypeError(
                f"links come by type, and the encoder gave a {type(h).__name__}; expected rows by "
                "node type"
            )
        if not compacted_seeds:
            return {}
        rows, links = _in_one_space(h, compacted_seeds)
        scores = self.decoder(rows, links).split([len(s) for s in compacted_seeds.values()])
        return dict(zip(compacted_seeds, scores, strict=True))


def _in_one_space(
    h: Mapping[str, torch.Tensor], links: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of all node types one below the other, and the links as positions in them."""
    first, offset = {}, 0
    for name, rows in h.items():
        first[name] = offset
        offset += len(rows)
    shifted = []
    for name, ends in links.items():
        check_tensor(ends, f"links of type {name!r}", "are")
        if ends.dim() != 2:
            raise ValueError(
                f"links of type {name!r} have shape {list(ends.shape)}; expected [n, 2]"
            )
        types = seed_type_str_to_ntypes(name, ends.shape[1])
        for column, node_type in enumerate(types):
            if node_type not in first:
                raise KeyError(f"links of type {name!r}: no rows of {node_type!r} in {list(h)}")
            _check_column(ends[:, column], len(h[node_type]), name, node_type)
        # Numbers, not a tensor of them: its copy would make the host wait for a GPU.
        shifted.append(
            torch.stack([ends[:, i].long() + first[t] for i, t in enumerate(types)], dim=1)
        )
    return torch.cat(list(h.values())), torch.cat(shifted)


def _check_column(ends: torch.Tensor, rows: int, name: str, node_type: str) -> None:
    # A wrong position would be a row of the next type. On a GPU a look would wait for the device.
    if ends.device.type == "cpu" and len(ends):
        low, high = (int(v) for v in torch.aminmax(ends))
        if low < 0 or high >= rows:
            bad = low if low < 0 else high
            raise IndexError(
                f"links of type {name!r}: position {bad} is outside the {rows} rows of "
                f"{node_type!r}"
            )


def forward_links(model: nn.Module, minibatch: MiniBatch) -> torch.Tensor:
    """Scores of a mini-batch's links, for `train_epoch(..., forward=forward_links)`.

    Args:
        model: a `LinkPredictor`, or what is called alike.
        minibatch: with blocks, compacted seeds and a node feature "feat".

    Returns:
        `model(minibatch.blocks, minibatch.node_features["feat"], minibatch.compacted_seeds)`.

    Raises:
        ValueError, KeyError: the mini-batch has no such feature.
    """
    feature = feature_of(minibatch, "forward_links")
    scores: torch.Tensor = model(minibatch.blocks, feature, minibatch.compacted_seeds)
    return scores
