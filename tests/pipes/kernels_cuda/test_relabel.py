"""Lists of nodes on the GPU: entry by entry those of the CPU's tables, over mini-batches."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopline.pipes import device_table
from hopline.pipes.device_table import DeviceNodeList, DeviceNodeTable, DeviceTablePool
from hopline.pipes.relabel import DenseNodeTable, HashNodeTable, NodeList
from tests.pipes.test_relabel import NODES, node_lists

pytest.importorskip("triton", reason="kernels of GPUs need Triton")
from hopline.pipes.kernels.cuda import launching

few = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
BIG = 1 << 40


def check(device, table, twin, seeds, hops, dtype=torch.int64, spare=0):
    """Runs a mini-batch through a table and through one of the CPU, and compares every step.

    Args:
        spare: entries that each append has room for and that are not there.
    """
    seeds = torch.tensor(seeds, dtype=dtype)
    table.start(seeds.to(device))
    twin.start(seeds.numpy())
    assert table.nodes.tolist() == twin.nodes.tolist()
    for hop in hops:
        neighbors = torch.tensor(hop, dtype=dtype)
        room = torch.cat((neighbors, torch.full((spare,), 17, dtype=dtype)))
        before = table.nodes.clone()
        local, fresh = table.append(
            room.to(device), torch.tensor([len(hop)], dtype=torch.int64, device=device)
        )
        assert torch.equal(table.nodes, before)  # pending
        table.settle(int(fresh))
        expected = twin.relabel(neighbors.numpy())
        assert (local.dtype, local.shape) == (torch.int32, room.shape)
        assert (fresh.dtype, fresh.shape) == (torch.int64, (1,))
        assert local[: len(hop)].tolist() == expected.tolist()
        assert table.nodes.tolist() == twin.nodes.tolist()
        assert table.nodes.dtype == dtype


def tables(device):
    """One of each kind, with what the CPU has for it."""
    return (
        (DeviceNodeTable(device, NODES), DenseNodeTable(NODES)),
        (DeviceNodeTable(device), HashNodeTable()),
        (DeviceNodeList(), NodeList()),
    )


@few
@given(
    batches=st.lists(
        st.tuples(node_lists, st.lists(node_lists, max_size=3)), min_size=1, max_size=3
    ),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    spare=st.integers(0, 3),
)
def test_equal_the_cpu_over_many_mini_batches(gpu, batches, dtype, spare):
    for table, twin in tables(gpu):
        for seeds, hops in batches:
            check(gpu, table, twin, seeds, hops, dtype, spare)


def test_several_programs(gpu, monkeypatch):
    monkeypatch.setattr(launching, "INTERPRETED_TILE", 16)
    generator = np.random.default_rng(0)
    for table, twin in tables(gpu):
        hops = [generator.integers(0, NODES, size).tolist() for size in (60, 5, 90)]
        check(gpu, table, twin, generator.integers(0, NODES, 20).tolist(), hops, spare=20)


def test_hash_table_of_a_known_number_of_nodes(gpu, monkeypatch):
    monkeypatch.setattr(device_table, "DENSE_LIMIT", NODES - 1)
    table = DeviceNodeTable(gpu, NODES)
    check(gpu, table, HashNodeTable(), [3, 1, 3], [[1, 9, 8, 9], [29, 0, 3]])
    assert table._keys is not None


def test_big_ids_and_ids_next_to_the_empty_key(gpu):
    ids = [2**62, 0, 2**40, 2**31, 2**62 - 1, 2**63 - 2]
    check(
        gpu, DeviceNodeTable(gpu), HashNodeTable(), ids, [[2**62, 5, 2**40 + 1, 5, 0], [1, 2**33]]
    )


def colliding(slots: int) -> list[int]:
    """Ids whose words end in the same bits: they all want the last slot of a small table."""
    keys = np.arange(1 << 20)
    word = keys.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ word >> np.uint64(shift)) * np.uint64(factor)
    slot = (word ^ word >> np.uint64(31)) & np.uint64(slots - 1)
    return keys[slot == slots - 1].tolist()


def test_ids_that_collide(gpu):
    """The probe walks over the others, and around the end of the table."""
    same = colliding(device_table.SMALLEST)[:120]
    table = DeviceNodeTable(gpu)
    check(gpu, table, HashNodeTable(), same[:40], [same[20:80] + same[20:50], same[::-1]])
    assert table._values is not None
    assert len(table._values) == device_table.SMALLEST


def test_hash_table_grows_over_appends_and_is_kept(gpu, monkeypatch):
    monkeypatch.setattr(device_table, "SMALLEST", 16)
    generator = np.random.default_rng(2)
    table, sizes = DeviceNodeTable(gpu), []
    for seeds, rooms in ((4, (3, 40, 300)), (9, (2, 2)), (4, (60, 700)), (0, (1,))):
        hops = [generator.integers(0, BIG, room).tolist() for room in rooms]
        hops = [[*hop, *hop[:2]] for hop in hops]
        check(gpu, table, HashNodeTable(), generator.integers(0, BIG, seeds).tolist(), hops)
        sizes.append(len(table._values))
        assert sizes[-1] >= 2 * len(table.nodes)
        assert sizes[-1] & (sizes[-1] - 1) == 0
    assert sizes[0] > 16
    assert sizes == sorted(sizes)
    assert sizes[1] == sizes[0]


def test_tables_are_bounded_by_the_nodes_there_are(gpu, monkeypatch):
    monkeypatch.setattr(device_table, "DENSE_LIMIT", 0)
    monkeypatch.setattr(device_table, "SMALLEST", 16)
    table = DeviceNodeTable(gpu, NODES)
    generator = np.random.default_rng(3)
    hops = [generator.integers(0, NODES, 500).tolist() for _ in range(2)]
    check(gpu, table, DenseNodeTable(NODES), [4, 4, 5], hops)
    assert len(table._values) == 64


@pytest.mark.parametrize("dense", [True, False])
def test_what_is_no_node_does_not_join(gpu, dense, monkeypatch):
    """More ids than a table has room for, as a damaged graph may give."""
    monkeypatch.setattr(device_table, "SMALLEST", 16)
    if not dense:
        monkeypatch.setattr(device_table, "DENSE_LIMIT", 0)
    table = DeviceNodeTable(gpu, 5)
    table.start(torch.tensor([1, -7, 99, 1], device=gpu))
    wrong = [-1, -2, 5, 2**31, 2**62, -(2**63), *range(6, 90)]
    local = table.relabel(torch.tensor([4, *wrong, 1, 0, 4], device=gpu))
    assert local.tolist() == [4, *[-1] * len(wrong), 0, 5, 4]
    assert table.nodes.tolist() == [1, -7, 99, 1, 4, 0]


def test_total_beyond_the_room_is_cut(gpu):
    for table in (DeviceNodeTable(gpu, 9), DeviceNodeList()):
        table.start(torch.tensor([3], device=gpu))
        _, fresh = table.append(torch.tensor([4, 5], device=gpu), torch.tensor([7], device=gpu))
        assert int(fresh) == 2


def test_earlier_lists_stay_as_they_were(gpu):
    """A hop's columns are a view of the list that later hops go on with."""
    for table in (DeviceNodeTable(gpu, 50), DeviceNodeTable(gpu), DeviceNodeList()):
        seeds = torch.tensor([5, 6], device=gpu)
        table.start(seeds)
        views = []
        for hop in ([7, 5], [9, 8, 7], [1]):
            views.append((table.nodes, table.nodes.tolist()))
            table.relabel(torch.tensor(hop, device=gpu))
        table.start(torch.tensor([40, 41, 42], device=gpu))
        table.relabel(torch.tensor([43] * 9, device=gpu))
        assert all(view.tolist() == values for view, values in views)
        assert seeds.tolist() == [5, 6]


def test_appends_are_settled_one_by_one(gpu):
    one = torch.tensor([1], device=gpu)
    for table in (DeviceNodeTable(gpu, 9), DeviceNodeList()):
        table.start(torch.tensor([3], device=gpu))
        with pytest.raises(RuntimeError, match="no append is pending"):
            table.settle(0)
        table.append(one, one)
        with pytest.raises(RuntimeError, match="an append is pending"):
            table.append(one, one)
        for fresh in (-1, 2):
            with pytest.raises(ValueError, match=f"fresh is {fresh}; expected 0 to 1"):
                table.settle(fresh)
        table.settle(1)
        assert table.nodes.tolist() == [3, 1]


def test_too_many_nodes(gpu, monkeypatch):
    monkeypatch.setattr("hopline.pipes.relabel.LAST", 100)
    for table in (DeviceNodeTable(gpu), DeviceNodeList()):
        table.start(torch.arange(20, device=gpu))
        table.relabel(torch.arange(30, device=gpu))
        with pytest.raises(OverflowError, match=r"up to \d+ nodes is above 50"):
            table.relabel(torch.arange(31, device=gpu))
        with pytest.raises(OverflowError, match="51 nodes is above 50"):
            table.start(torch.arange(51, device=gpu))


# ---------------------------------------------------------------------------------------------
# The pool


def test_pool_lends_as_many_tables_as_are_in_use(gpu):
    pool = DeviceTablePool(NODES)
    with pool.lend(gpu) as first, pool.lend(gpu) as second:
        assert first is not second
        check(gpu, first, DenseNodeTable(NODES), [1, 2], [[2, 3]])
    with pool.lend(gpu) as again:
        assert again in (first, second)
        assert len(again.nodes) == 0  # the last mini-batch's memory is let go
    with pytest.raises(KeyError), pool.lend(gpu) as failed:
        raise KeyError
    with pool.lend(gpu) as one, pool.lend(gpu) as two, pool.lend(gpu) as three:
        assert failed not in (one, two, three)


def test_pool_is_pickled_without_its_tables(gpu):
    pool = DeviceTablePool(NODES)
    with pool.lend(gpu) as table:
        table.start(torch.tensor([1], device=gpu))
    copied = pickle.loads(pickle.dumps(pool))  # noqa: S301
    with copied.lend(gpu) as other:
        assert other is not table
        check(gpu, other, DenseNodeTable(NODES), [1, 2], [[2, 3]])


def test_pool_serves_threads_each_on_its_stream(gpu):
    pool = DeviceTablePool(NODES)
    failures = []

    def work(number):
        generator = np.random.default_rng(number)
        stream = torch.cuda.Stream(gpu) if gpu.type == "cuda" else None
        try:
            with torch.cuda.stream(stream):  # None: no stream is set
                for _ in range(4):
                    with pool.lend(gpu) as table:
                        check(
                            gpu, table, DenseNodeTable(NODES),
                            generator.integers(0, NODES, 6).tolist(),
                            generator.integers(0, NODES, (2, 9)).tolist(),
                        )  # fmt: skip
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(pool._idle[gpu]) <= 4
