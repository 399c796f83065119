"""Layers, models, the training loop, and inference."""

import typing as _typing

from hopline.models.aggregate import max_aggregate, mean_aggregate, sum_aggregate
from hopline.models.checkpoint import checkpoint_path, load_checkpoint, save_checkpoint
from hopline.models.conv import SAGEConv
from hopline.models.dist_spmm import DistSpmm
from hopline.models.edge_values import add_self_edges, edge_scores, edge_softmax
from hopline.models.full_graph import DistGCN, DistSAGE
from hopline.models.full_graph_gat import DistGAT
from hopline.models.gat import GAT, GATConv
from hopline.models.gcn import GCN, GCNConv
from hopline.models.halo_plan import HaloPlan
from hopline.models.inference import layer_wise_inference
from hopline.models.join_ranks import join_ranks
from hopline.models.launch import RankError, launch
from hopline.models.link import DotPredictor, LinkPredictor, MLPPredictor, forward_links
from hopline.models.metrics import gather_rows, weighted_reduce
from hopline.models.optimizer_state import broadcast_optimizer_state
from hopline.models.rank_environment import ranks_are_started
from hopline.models.rank_sums import global_mean, sum_gradients
from hopline.models.rgcn import RGCN, RelGraphConv
from hopline.models.rng import keyed_rng
from hopline.models.run import TrainingRun
from hopline.models.sage import SAGE
from hopline.models.tensor_parallel import TensorParallelGCN
from hopline.models.training import EpochTotal, evaluate, forward_features, train_epoch

if _typing.TYPE_CHECKING:
    from hopline.models.link_metrics import LinkMetrics, evaluate_links

__all__ = [
    "GAT",
    "GCN",
    "RGCN",
    "SAGE",
    "DistGAT",
    "DistGCN",
    "DistSAGE",
    "DistSpmm",
    "DotPredictor",
    "EpochTotal",
    "GATConv",
    "GCNConv",
    "HaloPlan",
    "LinkMetrics",
    "LinkPredictor",
    "MLPPredictor",
    "RankError",
    "RelGraphConv",
    "SAGEConv",
    "TensorParallelGCN",
    "TrainingRun",
    "add_self_edges",
    "broadcast_optimizer_state",
    "checkpoint_path",
    "edge_scores",
    "edge_softmax",
    "evaluate",
    "evaluate_links",
    "forward_features",
    "forward_links",
    "gather_rows",
    "global_mean",
    "join_ranks",
    "keyed_rng",
    "launch",
    "layer_wise_inference",
    "load_checkpoint",
    "max_aggregate",
    "mean_aggregate",
    "ranks_are_started",
    "save_checkpoint",
    "sum_aggregate",
    "sum_gradients",
    "train_epoch",
    "weighted_reduce",
]


def __getattr__(name: str) -> object:
    # Built on torchmetrics, which takes about as long to import as torch.
    if name in ("LinkMetrics", "evaluate_links"):
        from hopline.models import link_metrics

        return getattr(link_metrics, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
