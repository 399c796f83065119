"""Feature, FeatureStore: the interfaces that stages read through."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

__all__ = ["Feature", "FeatureKey", "FeatureStore"]


class FeatureKey(NamedTuple):
    """Names a feature; a plain tuple of the three does too.

    Attributes:
        domain: "node", "edge" or "graph".
        type: node type, edge type as "source:relation:destination", or None when homogeneous.
        name: name of the feature.
    """

    domain: str
    type: str | None
    name: str


class Feature(ABC):
    """Rows of one dtype and shape, read by id."""

    @abstractmethod
    def read(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Rows in the order of ids, which may repeat; all rows for None.

        Args:
            ids: integer[n], each in [0, count()).

        Returns:
            Tensor of shape [n, *size()]; changing it does not change the feature.

        Raises:
            IndexError: an id is out of range; negative ids are.
        """

    @abstractmethod
    def size(self) -> torch.Size:
        """Shape of one row."""

    @abstractmethod
    def count(self) -> int:
        """Number of rows."""

    @abstractmethod
    def update(self, value: torch.Tensor, ids: torch.Tensor | None = None) -> None:
        """Replaces rows, or everything for None.

        Args:
            value: tensor of shape [n, *size()]; [count(), ...] for None.
            ids: integer[n].

        Raises:
            ValueError: the shapes do not fit.
            IndexError: an id is out of range.
        """

    def metadata(self) -> dict[str, Any]:
        """What else is known of the feature."""
        return {}


class FeatureStore(ABC):
    """Features by key (domain, type, name)."""

    @abstractmethod
    def __getitem__(self, key: tuple[str, str | None, str]) -> Feature:
        """The feature of that key; KeyError if there is none."""

    @abstractmethod
    def __setitem__(self, key: tuple[str, str | None, str], feature: Feature) -> None:
        """Adds or replaces a feature."""

    @abstractmethod
    def __contains__(self, key: object) -> bool:
        """Whether there is a feature of that key."""

    @abstractmethod
    def keys(self) -> list[FeatureKey]:
        """All keys."""

    def read(
        self, domain: str, type_name: str | None, feature_name: str, ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Rows of a feature; see `Feature.read`, whose IndexError or KeyError then names it."""
        key = domain, type_name, feature_name
        feature = self[key]
        try:
            return feature.read(ids)
        except (IndexError, KeyError) as error:
            kind = IndexError if isinstance(error, IndexError) else KeyError
            said = error.args[0] if error.args else "(no message)"
            raise kind(f"feature {key}: {said}") from error

    def read_many(
        self, requests: Sequence[tuple[tuple[str, str | None, str], torch.Tensor]]
    ) -> list[torch.Tensor]:
        """Rows of several features, as `fetch_feature` reads those of a mini-batch.

        A store that can read them together better than one after another does.

        Args:
            requests: (key of a feature, integer[n] ids), the same key maybe more than once.

        Returns:
            Of each request, what `read` returns.
        """
        return [self.read(*key, ids) for key, ids in requests]

    def size(self, domain: str, type_name: str | None, feature_name: str) -> torch.Size:
        """Shape of one row of a feature."""
        return self[domain, type_name, feature_name].size()

    def count(self, domain: str, type_name: str | None, feature_name: str) -> int:
        """Number of rows of a feature."""
        return self[domain, type_name, feature_name].count()

    def metadata(self, domain: str, type_name: str | None, feature_name: str) -> dict[str, Any]:
        """What else is known of a feature."""
        return self[domain, type_name, feature_name].metadata()

    def update(
        self,
        domain: str,
        type_name: str | None,
        feature_name: str,
        value: torch.Tensor,
        ids: torch.Tensor | None = None,
    ) -> None:
        """Replaces rows of a feature; see `Feature.update`."""
        self[domain, type_name, feature_name].update(value, ids)
