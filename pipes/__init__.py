"""The chain: items, samplers, features, loader; data sets; kernels."""

from hopline.pipes.coo import from_coo
from hopline.pipes.datasets import (
    BuiltinDataset,
    Dataset,
    MetadataError,
    OnDiskDataset,
    OnDiskTask,
    Task,
    planted_partition,
    preprocess_ondisk_dataset,
)
from hopline.pipes.etypes import (
    CANONICAL_ETYPE_DELIMITER,
    etype_str_to_tuple,
    etype_tuple_to_str,
)
from hopline.pipes.features import (
    BasicFeatureStore,
    DiskBasedFeature,
    Feature,
    FeatureKey,
    FeatureStore,
    TorchBasedFeature,
    TorchBasedFeatureStore,
)
from hopline.pipes.graph import ORIGINAL_EDGE_ID, FusedCSCSamplingGraph, fused_csc_sampling_graph
from hopline.pipes.item_sampler import (
    DistributedItemSampler,
    ItemSampler,
    calculate_range,
    minibatcher_default,
)
from hopline.pipes.items import HeteroItemSet, ItemSet
from hopline.pipes.iterable_source import IterableSource
from hopline.pipes.loader import DataLoader
from hopline.pipes.minibatch import MiniBatch
from hopline.pipes.stage import Source, Stage, register_stage
from hopline.pipes.stages import CopyTo, FeatureFetcher, MiniBatchTransformer, NeighborSampler
from hopline.pipes.subgraph import Block, CSCFormatBase, SampledSubgraph

__all__ = [
    "CANONICAL_ETYPE_DELIMITER",
    "ORIGINAL_EDGE_ID",
    "BasicFeatureStore",
    "Block",
    "BuiltinDataset",
    "CSCFormatBase",
    "CopyTo",
    "DataLoader",
    "Dataset",
    "DiskBasedFeature",
    "DistributedItemSampler",
    "Feature",
    "FeatureFetcher",
    "FeatureKey",
    "FeatureStore",
    "FusedCSCSamplingGraph",
    "HeteroItemSet",
    "ItemSampler",
    "ItemSet",
    "IterableSource",
    "MetadataError",
    "MiniBatch",
    "MiniBatchTransformer",
    "NeighborSampler",
    "OnDiskDataset",
    "OnDiskTask",
    "SampledSubgraph",
    "Source",
    "Stage",
    "Task",
    "TorchBasedFeature",
    "TorchBasedFeatureStore",
    "calculate_range",
    "etype_str_to_tuple",
    "etype_tuple_to_str",
    "from_coo",
    "fused_csc_sampling_graph",
    "minibatcher_default",
    "planted_partition",
    "preprocess_ondisk_dataset",
    "register_stage",
]
