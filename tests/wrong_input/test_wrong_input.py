"""Every public callable refuses wrong input with one clear error; see the tables beside."""

from __future__ import annotations

import inspect
import operator
import re

import pytest

import hopline.models as hm
import hopline.pipes as hp
from tests.wrong_input import (
    table_converters,
    table_features,
    table_full_graph,
    table_graph,
    table_items,
    table_layers,
    table_stages,
    table_tensors,
    table_training,
)  # fmt: skip
from tests.wrong_input.things import Entry

TABLES = (
    table_items, table_stages, table_graph, table_tensors, table_features, table_converters,
    table_layers, table_training, table_full_graph,
)  # fmt: skip
ENTRIES: list[Entry] = [entry for module in TABLES for entry in module.TABLE]


def label(number: int, name: str) -> str:
    return f"{name}-{number}"


@pytest.mark.parametrize(
    ("name", "call", "error", "message"),
    [pytest.param(*entry, id=label(i, entry[0])) for i, entry in enumerate(ENTRIES)],
)
def test_wrong_input_is_refused(name, call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error, repr(caught.value)
    assert re.search(message, str(caught.value), re.DOTALL), repr(caught.value)


# -------------------------------------------------------------------------------------------------
# Nothing public is left out

INTERFACE = "an interface: it has no body that could refuse"
PASSED = "called by the package, with what it has checked"
EXEMPT = {
    "Dataset": INTERFACE,
    "DotPredictor": "takes no arguments",
    "EpochTotal": "two counters of a run",
    "Feature": INTERFACE,
    "Feature.read": INTERFACE,
    "Feature.update": INTERFACE,
    "FeatureKey": "a named tuple; stores check their keys",
    "FeatureStore": INTERFACE,
    "FeatureStore.__getitem__": INTERFACE,
    "FeatureStore.__setitem__": INTERFACE,
    "FeatureStore.read_many": "reads one after another by `read`, which refuses",
    "FusedCSCSamplingGraph.has_edges": PASSED,
    "FusedCSCSamplingGraph.node_times": "`attribute_array` by another name, whose entries try it",
    "FusedCSCSamplingGraph.sample_one_hop": PASSED,
    "IterableSource.walk": PASSED,
    "MetadataError": "an exception",
    "MiniBatch": "keeps whatever stages put in it, as its attributes do",
    "MiniBatch.set_edge_features": "keeps what it is given, as the attribute does",
    "MiniBatch.set_node_features": "keeps what it is given, as the attribute does",
    "InSubgraphSampler.graph_cache": PASSED,
    "NeighborSampler.graph_cache": PASSED,
    "NeighborSampler.rule": PASSED,
    "NeighborSampler.times": PASSED,
    "LayerNeighborSampler.rule": PASSED,
    "LayerNeighborSampler.share_variates": "called by the constructors, whose entries try it",
    "PyGLayerData": "a named tuple of results",
    "RankError": "an exception",
    "ranks_are_started": "takes no arguments",
    "SampledSubgraph": "a dataclass of results, whose parts check themselves",
    "Source": INTERFACE,
    "Source.batch": INTERFACE,
    "Source.walk": INTERFACE,
    "Stage.__call__": INTERFACE,
    "SubgraphSampler.sample_subgraphs": INTERFACE,
    "Task": INTERFACE,
    "TemporalLayerNeighborSampler.rule": PASSED,
    "TemporalNeighborSampler.rule": PASSED,
}
OPERATORS = {"__call__", "__getitem__", "__setitem__"}


def takes_arguments(function: object) -> bool:
    return len([name for name in inspect.signature(function).parameters if name != "self"]) > 0


def methods(kind: type) -> dict[str, object]:
    """Public methods that take arguments, of the class and of bases in the package."""
    found = {}
    for base in kind.__mro__:
        if base.__module__.startswith("hopline."):
            for name, value in vars(base).items():
                function = value.__func__ if isinstance(value, classmethod) else value
                public = not name.startswith("_") or name in OPERATORS
                if public and inspect.isfunction(function) and name not in found:
                    found[name] = function
    return {name: function for name, function in found.items() if takes_arguments(function)}


def public_callables() -> dict[str, list[str]]:
    """`{name: all names of the same function}`, of what a user can call."""
    calls: dict[str, list[str]] = {}
    same: dict[object, list[str]] = {}
    for package in (hp, hm):
        for name in package.__all__:
            thing = getattr(package, name)
            if callable(thing):
                calls[name] = same.setdefault(thing, [])
                calls[name].append(name)
            for method, function in methods(thing).items() if isinstance(thing, type) else ():
                calls[f"{name}.{method}"] = same.setdefault(function, [])
                calls[f"{name}.{method}"].append(f"{name}.{method}")
    return calls


CALLABLES = public_callables()


@pytest.mark.parametrize("name", CALLABLES)
def test_every_public_callable_has_an_entry(name):
    """A new one needs entries in a table, or a reason here why it can be given nothing wrong."""
    tried = {entry[0] for entry in ENTRIES} | set(EXEMPT)
    assert tried & set(CALLABLES[name]), f"no table has a wrong call of {name}"


@pytest.mark.parametrize("name", sorted({entry[0] for entry in ENTRIES} | set(EXEMPT)))
def test_names_in_the_tables_are_public(name):
    first, *rest = name.split(".")
    package = hp if first in hp.__all__ else hm
    assert first in package.__all__
    operator.attrgetter(name)(package)
    assert not any(part.startswith("_") and part not in OPERATORS for part in rest)


def test_exempt_is_what_has_no_entry():
    assert not set(EXEMPT) & {entry[0] for entry in ENTRIES}
