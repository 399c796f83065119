"""Node tables: the dense one, the hash table and the twin agree; bases wrap; tables grow."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.pipes import relabel
from hopline.pipes.relabel import DenseNodeTable, HashNodeTable, NodeTablePool
from tests import twins

NODES = 30
node_lists = st.lists(st.integers(0, NODES - 1), max_size=40)


def check(table, seeds, hops, dtype=np.int64):
    """Runs a mini-batch through a table and compares every step with the twin."""
    table.start(np.array(seeds, dtype))
    assert table.nodes.tolist() == seeds
    expected = list(seeds)
    for neighbors in hops:
        expected, local = twins.relabel(expected, neighbors)
        got = table.relabel(np.array(neighbors, dtype))
        assert got.dtype == np.int32
        assert got.tolist() == local
        assert table.nodes.tolist() == expected
        assert table.nodes.dtype == dtype


@given(
    st.lists(st.tuples(node_lists, st.lists(node_lists, max_size=3)), min_size=1, max_size=5),
    st.sampled_from([np.int32, np.int64]),
)
def test_equal_the_twin_over_many_mini_batches(batches, dtype):
    for table in (DenseNodeTable(NODES), HashNodeTable()):
        for seeds, hops in batches:
            check(table, seeds, hops, dtype)


@pytest.mark.parametrize("make", [lambda: DenseNodeTable(NODES), HashNodeTable])
def test_base_wraps_around(make):
    table = make()
    limit = np.iinfo(np.int32).max // 2
    for base in (limit - 3, limit - 2, limit - 1, limit, limit + 5):
        table._base = base
        table._nodes = np.empty(0, np.int64)
        # The first list is of high marks, the next ones would read them as their own nodes.
        check(table, [3, 1, 3, 4], [[1, 9, 8, 9]])
        assert table._base <= limit
        check(table, [9, 2], [[3, 8, 9, 4], [1, 7]])
        check(table, [], [[4, 4]])
        assert table._base <= limit
        assert table._base + len(table.nodes) < np.iinfo(np.int32).max


def test_base_wraps_in_use(monkeypatch):
    # The same at a limit that real use reaches within the test.
    monkeypatch.setattr(relabel, "LAST", 100)
    generator = np.random.default_rng(1)
    for table in (DenseNodeTable(NODES), HashNodeTable()):
        bases = []
        for _ in range(60):
            seeds = generator.integers(0, NODES, 5).tolist()
            check(table, seeds, [generator.integers(0, NODES, 9).tolist()])
            bases.append(table._base)
        assert bases.count(1) > 5
        assert max(bases) <= 50


def test_hash_table_grows_in_the_midst_of_a_mini_batch():
    table = HashNodeTable()
    small = len(table._keys)
    dense = DenseNodeTable(1 << 16)
    generator = np.random.default_rng(0)
    for size in (10, small, 5 * small, 3):
        seeds = generator.integers(0, 1 << 16, size)
        for one in (table, dense):
            one.start(seeds)
        for _ in range(2):
            neighbors = generator.integers(0, 1 << 16, 2 * size)
            assert (table.relabel(neighbors) == dense.relabel(neighbors)).all()
            assert (table.nodes == dense.nodes).all()
        assert len(table._keys) >= 2 * len(np.unique(table.nodes))
    assert len(table._keys) > small


def test_hash_table_stands_ids_that_collide():
    # All in one slot of 4096: the probe walks over the others, and around the end of the table.
    keys = np.arange(1 << 22)
    word = keys.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ word >> np.uint64(shift)) * np.uint64(factor)
    slot = (word ^ word >> np.uint64(31)) & np.uint64(4095)
    same = keys[slot >= 4094].tolist()[:900]
    check(HashNodeTable(), same[:300], [same[200:600], same[::-1]])


def test_big_ids_need_the_hash_table():
    ids = [2**62, 0, 2**40, 2**31, 2**62 - 1]
    check(HashNodeTable(), ids, [[2**62, 5, 2**40 + 1, 5]])


def test_too_many_nodes(monkeypatch):
    monkeypatch.setattr(relabel, "LAST", 100)
    table = DenseNodeTable(NODES)
    table.start(np.arange(20))
    table.relabel(np.arange(30))
    with pytest.raises(OverflowError, match="51 nodes is above 50"):
        table.relabel(np.arange(21))


def test_pool_lends_as_many_tables_as_are_in_use(monkeypatch):
    pool = NodeTablePool(NODES)
    with pool.lend() as first, pool.lend() as second:
        assert first is not second
        assert isinstance(first, DenseNodeTable)
    with pool.lend() as again:
        assert again in (first, second)
    with pytest.raises(KeyError), pool.lend() as failed:
        raise KeyError
    with pool.lend() as one, pool.lend() as two, pool.lend() as three:
        assert failed not in (one, two, three)
    monkeypatch.setattr(relabel, "DENSE_LIMIT", NODES - 1)
    with NodeTablePool(NODES).lend() as table:
        assert isinstance(table, HashNodeTable)


def test_pool_serves_threads():
    pool = NodeTablePool(NODES)
    failures = []

    def work(number):
        generator = np.random.default_rng(number)
        try:
            for _ in range(50):
                with pool.lend() as table:
                    check(
                        table,
                        generator.integers(0, NODES, 6).tolist(),
                        generator.integers(0, NODES, (2, 9)).tolist(),
                    )
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(pool._idle) <= 8
