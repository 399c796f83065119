"""Stage: the base of every step of the chain, chaining, register_stage and pipe().

A chain is a source followed by stages. A stage's heart is a pure callable from one mini-batch to
the next: free of state, safe on any thread. All iteration state is in a `Cursor` (one for each
`for` loop, loader or torchdata node), so that one chain serves several readers at once.
"""

from __future__ import annotations

import difflib
import functools
import keyword
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, GeneratorType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import torch
from torchdata.nodes import BaseNode

from hopline.pipes.checks import check_count
from hopline.pipes.minibatch import MiniBatch

if TYPE_CHECKING:
    from hopline.pipes.cursor import Cursor
    from hopline.pipes.features.feature import FeatureStore
    from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = ["Chain", "Source", "Stage", "register_stage"]

StageType = TypeVar("StageType", bound="type[Stage]")
Fanouts = Sequence[int | Sequence[int] | torch.Tensor]

_registry: dict[str, type[Stage]] = {}

SET_AT_FIRST = ("_next_epoch", "_cursor", "source")  # by `Stage.__init__`


class Chain(BaseNode[MiniBatch]):
    """What sources and stages share: chaining, iteration, and the protocol of torchdata's nodes.

    Iterating a chain runs its stages on the calling thread; each `for` starts the next epoch,
    whatever was read of the last one. `DataLoader` runs them on worker threads. As a torchdata node
    a chain may stand before or behind any other (`torchdata.nodes.Loader(chain)`).
    """

    def __init__(self) -> None:
        super().__init__()
        self._next_epoch = 0
        self._cursor: Cursor | None = None

    # -----------------------------------------------------------------------------------------
    # The parts of the chain

    def parts(self) -> tuple[Source, tuple[Stage, ...]]:
        """The source, and the stages in the order in which they run."""
        stages: list[Stage] = []
        node: Chain = self
        while isinstance(node, Stage):
            stages.append(node)
            node = node.source
        assert isinstance(node, Source)
        return node, tuple(reversed(stages))

    def settings(self) -> dict[str, Any]:
        """What the mini-batches depend on, as plain values; a loader's state is checked by it."""
        return {}

    def __len__(self) -> int:
        """Mini-batches an epoch.

        Raises:
            TypeError: the source does not know.
        """
        return len(self.parts()[0])

    # -----------------------------------------------------------------------------------------
    # Iteration

    def __iter__(self) -> Iterator[MiniBatch]:
        epoch = self._next_epoch
        self._next_epoch += 1
        return self._run(epoch)

    def _run(self, epoch: int) -> Iterator[MiniBatch]:
        from hopline.pipes.cursor import Cursor

        cursor = Cursor(self, epoch=epoch)
        while (task := cursor.next_task()) is not None:
            yield task()

    # torchdata's node protocol: next(chain), chain.reset(state), chain.state_dict()

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Starts the next epoch, or goes on where a state was taken."""
        from hopline.pipes.cursor import Cursor

        super().reset(initial_state)
        if initial_state is not None:
            self._cursor = Cursor.from_state(self, initial_state)
        elif self._cursor is None:
            self._cursor = Cursor(self)
        else:
            self._cursor = self._cursor.next_epoch()

    def next(self) -> MiniBatch:
        """The next mini-batch of the epoch that `reset` started."""
        assert self._cursor is not None
        task = self._cursor.next_task()
        if task is None:
            raise StopIteration
        return task()

    def get_state(self) -> dict[str, Any]:
        """Where `next` stands."""
        assert self._cursor is not None
        return self._cursor.state()

    def __getstate__(self) -> dict[str, Any]:
        for name, value in self.__dict__.items():
            if what := _cannot_travel(value):
                raise TypeError(
                    f"{type(self).__name__} cannot be pickled, e.g. for another process: its "
                    f"{name} is {what}"
                )
        return {**self.__dict__, "_cursor": None, "_BaseNode__initialized": False}

    # -----------------------------------------------------------------------------------------
    # Chaining: every method returns a new stage and leaves this one as it is

    def copy_to(self, device: torch.device | str | int, non_blocking: bool = False) -> Stage:
        """Moves mini-batches to a device; see `CopyTo`."""
        from hopline.pipes.stages.copy_to import CopyTo

        return CopyTo(self, device, non_blocking)

    def sample_neighbor(
        self,
        graph: FusedCSCSamplingGraph,
        fanouts: Fanouts,
        replace: bool = False,
        prob_name: str | None = None,
        deduplicate: bool = True,
        overlap_fetch: bool = False,
        num_gpu_cached_edges: int = 0,
        gpu_cache_threshold: int = 1,
        cooperative: bool = False,
        asynchronous: bool = False,
    ) -> Stage:
        """Samples in-neighbours of the seeds, hop by hop; see `NeighborSampler`."""
        from hopline.pipes.stages.neighbor import NeighborSampler

        return NeighborSampler(
            self, graph, fanouts, replace, prob_name, deduplicate, overlap_fetch,
            num_gpu_cached_edges, gpu_cache_threshold, cooperative, asynchronous,
        )  # fmt: skip

    def sample_layer_neighbor(
        self,
        graph: FusedCSCSamplingGraph,
        fanouts: Fanouts,
        replace: bool = False,
        prob_name: str | None = None,
        deduplicate: bool = True,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
        overlap_fetch: bool = False,
        num_gpu_cached_edges: int = 0,
        gpu_cache_threshold: int = 1,
        cooperative: bool = False,
        asynchronous: bool = False,
    ) -> Stage:
        """Samples by LABOR, with fewer distinct nodes; see `LayerNeighborSampler`."""
        from hopline.pipes.stages.layer import LayerNeighborSampler

        return LayerNeighborSampler(
            self, graph, fanouts, replace, prob_name, deduplicate, layer_dependency,
            batch_dependency, overlap_fetch, num_gpu_cached_edges, gpu_cache_threshold,
            cooperative, asynchronous,
        )  # fmt: skip

    def temporal_sample_neighbor(
        self,
        graph: FusedCSCSamplingGraph,
        fanouts: Fanouts,
        replace: bool = False,
        prob_name: str | None = None,
        node_timestamp_attr_name: str | None = None,
        edge_timestamp_attr_name: str | None = None,
        pre_time_window: int | None = None,
    ) -> Stage:
        """Samples in-neighbours from before each seed's time; see `TemporalNeighborSampler`."""
        from hopline.pipes.stages.temporal import TemporalNeighborSampler

        return TemporalNeighborSampler(
            self, graph, fanouts, replace, prob_name, node_timestamp_attr_name,
            edge_timestamp_attr_name, pre_time_window,
        )  # fmt: skip

    def temporal_sample_layer_neighbor(
        self,
        graph: FusedCSCSamplingGraph,
        fanouts: Fanouts,
        replace: bool = False,
        prob_name: str | None = None,
        node_timestamp_attr_name: str | None = None,
        edge_timestamp_attr_name: str | None = None,
        pre_time_window: int | None = None,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
    ) -> Stage:
        """Samples by LABOR before each seed's time; see `TemporalLayerNeighborSampler`."""
        from hopline.pipes.stages.temporal import TemporalLayerNeighborSampler

        return TemporalLayerNeighborSampler(
            self, graph, fanouts, replace, prob_name, node_timestamp_attr_name,
            edge_timestamp_attr_name, pre_time_window, layer_dependency, batch_dependency,
        )  # fmt: skip

    def sample_in_subgraph(self, graph: FusedCSCSamplingGraph) -> Stage:
        """Takes all in-edges of the seeds; see `InSubgraphSampler`."""
        from hopline.pipes.stages.in_subgraph import InSubgraphSampler

        return InSubgraphSampler(self, graph)

    def sample_uniform_negative(
        self,
        graph: FusedCSCSamplingGraph,
        negative_ratio: int,
        *,
        exclude_true_edges: bool = False,
        node_timestamp_attr_name: str | None = None,
    ) -> Stage:
        """Adds seeds with other destinations, as negatives; see `UniformNegativeSampler`."""
        from hopline.pipes.stages.negative import UniformNegativeSampler

        return UniformNegativeSampler(
            self,
            graph,
            negative_ratio,
            exclude_true_edges=exclude_true_edges,
            node_timestamp_attr_name=node_timestamp_attr_name,
        )

    def exclude_seed_edges(
        self,
        include_reverse_edges: bool = False,
        reverse_etypes_mapping: dict[str, str] | None = None,
        exclude_negatives: bool = False,
        *,
        keep_self_loops: bool = False,
        asynchronous: bool = False,
    ) -> Stage:
        """Takes the seed edges out of the sampled hops; see `SeedEdgesExcluder`."""
        from hopline.pipes.stages.exclude import SeedEdgesExcluder

        return SeedEdgesExcluder(
            self,
            include_reverse_edges,
            reverse_etypes_mapping,
            exclude_negatives,
            keep_self_loops=keep_self_loops,
            asynchronous=asynchronous,
        )

    def fetch_feature(
        self,
        feature_store: FeatureStore,
        node_feature_keys: Sequence[str] | dict[str, Sequence[str]] | None = None,
        edge_feature_keys: Sequence[str] | dict[str, Sequence[str]] | None = None,
        overlap_fetch: bool = True,
        cooperative: bool = False,
    ) -> Stage:
        """Reads the features of the sampled nodes and edges; see `FeatureFetcher`."""
        from hopline.pipes.stages.fetch import FeatureFetcher

        return FeatureFetcher(
            self, feature_store, node_feature_keys, edge_feature_keys, overlap_fetch, cooperative
        )

    def transform(self, transformer: Callable[[MiniBatch], MiniBatch] | None = None) -> Stage:
        """Applies a function to each mini-batch; see `MiniBatchTransformer`."""
        from hopline.pipes.stages.transform import MiniBatchTransformer

        return MiniBatchTransformer(self, transformer)

    def buffer(self, buffer_size: int = 1) -> Self:
        """This chain; accepted for GraphBolt's scripts, since loader threads work ahead."""
        check_count(buffer_size, "buffer_size", 1)
        return self

    def prefetch(self, buffer_size: int = 10) -> Self:
        """This chain; accepted likewise."""
        return self.buffer(buffer_size)

    def wait(self) -> Self:
        """This chain; accepted likewise: nothing in a mini-batch is still under way."""
        return self

    def mark_end(self) -> Self:
        """This chain; accepted likewise."""
        return self

    def pipe(self, stage: Callable[..., Stage], *args: Any, **kwargs: Any) -> Stage:
        """Appends a stage of your own: `chain.pipe(MyStage, x)` is `MyStage(chain, x)`.

        Raises:
            TypeError: stage cannot be called, or the call does not give a Stage.
        """
        if not callable(stage):
            raise TypeError(
                f"stage is {stage!r}; expected a Stage class, or a function that makes one"
            )
        made = stage(self, *args, **kwargs)
        if not isinstance(made, Stage) or made is self:
            what = "gave the chain back" if made is self else f"made a {type(made).__name__}"
            raise TypeError(
                f"{stage!r} {what}; expected a hopline Stage, made of the chain; a function of "
                "mini-batches goes into .transform(fn)"
            )
        return made

    def __getattr__(self, name: str) -> Any:
        # Reached only when no attribute of that name exists: stages registered by users.
        stage = _registry.get(name)
        if stage is not None:
            return _Registered(self, stage)
        kind = type(self).__name__
        if name in SET_AT_FIRST and isinstance(self, Stage):
            raise AttributeError(
                f"{kind} has no attribute {name!r}, since its __init__ has not called "
                "super().__init__(source); call it first"
            )
        hint = ""
        if not name.startswith("_"):
            known = [known for known in dir(type(self)) if not known.startswith("_")]
            near = difflib.get_close_matches(name, [*known, *_registry], n=1, cutoff=0.75)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            if name in MiniBatch.__dataclass_fields__:
                hint = "; mini-batches have it: a function of them goes into .transform(fn)"
        raise AttributeError(
            f"{kind} has no attribute {name!r}; registered stages: {sorted(_registry)}{hint}"
        )


def _cannot_travel(value: Any) -> str | None:
    """What keeps a setting of a stage from being pickled, where the pickler's words are unclear."""
    while isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, GeneratorType):
        return "a generator; pass a list, or an object whose __iter__ starts again"
    if not isinstance(value, FunctionType):
        return None
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is value:
        return None
    return (
        f"{value.__qualname__}, which cannot be imported by its name; use a function defined at "
        "the top level of a module"
    )


class _Registered:
    """A registered stage bound to the chain that it is to follow."""

    def __init__(self, chain: Chain, stage: type[Stage]) -> None:
        self._chain = chain
        self._stage = stage

    def __call__(self, *args: Any, **kwargs: Any) -> Stage:
        return self._chain.pipe(self._stage, *args, **kwargs)


class Source(Chain):
    """The head of a chain. A source is computed (`batch`) or walked (`walk`).

    A computed source gives any mini-batch of any epoch by itself; it has a length and a seed. A
    walked one gives raw mini-batches one after another; it has a seed.

    Attributes:
        computed: whether the source is computed.
        seed: seed of the keys of mini-batches.
    """

    seed: int

    computed: ClassVar[bool] = True

    def batch(self, epoch: int, index: int, seed: int | None = None) -> MiniBatch:
        """Mini-batch number `index` of an epoch, a pure function of its arguments.

        Args:
            epoch: from 0.
            index: in [0, len(self)).
            seed: in place of the source's own.
        """
        raise NotImplementedError(f"{type(self).__name__} has no batch(epoch, index, seed)")

    def walk(self, epoch: int, batch: int = 0, state: Any = None, *, live: bool = False) -> Any:
        """Begins to read an epoch of a walked source.

        Args:
            epoch: epoch to read.
            batch: mini-batches of it that are not to be given again.
            state: what `after` of the reading that ended here was.
            live: the epoch before has been read from this very object: nothing is to be put back.

        Returns:
            An iterator with an attribute `after`: the state, of plain values, to go on from.
        """
        raise NotImplementedError(f"{type(self).__name__} has no walk(epoch, batch, state)")


class Stage(Chain):
    """One step of a chain. Subclasses implement `__call__`.

    Args:
        source: the chain before it; or any iterable of mini-batches, torchdata nodes included.

    >>> class Double(Stage):
    ...     def __call__(self, minibatch):
    ...         minibatch.labels = minibatch.labels * 2
    ...         return minibatch
    """

    def __init__(self, source: Any) -> None:
        super().__init__()
        if not isinstance(source, Chain):
            from hopline.pipes.iterable_source import IterableSource

            source = IterableSource(source)
        self.source: Chain = source

    def __call__(self, minibatch: MiniBatch) -> MiniBatch:
        """Does the stage's work. May change the mini-batch's fields, not the tensors in them.

        Runs on any thread, for several mini-batches at once: it must not change the stage.
        """
        raise NotImplementedError(f"{type(self).__name__} has no __call__(minibatch)")

    def __repr__(self) -> str:
        values = ", ".join(f"{key}={value}" for key, value in self.settings().items())
        return f"{self.source!r}.{type(self).__name__}({values})"


def register_stage(name: str) -> Callable[[StageType], StageType]:
    """Class decorator: makes a stage of your own a chaining method of that name.

    Args:
        name: name of the method.

    Raises:
        TypeError: the name is no string, or what is decorated is no Stage class.
        ValueError: the name is no identifier, or is taken.

    >>> @register_stage("keep_every_label")
    ... class Keep(Stage):
    ...     def __call__(self, minibatch):
    ...         return minibatch
    >>> from hopline.pipes import ItemSampler, ItemSet
    >>> chain = ItemSampler(ItemSet(10, names="seeds"), batch_size=5).keep_every_label()
    """
    if not isinstance(name, str):
        raise TypeError(f"stage name is {name!r}; use @register_stage('name')")
    if not name.isidentifier() or name.startswith("_") or keyword.iskeyword(name):
        raise ValueError(f"stage name {name!r} is not a public Python identifier")

    def register(stage: StageType) -> StageType:
        if not (isinstance(stage, type) and issubclass(stage, Stage)):
            raise TypeError(f"{stage!r} is not a subclass of Stage")
        known = _registry.get(name)
        same = known is not None and (known.__module__, known.__qualname__) == (
            stage.__module__,
            stage.__qualname__,
        )
        if hasattr(Chain, name) or (known is not None and not same):
            raise ValueError(f"stage name {name!r} is taken by {known or getattr(Chain, name)!r}")
        _registry[name] = stage
        return stage

    return register
