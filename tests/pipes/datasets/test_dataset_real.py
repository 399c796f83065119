"""Real data sets: counts, and a twin in NumPy."""

import numpy as np
import pytest
import torch

from hopline.pipes.datasets import OnDiskDataset
from tests.pipes.datasets.test_dataset_csc import numpy_csc

FACTS = {  # nodes, edges, features, training, validation and test items
    "cora": (2_708, 10_556, 1_433, (140, 500, 1_000)),
    "tolokers": (11_758, 1_038_000, 10, (5_879, 2_939, 2_940)),
    "bitcoinotc": (5_881, 35_592, None, (24_914, 5_339, 5_339)),
}


@pytest.mark.parametrize("name", FACTS)
def test_real_data(test_data, tmp_path, name):
    num_nodes, num_edges, width, sizes = FACTS[name]
    dataset = OnDiskDataset(test_data / name, True, processed_path=tmp_path / "out").load()
    graph, task = dataset.graph, dataset.tasks[0]
    assert dataset.dataset_name == name
    assert (graph.num_nodes, graph.num_edges) == (num_nodes, num_edges)
    assert tuple(len(s) for s in (task.train_set, task.validation_set, task.test_set)) == sizes
    edges = np.load(test_data / name / "edges.npy")
    indptr, indices, _, numbers = numpy_csc([edges], num_nodes)
    np.testing.assert_array_equal(graph.csc_indptr.numpy(), indptr)
    np.testing.assert_array_equal(graph.indices.numpy(), indices)
    np.testing.assert_array_equal(graph.edge_attributes["_ORIGINAL_EDGE_ID"].numpy(), numbers)
    if width is not None:
        feature = dataset.feature.read("node", None, "feat")
        assert feature.shape == (num_nodes, width)
        assert torch.equal(feature, torch.from_numpy(np.load(test_data / name / "feat.npy")))
        splits = [s[:][0] for s in (task.train_set, task.validation_set, task.test_set)]
        assert len(torch.cat(splits).unique()) == sum(sizes)
    for attribute, file in (("timestamp", "edge_time"), ("rating", "edge_rating")):
        if name == "bitcoinotc":
            values = np.load(test_data / name / f"{file}.npy")
            np.testing.assert_array_equal(graph.edge_attributes[attribute].numpy(), values[numbers])
