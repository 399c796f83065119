"""SparseAdagrad, SparseAdam: optimisers of embeddings, whose state lies where the rows do.

They do what `torch.optim.Adagrad` and `torch.optim.SparseAdam` do with sparse gradients, to the
rows that have one. Adagrad: Duchi, Hazan, Singer: "Adaptive subgradient methods for online learning
and stochastic optimization", JMLR 2011. Adam: Kingma, Ba: "Adam: a method for stochastic
optimization", ICLR 2015.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from hopline.partition.alike import as_message, check_alike
from hopline.partition.embedding import DistEmbedding
from hopline.partition.row_files import ROWS_FILE, RowsByPart, load_rows, save_rows

__all__ = ["SparseAdagrad", "SparseAdam"]

Array = np.ndarray[Any, Any]
State = list[dict[str, RowsByPart]]  # of each embedding, by name

FILE = "optimizer.yaml"


class SparseOptimizer:
    """What both share: gradients go to the rows' owners, which change the rows.

    Ranks are compared in every step: one whose optimizer is another is named on all.

    Args:
        embeddings: the tables to train, the same on all ranks, in the same order.
        lr: learning rate; `optimizer.lr = ...` changes it, on all ranks alike.
        eps: added to the denominator.
        average: divide gradients by the number of ranks, as `DistributedDataParallel` does. False
            sums them.
    """

    state_names: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, embeddings: Sequence[DistEmbedding], lr: float, eps: float, average: bool
    ) -> None:
        if isinstance(embeddings, DistEmbedding):
            raise TypeError("embeddings is one DistEmbedding; expected a list of them: [emb]")
        if not isinstance(embeddings, Iterable):
            raise TypeError(f"embeddings is {embeddings!r:.80}; expected a list of DistEmbedding")
        self.embeddings = list(embeddings)
        if not self.embeddings or not all(isinstance(e, DistEmbedding) for e in self.embeddings):
            raise TypeError(f"embeddings are {self.embeddings!r}; expected some DistEmbedding")
        if len({id(emb) for emb in self.embeddings}) < len(self.embeddings):
            raise ValueError("embeddings holds one of them twice; pass each once")
        if not isinstance(average, bool):
            raise TypeError(f"average is {average!r}; expected True or False")
        self.lr, self.eps = _positive(lr, "lr"), _positive(eps, "eps", zero=True)
        self.average = average
        self.steps = [0] * len(self.embeddings)  # in which some rank had gradients
        self._state: State = [
            {
                name: {p: torch.zeros_like(r) for p, r in emb.rows.items()}
                for name in self.state_names
            }
            for emb in self.embeddings
        ]
        # In whatever order a rank names them, it meets the others.
        self._meeting = min(self.embeddings, key=lambda emb: emb.number).meeting

    @torch.no_grad()
    def step(self) -> None:
        """Applies what `backward` has left on all ranks since the last step.

        Every rank calls it, also one that had no mini-batch. It returns when all rows are up to
        date on all ranks. Gradients of several ranks for a row are summed in the order of ranks.

        Raises:
            ValueError: the optimizers of ranks differ; no row has changed, and gradients are
                forgotten.
            RankError: a rank has gone, or does not take the step in time.
        """
        taken = [emb.take_gradients() for emb in self.embeddings]
        had = np.array([found is not None for found in taken], np.int64)
        messages: list[list[Array]] = [[had] for _ in range(self._meeting.world_size)]
        for emb, found in zip(self.embeddings, taken, strict=True):
            ids, gradients = found or emb.no_gradients()
            parts, local = emb.places(ids)
            # Ids ascend, so parts and ranks do.
            bounds = np.searchsorted(emb.owners(parts), np.arange(len(messages) + 1))
            for message, low, high in zip(messages, bounds[:-1], bounds[1:], strict=True):
                message += [parts[low:high], local[low:high], gradients[low:high].numpy()]
        own = as_message(self._depends_on())
        received = self._meeting.swap([[*message, own] for message in messages])
        check_alike("optimizers", [message.pop() for message in received])
        self._meeting.together(lambda: self._apply(received))

    def _apply(self, received: list[list[Array]]) -> None:
        """Changes the rows that lie here, by what each rank has sent."""
        divisor = len(received) if self.average else 1
        for number, emb in enumerate(self.embeddings):
            if not any(message[0][number] for message in received):
                continue
            self.steps[number] += 1
            sent = [message[1 + 3 * number : 4 + 3 * number] for message in received]
            for part, rows in emb.rows.items():
                pieces = []
                for parts, local, gradients in sent:
                    mine = slice(*np.searchsorted(parts, [part, part + 1]).tolist())
                    pieces.append((local[mine], torch.from_numpy(gradients)[mine]))
                places = np.unique(np.concatenate([local for local, _ in pieces]))
                if not len(places):
                    continue
                total = torch.zeros((len(places), emb.dim), dtype=emb.dtype, device="cpu")
                for local, share in pieces:  # of one rank no row comes twice
                    total[torch.from_numpy(np.searchsorted(places, local))] += share
                where = torch.from_numpy(places)
                state = {name: parts[part] for name, parts in self._state[number].items()}
                rows[where] -= self._change(where, total / divisor, state, self.steps[number])

    def _change(
        self, where: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], step: int
    ) -> torch.Tensor:
        """What is taken from the rows; also brings their state up to date."""
        raise NotImplementedError

    def _depends_on(self) -> dict[str, Any]:
        """What a step depends on, besides rows and gradients."""
        return {
            "class": type(self).__name__,
            "tables": [emb.number for emb in self.embeddings],
            "average": self.average,
            "lr": float(f"{self.lr:.6g}"),  # a schedule is rounded otherwise by other processors
            "eps": self.eps,
        }

    def zero_grad(self) -> None:
        """Forgets what `backward` has left on this rank since the last step."""
        for emb in self.embeddings:
            emb.take_gradients()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Saves the state of all embeddings as one; collective. Rows are saved by the embeddings.

        Raises:
            OSError: this rank could not write; what was saved there before is still whole.
            ValueError: the optimizers of ranks differ.
            RankError: another rank could not write, or has gone.
        """
        self._meeting.agree("optimizers", self._depends_on())
        steps = {_of(number, "steps"): count for number, count in enumerate(self.steps)}
        save_rows(self._meeting, Path(folder), self._about() | steps, _flat(self._state), FILE)

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Loads the state, saved by any number of ranks of the same parts; collective.

        Raises:
            FileNotFoundError: nothing was saved there.
            ValueError: it is of other embeddings or of another optimiser, or damaged. Nothing has
                changed then.
            RankError: another rank could not read, or has gone.
        """
        path = Path(folder)
        folder_each = not (path / FILE).exists() and (path / "0" / ROWS_FILE).exists()
        if all(self._meeting.gather(int(folder_each))):
            self._load_folder_each(path)
            return
        names = [_of(number, "steps") for number in range(len(self.embeddings))]
        document, found = load_rows(
            self._meeting, path, self._about(), _flat(self._state), names, FILE
        )
        self.steps = [document[name] for name in names]
        self._state = [
            {name: found[_of(number, name)] for name in self.state_names}
            for number in range(len(self.embeddings))
        ]

    def _load_folder_each(self, path: Path) -> None:
        """Loads a save of the early form, a folder an embedding, of which a kill may mix steps."""
        found = [
            load_rows(
                self._meeting, path / str(number),
                emb.about() | {"optimizer": type(self).__name__}, self._state[number], ["steps"],
            )
            for number, emb in enumerate(self.embeddings)
        ]  # fmt: skip
        self.steps = [document["steps"] for document, _ in found]
        self._state = [state for _, state in found]

    def _about(self) -> dict[str, Any]:
        """What the state in files belongs to."""
        about = {"optimizer": type(self).__name__, "embeddings": len(self.embeddings)}
        for number, emb in enumerate(self.embeddings):
            about |= {_of(number, name): value for name, value in emb.about().items()}
        return about


class SparseAdagrad(SparseOptimizer):
    """Adagrad for the rows that have a gradient.

    Args:
        embeddings: the tables to train, the same on all ranks, in the same order.
        lr: learning rate.
        eps: added to the denominator.
        average: divide gradients by the number of ranks; False sums them.

    Raises:
        TypeError: an argument is of wrong kind.
        ValueError: a number is out of range, or an embedding is there twice.
    """

    state_names = ("sum",)

    def __init__(
        self,
        embeddings: Sequence[DistEmbedding],
        lr: float = 0.01,
        eps: float = 1e-10,
        *,
        average: bool = True,
    ) -> None:
        super().__init__(embeddings, lr, eps, average)

    def _change(
        self, where: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], step: int
    ) -> torch.Tensor:
        total = state["sum"][where] + gradient * gradient
        state["sum"][where] = total
        return self.lr * (gradient / (total.sqrt() + self.eps))


class SparseAdam(SparseOptimizer):
    """Adam for the rows that have a gradient; moments of other rows stay as they are.

    Args:
        embeddings: the tables to train, the same on all ranks, in the same order.
        lr: learning rate.
        betas: how much of each moment is kept.
        eps: added to the denominator.
        average: divide gradients by the number of ranks; False sums them.

    Raises:
        TypeError: an argument is of wrong kind.
        ValueError: a number is out of range, or an embedding is there twice.
    """

    state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        embeddings: Sequence[DistEmbedding],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        average: bool = True,
    ) -> None:
        super().__init__(embeddings, lr, eps, average)
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise TypeError(f"betas is {betas!r}; expected two numbers")
        self.betas = tuple(_positive(beta, "betas", zero=True) for beta in betas)
        if max(self.betas) >= 1:
            raise ValueError(f"betas is {betas!r}; expected numbers below 1")

    def _depends_on(self) -> dict[str, Any]:
        return super()._depends_on() | {"betas": self.betas}

    def _change(
        self, where: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], step: int
    ) -> torch.Tensor:
        first, second = self.betas
        mean = state["exp_avg"][where].lerp(gradient, 1 - first)
        square = state["exp_avg_sq"][where].lerp(gradient * gradient, 1 - second)
        state["exp_avg"][where], state["exp_avg_sq"][where] = mean, square
        size: float = self.lr * (1 - second**step) ** 0.5 / (1 - first**step)
        return size * (mean / (square.sqrt() + self.eps))


def _of(number: int, name: str) -> str:
    """A name in files, of one embedding."""
    return f"{number}.{name}"


def _flat(state: State) -> dict[str, RowsByPart]:
    return {
        _of(number, name): parts
        for number, arrays in enumerate(state)
        for name, parts in arrays.items()
    }


def _positive(value: Any, name: str, *, zero: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}; expected a number")
    if not (value > 0 or (zero and value == 0)) or value == float("inf"):
        raise ValueError(f"{name} is {value!r}; expected {'0 or more' if zero else 'above 0'}")
    return float(value)
