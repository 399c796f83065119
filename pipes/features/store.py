"""BasicFeatureStore, TorchBasedFeatureStore: features by key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from hopline.pipes.checks import check_mapping
from hopline.pipes.features.disk import DiskBasedFeature
from hopline.pipes.features.feature import Feature, FeatureKey, FeatureStore
from hopline.pipes.features.tensor import TorchBasedFeature
from hopline.pipes.move import check_device
from hopline.pipes.npy import read_npy

__all__ = ["BasicFeatureStore", "TorchBasedFeatureStore"]


ENTRY = ("domain", "type", "name", "path", "in_memory", "format")
FORMATS = ("numpy", "torch")


def _key(key: Any) -> FeatureKey:
    fits = isinstance(key, tuple) and len(key) == 3
    if not fits or not all(isinstance(part, str) for part in (key[0], key[1] or "", key[2])):
        raise TypeError(f"feature key is {key!r}; expected (domain, type or None, name)")
    return FeatureKey(*key)


class BasicFeatureStore(FeatureStore):
    """A dict of features.

    Args:
        features: `{(domain, type, name): Feature}`.

    Raises:
        TypeError: a key or a value of wrong kind.

    >>> store = BasicFeatureStore({("node", None, "x"): TorchBasedFeature(torch.eye(3))})
    >>> store.read("node", None, "x", torch.tensor([1])).tolist()
    [[0.0, 1.0, 0.0]]
    """

    def __init__(self, features: Mapping[tuple[str, str | None, str], Feature]) -> None:
        self._features: dict[FeatureKey, Feature] = {}
        if features is None:
            raise TypeError("features is None; expected {(domain, type, name): Feature}")
        check_mapping(features, "features", "{(domain, type, name): Feature}")
        for key, feature in features.items():
            self[key] = feature

    def __getitem__(self, key: tuple[str, str | None, str]) -> Feature:
        try:
            return self._features[_key(key)]
        except KeyError:
            raise KeyError(
                f"no feature {tuple(key)}; the store has {[tuple(k) for k in self._features]}"
            ) from None

    def __setitem__(self, key: tuple[str, str | None, str], feature: Feature) -> None:
        if not isinstance(feature, Feature):
            raise TypeError(f"feature {key} is a {type(feature).__name__}; expected a Feature")
        self._features[_key(key)] = feature

    def __contains__(self, key: object) -> bool:
        return key in self._features

    def __len__(self) -> int:
        return len(self._features)

    def keys(self) -> list[FeatureKey]:
        """All keys, in the order in which they were added."""
        return list(self._features)

    def to(self, device: torch.device | str) -> BasicFeatureStore:
        """A store with every feature on a device, or in "pinned" memory.

        Raises:
            TypeError: a feature cannot be moved.
            ValueError: there is no such device.
        """
        device = check_device(device, pinned=True)
        moved = BasicFeatureStore({})
        for key, feature in self._features.items():
            if not hasattr(feature, "to"):
                raise TypeError(
                    f"feature {tuple(key)}, a {type(feature).__name__}, cannot be moved"
                )
            moved[key] = feature.to(device)
        return moved

    def pin_memory_(self) -> BasicFeatureStore:
        """Moves every feature in memory to page-locked memory; those on disk stay there."""
        for feature in self._features.values():
            if isinstance(feature, TorchBasedFeature):
                feature.pin_memory_()
        return self

    def is_pinned(self) -> bool:
        """Whether every feature in memory is in page-locked memory, cached rows included."""
        in_memory = [f for f in self._features.values() if not isinstance(f, DiskBasedFeature)]
        return all(f.is_pinned() for f in in_memory if hasattr(f, "is_pinned"))

    def __repr__(self) -> str:
        lines = ", ".join(f"{tuple(key)}: {value!r}" for key, value in self._features.items())
        return f"{type(self).__name__}({{{lines}}})"


class TorchBasedFeatureStore(BasicFeatureStore):
    """The features that an on-disk data set lists.

    Args:
        feat_data: entries with `domain`, `type`, `name`, `path`, `in_memory`, `format` and
            `extra_fields`; arrays are .npy files, read into memory or left on disk, or, with
            format "torch", tensor files.

    Raises:
        TypeError: not entries of that kind.
        FileNotFoundError, ValueError: a file is missing, or no array of rows.
    """

    def __init__(self, feat_data: Iterable[Any]) -> None:
        super().__init__({})
        if isinstance(feat_data, str | bytes) or not isinstance(feat_data, Iterable):
            raise TypeError(
                f"feat_data is a {type(feat_data).__name__}; expected a list of entries"
            )
        for spec in feat_data:
            if missing := [name for name in ENTRY if not hasattr(spec, name)]:
                raise TypeError(
                    f"an entry of feat_data is a {type(spec).__name__}; expected an entry with "
                    f"{', '.join(missing)}"
                )
            key = (_plain(spec.domain), spec.type, spec.name)
            if key in self:
                raise ValueError(f"feature {key} is listed twice")
            extra = dict(getattr(spec, "extra_fields", None) or {})
            self[key] = _open(spec, extra)


def _plain(value: Any) -> Any:
    """The value of an enum member, or the thing itself."""
    return getattr(value, "value", value)


def _open(spec: Any, extra: dict[str, Any]) -> Feature:
    if _plain(spec.format) not in FORMATS:
        raise ValueError(
            f"{spec.path}: format is {_plain(spec.format)!r}; expected one of {FORMATS}"
        )
    if _plain(spec.format) == "torch":
        if not spec.in_memory:
            raise ValueError(
                f"{spec.path}: format torch is read into memory; set in_memory: true, or save it "
                "as .npy"
            )
        tensor = _load_torch(spec.path)
    elif spec.in_memory:
        raw = extra.get("dtype")
        tensor = read_npy(spec.path, in_memory=True, dtype=raw if raw == "bfloat16" else None)
    else:
        return DiskBasedFeature(spec.path, extra)
    if tensor.dim() < 2:
        raise ValueError(
            f"{spec.path}: has shape {tuple(tensor.shape)}; expected two dimensions or more"
        )
    return TorchBasedFeature(tensor, extra)


def _load_torch(path: Any) -> torch.Tensor:
    """The tensor of a tensor file, read without running what is in it."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file; expected a tensor written by torch.save")
    try:
        tensor = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path}: holds no tensor that can be read safely: {error}") from error
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{path}: holds a {type(tensor).__name__}; expected a torch.Tensor")
    return tensor
