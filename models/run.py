"""TrainingRun: what a training run has reached, kept in a checkpoint."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from hopline.models.checkpoint import (
    checkpoint_path,
    read_checkpoint,
    take_checkpoint,
    write_checkpoint,
)
from hopline.models.checks import check_loader, check_model, check_optimizer
from hopline.models.metrics import rank_of
from hopline.models.training import EpochTotal, unwrap
from hopline.pipes.checks import check_count, check_mapping
from hopline.pipes.loader import DataLoader

__all__ = ["TrainingRun"]

KEYS = {"settings", "loss", "items", "best_value", "best_epoch", "best_weights"}


class TrainingRun:
    """Counts epochs, keeps the best model, and saves all that is needed to go on.

    On several ranks each has a run; rank 0 writes. Called the same on all of them.

    Args:
        model: the model being trained.
        optimizer: its optimiser.
        loader: the loader of training mini-batches.
        directory: folder of the checkpoint; None to keep none.
        every: save after so many mini-batches of an epoch, besides the end of each epoch; 0 for
            the end of each epoch alone.
        settings: plain values by name that a resumed run must share, e.g. the learning rate.

    Attributes:
        total: what this rank has seen of the epoch under way; for `train_epoch`. After a resume in
            mid-epoch it has the earlier mini-batches of rank 0 alone.
        best_value: the best validation figure so far; NaN before the first.
        best_epoch: its epoch.

    Raises:
        TypeError: an argument is of wrong kind.
        ValueError: every is below 0.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: DataLoader,
        *,
        directory: str | os.PathLike[str] | None = None,
        every: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        check_model(model)
        check_optimizer(optimizer)
        check_loader(loader)
        check_count(every, "every")
        check_mapping(settings, "settings", "{name: value}")
        self.model = model
        self.optimizer = optimizer
        self.loader = loader
        self.directory = directory
        self.every = every
        self.settings = dict(settings or {})
        self.total = EpochTotal()
        self.best_value = math.nan
        self.best_epoch = -1
        self._best_weights: dict[str, torch.Tensor] | None = None
        self._epoch = loader.epoch

    @property
    def epoch(self) -> int:
        """The epoch to be trained next, or under way."""
        return self._epoch

    def resume(self) -> bool:
        """Goes to where the checkpoint stands.

        Returns:
            False if there is none yet: the run starts at the beginning.

        Raises:
            ValueError: the checkpoint is of another run; names each setting with both values.
                Model, optimiser and loader are as they were.
        """
        if self.directory is None or not checkpoint_path(self.directory).exists():
            return False
        content = read_checkpoint(self.directory)
        extra = content["extra"]
        if not extra.keys() >= KEYS:
            raise ValueError(
                f"{checkpoint_path(self.directory)}: not saved by a TrainingRun; read it by "
                "load_checkpoint"
            )
        theirs = extra["settings"]
        differ = [
            f"{name} is {theirs.get(name)!r} in the checkpoint and {self.settings.get(name)!r} here"
            for name in sorted(theirs.keys() | self.settings.keys())
            if not _same(theirs.get(name), self.settings.get(name))
        ]
        if differ:
            raise ValueError(f"{checkpoint_path(self.directory)}: {'; '.join(differ)}")
        take_checkpoint(self.directory, content, self.model, self.optimizer, self.loader)
        self._epoch = extra.get("epoch", self.loader.epoch)
        if rank_of() == 0:
            self.total = EpochTotal(extra["loss"], extra["items"])
        self.best_value = extra["best_value"]
        self.best_epoch = extra["best_epoch"]
        self._best_weights = extra["best_weights"]
        return True

    def after_batch(self) -> None:
        """Saves a checkpoint if it is time; for `train_epoch(after_batch=...)`."""
        if self.every and self.loader.state_dict()["batch"] % self.every == 0:
            self._save()

    def end_epoch(self, value: float) -> None:
        """Ends the epoch: keeps the model if it is the best so far, and saves a checkpoint.

        Args:
            value: validation figure, the higher the better; the same on all ranks.

        Raises:
            TypeError: value is no number.
        """
        if isinstance(value, bool) or not isinstance(value, int | float | np.number | torch.Tensor):
            raise TypeError(f"value is {value!r}; expected a number, the higher the better")
        if isinstance(value, np.number | torch.Tensor):
            value = value.item()
        if self._best_weights is None or value > self.best_value or math.isnan(self.best_value):
            self.best_value, self.best_epoch = value, self._epoch
            weights = unwrap(self.model).state_dict()
            self._best_weights = {k: v.detach().cpu().clone() for k, v in weights.items()}
        self.total = EpochTotal()
        self._epoch += 1
        self._save()

    def load_best(self) -> None:
        """Gives the model the weights that it had at the best validation figure."""
        if self._best_weights is not None:
            unwrap(self.model).load_state_dict(self._best_weights)

    def _save(self) -> None:
        if self.directory is None or rank_of() != 0:
            return
        extra = {
            "settings": self.settings,
            "epoch": self._epoch,
            "loss": self.total.loss,
            "items": self.total.items,
            "best_value": self.best_value,
            "best_epoch": self.best_epoch,
            "best_weights": self._best_weights,
        }
        place = self.loader.state_dict()
        if place["batch"] and place["epoch"] < self._epoch:
            # The epoch was ended before its last mini-batch: the loader's next loop is a new one.
            place = {**place, "epoch": place["epoch"] + 1, "batch": 0, "source": None}
        write_checkpoint(self.directory, self.model, self.optimizer, place, extra)


def _same(theirs: Any, ours: Any) -> bool:
    """Whether two values of a setting are alike; NaN is the same as NaN."""
    if isinstance(theirs, torch.Tensor) or isinstance(ours, torch.Tensor):
        kinds = isinstance(theirs, torch.Tensor) and isinstance(ours, torch.Tensor)
        return kinds and theirs.dtype == ours.dtype and torch.equal(theirs, ours)
    return bool(theirs == ours) or repr(theirs) == repr(ours)
