"""Wrong calls: features, stores, caches and hot sets."""

# ruff: noqa: E501  one line an entry
from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

import hopline.pipes as hp
from tests.wrong_input.things import (
    ARRAY,
    BOOLS,
    COMPLEX,
    FLOATS,
    GRAPH,
    HUGE,
    ON_META,
    STORE,
    TWO_D,
    ZERO_D,
    Entry,
    ids,
    source,
)  # fmt: skip
from tests.wrong_input.things import TABLE as ROWS

tensor_feature, on_disk, store = hp.TorchBasedFeature, hp.DiskBasedFeature, hp.BasicFeatureStore
cpu_cache, gpu_cache, cpu, gpu = hp.CPUFeatureCache, hp.GPUFeatureCache, hp.CPUCachedFeature, hp.GPUCachedFeature  # fmt: skip
cached, cached_gpu, wrap = hp.cpu_cached_feature, hp.gpu_cached_feature, hp.wrap_with_cached_feature  # fmt: skip
degree, presampled = hp.hot_set_by_degree, hp.hot_set_by_presampling
FOLDER = tempfile.TemporaryDirectory()
FILE, FLAT, NOT_NPY = (str(Path(FOLDER.name) / name) for name in ("x.npy", "flat.npy", "bad.npy"))
np.save(FILE, np.eye(3, dtype=np.float32))
np.save(FLAT, np.arange(3))
Path(NOT_NPY).write_text("no array")
ONE = ids(0)


def cache(**settings) -> hp.CPUFeatureCache:
    return cpu_cache((2, 3), torch.float32, **settings)


def on_cpu() -> hp.GPUFeatureCache:
    return gpu_cache((2, 3), torch.float32, device="cpu")


def asked(keys, reader=lambda keys: torch.ones(len(keys), 3), offset=0):
    return cache().query_and_replace(keys, reader, offset)


def wrapped() -> hp.CPUCachedFeature:
    return cpu(tensor_feature(torch.eye(3)), cache())


def spec(**fields):
    listed = {
        "domain": "node",
        "type": None,
        "name": "x",
        "path": FILE,
        "in_memory": True,
        "format": "numpy",
    }
    return SimpleNamespace(**{**listed, **fields})


TABLE: list[Entry] = [
    ("TorchBasedFeature", lambda: tensor_feature([[1.0]]), TypeError, "list; expected a torch.Tensor"),
    ("TorchBasedFeature", lambda: tensor_feature(np.eye(2)), TypeError, "ndarray; expected a torch.Tensor"),
    ("TorchBasedFeature", lambda: tensor_feature(None), TypeError, "NoneType; expected"),
    ("TorchBasedFeature", lambda: tensor_feature(ids(1, 2)), ValueError, r"\(2,\); expected two dimensions"),
    ("TorchBasedFeature", lambda: tensor_feature(ZERO_D), ValueError, r"\(\); expected two dimensions"),
    ("TorchBasedFeature", lambda: tensor_feature(torch.eye(2).to_sparse()), TypeError, "layout torch.sparse_coo; expected a dense"),
    ("TorchBasedFeature", lambda: tensor_feature(torch.eye(2), [1]), TypeError, "metadata is a list; expected a dict"),
    ("TorchBasedFeature.read", lambda: ROWS.read([0]), TypeError, "feature ids: got a list; expected a torch.Tensor"),
    ("TorchBasedFeature.read", lambda: ROWS.read(0), TypeError, "got a int; expected"),
    ("TorchBasedFeature.read", lambda: ROWS.read(ARRAY), TypeError, "got a ndarray; expected"),
    ("TorchBasedFeature.read", lambda: ROWS.read(FLOATS), TypeError, "float32; expected integers"),
    ("TorchBasedFeature.read", lambda: ROWS.read(BOOLS), TypeError, r"torch.bool; expected integers, .*; the ids of a mask are mask.nonzero\(\).view"),
    ("TorchBasedFeature.read", lambda: ROWS.read(COMPLEX), TypeError, "complex64; expected integers"),
    ("TorchBasedFeature.read", lambda: ROWS.read(ZERO_D), ValueError, r"\(\); expected one dimension"),
    ("TorchBasedFeature.read", lambda: ROWS.read(TWO_D), ValueError, r"\(1, 2\); expected one dimension"),
    ("TorchBasedFeature.read", lambda: ROWS.read(ids(0, 3)), IndexError, r"id 3 at position 1 is outside \[0, 3\)"),
    ("TorchBasedFeature.read", lambda: ROWS.read(ids(-1)), IndexError, "id -1 at position 0"),
    ("TorchBasedFeature.read", lambda: ROWS.read(HUGE), IndexError, "is outside"),
    ("TorchBasedFeature.read", lambda: ROWS.read(ON_META), ValueError, "on the device meta"),
    ("TorchBasedFeature.update", lambda: ROWS.update([1.0]), TypeError, "value is a list; expected a torch.Tensor"),
    ("TorchBasedFeature.update", lambda: ROWS.update(torch.ones(1, 2), ONE), ValueError, r"rows of shape \(2,\); the feature has \(3,\)"),
    ("TorchBasedFeature.update", lambda: ROWS.update(torch.ones(2, 3)), ValueError, "2 rows; the feature has 3"),
    ("TorchBasedFeature.update", lambda: ROWS.update(ZERO_D), ValueError, "the feature has"),
    ("TorchBasedFeature.update", lambda: ROWS.update(torch.ones(3, 3).cfloat()), ValueError, "complex64, which torch.float32.* cannot hold"),
    ("TorchBasedFeature.update", lambda: ROWS.update(torch.ones(2, 3), ONE), ValueError, "1 ids for 2 rows; expected as many"),
    ("TorchBasedFeature.update", lambda: ROWS.update(torch.ones(1, 3), ids(3)), IndexError, r"id 3 .*\[0, 3\)"),
    ("TorchBasedFeature.update", lambda: ROWS.update(torch.ones(1, 3), [0]), TypeError, "got a list; expected"),
    ("TorchBasedFeature.update", lambda: ROWS.update(torch.ones(1, 3, device="meta"), ONE), ValueError, "value: got a tensor on the device meta"),
    ("TorchBasedFeature.to", lambda: ROWS.to("nowhere"), ValueError, "'nowhere'; expected a torch device"),
    ("TorchBasedFeature.to", lambda: ROWS.to(None), ValueError, "None; expected a torch device"),
    ("DiskBasedFeature", lambda: on_disk(5), TypeError, "int"),
    ("DiskBasedFeature", lambda: on_disk("/nowhere.npy"), FileNotFoundError, "/nowhere.npy"),
    ("DiskBasedFeature", lambda: on_disk(FLAT), ValueError, r"\(3,\); expected two dimensions"),
    ("DiskBasedFeature", lambda: on_disk(NOT_NPY), ValueError, "bad.npy"),
    ("DiskBasedFeature", lambda: on_disk(FILE, num_threads=0), ValueError, "num_threads is 0; expected a positive int"),
    ("DiskBasedFeature", lambda: on_disk(FILE, num_threads=1.5), ValueError, "num_threads is 1.5; expected a positive int"),
    ("DiskBasedFeature.read", lambda: on_disk(FILE).read([0]), TypeError, "got a list; expected"),
    ("DiskBasedFeature.read", lambda: on_disk(FILE).read(FLOATS), TypeError, "float32; expected integers"),
    ("DiskBasedFeature.read", lambda: on_disk(FILE).read(BOOLS), TypeError, "torch.bool; expected integers"),
    ("DiskBasedFeature.read", lambda: on_disk(FILE).read(ids(3)), IndexError, r"id 3 .*\[0, 3\)"),
    ("DiskBasedFeature.read", lambda: on_disk(FILE).read(ids(-1)), IndexError, "id -1"),
    ("DiskBasedFeature.read", lambda: on_disk(FILE).read(HUGE), IndexError, "is outside"),
    ("DiskBasedFeature.read", lambda: on_disk(FILE).read(TWO_D), ValueError, r"\(1, 2\); expected one"),
    ("DiskBasedFeature.read", lambda: on_disk(FILE).read(ON_META), ValueError, "on the device meta"),
    ("DiskBasedFeature.to", lambda: on_disk(FILE).to("cuda:99"), ValueError, "'cuda:99', but torch finds"),
    ("DiskBasedFeature.update", lambda: on_disk(FILE).update(torch.ones(3, 3)), TypeError, "read-only"),
    # ---------------------------------------------------------------------------------------------
    # Stores
    ("BasicFeatureStore", lambda: store([1]), TypeError, "features is a list; expected"),
    ("BasicFeatureStore", lambda: store({"feat": ROWS}), TypeError, r"'feat'; expected \(domain, type"),
    ("BasicFeatureStore", lambda: store({("node", "feat"): ROWS}), TypeError, r"expected \(domain, type"),
    ("BasicFeatureStore", lambda: store({("node", None, "feat"): ids(1)}), TypeError, "Tensor; expected a Feature"),
    ("BasicFeatureStore", lambda: store({("node", None, 5): ROWS}), TypeError, r"5\); expected \(domain, type"),
    ("BasicFeatureStore.__getitem__", lambda: STORE["feat"], TypeError, r"'feat'; expected \(domain"),
    ("BasicFeatureStore.__getitem__", lambda: STORE["node", None, "x"], KeyError, "no feature .*; the store has"),
    ("BasicFeatureStore.__setitem__", lambda: STORE.__setitem__("x", ROWS), TypeError, r"'x'; expected \(domain"),
    ("BasicFeatureStore.__setitem__", lambda: STORE.__setitem__(("node", None, "x"), 5), TypeError, "int; expected a Feature"),
    ("BasicFeatureStore.to", lambda: STORE.to("nowhere"), ValueError, "'nowhere'; expected a torch device"),
    ("FeatureStore.read", lambda: STORE.read("node", None, "x"), KeyError, "no feature .*; the store has"),
    ("FeatureStore.read", lambda: STORE.read("node", None, "feat", ids(3)), IndexError, "id 3"),
    ("FeatureStore.read", lambda: STORE.read("node", None, "feat", [0]), TypeError, "list; expected"),
    ("FeatureStore.size", lambda: STORE.size("node", None, "x"), KeyError, "no feature .*; the store has"),
    ("FeatureStore.count", lambda: STORE.count("node", "a", "feat"), KeyError, "no feature .*; the store has"),
    ("FeatureStore.metadata", lambda: STORE.metadata("graph", None, "x"), KeyError, "no feature"),
    ("FeatureStore.update", lambda: STORE.update("node", None, "x", ONE), KeyError, "no feature"),
    ("FeatureStore.update", lambda: STORE.update("node", None, "feat", [1]), TypeError, "list; expected"),
    ("TorchBasedFeatureStore", lambda: hp.TorchBasedFeatureStore([5]), TypeError, "int; expected an entry with"),
    ("TorchBasedFeatureStore", lambda: hp.TorchBasedFeatureStore(5), TypeError, "int; expected a list of entries"),
    ("TorchBasedFeatureStore", lambda: hp.TorchBasedFeatureStore([spec(), spec()]), ValueError, "listed twice"),
    ("TorchBasedFeatureStore", lambda: hp.TorchBasedFeatureStore([spec(path="/nowhere.npy")]), FileNotFoundError, "/nowhere.npy"),
    ("TorchBasedFeatureStore", lambda: hp.TorchBasedFeatureStore([spec(path=FLAT)]), ValueError, r"\(3,\); expected two dimensions"),
    ("TorchBasedFeatureStore", lambda: hp.TorchBasedFeatureStore([spec(path=FILE, format="torch")]), ValueError, "no tensor that can be read"),
    ("TorchBasedFeatureStore", lambda: hp.TorchBasedFeatureStore([spec(format="csv")]), ValueError, "format is 'csv'; expected"),
    # ---------------------------------------------------------------------------------------------
    # Caches
    ("CPUFeatureCache", lambda: cpu_cache(5, torch.float32), TypeError, r"cache_shape is 5; expected \(rows"),
    ("CPUFeatureCache", lambda: cpu_cache((), torch.float32), ValueError, r"\(\); expected \(rows"),
    ("CPUFeatureCache", lambda: cpu_cache((2.5, 3), torch.float32), TypeError, "expected ints"),
    ("CPUFeatureCache", lambda: cpu_cache((-1, 3), torch.float32), ValueError, r"\(-1, 3\); expected"),
    ("CPUFeatureCache", lambda: cpu_cache((2, 3), "float32"), TypeError, "'float32'; expected a torch.dtype"),
    ("CPUFeatureCache", lambda: cache(policy="fifo"), ValueError, "'fifo'; expected one of"),
    ("CPUFeatureCache", lambda: cache(policy=5), ValueError, "policy is 5; expected one of"),
    ("CPUFeatureCache", lambda: cache(policy=["lru"]), ValueError, r"policy is \['lru'\]; expected one of"),
    ("CPUFeatureCache", lambda: cache(policy="static"), ValueError, "'static' and hot ids are not given"),
    ("CPUFeatureCache", lambda: cache(hot_keys=ONE), ValueError, "hot ids are given"),
    ("CPUFeatureCache", lambda: cache(policy="static", hot_keys=[0]), TypeError, "hot keys: got a list; expected"),
    ("CPUFeatureCache", lambda: cache(policy="static", hot_keys=ids(-1)), IndexError, "hot keys: id -1"),
    ("CPUFeatureCache", lambda: cache(num_parts=0), ValueError, "num_parts is 0; expected 1"),
    ("CPUFeatureCache", lambda: cache(num_parts=1.5), TypeError, "num_parts is 1.5; expected an int"),
    ("CPUFeatureCache", lambda: cpu_cache((2**31, 3), torch.float32), ValueError, "rows; expected 0 to"),
    ("CPUFeatureCache.query", lambda: cache().query([0]), TypeError, "keys: got a list; expected"),
    ("CPUFeatureCache.query", lambda: cache().query(FLOATS), TypeError, "float32; expected integers"),
    ("CPUFeatureCache.query", lambda: cache().query(ids(-1)), IndexError, "keys: id -1"),
    ("CPUFeatureCache.query", lambda: cache().query(TWO_D), ValueError, r"\(1, 2\); expected one dimension"),
    ("CPUFeatureCache.query", lambda: cache().query(ONE, -1), ValueError, "offset is -1; expected 0"),
    ("CPUFeatureCache.query", lambda: cache().query(ONE, 1.5), TypeError, "offset is 1.5; expected an int"),
    ("CPUFeatureCache.replace", lambda: cache().replace([0], torch.ones(1, 3)), TypeError, "keys: got a list"),
    ("CPUFeatureCache.replace", lambda: cache().replace(ONE, [1.0]), TypeError, "values are a list; expected a torch.Tensor"),
    ("CPUFeatureCache.replace", lambda: cache().replace(ONE, torch.ones(2, 3)), ValueError, r"\(2, 3\); expected torch.float32 of shape \(1, 3\)"),
    ("CPUFeatureCache.replace", lambda: cache().replace(ONE, torch.ones(1, 3).half()), ValueError, "float16 .*expected torch.float32"),
    ("CPUFeatureCache.replace", lambda: cache().replace(ONE, torch.ones(1, 3), ids(0, 1)), ValueError, r"\(2,\); expected 1, one for each key"),
    ("CPUFeatureCache.replace", lambda: cache().replace(ONE, torch.ones(1, 3), [0]), TypeError, "offsets: got a list; expected"),
    ("CPUFeatureCache.replace", lambda: cache().replace(ONE, torch.ones(1, 3, device="meta")), ValueError, "on the device meta"),
    ("CPUFeatureCache.query_and_replace", lambda: asked(None), TypeError, "keys: got a NoneType; expected"),
    ("CPUFeatureCache.query_and_replace", lambda: asked(ON_META), ValueError, "on the device meta"),
    ("CPUFeatureCache.query_and_replace", lambda: asked(ONE, 5), TypeError, "reader_fn is a int; expected a function"),
    ("CPUFeatureCache.query_and_replace", lambda: asked(ONE, lambda keys: None), TypeError, "was given a NoneType; expected"),
    ("CPUFeatureCache.query_and_replace", lambda: asked(ONE, lambda keys: torch.ones(1, 2)), ValueError, r"\(1, 2\); expected"),
    ("CPUFeatureCache.query_and_replace", lambda: asked(ONE, offset=True), TypeError, "offset is True; expected an int"),
    ("CPUFeatureCache.forget", lambda: cache().forget([0]), TypeError, "keys: got a list"),
    ("CPUFeatureCache.forget", lambda: cache().forget(ids(-1)), IndexError, "id -1"),
    ("CPUFeatureCache.forget_range", lambda: cache().forget_range(-1, 5), ValueError, "low is -1; expected 0"),
    ("CPUFeatureCache.forget_range", lambda: cache().forget_range(0, 1.5), TypeError, "high is 1.5; expected an int"),
    ("GPUFeatureCache", lambda: gpu_cache(5, torch.float32, device="cpu"), TypeError, "cache_shape is 5; expected"),
    ("GPUFeatureCache", lambda: gpu_cache((2, 3), None, device="cpu"), TypeError, "None; expected a torch.dtype"),
    ("GPUFeatureCache", lambda: gpu_cache((2, 3), torch.float32, "x", device="cpu"), ValueError, "'x'; expected one of"),
    ("GPUFeatureCache", lambda: gpu_cache((2, 3), torch.float32, "set-lru", device="cpu"), ValueError, "'set-lru', which runs on a GPU, for a cache on cpu; expected"),
    ("GPUFeatureCache.query", lambda: on_cpu().query([0]), TypeError, "keys: got a list; expected"),
    ("GPUFeatureCache.query", lambda: on_cpu().query(ONE, -1), ValueError, "offset is -1; expected 0"),
    ("GPUFeatureCache.query_and_replace", lambda: on_cpu().query_and_replace(ONE, 5), TypeError, "reader_fn is a int; expected a function"),
    ("GPUFeatureCache.forget", lambda: on_cpu().forget(ids(-1)), IndexError, "id -1"),
    ("GPUFeatureCache.forget_range", lambda: on_cpu().forget_range(0, 1.5), TypeError, "high is 1.5; expected an int"),
    ("GPUCachedFeature.read", lambda: gpu(ROWS, on_cpu()).read([0]), TypeError, "got a list; expected"),
    ("GPUCachedFeature.read", lambda: gpu(ROWS, on_cpu()).read(ids(3)), IndexError, r"id 3 .*\[0, 3\)"),
    ("GPUFeatureCache", lambda: gpu_cache((2, 3), torch.float32, device="nowhere"), ValueError, "'nowhere'; expected a torch device"),
    ("CPUCachedFeature", lambda: cpu(torch.eye(3), cache()), TypeError, "Tensor; expected a Feature"),
    ("CPUCachedFeature", lambda: cpu(ROWS, 5), TypeError, r"cache is a int; expected a CPUFeatureCache; .* use cpu_cached_feature\(feature, 5\)"),
    ("CPUCachedFeature", lambda: cpu(ROWS, cpu_cache((2, 5), torch.float32)), ValueError, "rows of 12 bytes; the cache has rows of 20"),
    ("CPUCachedFeature", lambda: cpu(ROWS, cache(), -1), ValueError, "offset is -1; expected 0"),
    ("CPUCachedFeature", lambda: cpu(ROWS, cache(), 0.5), TypeError, "offset is 0.5; expected an int"),
    ("CPUCachedFeature.read", lambda: wrapped().read([0]), TypeError, "got a list; expected"),
    ("CPUCachedFeature.read", lambda: wrapped().read(FLOATS), TypeError, "float32; expected integers"),
    ("CPUCachedFeature.read", lambda: wrapped().read(ids(3)), IndexError, r"id 3 .*\[0, 3\)"),
    ("CPUCachedFeature.read", lambda: wrapped().read(TWO_D), ValueError, "expected one dimension"),
    ("CPUCachedFeature.read", lambda: wrapped().read(ON_META), ValueError, "on the device meta"),
    ("CPUCachedFeature.update", lambda: wrapped().update([1]), TypeError, "list; expected a torch.Tensor"),
    ("CPUCachedFeature.update", lambda: wrapped().update(torch.ones(2, 3)), ValueError, "2 rows; the feature has 3"),
    ("CPUCachedFeature.update", lambda: wrapped().update(torch.ones(1, 3), ids(5)), IndexError, "id 5"),
    ("GPUCachedFeature", lambda: gpu(5, cache()), TypeError, "int; expected a Feature"),
    ("GPUCachedFeature", lambda: gpu(ROWS, cache()), TypeError, "CPUFeatureCache; expected a GPUFeatureCache"),
    ("bytes_to_number_of_items", lambda: hp.bytes_to_number_of_items(-1, ids(1)), ValueError, "is -1; expected 0"),
    ("bytes_to_number_of_items", lambda: hp.bytes_to_number_of_items(1.5, ids(1)), TypeError, "is 1.5; expected an int"),
    ("bytes_to_number_of_items", lambda: hp.bytes_to_number_of_items(True, ids(1)), TypeError, "is True; expected an int"),
    ("bytes_to_number_of_items", lambda: hp.bytes_to_number_of_items(8, 5), TypeError, "single_item is a int; expected a torch.Tensor"),
    ("bytes_to_number_of_items", lambda: hp.bytes_to_number_of_items(8, torch.eye(2).to_sparse()), TypeError, "sparse or nested tensor; expected a dense"),
    ("cpu_cached_feature", lambda: cached(torch.eye(3), 40), TypeError, "Tensor; expected a Feature"),
    ("cpu_cached_feature", lambda: cached({}, 40), ValueError, "empty; expected one feature"),
    ("cpu_cached_feature", lambda: cached({"a": 5}, 40), TypeError, r"\['a'\] is a int; expected a Feature"),
    ("cpu_cached_feature", lambda: cached(ROWS, -1), ValueError, "is -1; expected 0 or more"),
    ("cpu_cached_feature", lambda: cached(ROWS, 1e6), TypeError, "is 1000000.0; expected an int"),
    ("cpu_cached_feature", lambda: cached(ROWS, 40, "x"), ValueError, "'x'; expected one of"),
    ("cpu_cached_feature", lambda: cached(ROWS, 40, "static", hot_ids=[0]), TypeError, "got a list; expected"),
    ("cpu_cached_feature", lambda: cached(ROWS, 40, "static", hot_ids=ids(3)), IndexError, r"id 3 .*\[0, 3\)"),
    ("cpu_cached_feature", lambda: cached(ROWS, 40, "static", hot_ids={"a": ONE}), TypeError, "expected a tensor for one feature"),
    ("cpu_cached_feature", lambda: cached({"a": ROWS}, 40, "static", hot_ids={"b": ONE}), ValueError, r"\['b'\]; the features are \['a'\]"),
    ("gpu_cached_feature", lambda: cached_gpu(5, 40, device="cpu"), TypeError, "int; expected a Feature"),
    ("gpu_cached_feature", lambda: cached_gpu(ROWS, "40", device="cpu"), TypeError, "'40'; expected an int"),
    ("gpu_cached_feature", lambda: cached_gpu(ROWS, 40, device="nowhere"), ValueError, "'nowhere'; expected a torch device"),
    ("wrap_with_cached_feature", lambda: wrap(5, ROWS, 40), TypeError, "is 5; expected CPUCachedFeature"),
    ("wrap_with_cached_feature", lambda: wrap(hp.TorchBasedFeature, ROWS, 40), TypeError, "expected CPUCachedFeature"),
    ("wrap_with_cached_feature", lambda: wrap(cpu, None, 40), TypeError, "NoneType; expected a Feature"),
    ("wrap_with_cached_feature", lambda: wrap(cpu, {"a": ROWS, "b": tensor_feature(torch.ones(2, 5))}, 40), ValueError, "rows of one size"),
    ("hot_set_by_degree", lambda: degree(5, 2), TypeError, "graph is a int; expected a FusedCSC"),
    ("hot_set_by_degree", lambda: degree(GRAPH, -1), ValueError, "count is -1; expected 0"),
    ("hot_set_by_degree", lambda: degree(GRAPH, 1.5), TypeError, "count is 1.5; expected an int"),
    ("hot_set_by_degree", lambda: degree(GRAPH, True), TypeError, "count is True; expected an int"),
    ("hot_set_by_presampling", lambda: presampled(5, 2, 1), TypeError, "chain is a int; expected a chain"),
    ("hot_set_by_presampling", lambda: presampled(source(), -1, 1), ValueError, "count is -1; expected 0"),
    ("hot_set_by_presampling", lambda: presampled(source(), 2, 0), ValueError, "batches is 0; expected 1"),
    ("hot_set_by_presampling", lambda: presampled(source(), 2, 0.5), TypeError, "batches is 0.5; expected an int"),
    ("hot_set_by_presampling", lambda: presampled(source(), 2, 1), ValueError, "no input_nodes to count; give a chain"),
    ("BasicFeatureStore.read_many", lambda: hp.BasicFeatureStore({}).read_many([(("node", None, "x"), ids(0))]), KeyError, "no feature"),
    ("TorchBasedFeatureStore.read_many", lambda: hp.TorchBasedFeatureStore([]).read_many([(("node", None, "x"), ids(0))]), KeyError, "no feature"),
]  # fmt: skip
