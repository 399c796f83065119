"""One file a stage."""

from hopline.pipes.stages.copy_to import CopyTo
from hopline.pipes.stages.fetch import FeatureFetcher
from hopline.pipes.stages.neighbor import NeighborSampler
from hopline.pipes.stages.transform import MiniBatchTransformer

__all__ = ["CopyTo", "FeatureFetcher", "MiniBatchTransformer", "NeighborSampler"]
