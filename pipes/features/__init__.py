"""Features: rows of data for nodes and edges, in memory or on disk, and stores of them."""

from hopline.pipes.features.disk import DiskBasedFeature
from hopline.pipes.features.feature import Feature, FeatureKey, FeatureStore
from hopline.pipes.features.store import BasicFeatureStore, TorchBasedFeatureStore
from hopline.pipes.features.tensor import TorchBasedFeature

__all__ = [
    "BasicFeatureStore",
    "DiskBasedFeature",
    "Feature",
    "FeatureKey",
    "FeatureStore",
    "TorchBasedFeature",
    "TorchBasedFeatureStore",
]
