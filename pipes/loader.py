"""DataLoader: worker threads, order, back-pressure, errors, state, shutdown."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import torch

from hopline.pipes.cursor import Cursor, check_state, make_state
from hopline.pipes.features.buffers import settle
from hopline.pipes.minibatch import MiniBatch
from hopline.pipes.stage import Chain, Stage
from hopline.pipes.stages.copy_to import CopyTo
from hopline.pipes.streams import HandedOver, WorkerStreams

__all__ = ["DataLoader"]

LEFT = (
    "this loop over the loader has ended: close() or load_state_dict() was called, or another loop "
    "was started, and a loader reads one epoch at a time"
)
MOST_WORKERS = 4096  # above, a number is a slip, and the threads would take the machine down


class DataLoader:
    """Reads a chain: an iterable of mini-batches that can be stopped anywhere and goes on exactly.

    Everything after the item sampler is one task a mini-batch, run by threads: kernels hold no GIL,
    nothing is pickled and nothing copied between processes. Mini-batches come in order, and they
    are the same for any number of workers.

    Each `for` reads one epoch; the next one reads the next epoch, also after a `break`. One epoch
    is read at a time: starting another ends the one before.

    An exception of a stage is raised at its mini-batch, after those before it, as the same object.

    Where the chain copies to a GPU, each thread works on a CUDA stream of its own. A mini-batch is
    ready for the stream that is current where it is read.

    Args:
        datapipe: a chain, or any iterable of mini-batches.
        num_workers: threads; 0 works on the calling thread.
        persistent_workers: accepted for GraphBolt's scripts; threads are cheap and live an epoch.
        max_uva_threads: accepted for GraphBolt's scripts; GPU kernels choose their own size.
        prefetch_factor: at most num_workers * prefetch_factor mini-batches are there at once: in
            the making, waiting to be read, or in the reader's hands. The last one is not counted
            where the others would be no more than the threads.
        overlap_feature_fetch: accepted for GraphBolt's scripts; threads overlap all stages.
        overlap_graph_fetch: accepted likewise.
        num_gpu_cached_edges: accepted if 0; it is an option of `sample_neighbor`.
        gpu_cache_threshold: accepted for GraphBolt's scripts.

    Raises:
        TypeError, ValueError: an argument of wrong kind or value.

    >>> from hopline.pipes import ItemSampler, ItemSet
    >>> with DataLoader(ItemSampler(ItemSet(5, names="seeds"), 2), num_workers=2) as loader:
    ...     [minibatch.seeds.tolist() for minibatch in loader]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        datapipe: Any,
        num_workers: int = 0,
        persistent_workers: bool = True,
        max_uva_threads: int | None = None,
        *,
        prefetch_factor: int = 2,
        overlap_feature_fetch: bool = True,
        overlap_graph_fetch: bool = False,
        num_gpu_cached_edges: int = 0,
        gpu_cache_threshold: int = 1,
    ) -> None:
        for name, value, least in (
            ("num_workers", num_workers, 0),
            ("prefetch_factor", prefetch_factor, 1),
            ("num_gpu_cached_edges", num_gpu_cached_edges, 0),
            ("gpu_cache_threshold", gpu_cache_threshold, 1),
        ):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} is {value!r}; expected an int")
            if value < least:
                raise ValueError(f"{name} is {value}; expected {least} or more")
        if num_workers > MOST_WORKERS:
            raise ValueError(
                f"num_workers is {num_workers}; expected {MOST_WORKERS} or fewer: each is a thread"
            )
        if num_gpu_cached_edges:
            raise ValueError(
                f"num_gpu_cached_edges is {num_gpu_cached_edges}; give it to the sampler, as "
                f"sample_neighbor(graph, fanouts, num_gpu_cached_edges={num_gpu_cached_edges})"
            )
        if not isinstance(datapipe, Chain):
            from hopline.pipes.iterable_source import IterableSource

            datapipe = IterableSource(datapipe)
        self.chain: Chain = datapipe
        self.num_workers = num_workers
        self.prefetch_factor = prefetch_factor
        self._place = _Place()
        # The epoch being read. Weak, so that a loop that is left lets go of its threads.
        self._epoch: weakref.ref[_Epoch] | None = None
        # Its threads; also when the loop is gone, since a thread first ends the task it is in.
        self._pool: ThreadPoolExecutor | None = None

    @property
    def epoch(self) -> int:
        """The epoch being read; between two loops, the one that the next loop will read."""
        return self._place.epoch

    def __len__(self) -> int:
        """Mini-batches an epoch.

        Raises:
            TypeError: the source does not know.
        """
        return len(self.chain)

    def __iter__(self) -> Iterator[MiniBatch]:
        self.close()
        place = self._place
        if place.begun:
            # A loop that was left: the next epoch, from the source's own start.
            place = _Place(place.epoch + 1, seed=place.seed)
        # A new object for each epoch: one that was left can no longer move the loader's place.
        place = _Place(
            place.epoch, place.batch, place.seed, place.after, begun=True, loaded=place.loaded
        )
        epoch = _Epoch(self.chain, place, self.num_workers, self.prefetch_factor)
        self._place, self._epoch, self._pool = place, weakref.ref(epoch), epoch.pool
        return epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: the epoch, the number of the next mini-batch, what it reads.

        Returns:
            Plain values, safe for JSON and for `torch.save`; see `hopline.pipes.cursor`. When the
            source is a torchdata node, its own state is among them.
        """
        source, stages = self.chain.parts()
        place = self._place
        epoch, batch, after = place.at  # at once: another thread may be reading the loader
        return make_state(source, stages, epoch, batch, place.seed, after)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to the place of a state: the next loop reads the rest of its epoch.

        Nothing is computed again. A loop under way ends.

        Raises:
            TypeError: not a state.
            ValueError: the state is of another pipeline; the message names both values.
        """
        check_state(*self.chain.parts(), state)
        self._leave()
        self._place = _Place(
            state["epoch"], state["batch"], state["seed"], state["source"], loaded=True
        )

    def close(self) -> None:
        """Ends the loop under way and waits for its threads; the loader can be used again."""
        self._leave()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None

    def _leave(self) -> None:
        epoch = self._epoch() if self._epoch is not None else None
        if epoch is not None:
            epoch.close()
        self._epoch = None

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DataLoader({self.chain!r}, num_workers={self.num_workers})"


class _Place:
    """The next mini-batch to deliver.

    What moves is one tuple that is replaced whole, so that a thread that asks for the state while
    another one reads finds a place that was there, and never half of two.
    """

    __slots__ = ("at", "begun", "loaded", "seed")

    def __init__(
        self,
        epoch: int = 0,
        batch: int = 0,
        seed: int | None = None,
        after: Any = None,
        *,
        begun: bool = False,
        loaded: bool = False,
    ) -> None:
        self.at = (epoch, batch, after)
        self.seed = seed
        self.begun = begun  # a loop has started to read this epoch
        self.loaded = loaded  # a walked source is to be put back to this place

    @property
    def epoch(self) -> int:
        return self.at[0]

    @property
    def batch(self) -> int:
        return self.at[1]

    @property
    def after(self) -> Any:
        return self.at[2]


class _Epoch(Iterator[MiniBatch]):
    """One loop over an epoch, and the threads that work for it.

    It is referred to by the loop alone: when a loop is left, its end ends the threads.
    """

    def __init__(self, chain: Chain, place: _Place, num_workers: int, prefetch_factor: int) -> None:
        self._place = place
        self._cursor = Cursor(
            chain,
            epoch=place.epoch,
            batch=place.batch,
            seed=place.seed,
            source_state=place.after,
            live=not place.loaded,
        )
        place.at, place.loaded = (place.epoch, place.batch, self._cursor.after), False
        most = num_workers * prefetch_factor
        # In the making or waiting; one more is in the reader's hands.
        self._limit = most - 1 if most - 1 > num_workers else most
        self._streams = WorkerStreams(_gpus(self._cursor.stages), num_workers)
        self._pending: deque[tuple[Future[HandedOver], Any]] = deque()
        self._more = True
        self._closed = False
        self._done = False  # ended by itself or by an error that was told
        self.pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self._turn = threading.RLock()  # of several threads that read this loop
        if num_workers:
            self.pool = ThreadPoolExecutor(num_workers, thread_name_prefix="hopline-loader")
            self._end_with_me = _Ending(self.pool, self._streams)

    def __next__(self) -> MiniBatch:
        if self._process != os.getpid():
            if self.pool is not None and not self._closed:
                raise RuntimeError(
                    f"this loop belongs to process {self._process}, whose threads a fork does not "
                    "copy; start a new loop here"
                )
            # Another thread may have had its turn at the fork, and is not here to end it.
            self._process, self._turn = os.getpid(), threading.RLock()
        with self._turn:
            return self._next()

    def _next(self) -> MiniBatch:
        if self._closed:
            if self._done:
                raise StopIteration
            raise RuntimeError(LEFT)
        try:
            minibatch, after = self._inline() if self.pool is None else self._from_pool(self.pool)
        except BaseException:
            # Also at the end of the epoch, and on Ctrl-C while waiting.
            self._done = True
            self.close()
            raise
        epoch, batch, _ = self._place.at
        self._place.at = (epoch, batch + 1, after)
        return minibatch

    def _end(self) -> StopIteration:
        place = self._place
        place.at, place.begun = (place.epoch + 1, 0, self._cursor.end), False
        return StopIteration()

    def _inline(self) -> tuple[MiniBatch, Any]:
        task = self._cursor.next_task()
        if task is None:
            raise self._end()
        with self._streams.page_locked_outputs():
            return task(), task.after

    def _from_pool(self, pool: ThreadPoolExecutor) -> tuple[MiniBatch, Any]:
        self._fill(pool)
        if not self._pending:
            raise self._end()
        future, after = self._pending.popleft()
        try:
            return future.result().receive(), after
        except CancelledError:
            if future.cancelled():
                raise RuntimeError(LEFT) from None
            raise
        finally:
            # Not to be kept alive by the traceback of its own exception.
            del future

    def _fill(self, pool: ThreadPoolExecutor) -> None:
        """Keeps as many mini-batches in the making as allowed."""
        while self._more and len(self._pending) < self._limit:
            try:
                task = self._cursor.next_task()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                # The source failed: told at its place, after the mini-batches before it.
                failed: Future[HandedOver] = Future()
                failed.set_exception(error)
                self._pending.append((failed, None))
                task = None
            if task is None:
                self._more = False
            else:
                self._pending.append((pool.submit(self._streams.task(task)), task.after))

    def close(self) -> None:
        """Ends the loop: waiting tasks are dropped, threads stop after the task they are in."""
        self._closed = True
        self._pending.clear()
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
        self._streams.close()
        # No loan may come for long: what has come back above the limit is freed now.
        settle()


class _Ending:
    """Ends the threads when the epoch that holds it dies.

    Not a `__del__` of the epoch: a Ctrl-C that falls into one is lost, and a loop without threads
    has nothing to end.
    """

    def __init__(self, pool: ThreadPoolExecutor, streams: WorkerStreams) -> None:
        self._pool = pool
        self._streams = streams

    def __del__(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._streams.close()


def _gpus(stages: tuple[Stage, ...]) -> list[torch.device]:
    """The GPUs that the stages copy to, in their order."""
    devices = [stage.device for stage in stages if isinstance(stage, CopyTo)]
    return [d for d in devices if isinstance(d, torch.device) and d.type == "cuda"]
