"""What GraphBolt's users may look for by a name that is not here, and what to use."""

from __future__ import annotations

__all__ = ["FORMER_NAMES", "no_such_name"]

FORMER_NAMES = {
    "CooperativeConvFunction": "sample_neighbor without cooperative mini-batching",
    "ItemSetDict": "hp.HeteroItemSet",
    "LegacyDataset": "hp.from_dglgraph for the graph, hp.ItemSet for the split, and "
    "hp.TorchBasedFeature for the features; or hp.OnDiskDataset(path)",
    "MultiProcessDataLoader": "hp.DataLoader, whose workers are threads",
    "OnDiskMetaData": "hp.OnDiskDataset(path).yaml_data",
    "SamplingGraph": "hp.FusedCSCSamplingGraph",
    "SingleProcessDataLoader": "hp.DataLoader with num_workers=0",
    "functional_datapipe": "hp.register_stage",
    "numpy_save_aligned": "numpy.save; features on disk need no alignment",
    "unique_and_compact_node_pairs": "hp.unique_and_compact_csc_formats",
}


def no_such_name(module: str, name: str) -> AttributeError:
    """The error for a name that a module does not have.

    Args:
        module: name of the module.
        name: what was looked for in it.

    >>> print(no_such_name("hopline.pipes", "ItemSetDict"))
    module 'hopline.pipes' has no attribute 'ItemSetDict'; use hp.HeteroItemSet
    """
    hint = f"; use {FORMER_NAMES[name]}" if name in FORMER_NAMES else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name)
