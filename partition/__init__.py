"""Cut a graph in parts; serve and sample the parts across ranks."""

from hopline.partition.assign import Assignment, assign_nodes, estimate_memory
from hopline.partition.assignment_files import read_assignment
from hopline.partition.book import PartitionBook
from hopline.partition.dist_dataset import DistDataset
from hopline.partition.dist_feature import DistFeature, DistFeatureStore
from hopline.partition.dist_graph import DistGraph
from hopline.partition.dist_tensor import DistTensor
from hopline.partition.distdgl import DistDGLDataset, load_distdgl
from hopline.partition.embedding import DistEmbedding
from hopline.partition.exchange import Exchange, RankError
from hopline.partition.item_split import item_split
from hopline.partition.manifest import PartitionError
from hopline.partition.part import Part, load_part, load_partition, load_tasks
from hopline.partition.quality import PartitionQuality
from hopline.partition.sparse_optim import SparseAdagrad, SparseAdam
from hopline.partition.split import edge_split, node_split
from hopline.partition.verify import verify_partition
from hopline.partition.write import partition_graph

__all__ = [
    "Assignment",
    "DistDGLDataset",
    "DistDataset",
    "DistEmbedding",
    "DistFeature",
    "DistFeatureStore",
    "DistGraph",
    "DistTensor",
    "Exchange",
    "Part",
    "PartitionBook",
    "PartitionError",
    "PartitionQuality",
    "RankError",
    "SparseAdagrad",
    "SparseAdam",
    "assign_nodes",
    "edge_split",
    "estimate_memory",
    "item_split",
    "load_distdgl",
    "load_part",
    "load_partition",
    "load_tasks",
    "node_split",
    "partition_graph",
    "read_assignment",
    "verify_partition",
]
