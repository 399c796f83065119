"""Features: rows of data for nodes and edges, in memory or on disk, and stores of them."""

from hopline.pipes.features.cached import (
    CPUCachedFeature,
    bytes_to_number_of_items,
    cpu_cached_feature,
    wrap_with_cached_feature,
)
from hopline.pipes.features.disk import DiskBasedFeature
from hopline.pipes.features.feature import Feature, FeatureKey, FeatureStore
from hopline.pipes.features.feature_cache import CPUFeatureCache
from hopline.pipes.features.gpu_cached import (
    GPUCachedFeature,
    GPUFeatureCache,
    gpu_cached_feature,
)
from hopline.pipes.features.store import BasicFeatureStore, TorchBasedFeatureStore
from hopline.pipes.features.tensor import TorchBasedFeature

__all__ = [
    "BasicFeatureStore",
    "CPUCachedFeature",
    "CPUFeatureCache",
    "DiskBasedFeature",
    "Feature",
    "FeatureKey",
    "FeatureStore",
    "GPUCachedFeature",
    "GPUFeatureCache",
    "TorchBasedFeature",
    "TorchBasedFeatureStore",
    "bytes_to_number_of_items",
    "cpu_cached_feature",
    "gpu_cached_feature",
    "wrap_with_cached_feature",
]
