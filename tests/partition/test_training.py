"""Training over parts gives the losses and weights of training over the whole graph."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import hopline.pipes as hp
from hopline.models import SAGE, launch, train_epoch
from hopline.partition import DistDataset, partition_graph


def data_set(folder):
    """A planted data set; the labels of its first task follow from the features."""
    return hp.OnDiskDataset(folder).load()


def trained(dataset, rank, ranks):
    """(losses of two epochs, the weights after them)."""
    torch.manual_seed(0)
    task = dataset.tasks[0]
    chain = hp.DistributedItemSampler(
        task.train_set, 16, shuffle=True, seed=5, num_replicas=ranks, rank=rank
    )
    chain = chain.sample_neighbor(dataset.graph, [5, 5])
    chain = chain.fetch_feature(dataset.feature, ["feat"])
    model = SAGE(16, 8, 4, num_layers=2, dropout=0.5)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with hp.DataLoader(chain, num_workers=2) as loader:
        losses = [train_epoch(model, loader, optimizer) for _ in range(2)]
    return losses, [parameter.detach() for parameter in model.parameters()]


def _ranks(rank, world_size, device, folder, parts):
    expected = trained(data_set(folder), rank, world_size)
    with DistDataset(parts, timeout=60) as dataset:
        assert dataset.dataset_name == "planted"
        assert len(dataset.all_nodes_set) == dataset.graph.total_num_nodes
        losses, weights = trained(dataset, rank, world_size)
    assert losses == pytest.approx(expected[0], abs=1e-5)
    assert losses[1] < losses[0]
    for mine, theirs in zip(weights, expected[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("ranks", [2, 4])
def test_losses_are_those_of_the_whole_graph(tmp_path, ranks):
    # 117 items a rank or so: the last mini-batch is short, and ranks may differ by one.
    hp.planted_partition(400, 4, 8, 16, seed=1, path=tmp_path / "data")
    dataset = data_set(tmp_path / "data")
    partition_graph(dataset, "planted", ranks, tmp_path / "parts", part_method="metis")
    launch(_ranks, ranks, tmp_path / "data", tmp_path / "parts", timeout=120)
