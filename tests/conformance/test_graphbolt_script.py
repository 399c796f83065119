"""A training script as GraphBolt users write it, with nothing but the import line changed."""

from __future__ import annotations

import inspect

import pytest
import torch

import hopline.pipes as gb
from hopline.models import SAGE


@pytest.fixture
def dataset(tmp_path):
    gb.planted_partition(600, 3, 8, 16, seed=1, path=tmp_path / "planted")
    return gb.OnDiskDataset(tmp_path / "planted").load()


def create_dataloader(graph, features, itemset, batch_size, fanout, device, job):
    datapipe = gb.ItemSampler(
        itemset, batch_size=batch_size, shuffle=(job == "train"), drop_last=(job == "train")
    )
    datapipe = datapipe.sample_neighbor(
        graph, fanout if job != "infer" else [-1], overlap_fetch=True, asynchronous=True
    )
    datapipe = datapipe.fetch_feature(features, node_feature_keys=["feat"], overlap_fetch=True)
    datapipe = datapipe.copy_to(device=device)
    return gb.DataLoader(datapipe, num_workers=1, persistent_workers=True)


def test_node_classification_script_trains(dataset):
    graph, features, task = dataset.graph, dataset.feature, dataset.tasks[0]
    num_classes = task.metadata["num_classes"]
    in_size = features.size("node", None, "feat")[0]
    loader = create_dataloader(graph, features, task.train_set, 64, [5, 5], "cpu", "train")
    model = SAGE(in_size, 32, num_classes, num_layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(4):
        total = 0.0
        for minibatch in loader:
            node_features = minibatch.node_features["feat"]
            loss = torch.nn.functional.cross_entropy(
                model(minibatch.blocks, node_features), minibatch.labels
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total)
    assert losses[-1] < losses[0]
    infer = create_dataloader(graph, features, dataset.all_nodes_set, 100, None, "cpu", "infer")
    seen = torch.cat([minibatch.seeds for minibatch in infer])
    assert seen.tolist() == list(range(graph.total_num_nodes))


GRAPHBOLT_PARAMETERS = {
    gb.ItemSampler: ["item_set", "batch_size", "minibatcher", "drop_last", "shuffle", "seed"],
    gb.DistributedItemSampler: [
        "item_set", "batch_size", "minibatcher", "drop_last", "shuffle", "drop_uneven_inputs",
        "seed",
    ],
    gb.DataLoader: ["datapipe", "num_workers", "persistent_workers", "max_uva_threads"],
    gb.fused_csc_sampling_graph: [
        "csc_indptr", "indices", "node_type_offset", "type_per_edge", "node_type_to_id",
        "edge_type_to_id", "node_attributes", "edge_attributes",
    ],
    gb.ItemSet: ["items", "names"],
    gb.HeteroItemSet: ["itemsets"],
    gb.TorchBasedFeature: ["torch_feature", "metadata"],
    gb.TorchBasedFeatureStore: ["feat_data"],
    gb.BasicFeatureStore: ["features"],
    gb.Stage.copy_to: ["self", "device", "non_blocking"],
    gb.Stage.sample_neighbor: ["self", "graph", "fanouts", "replace"],
    gb.Stage.fetch_feature: [
        "self", "feature_store", "node_feature_keys", "edge_feature_keys", "overlap_fetch",
    ],
    gb.Stage.transform: ["self", "transformer"],
    gb.calculate_range: [
        "distributed", "total", "num_replicas", "rank", "num_workers", "worker_id", "batch_size",
        "drop_last", "drop_uneven_inputs",
    ],
    gb.OnDiskDataset: [
        "path", "include_original_edge_id", "force_preprocess", "auto_cast_to_optimal_dtype",
    ],
    gb.BuiltinDataset: ["name", "root"],
}  # fmt: skip


@pytest.mark.parametrize("function", GRAPHBOLT_PARAMETERS, ids=lambda f: f.__qualname__)
def test_positional_parameters_stand_where_graphbolt_has_them(function):
    names = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    wanted = GRAPHBOLT_PARAMETERS[function]
    assert names[: len(wanted)] == wanted


def test_calls_of_older_scripts_are_accepted(dataset):
    graph = dataset.graph.to("cpu")
    pairs = torch.tensor([[0, 1], [2, 3]])
    for names, items in (("seed_nodes", torch.arange(4)), ("node_pairs", pairs)):
        chain = gb.ItemSampler(gb.ItemSet(items, names=names), 2).buffer(2).prefetch(4).wait()
        chain = chain.sample_neighbor(graph, [2]).fetch_feature(
            dataset.feature, ["feat"], overlap_fetch=True, cooperative=False
        )
        minibatch = next(iter(gb.DataLoader(chain.mark_end())))
        assert torch.equal(minibatch.seeds, items[:2])
    with pytest.raises(ValueError, match="one at most is seeds"):
        gb.ItemSampler(gb.ItemSet((pairs, pairs), names=("seeds", "node_pairs")), 2).batch(0, 0)
    with pytest.raises(ValueError, match="cooperative"):
        chain.fetch_feature(dataset.feature, ["feat"], cooperative=True)
    subgraph = gb.SampledSubgraphImpl(
        sampled_csc=gb.CSCFormatBase(torch.tensor([0, 1]), torch.tensor([0]))
    )
    assert subgraph.original_edge_ids is None
