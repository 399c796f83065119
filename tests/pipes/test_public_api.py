"""What users see: names, complete and sorted, with nothing leaking, and every one documented."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import types

import pytest

import hopline.pipes as hp

PACKAGES = [
    "hopline.pipes",
    "hopline.pipes.converters",
    "hopline.pipes.datasets",
    "hopline.pipes.features",
    "hopline.pipes.stages",
    "hopline.models",
    "hopline.partition",
]

# Names that modules share among themselves: in their __all__, and not for users.
INTERNAL = {
    "hopline.pipes.checks": None,
    "hopline.pipes.coo": {"smallest_type_dtype"},
    "hopline.pipes.csc": {"check_types"},
    "hopline.pipes.cursor": {"Cursor", "Task", "check_state", "make_state"},
    "hopline.pipes.device_hop": None,
    "hopline.pipes.device_ids": None,
    "hopline.pipes.device_sampling": None,
    "hopline.pipes.device_table": None,
    "hopline.pipes.edges": {"check_edges", "check_reverse_etypes", "has_edges", "unlisted_edges"},
    "hopline.pipes.former_names": None,
    "hopline.pipes.fused_ids": None,
    "hopline.pipes.gpu_graph_cache": None,
    "hopline.pipes.hop": None,
    "hopline.pipes.host_pages": None,
    "hopline.pipes.host_reads": None,
    "hopline.pipes.large_pages": None,
    "hopline.pipes.placement": None,
    "hopline.pipes.graph_attributes": None,
    "hopline.pipes.graph_sampling": None,
    "hopline.pipes.graph_files": None,  # all of them
    "hopline.pipes.iterable_source": {"Walk"},
    "hopline.pipes.minibatch": {"check_minibatch"},
    "hopline.pipes.move": None,
    "hopline.pipes.npy": None,
    "hopline.pipes.plain_yaml": None,
    "hopline.pipes.page_lock": None,
    "hopline.pipes.parallel_edges": None,
    "hopline.pipes.pinning": None,
    "hopline.pipes.random": {
        "Purpose",
        "batch_key",
        "draw_seed",
        "fold",
        "fold_many",
        "fold_range",
        "mix64",
    },
    "hopline.pipes.relabel": None,
    "hopline.pipes.residence": None,
    "hopline.pipes.sending": None,
    "hopline.pipes.snapshot": None,
    "hopline.pipes.stage": {"Chain"},
    "hopline.pipes.stages.asked_negatives": None,
    "hopline.pipes.stages.hops": None,
    "hopline.pipes.streams": None,
    "hopline.pipes.subgraph": {"trusted_csc"},
    "hopline.pipes.stages.layer": {"SharedVariates", "layer_words"},
    "hopline.pipes.stages.subgraph_sampler": {"seeds_of"},
    "hopline.pipes.converters.common": None,
    "hopline.pipes.converters.pyg_batch": None,
    "hopline.pipes.features.buffers": None,
    "hopline.pipes.features.fork_safe": None,
    "hopline.pipes.features.cached": {"CachedFeature", "merge_hot_ids", "reinterpreted"},
    "hopline.pipes.features.device_index": None,
    "hopline.pipes.features.feature_cache": {
        "LAST_KEY",
        "FeatureCache",
        "as_bytes",
        "check_offset",
    },
    "hopline.pipes.features.policies": None,
    "hopline.pipes.features.row_reader": None,
    "hopline.pipes.features.rows": None,
    "hopline.pipes.usable_memory": None,
}


def modules() -> list[str]:
    """The modules of the chain: not those of data sets, nor of kernels."""
    found = []
    for package in (*PACKAGES[:2], "hopline.pipes.features", "hopline.pipes.stages"):
        for info in pkgutil.iter_modules(importlib.import_module(package).__path__, package + "."):
            if not info.ispkg and info.name != "hopline.pipes.cli":
                found.append(info.name)
    return found


def order(name: str) -> tuple[int, str]:
    """Constants, classes, functions; each by the alphabet."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("name", [*PACKAGES, *modules()])
def test_all_is_sorted_and_true(name):
    module = importlib.import_module(name)
    names = module.__all__
    assert list(names) == sorted(set(names), key=order)
    for each in names:
        assert hasattr(module, each), f"{name}.{each} is not there"
        assert not each.startswith("_")


@pytest.mark.parametrize("name", PACKAGES)
def test_nothing_leaks(name):
    module = importlib.import_module(name)
    public = {each for each in dir(module) if not each.startswith("_")}
    leaks = {
        each
        for each in public - set(module.__all__)
        if getattr(getattr(module, each), "__name__", "") != f"{name}.{each}"
    }
    assert not leaks, f"{name} leaks {leaks}"
    namespace: dict[str, object] = {}
    exec(f"from {name} import *", namespace)  # noqa: S102, as a user would
    assert set(namespace) - {"__builtins__"} == set(module.__all__)


@pytest.mark.parametrize("name", modules())
def test_what_a_module_offers_is_reachable_or_internal(name):
    """A new name has to be put in the one or the other."""
    module = importlib.import_module(name)
    internal = INTERNAL.get(name, set())
    if internal is None:
        internal = set(module.__all__)
    assert internal <= set(module.__all__), "names in INTERNAL that are no more"
    for each in set(module.__all__) - internal:
        assert each in hp.__all__, f"{name}.{each} is not in hopline.pipes"
        assert getattr(hp, each) is getattr(module, each)
    for each in internal:
        assert getattr(hp, each, None) is not getattr(module, each)


@pytest.mark.parametrize("name", modules())
def test_what_a_module_defines_is_in_its_all_or_underscored_or_a_constant(name):
    module = importlib.import_module(name)
    for each, value in vars(module).items():
        if isinstance(value, type | types.FunctionType) and value.__module__ == name:
            public = each in module.__all__
            # Shared with one neighbour only, by its full name.
            shared = name in ("hopline.pipes.graph", "hopline.pipes.item_sampler")
            assert public or each.startswith("_") or shared, f"{name}.{each}"


def test_graphbolts_names_are_here():
    assert {
        "BasicFeatureStore", "BuiltinDataset", "CSCFormatBase", "CopyTo", "DataLoader", "Dataset",
        "DiskBasedFeature", "DistributedItemSampler", "Feature", "FeatureFetcher", "FeatureKey",
        "FeatureStore", "FusedCSCSamplingGraph", "HeteroItemSet", "ItemSampler", "ItemSet",
        "MiniBatch", "MiniBatchTransformer", "NeighborSampler", "OnDiskDataset", "OnDiskTask",
        "SampledSubgraph", "SampledSubgraphImpl", "Task", "TorchBasedFeature",
        "TorchBasedFeatureStore", "compact_csc_format", "etype_str_to_tuple", "etype_tuple_to_str",
        "expand_indptr", "from_dglgraph", "fused_csc_sampling_graph", "index_select",
        "indptr_edge_ids", "isin", "load_from_shared_memory", "minibatcher_default",
        "preprocess_ondisk_dataset", "seed", "seed_type_str_to_ntypes", "unique_and_compact",
        "unique_and_compact_csc_formats", "CPUCachedFeature", "CPUFeatureCache",
        "GPUCachedFeature", "GPUFeatureCache", "bytes_to_number_of_items", "cpu_cached_feature",
        "gpu_cached_feature", "wrap_with_cached_feature",
    } <= set(hp.__all__)  # fmt: skip
    for method in ("copy_to", "sample_neighbor", "fetch_feature", "transform"):
        assert callable(getattr(hp.Stage, method))


# ---------------------------------------------------------------------------------------------
# Documentation

CALLABLES = {
    f"{package}.{name}": getattr(importlib.import_module(package), name)
    for package in ("hopline.pipes", "hopline.models", "hopline.partition")
    for name in importlib.import_module(package).__all__
    if callable(getattr(importlib.import_module(package), name))
}
CALLABLES |= {
    f"hopline.pipes.{name}.{method}": function
    for name in hp.__all__
    if isinstance(kind := getattr(hp, name), type) and kind.__module__.startswith("hopline.")
    for method, function in vars(kind).items()
    if not method.startswith("_") and inspect.isfunction(function)
}


def section(text: str, name: str) -> str:
    """The lines of one section of a docstring in Google's style."""
    match = re.search(rf"^{name}:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    return match[1] if match else ""


def entries(text: str, name: str) -> set[str]:
    """What a section documents; `a, b: ...` documents two."""
    heads = re.findall(r"^    \*{0,2}(\w+(?:, \w+)*):", section(text, name), re.MULTILINE)
    return {part for head in heads for part in head.split(", ")}


def written(thing):
    """The function that takes the arguments, or None if it was not written by hand."""
    if not isinstance(thing, type):
        return thing
    if hasattr(thing, "__dataclass_fields__") or "__init__" not in vars(thing):
        return None
    return thing.__init__


@pytest.mark.parametrize("name", CALLABLES)
def test_every_callable_is_documented(name):
    thing = CALLABLES[name]
    text = inspect.getdoc(thing)
    assert text, "no docstring"
    first = text.split("\n\n")[0]
    assert first.rstrip().endswith((".", ":")), f"first sentence: {first!r}"
    documented, function = entries(text, "Args"), written(thing)
    if function is None:
        return
    wanted = set(inspect.signature(function).parameters) - {"self", "cls"}
    assert documented <= wanted, f"documents {documented - wanted}, which are no parameters"
    if isinstance(thing, type) and not documented:
        # A class that others make tells its parts, which its arguments become.
        documented = entries(text, "Attributes")
        assert not wanted or documented
        return
    # One sentence may say it all, of a method or of one or two arguments.
    brief = name.count(".") == 3 or len(wanted) <= 2
    assert documented == wanted or (brief and not documented), f"Args misses {wanted - documented}"


@pytest.mark.parametrize("name", CALLABLES)
def test_raises_are_documented(name):
    """Where a function, or a class's __init__, has a raise of its own."""
    thing = CALLABLES[name]
    function = written(thing)
    if function is None or "raise NotImplementedError" in inspect.getsource(function):
        return
    if re.search(r"^\s+raise \w*Error", inspect.getsource(function), re.MULTILINE):
        assert section(inspect.getdoc(thing), "Raises"), "raises, and does not say so"
