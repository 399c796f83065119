"""planted_partition: what is promised of its graph, features and sets, for any arguments."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.pipes.datasets import planted
from hopline.pipes.datasets.planted import planted_partition


def ends(dataset) -> tuple[np.ndarray, np.ndarray]:
    """Sources and destinations of all edges."""
    indptr = dataset.graph.csc_indptr.numpy()
    return dataset.graph.indices.numpy(), np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))


def features(dataset) -> np.ndarray:
    return dataset.feature.read("node", None, "feat").numpy()


def seeds(dataset) -> list[np.ndarray]:
    task = dataset.tasks[0]
    return [s[:][0].numpy() for s in (task.train_set, task.validation_set, task.test_set)]


def content(dataset) -> list[np.ndarray]:
    sets = seeds(dataset)
    return [*ends(dataset), features(dataset), dataset.labels.numpy(), *sets]


@given(
    num_nodes=st.integers(0, 60),
    num_classes=st.integers(1, 9),
    avg_degree=st.floats(0, 12),
    feature_dim=st.integers(1, 5),
    homophily=st.floats(0, 1),
    degree_exponent=st.none() | st.floats(2.05, 5),
    directed=st.booleans(),
    seed=st.integers(0, 2**64),
)
def test_any_size_gives_a_sound_data_set(num_nodes, num_classes, avg_degree, **options):
    dataset = planted_partition(num_nodes, num_classes, avg_degree, **options)
    src, dst = ends(dataset)
    labels = dataset.labels.numpy()
    pairs = round(num_nodes * avg_degree / (1 if options["directed"] else 2))
    expected = 0 if num_nodes < 2 else pairs if options["directed"] else 2 * pairs
    assert dataset.graph.num_nodes == len(dataset.all_nodes_set) == len(labels) == num_nodes
    assert dataset.graph.num_edges == len(src) == expected
    assert not (src == dst).any()
    if not options["directed"]:
        forward = np.sort(src.astype(np.int64) * num_nodes + dst)
        np.testing.assert_array_equal(forward, np.sort(dst * num_nodes + src))
    sizes = np.bincount(labels, minlength=num_classes)
    assert len(sizes) == num_classes
    assert sizes.max() - sizes.min() <= 1
    assert features(dataset).shape == (num_nodes, options["feature_dim"])
    assert features(dataset).dtype == np.float32
    assert np.isfinite(features(dataset)).all()
    np.testing.assert_array_equal(np.sort(np.concatenate(seeds(dataset))), np.arange(num_nodes))
    task = dataset.tasks[0]
    for items in (task.train_set, task.validation_set, task.test_set):
        assert items.names == ("seeds", "labels")
        nodes, classes = items[:]
        assert torch.equal(classes, dataset.labels[nodes.long()])
        assert nodes.dtype == torch.int32
        assert classes.dtype == torch.int64
    assert task.metadata == {"name": "node_classification", "num_classes": num_classes}


@pytest.mark.parametrize("degree_exponent", [None, 2.5])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("homophily", [0.0, 0.3, 0.8, 1.0])
def test_share_of_edges_within_a_class_is_the_homophily(homophily, directed, degree_exponent):
    dataset = planted_partition(
        3000, 5, 20, 1, homophily=homophily, directed=directed, degree_exponent=degree_exponent
    )
    src, dst = ends(dataset)
    labels = dataset.labels.numpy()
    share = (labels[src] == labels[dst]).mean()
    # 30 000 draws or more: five standard deviations are below 0.0145.
    assert abs(share - homophily) < 0.0145


def test_partners_are_uniform_within_and_between_classes():
    """Counts of each ordered pair of nodes, against what the model says, by chi-square."""
    n, per_pair = 12, 2000
    dataset = planted_partition(n, 3, n * per_pair, 1, homophily=0.5, directed=True, seed=3)
    src, dst = ends(dataset)
    counts = np.zeros((n, n))
    np.add.at(counts, (src, dst), 1)
    labels = dataset.labels.numpy()
    same = labels[:, None] == labels[None, :]
    other = ~np.eye(n, dtype=bool)
    expected = len(src) / n * np.where(same, 0.5 / 3, 0.5 / 8)
    chi2 = ((counts - expected)[other] ** 2 / expected[other]).sum()
    # 131 degrees of freedom: mean 131, standard deviation 16.2; five of them above.
    assert chi2 < 131 + 5 * 16.2
    assert counts[~other].sum() == 0


def test_degrees_follow_a_power_law_on_request():
    flat = planted_partition(20_000, 4, 10, 1)
    heavy = planted_partition(20_000, 4, 10, 1, degree_exponent=2.5)
    flat_degrees = np.diff(flat.graph.csc_indptr)
    degrees = np.sort(np.diff(heavy.graph.csc_indptr))[::-1]
    assert flat_degrees.max() < 40  # about Poisson of mean 10
    assert degrees.mean() == flat_degrees.mean() == 10
    assert degrees[0] > 500
    # Hill's estimate over the 1000 highest degrees; its standard error is 0.05.
    exponent = 1 + 1 / np.log(degrees[:1000] / degrees[1000]).mean()
    assert 2.2 < exponent < 2.8


def test_the_graph_tells_the_class_where_features_hardly_do():
    dataset = planted_partition(4000, 8, 10, 32, feature_noise=3.0)
    x, labels = features(dataset), dataset.labels.numpy()
    src, dst = ends(dataset)
    train, _, test = seeds(dataset)

    def accuracy(rows: np.ndarray) -> float:
        """Of naming the class whose mean over the training nodes is nearest."""
        means = np.stack([rows[train][labels[train] == c].mean(axis=0) for c in range(8)])
        distances = ((rows[test][:, None] - means[None]) ** 2).sum(axis=2)
        return float((distances.argmin(axis=1) == labels[test]).mean())

    def averaged(rows: np.ndarray) -> np.ndarray:
        sums = np.zeros_like(rows)
        np.add.at(sums, dst, rows[src])
        return sums / np.maximum(np.bincount(dst, minlength=len(rows)), 1)[:, None]

    assert accuracy(x) < 0.35
    assert accuracy(averaged(averaged(x))) > 0.7


def test_no_noise_leaves_the_centres():
    dataset = planted_partition(100, 4, 2, 3, feature_noise=0.0)
    assert len(np.unique(features(dataset), axis=0)) == 4


def test_same_seed_same_data_another_seed_other_data():
    options = {"degree_exponent": 2.5, "seed": 11}
    first = content(planted_partition(500, **options))
    for a, b in zip(first, content(planted_partition(500, **options)), strict=True):
        np.testing.assert_array_equal(a, b)
    for k, other in enumerate(content(planted_partition(500, **{**options, "seed": 12}))):
        if k != 1:  # destinations are in order; sources differ
            assert not np.array_equal(first[k], other)


def test_graph_labels_and_sets_are_the_same_on_every_machine():
    digest = hashlib.sha256()
    dataset = planted_partition(1000, 5, 7, 3, degree_exponent=2.2, homophily=0.6, seed=2024)
    for array in (*ends(dataset), dataset.labels.numpy(), *seeds(dataset)):
        digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
    assert digest.hexdigest()[:16] == "dd223db66e5fbc18"


def test_each_part_is_drawn_by_itself():
    base = content(planted_partition(300, feature_dim=4))
    wide = content(planted_partition(300, feature_dim=9, feature_noise=2.0))
    dense = content(planted_partition(300, avg_degree=20, homophily=0.2, feature_dim=4))
    for k in (0, 1, 3, 4, 5, 6):
        np.testing.assert_array_equal(base[k], wide[k])
    for k in (2, 3, 4, 5, 6):
        np.testing.assert_array_equal(base[k], dense[k])


def test_drawing_in_pieces_covers_every_edge_and_row(monkeypatch):
    monkeypatch.setattr(planted, "CHUNK", 7)
    dataset = planted_partition(101, 3, 6.5, 2, feature_noise=0.0)
    src, dst = ends(dataset)
    assert len(src) == 2 * round(101 * 6.5 / 2)
    assert src.min() >= 0
    assert src.max() < 101
    assert not (src == dst).any()
    assert len(np.unique(features(dataset), axis=0)) == 3


@pytest.mark.parametrize("split", [(0.5, 0.25, 0.25), (0.1, 0, 0.2), (0, 0, 0)])
def test_shares_of_the_sets(split):
    assert [len(s) for s in seeds(planted_partition(1000, split=split))] == [
        round(1000 * share) for share in split
    ]


def test_path_holds_the_same_data_set(tmp_path):
    made = planted_partition(200, 3, 5, 4, seed=5, path=tmp_path / "new" / "planted")
    read = hp.OnDiskDataset(tmp_path / "new" / "planted").load()
    assert read.dataset_name == made.dataset_name == "planted_partition"
    assert torch.equal(read.graph.csc_indptr, made.graph.csc_indptr)
    assert torch.equal(read.graph.indices, made.graph.indices)
    assert read.graph.indices.dtype == made.graph.indices.dtype
    assert torch.equal(
        read.feature.read("node", None, "feat"), made.feature.read("node", None, "feat")
    )
    assert read.tasks[0].metadata == made.tasks[0].metadata
    for name in ("train_set", "validation_set", "test_set"):
        for a, b in zip(getattr(read.tasks[0], name)[:], getattr(made.tasks[0], name)[:],
                        strict=True):  # fmt: skip
            assert torch.equal(a, b)
            assert a.dtype == b.dtype
    assert torch.equal(read.all_nodes_set[:], made.all_nodes_set[:])
    assert read.all_nodes_set[:].dtype == made.all_nodes_set[:].dtype
    left = {p.name for p in (tmp_path / "new").iterdir() if p.suffix != ".lock"}
    assert left == {"planted"}


def test_path_without_edges_or_nodes(tmp_path):
    for n in (0, 1):
        planted_partition(n, path=tmp_path / f"n{n}")
        assert hp.OnDiskDataset(tmp_path / f"n{n}").load().graph.num_nodes == n


def test_path_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("kept")
    with pytest.raises(FileExistsError, match="give a new or an empty folder"):
        planted_partition(10, path=tmp_path / "full")
    assert [p.name for p in tmp_path.rglob("*")] == ["full", "mine"]
    (tmp_path / "empty").mkdir()
    planted_partition(10, path=tmp_path / "empty")
    assert hp.OnDiskDataset(tmp_path / "empty").load().graph.num_nodes == 10


def test_it_feeds_a_chain():
    dataset = planted_partition(200, seed=1).load()
    chain = (
        hp.ItemSampler(dataset.tasks[0].train_set, batch_size=32, shuffle=True, seed=0)
        .sample_neighbor(dataset.graph, fanouts=[4, 4])
        .fetch_feature(dataset.feature, node_feature_keys=["feat"])
    )
    minibatches = list(chain)
    assert sum(len(m.labels) for m in minibatches) == 120
    assert minibatches[0].node_features["feat"].shape[1] == 32


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_nodes": -1}, ValueError, "num_nodes is -1; expected 0 or more"),
        ({"num_nodes": 2.0}, TypeError, "num_nodes is a float; expected an integer"),
        ({"num_nodes": True}, TypeError, "num_nodes is a bool"),
        ({"num_classes": 0}, ValueError, "num_classes is 0; expected 1 or more"),
        ({"feature_dim": 0}, ValueError, "feature_dim is 0; expected 1 or more"),
        ({"seed": -1}, ValueError, "seed is -1"),
        ({"seed": None}, TypeError, "seed is a NoneType"),
        ({"avg_degree": -0.5}, ValueError, "avg_degree is -0.5; expected a number of 0 or more"),
        ({"avg_degree": float("nan")}, ValueError, "avg_degree is nan"),
        ({"avg_degree": float("inf")}, ValueError, "avg_degree is inf"),
        ({"homophily": 1.5}, ValueError, "homophily is 1.5; expected a number from 0 to 1"),
        ({"feature_noise": -1}, ValueError, "feature_noise is -1"),
        ({"degree_exponent": 2.0}, ValueError, "degree_exponent is 2.0; expected a number above 2"),
        ({"split": (0.6, 0.6, 0.2)}, ValueError, "three shares"),
        ({"split": (0.6, -0.1, 0.2)}, ValueError, "three shares"),
        ({"split": (0.6, 0.4)}, ValueError, "three shares"),
        ({"split": (float("nan"), 0.4, 0.1)}, ValueError, "three shares"),
    ],
)
def test_arguments_are_checked(arguments, error, message):
    with pytest.raises(error, match=message):
        planted_partition(**{"num_nodes": 10, **arguments})
