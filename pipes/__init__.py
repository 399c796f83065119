"""The chain: items, samplers, features, loader; data sets; kernels."""

from hopline.pipes.compact import (
    compact_csc_format,
    unique_and_compact,
    unique_and_compact_csc_formats,
)
from hopline.pipes.converters import (
    from_dglgraph,
    from_edge_list,
    from_networkx,
    from_pyg,
    from_scipy,
    to_dglgraph,
    to_edge_list,
    to_networkx,
    to_pyg,
    to_scipy,
)
from hopline.pipes.coo import from_coo
from hopline.pipes.csc import fused_csc_sampling_graph
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
from hopline.pipes.edges import add_reverse_edges
from hopline.pipes.etypes import (
    CANONICAL_ETYPE_DELIMITER,
    etype_str_to_tuple,
    etype_tuple_to_str,
    seed_type_str_to_ntypes,
)
from hopline.pipes.features import (
    BasicFeatureStore,
    CPUCachedFeature,
    CPUFeatureCache,
    DiskBasedFeature,
    Feature,
    FeatureKey,
    FeatureStore,
    GPUCachedFeature,
    GPUFeatureCache,
    TorchBasedFeature,
    TorchBasedFeatureStore,
    bytes_to_number_of_items,
    cpu_cached_feature,
    gpu_cached_feature,
    wrap_with_cached_feature,
)
from hopline.pipes.features.hot_set import hot_set_by_degree, hot_set_by_presampling
from hopline.pipes.graph import ORIGINAL_EDGE_ID, FusedCSCSamplingGraph
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
from hopline.pipes.random import seed
from hopline.pipes.shared_memory import copy_to_shared_memory, load_from_shared_memory
from hopline.pipes.stage import Source, Stage, register_stage
from hopline.pipes.stages import (
    CopyTo,
    FeatureFetcher,
    InSubgraphSampler,
    LayerNeighborSampler,
    MiniBatchTransformer,
    NegativeSampler,
    NeighborSampler,
    SeedEdgesExcluder,
    SubgraphSampler,
    TemporalLayerNeighborSampler,
    TemporalNeighborSampler,
    UniformNegativeSampler,
    exclude_seed_edges,
)
from hopline.pipes.subgraph import (
    Block,
    CSCFormatBase,
    PyGLayerData,
    SampledSubgraph,
    SampledSubgraphImpl,
)
from hopline.pipes.tensor_functions import expand_indptr, index_select, indptr_edge_ids, isin

__all__ = [
    "CANONICAL_ETYPE_DELIMITER",
    "ORIGINAL_EDGE_ID",
    "BasicFeatureStore",
    "Block",
    "BuiltinDataset",
    "CPUCachedFeature",
    "CPUFeatureCache",
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
    "GPUCachedFeature",
    "GPUFeatureCache",
    "HeteroItemSet",
    "InSubgraphSampler",
    "ItemSampler",
    "ItemSet",
    "IterableSource",
    "LayerNeighborSampler",
    "MetadataError",
    "MiniBatch",
    "MiniBatchTransformer",
    "NegativeSampler",
    "NeighborSampler",
    "OnDiskDataset",
    "OnDiskTask",
    "PyGLayerData",
    "SampledSubgraph",
    "SampledSubgraphImpl",
    "SeedEdgesExcluder",
    "Source",
    "Stage",
    "SubgraphSampler",
    "Task",
    "TemporalLayerNeighborSampler",
    "TemporalNeighborSampler",
    "TorchBasedFeature",
    "TorchBasedFeatureStore",
    "UniformNegativeSampler",
    "add_reverse_edges",
    "bytes_to_number_of_items",
    "calculate_range",
    "compact_csc_format",
    "copy_to_shared_memory",
    "cpu_cached_feature",
    "etype_str_to_tuple",
    "etype_tuple_to_str",
    "exclude_seed_edges",
    "expand_indptr",
    "from_coo",
    "from_dglgraph",
    "from_edge_list",
    "from_networkx",
    "from_pyg",
    "from_scipy",
    "fused_csc_sampling_graph",
    "gpu_cached_feature",
    "hot_set_by_degree",
    "hot_set_by_presampling",
    "index_select",
    "indptr_edge_ids",
    "isin",
    "load_from_shared_memory",
    "minibatcher_default",
    "planted_partition",
    "preprocess_ondisk_dataset",
    "register_stage",
    "seed",
    "seed_type_str_to_ntypes",
    "to_dglgraph",
    "to_edge_list",
    "to_networkx",
    "to_pyg",
    "to_scipy",
    "unique_and_compact",
    "unique_and_compact_csc_formats",
    "wrap_with_cached_feature",
]


def __getattr__(name: str) -> object:
    # Says what to use for a name that GraphBolt has, or had.
    from hopline.pipes.former_names import no_such_name

    raise no_such_name(__name__, name)
