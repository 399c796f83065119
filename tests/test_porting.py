"""What scripts for GraphBolt do, one idiom a test, with nothing but the import line changed."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import yaml

import hopline.models as dglnn
import hopline.pipes as gb

KEY = ("node", None, "feat")


@pytest.fixture
def folder(tmp_path):
    gb.planted_partition(400, 3, 8, 16, seed=1, path=tmp_path / "planted")
    return tmp_path / "planted"


@pytest.fixture
def dataset(folder):
    return gb.OnDiskDataset(folder).load()


def sample(dataset, itemset, fanouts=(4, 4)):
    chain = gb.ItemSampler(itemset, batch_size=100).sample_neighbor(dataset.graph, fanouts)
    return chain.fetch_feature(dataset.feature, node_feature_keys=["feat"])


# -------------------------------------------------------------------------------------------------
# Inference layer by layer: each layer's output replaces the feature that the next one reads


def embed(layers, dataset, features):
    """The layers over all neighbours, through the feature store."""
    chain = gb.ItemSampler(dataset.all_nodes_set, batch_size=64)
    chain = chain.sample_neighbor(dataset.graph, [-1]).fetch_feature(features, ["feat"])
    loader = gb.DataLoader(chain)
    for layer in layers:
        y = torch.empty(dataset.graph.total_num_nodes, layer.out_size)
        with torch.no_grad():
            for data in loader:
                rows = layer(data.blocks[0], data.node_features["feat"])
                y[data.seeds[0] : data.seeds[-1] + 1] = rows
        features.update("node", None, "feat", y)
    return y


@pytest.mark.parametrize("cached", ["not", "alone", "shared"])
def test_a_feature_takes_what_a_layer_made_of_it(dataset, cached):
    torch.manual_seed(0)
    layers = [dglnn.SAGEConv(16, 24), dglnn.SAGEConv(24, 3)]
    seeds = torch.arange(400)
    whole = gb.ItemSampler(gb.ItemSet(seeds, names="seeds"), batch_size=400)
    data = next(iter(whole.sample_neighbor(dataset.graph, [-1, -1])))
    x = dataset.feature.read(*KEY, data.input_nodes)
    for layer, block in zip(layers, data.blocks, strict=True):
        x = layer(block, x)
    features = dataset.feature
    other = gb.TorchBasedFeature(torch.ones(5, 16))
    if cached == "alone":
        features[KEY] = gb.cpu_cached_feature(features[KEY], 4000, "lru")
    elif cached == "shared":
        pair = gb.cpu_cached_feature({KEY: features[KEY], "other": other}, 4000, "lru")
        features[KEY], other = pair[KEY], pair["other"]
    embeddings = embed(layers, dataset, features)
    torch.testing.assert_close(embeddings, x.detach(), rtol=1e-4, atol=1e-4)
    assert features.size(*KEY) == torch.Size([3])
    assert torch.equal(features.read(*KEY, seeds), embeddings)
    assert torch.equal(other.read(torch.arange(5)), torch.ones(5, 16))
    if cached != "not":
        assert features[KEY].cache.policy == "lru"
        assert 0 < features[KEY].cache_size_in_bytes <= 4000 + 64  # rounded up to a row


def test_a_feature_that_was_replaced_by_rows_of_another_shape_has_the_new_dtype():
    feature = gb.TorchBasedFeature(torch.zeros(3, 2, dtype=torch.int8))
    value = torch.rand(3, 4)
    feature.update(value)
    assert torch.equal(feature.read(), value)
    with pytest.raises(ValueError, match=r"rows of shape \(2,\); the feature has \(4,\)"):
        feature.update(torch.zeros(1, 2), torch.tensor([0]))


# -------------------------------------------------------------------------------------------------
# Item sets, data sets, stores


def test_the_columns_of_an_item_set_are_read_and_replaced(dataset):
    test_set = dataset.tasks[0].test_set
    nodes, labels = test_set._items
    assert torch.equal(test_set[:][0], nodes)
    assert torch.equal(test_set[:][1], labels)
    links = gb.HeteroItemSet({"a:r:b": gb.ItemSet((torch.zeros(3, 2).long(), nodes[:3]))})
    links._itemsets["a:r:b"]._items = tuple(
        item.to(torch.int32 if i == 0 else None)
        for i, item in enumerate(links._itemsets["a:r:b"]._items)
    )
    assert links[:]["a:r:b"][0].dtype == torch.int32


def test_yaml_data_says_which_features_stay_on_disk(folder):
    dataset = gb.OnDiskDataset(folder)
    before = (folder / "metadata.yaml").read_bytes()
    for feature in dataset.yaml_data["feature_data"]:
        feature["in_memory"] = False
    features = dataset.load().feature
    assert isinstance(features[KEY], gb.DiskBasedFeature)
    assert (folder / "metadata.yaml").read_bytes() == before
    in_memory = gb.OnDiskDataset(folder).load().feature
    assert isinstance(in_memory[KEY], gb.TorchBasedFeature)
    assert torch.equal(features[KEY].read(), in_memory[KEY].read())
    row = features[KEY].read(torch.zeros(1, device="cpu").long())
    features[KEY] = gb.cpu_cached_feature(features[KEY], 20 * row.nbytes, "s3-fifo", False)
    ids = torch.tensor([3, 3, 9])
    assert torch.equal(features[KEY].read(ids), in_memory[KEY].read(ids))
    dataset.yaml_data["feature_data"][0]["in_memory"] = "no"
    with pytest.raises(TypeError, match="in_memory of feature 'feat' is 'no'"):
        dataset.load()


def test_yaml_data_is_the_file(folder):
    expected = yaml.safe_load((folder / "metadata.yaml").read_text())
    assert gb.OnDiskDataset(folder).yaml_data == expected


def test_a_store_is_read_and_written_by_key(dataset):
    features = dataset.feature.to("cpu")
    features._features[KEY] = gb.cpu_cached_feature(features._features[KEY], 1000)
    assert isinstance(features[KEY], gb.CPUCachedFeature)
    assert [key[2] for key in features.keys()] == ["feat"]  # noqa: SIM118, as scripts write it


# -------------------------------------------------------------------------------------------------
# Chains


def test_options_that_the_loader_once_had_are_accepted(dataset):
    chain = sample(dataset, dataset.tasks[0].train_set)
    loader = gb.DataLoader(
        chain,
        num_workers=0,
        overlap_feature_fetch=True,
        overlap_graph_fetch=True,
        num_gpu_cached_edges=0,
        gpu_cache_threshold=1,
    )
    assert sum(len(data.labels) for data in loader) == len(dataset.tasks[0].train_set)
    with pytest.raises(ValueError, match=r"sample_neighbor\(graph, fanouts, num_gpu_cached"):
        gb.DataLoader(chain, num_gpu_cached_edges=10)


class ByTwo(gb.SubgraphSampler):
    def sample_subgraphs(self, seeds, seeds_timestamp=None):
        return torch.cat([seeds, seeds + 1]), ["hop"]


class WithKey(gb.SubgraphSampler):
    def sample_subgraphs(self, seeds, seeds_timestamp, key):
        return torch.tensor(key), []


class WithWindow(gb.SubgraphSampler):
    def sample_subgraphs(self, seeds, seeds_timestamp, seeds_pre_time_window, key):
        return seeds_pre_time_window, []


def test_a_sampler_of_ones_own_takes_what_it_names():
    columns = (torch.tensor([4, 7]), torch.tensor([1, 2]), torch.tensor([5, 6]))
    items = gb.ItemSet(columns, names=("seeds", "timestamp", "pre_time_window"))
    source = gb.ItemSampler(items, batch_size=2, seed=9)
    data = next(iter(ByTwo(source)))
    assert data.input_nodes.tolist() == [4, 7, 5, 8]
    assert data.sampled_subgraphs == ["hop"]
    assert next(iter(WithKey(source))).input_nodes.tolist() == [9, 0, 0]
    assert next(iter(WithWindow(source))).input_nodes.tolist() == [5, 6]


def test_link_prediction_trains_on_labels_as_they_come(dataset):
    graph = dataset.graph
    ends = gb.expand_indptr(graph.csc_indptr, torch.int64, output_size=len(graph.indices))
    seeds = torch.stack([graph.indices.long(), ends], dim=1)[:300]
    chain = gb.ItemSampler(gb.ItemSet(seeds, names="seeds"), batch_size=100)
    chain = chain.sample_uniform_negative(graph, 1).sample_neighbor(graph, [4])
    chain = chain.transform(partial(gb.exclude_seed_edges, include_reverse_edges=True))
    for data in gb.DataLoader(chain.fetch_feature(dataset.feature, ["feat"])):
        compacted = data.compacted_seeds.T
        y = dglnn.SAGEConv(16, 8)(data.blocks[0], data.node_features["feat"])
        logits = (y[compacted[0]] * y[compacted[1]]).sum(dim=1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, data.labels)
        loss.backward()
        assert torch.isfinite(loss)


# -------------------------------------------------------------------------------------------------
# What is not here says what to use


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("seed_nodes", "use seeds"),
        ("node_pairs_with_labels", r"use compacted_seeds\.T and labels"),
        ("to_dgl", "use the mini-batch itself"),
        ("to_dgl_blocks", "use blocks"),
    ],
)
def test_attributes_of_older_mini_batches(dataset, name, words):
    data = next(iter(sample(dataset, dataset.tasks[0].train_set)))
    with pytest.raises(AttributeError, match=words):
        getattr(data, name)


def test_hints_name_attributes_that_are_there(dataset):
    from hopline.pipes.minibatch import FORMER

    fields = {"seeds", "compacted_seeds", "labels", "blocks"}
    for name, hint in FORMER.items():
        assert not hasattr(gb.MiniBatch, name)
        assert any(field in hint for field in fields)


def test_names_that_are_not_here():
    from hopline.pipes.former_names import FORMER_NAMES

    for name, hint in FORMER_NAMES.items():
        with pytest.raises(AttributeError, match=name) as caught:
            getattr(gb, name)
        assert str(caught.value).endswith(hint)
        for word in hint.replace(",", " ").replace(";", " ").split():
            if word.startswith("hp."):
                assert hasattr(gb, word[3:].split("(")[0].split(".")[0].rstrip("."))
    with pytest.raises(AttributeError, match=r"no attribute 'ItemSett'$"):
        gb.ItemSett  # noqa: B018
