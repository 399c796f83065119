"""Defects of GraphBolt that Hopline does not have: those that no test of a part shows."""

from __future__ import annotations

import os
import shutil
import threading
import zipfile
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

import hopline.pipes as gb
from tests.pipes.datasets.dataset_files import npy, tiny, typed, write


def ring(n: int = 12) -> gb.FusedCSCSamplingGraph:
    return gb.from_coo(torch.arange(n), (torch.arange(n) + 1) % n, n)


def sampler(items: object = 12, **options: object) -> gb.ItemSampler:
    return gb.ItemSampler(gb.ItemSet(items, names="seeds"), 4, seed=1, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_d4_every_epoch_has_an_order_of_its_own_also_after_a_break(workers):
    loader = gb.DataLoader(sampler(100, shuffle=True), num_workers=workers)
    first = [minibatch.seeds.tolist() for minibatch in loader]
    for minibatch in loader:
        second = minibatch.seeds.tolist()
        break
    third = [minibatch.seeds.tolist() for minibatch in loader]
    assert first[0] != second != third[0] != first[0]
    assert sorted(chain.from_iterable(first)) == sorted(chain.from_iterable(third))
    assert sorted(chain.from_iterable(first)) == list(range(100))
    loader.close()


def test_d5_workers_work_without_a_feature_fetcher():
    def name_thread(minibatch):
        minibatch.extra["thread"] = threading.current_thread() is threading.main_thread()
        return minibatch

    sampled = sampler(40).sample_neighbor(ring(40), [2]).transform(name_thread)
    with gb.DataLoader(sampled, num_workers=2) as loader:
        assert not any(minibatch.thread for minibatch in loader)


def test_d6_what_is_copied_to_a_gpu_is_not_said_to_be_pinned_without_one(monkeypatch):
    """Pinning happens where it is asked for, or is refused: never silently left out."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("pinned", "cuda"):
        with pytest.raises(ValueError, match="finds no GPU"):
            sampler().copy_to(device)
    with pytest.raises(RuntimeError, match="GPU"):
        gb.MiniBatch(seeds=torch.arange(3)).pin_memory()


@pytest.mark.parametrize("method", ["sample_neighbor", "sample_layer_neighbor"])
def test_d7_d8_d9_cooperative_minibatching_is_refused(method):
    with pytest.raises(ValueError, match="cooperative mini-batching is not supported"):
        getattr(sampler(), method)(ring(), [2], cooperative=True)
    with pytest.raises(ValueError, match="world_size"):
        gb.unique_and_compact([torch.arange(3)], 0, 2)


def test_d10_rows_on_disk_need_no_alignment(tmp_path):
    """numpy_save_aligned does nothing with numpy 2.4; here a header may have any length."""
    rows = np.arange(3000).reshape(1000, 3)
    np.save(tmp_path / "plain.npy", rows)
    with (tmp_path / "odd.npy").open("wb") as file:
        header = {"descr": "<i8", "fortran_order": False, "shape": rows.shape}
        np.lib.format.write_array_header_2_0(file, header)
        file.write(rows.tobytes())
    ids = torch.tensor([999, 0, 500, 500])
    for name in ("plain.npy", "odd.npy"):
        assert gb.DiskBasedFeature(tmp_path / name).read(ids).tolist() == rows[ids].tolist()


def test_d11_typed_edges_in_csv(tmp_path):
    document, arrays = typed()
    folder = write(tmp_path / "d", document, arrays)
    expected = gb.OnDiskDataset(folder, processed_path=tmp_path / "npy").load().graph
    for edges in document["graph"]["edges"]:
        pairs = arrays[edges["path"]]
        edges["format"], edges["path"] = "csv", edges["path"].replace(".npy", ".csv")
        np.savetxt(folder / edges["path"], pairs.T, "%d", ",")
    write(folder, document, {})
    graph = gb.OnDiskDataset(folder, processed_path=tmp_path / "csv").load().graph
    assert torch.equal(graph.csc_indptr, expected.csc_indptr)
    assert torch.equal(graph.indices, expected.indices)
    assert torch.equal(graph.type_per_edge, expected.type_per_edge)


def test_d12_names_with_pt_in_them(tmp_path):
    document, arrays = tiny()
    folder = write(tmp_path / "d", document, arrays)
    (folder / "scripts").mkdir()
    torch.save(torch.arange(6.0).view(3, 2), folder / "scripts" / "opt.pt")
    document["feature_data"][0] = {
        "domain": "node", "name": "x", "format": "torch", "path": "scripts/opt.pt",
    }  # fmt: skip
    write(folder, document, {})
    feature = gb.OnDiskDataset(folder).load().feature["node", None, "x"]
    assert torch.equal(feature.read(), torch.arange(6.0).view(3, 2))


def test_d13_a_moved_or_relatively_named_data_set_is_not_preprocessed_again(tmp_path, monkeypatch):
    folder = write(tmp_path / "here", *tiny())
    gb.OnDiskDataset(folder)
    shutil.move(folder, tmp_path / "there")
    made = {p: os.stat(p).st_mtime_ns for p in (tmp_path / "there").rglob("*") if p.is_file()}
    monkeypatch.chdir(tmp_path)
    for name in ("there", tmp_path / "there"):
        gb.OnDiskDataset(name).load()
    assert {p: os.stat(p).st_mtime_ns for p in made} == made


def test_d14_type_null_means_no_type(tmp_path):
    document, arrays = tiny()
    document["graph"]["nodes"][0]["type"] = None
    document["graph"]["edges"][0]["type"] = None
    graph = gb.OnDiskDataset(write(tmp_path / "d", document, arrays)).load().graph
    assert not graph.is_heterogeneous
    assert graph.num_nodes == 3


def test_d20_features_on_disk_with_overlapped_fetching(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(24).reshape(12, 2))
    store = gb.BasicFeatureStore(
        {("node", None, "x"): gb.DiskBasedFeature(path=tmp_path / "x.npy")}
    )
    sampled = sampler().sample_neighbor(ring(), [2])
    fetched = sampled.fetch_feature(store, ["x"], overlap_fetch=True)
    for minibatch in gb.DataLoader(fetched, num_workers=1):
        assert minibatch.node_features["x"][:, 0].tolist() == (2 * minibatch.input_nodes).tolist()


def test_d21_items_without_names_are_refused_when_the_sampler_is_made():
    with pytest.raises(ValueError, match="has no names"):
        gb.ItemSampler(gb.ItemSet(5), 2)


def test_d21_ranks_get_different_items_each_epoch():
    def of(rank, epoch):
        ranked = gb.DistributedItemSampler(
            gb.ItemSet(40, names="seeds"), 5, shuffle=True, seed=1, num_replicas=2, rank=rank
        )
        return [n for i in range(len(ranked)) for n in ranked.batch(epoch, i).seeds.tolist()]

    assert set(of(0, 0)) != set(of(0, 1))
    for epoch in range(2):
        assert sorted(of(0, epoch) + of(1, epoch)) == list(range(40))


class Attack:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_d24_data_never_runs_code(tmp_path):
    victim = tmp_path / "victim"
    document, arrays = tiny()
    folder = write(tmp_path / "d", document, arrays)
    torch.save({"x": Attack(victim)}, folder / "x.pt")
    document["feature_data"][0] = {
        "domain": "node", "name": "x", "format": "torch", "path": "x.pt",
    }  # fmt: skip
    write(folder, document, {})
    with pytest.raises(gb.MetadataError, match=r"x\.pt"):
        gb.OnDiskDataset(folder).load()
    np.save(folder / "x.npy", np.array([Attack(victim)] * 3, dtype=object), allow_pickle=True)
    document["feature_data"][0] = npy("x.npy", domain="node", name="x")
    write(folder, document, {})
    with pytest.raises(gb.MetadataError, match=r"x\.npy"):
        gb.OnDiskDataset(folder).load()
    with zipfile.ZipFile(folder / "x.npz", "w") as archive:
        archive.write(folder / "x.npy", "arr_0.npy")
    document["feature_data"][0] = npy("x.npz", domain="node", name="x")
    write(folder, document, {})
    with pytest.raises(gb.MetadataError, match=r"x\.npz"):
        gb.OnDiskDataset(folder).load()
    assert not victim.exists()
