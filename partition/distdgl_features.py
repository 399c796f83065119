"""Node and edge data of a graph that DistDGL has cut, read from its parts' files row by row."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from hopline.partition.dgl_files import read_tensor_file
from hopline.partition.dgl_reader import StoredArray
from hopline.partition.distdgl_description import Description, Ranges
from hopline.partition.manifest import PartitionError
from hopline.pipes.checks import check_ids
from hopline.pipes.features.feature import Feature

__all__ = ["part_features"]

Array = np.ndarray[Any, Any]


class _PartsFeature(Feature):
    """Rows that lie in several files, those of one part after those of another.

    Args:
        firsts: int64[parts + 1], id of each part's first row, and how many there are.
        pieces: the rows of each part.
    """

    def __init__(self, firsts: Array, pieces: list[StoredArray]) -> None:
        self._firsts, self._pieces = firsts, pieces

    def read(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        count = self.count()
        rows = torch.arange(count) if ids is None else check_ids(ids, count, "ids", torch.int64)
        wanted = rows.numpy()
        out = np.empty((len(wanted), *self.size()), self._pieces[0].values.dtype)
        parts = np.searchsorted(self._firsts, wanted, side="right") - 1
        for part in np.unique(parts).tolist():
            mine = parts == part
            out[mine] = self._pieces[part].values[wanted[mine] - self._firsts[part]]
        return torch.from_numpy(out).view(self._pieces[0].dtype)

    def size(self) -> torch.Size:
        return torch.Size(self._pieces[0].values.shape[1:])

    def count(self) -> int:
        return int(self._firsts[-1])

    def update(self, value: torch.Tensor, ids: torch.Tensor | None = None) -> None:
        """Always refuses."""
        raise TypeError(
            "rows in DistDGL's files are for reading; expected a feature of a DistDataset: write "
            "parts by partition_graph first"
        )


def part_features(
    described: Description, domain: str, ranges: Ranges
) -> dict[tuple[str, str | None, str], Feature]:
    """Features of nodes or of edges, by key; files have them under "type/name".

    Args:
        described: the graph.
        domain: "node" or "edge".
        ranges: of these.

    Raises:
        ValueError: a file is missing or damaged, or parts do not fit together.

    Warns:
        UserWarning: no part has the file.
    """
    found: dict[tuple[str, str], dict[int, StoredArray]] = {}
    counts, firsts = ranges.counts, ranges.firsts()
    paths = [files[f"{domain}_feats"] for files in described.files]
    if not any(path.exists() for path in paths):  # as DGL's pipeline leaves it where there are none
        warnings.warn(
            f"no part has its {paths[0].name}; the graph is taken for one without {domain} data",
            stacklevel=4,
        )
        return {}
    for part, path in enumerate(paths):
        for key, rows in read_tensor_file(path).items():
            kinds = [kind for kind in ranges.types if key.startswith(f"{kind}/")]
            if not kinds:
                raise PartitionError(
                    f"{path}: has {key!r}; expected 'type/name' with a type of {ranges.types}"
                )
            kind = max(kinds, key=len)
            name = key[len(kind) + 1 :]
            expected = int(counts[part, ranges.types.index(kind)])
            if rows.values.shape[:1] != (expected,):
                raise PartitionError(
                    f"{path}: has {key!r} of shape {rows.values.shape}; expected {expected} rows"
                )
            found.setdefault((kind, name), {})[part] = rows
    features: dict[tuple[str, str | None, str], Feature] = {}
    for (kind, name), pieces in found.items():
        t = ranges.types.index(kind)
        first = next(iter(pieces.values()))
        for part, path in enumerate(paths):
            if part not in pieces and not counts[part, t]:  # a part without edges has no entry
                pieces[part] = StoredArray(first.values[:0], first.dtype)
            piece = pieces.get(part)
            if (
                piece is None
                or piece.dtype != first.dtype
                or piece.values.shape[1:] != first.values.shape[1:]
            ):
                got = "nothing" if piece is None else f"{piece.dtype} {piece.values.shape[1:]}"
                raise PartitionError(
                    f"{path}: has {got} for {kind}/{name}; expected rows of {first.dtype} "
                    f"{first.values.shape[1:]}, as in another part"
                )
        rows_of_parts = [pieces[part] for part in range(len(paths))]
        feature = _PartsFeature(firsts[:, t], rows_of_parts)
        features[domain, kind if described.is_typed else None, name] = feature
    return features
