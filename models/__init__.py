"""Layers, models and the training loop."""

from hopline.models.aggregate import mean_aggregate
from hopline.models.checkpoint import checkpoint_path, load_checkpoint, save_checkpoint
from hopline.models.conv import SAGEConv
from hopline.models.launch import RankError, launch
from hopline.models.metrics import gather_rows, weighted_reduce
from hopline.models.optimizer_state import broadcast_optimizer_state
from hopline.models.rng import keyed_rng
from hopline.models.run import TrainingRun
from hopline.models.sage import SAGE
from hopline.models.training import EpochTotal, evaluate, forward_features, train_epoch

__all__ = [
    "SAGE",
    "EpochTotal",
    "RankError",
    "SAGEConv",
    "TrainingRun",
    "broadcast_optimizer_state",
    "checkpoint_path",
    "evaluate",
    "forward_features",
    "gather_rows",
    "keyed_rng",
    "launch",
    "load_checkpoint",
    "mean_aggregate",
    "save_checkpoint",
    "train_epoch",
    "weighted_reduce",
]
