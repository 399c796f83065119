"""One file a stage."""

from hopline.pipes.stages.copy_to import CopyTo
from hopline.pipes.stages.exclude import SeedEdgesExcluder, exclude_seed_edges
from hopline.pipes.stages.fetch import FeatureFetcher
from hopline.pipes.stages.in_subgraph import InSubgraphSampler
from hopline.pipes.stages.layer import LayerNeighborSampler
from hopline.pipes.stages.negative import NegativeSampler, UniformNegativeSampler
from hopline.pipes.stages.neighbor import NeighborSampler
from hopline.pipes.stages.subgraph_sampler import SubgraphSampler
from hopline.pipes.stages.temporal import TemporalLayerNeighborSampler, TemporalNeighborSampler
from hopline.pipes.stages.transform import MiniBatchTransformer

__all__ = [
    "CopyTo",
    "FeatureFetcher",
    "InSubgraphSampler",
    "LayerNeighborSampler",
    "MiniBatchTransformer",
    "NegativeSampler",
    "NeighborSampler",
    "SeedEdgesExcluder",
    "SubgraphSampler",
    "TemporalLayerNeighborSampler",
    "TemporalNeighborSampler",
    "UniformNegativeSampler",
    "exclude_seed_edges",
]
