"""train_epoch and evaluate: one pass over a loader, in one process or on every rank."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from hopline.models.checks import (
    check_function,
    check_loader,
    check_model,
    check_steps,
    check_tensor,
    feature_of,
)
from hopline.models.metrics import gather_rows, num_ranks, rank_of, weighted_reduce
from hopline.models.optimizer_state import broadcast_optimizer_state
from hopline.models.rng import keyed_rng
from hopline.pipes.loader import DataLoader
from hopline.pipes.minibatch import MiniBatch
from hopline.pipes.move import check_device

if TYPE_CHECKING:  # its import takes as long as torch's, and training alone does without
    import torchmetrics

__all__ = [
    "EpochTotal",
    "Pace",
    "autocast",
    "check_amp_dtype",
    "check_parts",
    "evaluate",
    "forward_features",
    "train_epoch",
    "unwrap",
]

Forward = Callable[[nn.Module, MiniBatch], torch.Tensor]
LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


# Steps that a GPU may be behind. Each holds the memory of a mini-batch; two hide the host's work.
STEPS_AHEAD = 2


class EpochTotal:
    """What this rank has seen of an epoch.

    Args:
        loss: sum of the items' losses.
        items: number of items.
    """

    def __init__(self, loss: float = 0.0, items: int = 0) -> None:
        self._loss: float | torch.Tensor = loss
        self.items = items

    @property
    def loss(self) -> float:
        """Sum of the items' losses. On a GPU, asking for it waits for the steps under way."""
        return float(self._loss)

    def add(self, loss: torch.Tensor, items: int) -> None:
        """Adds a mini-batch.

        Args:
            loss: mean over its items, of no dimensions; it stays on its device.
            items: their number.

        Raises:
            TypeError: loss is no tensor.
        """
        check_tensor(loss, "loss")
        self._loss = self._loss + loss.detach().double() * items
        self.items += items

    def __repr__(self) -> str:
        return f"EpochTotal(loss={self.loss}, items={self.items})"


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside DistributedDataParallel and torch.compile; any other model itself."""
    while True:
        inside = model.module if isinstance(model, DistributedDataParallel) else _plain(model)
        if inside is model:
            return model
        model = inside


def _plain(model: nn.Module) -> nn.Module:
    """What `torch.compile(model)` was given."""
    plain: nn.Module = getattr(model, "_orig_mod", model)
    return plain


def _parallel(model: nn.Module) -> DistributedDataParallel | None:
    """The DistributedDataParallel that a model is, also one that was compiled."""
    for each in (model, _plain(model)):
        if isinstance(each, DistributedDataParallel):
            return each
    return None


def _alone(model: nn.Module) -> nn.Module:
    """The model of this rank; compiled, if what DistributedDataParallel was given was."""
    parallel = _parallel(model)
    return model if parallel is None else parallel.module


def forward_features(model: nn.Module, minibatch: MiniBatch) -> torch.Tensor:
    """`model(minibatch.blocks, minibatch.node_features["feat"])`.

    Raises:
        ValueError, KeyError: the mini-batch has no such feature.
    """
    feature = feature_of(minibatch, "forward_features")
    output: torch.Tensor = model(minibatch.blocks, feature)
    return output


def train_epoch(
    model: nn.Module,
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    loss_fn: LossFunction = F.cross_entropy,
    *,
    device: torch.device | str | None = None,
    forward: Forward = forward_features,
    total: EpochTotal | None = None,
    after_batch: Callable[[], None] | None = None,
    amp_dtype: torch.dtype | None = None,
) -> float:
    """Trains on what is left of the loader's epoch.

    Ranks may have different numbers of mini-batches, or none: a model in DistributedDataParallel is
    trained under `Join`. A step's gradient is the mean over the ranks that still have a
    mini-batch (`divide_by_initial_world_size=False`), as if the others did not exist; afterwards
    all ranks have the model and the optimiser state of a rank that went on longest.

    Dropout is drawn from the mini-batch's key (`keyed_rng`), so a run that is stopped and resumed
    gives the same weights as one that was not.

    A GPU may fall two steps behind the host, which reads no result of a step before the epoch ends.

    Args:
        model: called as `forward` says; in DistributedDataParallel when there are several ranks.
        loader: gives mini-batches with labels.
        optimizer: over the model's parameters. Steps once a mini-batch; accumulating gradients
            over several is not supported.
        loss_fn: mean loss of (output, labels) over the items.
        device: where the mini-batch goes; by default the device of the model's parameters.
        forward: gives the output, one row a label, for a model and a mini-batch.
        total: where to count; pass the one of a stopped run to go on with it.
        after_batch: called after each step, e.g. to save a checkpoint. It must not communicate.
        amp_dtype: torch.bfloat16 for mixed precision: the forward pass runs under
            `torch.autocast`, loss_fn gets float32, and parameters and their gradients keep their
            dtype. None for none. float16 needs its loss scaled, which is not done here.

    Returns:
        Mean loss over the items of the epoch and over all ranks, on every rank; NaN without items.

    Raises:
        TypeError: an argument is of wrong kind, forward or loss_fn gives no tensor, or the
            optimizer calls the model itself, as LBFGS does.
        ValueError: output and labels differ in length; a mini-batch has no labels; loss_fn gives
            more than one value; there is no such device; amp_dtype is another than bfloat16.
    """
    check_parts(model, loader, forward)
    check_steps(optimizer)
    check_function(loss_fn, "loss_fn")
    check_amp_dtype(amp_dtype)
    device = _device_of(model) if device is None else check_device(device)
    total = EpochTotal() if total is None else total
    model.train()
    steps, pace = 0, Pace(device)
    with _join(model), _progress(loader, "training") as bar:
        for minibatch in loader:
            minibatch = minibatch.to(device)
            optimizer.zero_grad()
            with keyed_rng(minibatch.key, device):
                output, labels = _output_and_labels(model, minibatch, forward, amp_dtype)
                loss = _loss(loss_fn, output, labels)
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            steps += 1
            total.add(loss, len(labels))
            pace.step()
            if after_batch is not None:
                after_batch()
            bar.update()
    if _parallel(model) is not None:
        _follow_longest_rank(optimizer, steps)
    mean = total.loss / total.items if total.items else 0.0
    return float(weighted_reduce(mean, total.items, dst=None))


def evaluate(
    model: nn.Module,
    loader: DataLoader,
    metric: torchmetrics.Metric,
    *,
    device: torch.device | str | None = None,
    forward: Forward = forward_features,
    amp_dtype: torch.dtype | None = None,
) -> float:
    """A metric of the model over all items of a loader and of all ranks.

    The loader is read from the beginning of its epoch 0, so that the same model gets the same
    figure. Ranks may have different numbers of mini-batches, or none. The model is left in the mode
    in which it was, and the loader at its epoch 1.

    Args:
        model: a module, also in DistributedDataParallel, which is then left aside.
        loader: gives mini-batches with labels; on several ranks, each item on one of them.
        metric: updated with (output, labels), e.g. `MulticlassAccuracy(10, average="micro")`; its
            value is one number. It is reset before and after.
        device: where the mini-batch goes; by default the device of the model's parameters.
        forward: gives the output, one row a label, for a model and a mini-batch.
        amp_dtype: as in `train_epoch`; the metric gets float32.

    Returns:
        The metric, the same on every rank; NaN without items.

    Raises:
        TypeError: an argument is of wrong kind, or forward gives no tensor.
        ValueError: output and labels differ in length; a mini-batch has no labels; the metric keeps
            lists that cannot be merged over ranks of different length; there is no such device;
            amp_dtype is another than bfloat16.
    """
    check_parts(model, loader, forward)
    check_amp_dtype(amp_dtype)
    if not (hasattr(metric, "update") and hasattr(metric, "compute")):
        raise TypeError(f"metric is a {type(metric).__name__}; expected a torchmetrics.Metric")
    device = _device_of(model) if device is None else check_device(device)
    module = _alone(model)
    metric = metric.to(device)
    metric.reset()
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "batch": 0, "source": None})
    items, pace = 0, Pace(device)
    with _eval_mode(module), torch.no_grad(), _progress(loader, "evaluation") as bar:
        for minibatch in loader:
            minibatch = minibatch.to(device)
            output, labels = _output_and_labels(module, minibatch, forward, amp_dtype)
            metric.update(output, labels)
            items += len(labels)
            pace.step()
            bar.update()
        return _compute(metric, items)


def check_parts(model: Any, loader: Any, forward: Any) -> None:
    """Raises TypeError where one of the parts of a pass over a loader is something else."""
    check_model(model)
    check_loader(loader)
    check_function(forward, "forward")


def check_amp_dtype(dtype: Any) -> None:
    """Raises where a dtype is none for mixed precision.

    Raises:
        TypeError: it is no dtype.
        ValueError: it is another than bfloat16.
    """
    if dtype is None or dtype == torch.bfloat16:
        return
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"amp_dtype is {dtype!r}; expected torch.bfloat16, or None")
    reason = ""
    if dtype == torch.float16:
        reason = (
            ": small gradients become 0 in float16 unless the loss is scaled, which is not done"
        )
    raise ValueError(f"amp_dtype is {dtype}; expected torch.bfloat16, or None{reason}")


def autocast(
    device: torch.device, dtype: torch.dtype | None
) -> contextlib.AbstractContextManager[Any]:
    """Mixed precision on a device; nothing at all for None."""
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)


class Pace:
    """Keeps the host from running ahead of a GPU by more than `STEPS_AHEAD` steps.

    Args:
        device: where the steps run; on the CPU nothing is to be done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ends: deque[torch.cuda.Event] = deque()

    def step(self) -> None:
        """Says that a step has been handed over."""
        if self._device.type != "cuda":
            return
        end: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        end.record(torch.cuda.current_stream(self._device))
        self._ends.append(end)
        if len(self._ends) > STEPS_AHEAD:
            self._ends.popleft().synchronize()


def _device_of(model: nn.Module) -> torch.device:
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _output_and_labels(
    model: nn.Module, minibatch: MiniBatch, forward: Forward, amp_dtype: torch.dtype | None
) -> tuple[torch.Tensor, torch.Tensor]:
    labels = minibatch.labels
    if not isinstance(labels, torch.Tensor):
        raise ValueError(
            f"the mini-batch has no tensor of labels but {type(labels).__name__}; name a column of "
            "the item set 'labels'"
        )
    with autocast(labels.device, amp_dtype):
        output = forward(model, minibatch)
    if not isinstance(output, torch.Tensor):
        raise TypeError(f"forward gave a {type(output).__name__}; expected a torch.Tensor")
    if len(output) != len(labels):
        raise ValueError(
            f"the model gave {len(output)} rows for {len(labels)} labels; it must give one for "
            "each seed, in order"
        )
    if not labels.dtype.is_floating_point:
        labels = labels.long()
    return output if amp_dtype is None else output.float(), labels


def _loss(loss_fn: Callable[..., Any], output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if loss_fn is F.cross_entropy:
        _check_classes(output, labels)
    try:
        loss = loss_fn(output, labels)
    except IndexError as error:
        raise ValueError(
            f"loss_fn: {error}; labels are from {labels.min()} to {labels.max()}, and the model's "
            f"output has shape {tuple(output.shape)}: expected classes from 0 up, one column each"
        ) from error
    if not isinstance(loss, torch.Tensor):
        raise TypeError(f"loss_fn gave a {type(loss).__name__}; expected a torch.Tensor")
    if loss.numel() != 1:
        raise ValueError(
            f"loss_fn gave a loss of shape {tuple(loss.shape)}; expected one value, the mean over "
            "the items"
        )
    return loss


def _check_classes(output: torch.Tensor, labels: torch.Tensor) -> None:
    """What cross_entropy, the default, takes for something else or refuses without a remedy."""
    if output.dim() < 2:
        raise ValueError(
            f"the model gave one score a label, {tuple(output.shape)}, and loss_fn is "
            "cross_entropy, for a column a class; expected another loss, such as "
            "loss_fn=torch.nn.functional.binary_cross_entropy_with_logits"
        )
    if labels.shape == output.shape and labels.is_floating_point():  # a probability a class
        return
    if labels.is_floating_point():
        raise ValueError(
            f"labels are of {labels.dtype}, and loss_fn is cross_entropy; expected integers, the "
            "classes, or another loss_fn, such as torch.nn.functional.mse_loss"
        )
    if labels.dim() != output.dim() - 1:
        raise ValueError(
            f"labels have shape {tuple(labels.shape)} for an output of {tuple(output.shape)}; "
            f"expected ({len(labels)},), a class each: store labels.squeeze(1)"
        )


def _join(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    parallel = _parallel(model)
    if parallel is None:
        return contextlib.nullcontext()
    return Join([parallel], divide_by_initial_world_size=False)


def _progress(loader: DataLoader, what: str) -> Any:
    """A progress bar: on rank 0, when somebody is looking."""
    shown = rank_of() == 0 and sys.stderr.isatty()
    total = None
    with contextlib.suppress(TypeError):
        total = len(loader) - loader.state_dict()["batch"]
    return tqdm(total=total, desc=what, leave=False, disable=not shown)


@contextlib.contextmanager
def _eval_mode(module: nn.Module) -> Iterator[None]:
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _follow_longest_rank(optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Where ranks made different numbers of steps, hands out the optimiser state of the longest."""
    counts = [int(rows) for rows in gather_rows(torch.tensor(steps))]
    if min(counts) < max(counts):
        broadcast_optimizer_state(optimizer, src=counts.index(max(counts)))


def _compute(metric: torchmetrics.Metric, items: int) -> float:
    """The metric's value over all ranks."""
    parts = _unmerged_parts(metric)
    counts = [rows.tolist() for rows in gather_rows(torch.tensor([items, parts]))]
    if sum(count for count, _ in counts) == 0:
        return float("nan")
    if len({parts for _, parts in counts}) > 1:
        raise ValueError(
            f"{type(metric).__name__} keeps lists of {[parts for _, parts in counts]} entries on "
            "the ranks and does not say how to merge them; declare its states with "
            "dist_reduce_fx='cat'"
        )
    own_gather = metric.dist_sync_fn
    metric.dist_sync_fn = gather_rows
    try:
        with warnings.catch_warnings():
            if num_ranks() > 1:
                # A rank without mini-batches computes from what the others gave.
                warnings.filterwarnings("ignore", message=".*was called before the ``update``")
            value = float(metric.compute())
    finally:
        metric.dist_sync_fn = own_gather
        metric.reset()
    return value


def _unmerged_parts(metric: torchmetrics.Metric) -> int:
    """Entries of list states that ranks exchange one by one, which must be as many on each."""
    from torchmetrics.utilities.data import dim_zero_cat

    parts = 0
    for name, value in metric.metric_state.items():
        if isinstance(value, list) and metric._reductions.get(name) is not dim_zero_cat:
            parts += len(value)
    return parts
