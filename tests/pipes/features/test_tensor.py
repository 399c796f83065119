"""TorchBasedFeature: rows of any dtype and shape, by any ids, never shared with the reader."""

from __future__ import annotations

import gc
import math
import pickle
import threading

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.pipes.kernels import dispatch
from hopline.pipes.npy import read_npy
from tests.fake_driver import covered, in_cudas_stead, on_own_pages
from tests.stage_checks import assert_same

DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.complex64,
]
SHAPES = [(1,), (3,), (2, 3), (0,), (2, 0, 3), (257,)]


def rows(count: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random bits, of which every one counts."""
    generator = torch.Generator().manual_seed(count)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count, *shape), generator=generator).bool()
    size = (math.prod((count, *shape)) * dtype.itemsize,)
    flat = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
    return flat.view(dtype).reshape(count, *shape)


@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64, torch.uint8, torch.int16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_come_back_bit_by_bit(dtype, shape, ids_dtype):
    tensor = rows(10, shape, dtype)
    feature = hp.TorchBasedFeature(tensor)
    assert feature.size() == torch.Size(shape)
    assert feature.count() == 10
    for ids in ([9, 0, 3], [4, 4, 4, 4], [], list(range(10))):
        got = feature.read(torch.tensor(ids, dtype=ids_dtype))
        assert_same(got, tensor[torch.tensor(ids, dtype=torch.int64)])
    assert_same(feature.read(), tensor)


def test_big_integers_are_kept():
    tensor = torch.tensor([[2**53 + 1], [-(2**62) - 3]])
    assert hp.TorchBasedFeature(tensor).read(torch.tensor([1, 0])).tolist() == [
        [-(2**62) - 3],
        [2**53 + 1],
    ]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("ids", "bad", "position"), [([0, 10], 10, 1), ([-1], -1, 0), ([2, 1, -7], -7, 2)]
)
def test_ids_out_of_range(dtype, ids, bad, position):
    feature = hp.TorchBasedFeature(torch.zeros(10, 2))
    words = rf"id {bad} at position {position} is outside \[0, 10\)"
    with pytest.raises(IndexError, match=words):
        feature.read(torch.tensor(ids, dtype=dtype))
    with pytest.raises(IndexError, match=words):
        feature.update(torch.ones(len(ids), 2), torch.tensor(ids, dtype=dtype))
    assert feature.read().sum() == 0


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ([0], TypeError),
        (0, TypeError),
        (torch.tensor([0.0]), TypeError),
        (torch.tensor([True]), TypeError),
        (torch.tensor([[0]]), ValueError),
        (torch.tensor(0), ValueError),
    ],
)
def test_ids_of_wrong_kind(ids, error):
    feature = hp.TorchBasedFeature(torch.zeros(10, 2))
    with pytest.raises(error, match="feature ids: got"):
        feature.read(ids)
    with pytest.raises(error, match="feature ids: got"):
        feature.update(torch.zeros(1, 2), ids)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(4, 6).t(),
        torch.arange(24.0).reshape(6, 4)[::2, 1::2],
        torch.arange(6.0).unsqueeze(1).expand(6, 4),
        torch.arange(48.0).reshape(6, 4, 2).permute(0, 2, 1),
        torch.ones(1).expand(1, 1),  # strides of 0
        torch.ones(1, 5).expand(3, 5),
        torch.arange(12.0).reshape(4, 3)[1:],
    ],
)
def test_sources_that_are_no_plain_memory(tensor):
    feature = hp.TorchBasedFeature(tensor)
    ids = torch.arange(len(tensor)).flip(0)
    assert torch.equal(feature.read(ids), tensor[ids])


def test_ids_that_are_no_plain_memory():
    feature = hp.TorchBasedFeature(torch.arange(10).unsqueeze(1))
    assert feature.read(torch.arange(10)[::3])[:, 0].tolist() == [0, 3, 6, 9]
    assert feature.read(torch.tensor([7]).expand(3))[:, 0].tolist() == [7, 7, 7]


def test_no_rows():
    feature = hp.TorchBasedFeature(torch.empty(0, 3, dtype=torch.float16))
    assert (feature.count(), feature.size()) == (0, torch.Size([3]))
    assert feature.read(torch.empty(0, dtype=torch.int64)).shape == (0, 3)
    assert feature.read().shape == (0, 3)
    with pytest.raises(IndexError, match=r"id 0 .* outside \[0, 0\)"):
        feature.read(torch.tensor([0]))


@pytest.mark.parametrize("tensor", [torch.zeros(4), torch.tensor(1.0)])
def test_rows_need_two_dimensions(tensor):
    with pytest.raises(ValueError, match=r"expected two dimensions or more: use .*unsqueeze"):
        hp.TorchBasedFeature(tensor)


@pytest.mark.parametrize("thing", [[[1.0]], None, torch.zeros(2, 2).numpy()])
def test_what_is_no_tensor_is_refused(thing):
    with pytest.raises(TypeError, match=r"expected a torch\.Tensor"):
        hp.TorchBasedFeature(thing)


@pytest.mark.parametrize("ids", [None, torch.tensor([2, 0, 2])])
def test_changes_of_read_rows_stay_with_the_reader(ids):
    tensor = torch.arange(12.0).reshape(4, 3)
    feature = hp.TorchBasedFeature(tensor)
    feature.read(ids).fill_(-1)
    feature.read(ids)[0] -= 5
    assert torch.equal(feature.read(), torch.arange(12.0).reshape(4, 3))


def test_rows_carry_no_gradient():
    feature = hp.TorchBasedFeature(torch.ones(3, 2, requires_grad=True))
    assert not feature.read(torch.tensor([1])).requires_grad
    assert not feature.read().requires_grad


def test_update():
    feature = hp.TorchBasedFeature(torch.zeros(4, 2))
    feature.update(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([3, 1], dtype=torch.int32))
    assert feature.read().tolist() == [[0, 0], [3, 4], [0, 0], [1, 2]]
    value = torch.arange(8).reshape(4, 2)
    feature.update(value)
    value.zero_()
    assert feature.read().tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert feature.read().dtype == torch.float32


@pytest.mark.parametrize(
    ("value", "ids", "error", "words"),
    [
        ([[1.0, 2.0]], torch.tensor([0]), TypeError, "expected a torch.Tensor"),
        (torch.zeros(1, 3), torch.tensor([0]), ValueError, r"rows of shape \(3,\).*has \(2,\)"),
        (torch.zeros(2), None, ValueError, "rows of shape"),
        (torch.tensor(1), None, ValueError, "rows of shape"),
        (torch.zeros(3, 2), None, ValueError, "value has 3 rows; the feature has 4"),
        (torch.zeros(2, 2), torch.tensor([0]), ValueError, "got 1 ids for 2 rows"),
        (torch.zeros(1, 2, dtype=torch.complex64), torch.tensor([0]), ValueError, "cannot hold"),
    ],
)
def test_update_of_what_does_not_fit(value, ids, error, words):
    feature = hp.TorchBasedFeature(torch.zeros(4, 2))
    with pytest.raises(error, match=words):
        feature.update(value, ids)
    assert torch.equal(feature.read(), torch.zeros(4, 2))


@pytest.mark.parametrize(
    ("dtype", "value", "held"),
    [
        (torch.uint8, torch.tensor(300), False),
        (torch.uint8, torch.tensor(-1), False),
        (torch.uint8, torch.tensor(255), True),
        (torch.int32, torch.tensor(2**31), False),
        (torch.int32, torch.tensor(-(2**31)), True),
        (torch.int64, torch.tensor(2**64 - 1, dtype=torch.uint64), False),
        (torch.int64, torch.tensor(5, dtype=torch.uint64), True),
        (torch.uint64, torch.tensor(-5), False),
        (torch.uint16, torch.tensor(65_535), True),
        (torch.uint16, torch.tensor(65_536), False),
        (torch.float16, torch.tensor(65_504.0), True),
        (torch.float16, torch.tensor(1e5), False),
        (torch.float16, torch.tensor(100_000), False),
        (torch.float16, torch.tensor(torch.inf), True),
        (torch.float32, torch.tensor(1e300, dtype=torch.float64), False),
        (torch.float32, torch.tensor(0.1, dtype=torch.float64), True),
        (torch.float32, torch.tensor(True), True),
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_update_never_changes_a_value_that_is_out_of_range(dtype, value, held, whole):
    feature = hp.TorchBasedFeature(torch.zeros(2, 2).to(dtype))
    rows = torch.zeros(2, 2, dtype=value.dtype)
    rows[1, 0] = value
    ids = None if whole else torch.tensor([1, 0])
    if not held:
        with pytest.raises(ValueError, match=rf"somewhere, which {dtype}, .* cannot hold"):
            feature.update(rows, ids)
        assert feature.read().tolist() == [[0, 0], [0, 0]]
        return
    feature.update(rows, ids)
    found = feature.read(torch.tensor([1 if whole else 0]))
    assert found[0, 0].item() == value.to(dtype).item()
    assert found.dtype == dtype


def test_update_never_cuts_fractions_off():
    feature = hp.TorchBasedFeature(torch.zeros(4, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"float32, which torch.int64, .* cannot hold"):
        feature.update(torch.full((4, 2), 0.5))


def test_metadata_is_the_callers_no_more():
    given = {"source": "made up"}
    feature = hp.TorchBasedFeature(torch.zeros(1, 1), given)
    given["source"] = feature.metadata()["source"] = "changed"
    assert feature.metadata() == {"source": "made up"}
    assert hp.TorchBasedFeature(torch.zeros(1, 1)).metadata() == {}


def test_pickle():
    feature = hp.TorchBasedFeature(torch.arange(6).reshape(3, 2), {"a": 1})
    there = pickle.loads(pickle.dumps(feature))  # noqa: S301, our own
    assert torch.equal(there.read(), feature.read())
    assert there.metadata() == {"a": 1}


def test_to_a_device_is_a_new_feature():
    feature = hp.TorchBasedFeature(torch.ones(3, 2))
    there = feature.to("meta")
    assert there.read(torch.tensor([0])).device.type == "meta"
    assert feature.read(torch.tensor([0])).device.type == "cpu"
    assert torch.equal(feature.to("cpu").read(), feature.read())


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_pinning_without_a_gpu_is_told():
    feature = hp.TorchBasedFeature(torch.ones(3, 2))
    assert not feature.is_pinned()
    for pin in (feature.pin_memory_, lambda: feature.to("pinned")):
        with pytest.raises(RuntimeError, match="pinning memory needs a GPU"):
            pin()
    assert feature.read().sum() == 6


def test_many_threads_read_one_feature():
    tensor = torch.arange(2000).unsqueeze(1).expand(-1, 300).to(torch.float32)
    feature = hp.TorchBasedFeature(tensor)
    wrong = []

    def read(number):
        generator = torch.Generator().manual_seed(number)
        for _ in range(15):
            ids = torch.randint(0, 2000, (1500,), generator=generator)  # 1.8 MB: from the pool
            got = feature.read(ids)
            if not torch.equal(got, ids.unsqueeze(1).expand(-1, 300).float()):
                wrong.append(number)
            got.fill_(-1)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---------------------------------------------------------------------------------------------
# On a GPU, and in page-locked memory


@pytest.fixture
def driver(monkeypatch):
    """A fake in CUDA's stead; in the end nothing may be registered."""
    with in_cudas_stead(monkeypatch) as fake:
        yield fake


@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64, torch.uint8, torch.uint16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(3,), (2, 0, 3), (257,)])
def test_rows_on_a_gpu_come_back_bit_by_bit(gpu, shape, dtype, ids_dtype):
    tensor = rows(10, shape, dtype)
    there = hp.TorchBasedFeature(tensor).to(gpu)
    for ids in ([9, 0, 3, 9], [], [4]):
        expected = tensor[torch.tensor(ids, dtype=torch.int64)]
        for device in (gpu, "cpu"):
            got = there.read(torch.tensor(ids, dtype=ids_dtype, device=device))
            assert got.device == gpu
            assert_same(got.cpu(), expected)
    there.read(torch.tensor([1], device=gpu)).zero_()
    assert_same(there.read().cpu(), tensor)


@pytest.mark.parametrize(
    ("ids", "bad", "position"), [([0, 10], 10, 1), ([-1], -1, 0), ([2, 1, -7], -7, 2)]
)
def test_ids_out_of_range_on_a_gpu(gpu, ids, bad, position):
    for feature in (
        hp.TorchBasedFeature(torch.zeros(10, 2)).to(gpu),
        hp.TorchBasedFeature(torch.zeros(10, 2)),
    ):
        with pytest.raises(
            IndexError, match=rf"feature ids: id {bad} at position {position} is outside \[0, 10\)"
        ):
            feature.read(torch.tensor(ids, device=gpu))
    for wrong, error in ((torch.ones(2), TypeError), (torch.zeros(1, 1).long(), ValueError)):
        with pytest.raises(error, match="feature ids: got"):
            feature.read(wrong.to(gpu))


def test_update_on_a_gpu(gpu):
    feature = hp.TorchBasedFeature(torch.zeros(4, 2)).to(gpu)
    feature.update(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([3, 1], device=gpu))
    assert feature.read().tolist() == [[0, 0], [3, 4], [0, 0], [1, 2]]
    feature.update(torch.arange(8).reshape(4, 2))
    assert feature.read(torch.tensor([2], device=gpu)).tolist() == [[4, 5]]


def test_pinned_in_place(driver):
    tensor = on_own_pages(torch.arange(60_000).view(20_000, 3))
    feature, view = hp.TorchBasedFeature(tensor), hp.TorchBasedFeature(tensor[9000:])
    for each in (feature, view, feature):
        assert each.pin_memory_() is each
        assert each.is_pinned()
    assert feature._tensor.data_ptr() == tensor.data_ptr()
    assert covered(driver, tensor)
    ids = torch.tensor([19_999, 0, 7])
    if not torch.cuda.is_available():  # a GPU could not read what is registered with the fake
        with dispatch.interpreted_device():
            assert_same(feature.read(ids), tensor[ids])
    assert_same(feature.read(ids), tensor[ids])
    del feature, each
    assert view.is_pinned()
    assert covered(driver, tensor)
    del view
    assert not driver.ranges


def test_pinned_elsewhere(driver):
    tensor = torch.arange(60_000).view(20_000, 3)
    feature = hp.TorchBasedFeature(tensor)
    pinned = feature.to("pinned")
    assert (feature.is_pinned(), pinned.is_pinned()) == (False, True)
    assert pinned._tensor.data_ptr() != tensor.data_ptr()
    again = pinned.to("pinned")
    assert again._tensor.data_ptr() == pinned._tensor.data_ptr()
    del pinned
    assert again.is_pinned()
    assert covered(driver, again._tensor)
    back = again.to("cpu")
    assert torch.equal(back.read(), tensor)


def test_update_of_pinned_rows_waits_for_kernels_and_stays_pinned(driver):
    feature = hp.TorchBasedFeature(on_own_pages(torch.zeros(20_000, 2))).pin_memory_()
    before = driver.calls.count("synchronize")
    feature.update(torch.ones(1, 2), torch.tensor([3]))
    assert driver.calls.count("synchronize") > before
    feature.update(torch.full((20_000, 2), 5))
    assert feature.is_pinned()
    assert covered(driver, feature._tensor)
    assert len(driver.ranges) == 1, "the old rows are locked for ever"
    assert feature.read(torch.tensor([3])).tolist() == [[5, 5]]


def test_rows_that_another_has_pinned_stay_so_while_they_are_used(driver):
    tensor = on_own_pages(torch.arange(60_000).view(20_000, 3))
    first, second = hp.TorchBasedFeature(tensor).pin_memory_(), hp.TorchBasedFeature(tensor)
    assert second.is_pinned()
    second.read(torch.tensor([1]))
    del first
    assert second.is_pinned()
    assert covered(driver, tensor)


def test_a_pinned_feature_travels_unpinned(driver):
    rows = on_own_pages(torch.arange(60_000).view(20_000, 3))
    feature = hp.TorchBasedFeature(rows).pin_memory_()
    start = feature._tensor.data_ptr()
    there = pickle.loads(pickle.dumps(feature))  # noqa: S301, our own
    assert not there.is_pinned()
    assert torch.equal(there.read(), feature.read())
    # Between processes torch shares storages, and moves what is not shared yet, in place.
    feature.__getstate__()["_tensor"].share_memory_()
    assert feature._tensor.data_ptr() == start
    assert covered(driver, feature._tensor)
    shared = hp.TorchBasedFeature(torch.arange(60_000).view(20_000, 3).share_memory_())
    state = shared.pin_memory_().__getstate__()
    assert state["_tensor"] is shared._tensor, "the rows are not copied for each rank"
    assert state["_lock"] is None


def test_small_rows_are_pinned_as_a_copy_that_follows(driver):
    tensor = torch.arange(12.0).view(4, 3)
    feature = hp.TorchBasedFeature(tensor).pin_memory_()
    assert feature.is_pinned()
    assert len(driver.ranges) == 1
    one = torch.tensor([1])
    tensor[1] = 7  # in place: the feature is on this tensor
    for read in both_ways(feature):
        assert read(one).tolist() == [[7, 7, 7]]
    feature.update(torch.full((1, 3), 8.0), one)
    assert tensor[1].tolist() == [8, 8, 8]
    for read in both_ways(feature):
        assert read(one).tolist() == [[8, 8, 8]]
        assert torch.equal(read(None), tensor)
    shared = feature.to("pinned")
    assert shared._lock is feature._lock
    assert feature.to("cpu")._tensor is feature._tensor
    gc.collect()
    assert len(driver.ranges) == 1
    there = pickle.loads(pickle.dumps(feature))  # noqa: S301, our own
    assert torch.equal(there.read(), tensor)


@pytest.mark.parametrize("refused", [False, True])
def test_rows_of_a_file_are_pinned_and_can_be_updated(driver, tmp_path, refused):
    if refused:
        driver.refuses = lambda address, size, read_only: "not supported" if read_only else None
    rows = torch.arange(60_000).view(20_000, 3)
    np.save(tmp_path / "x.npy", rows.numpy())
    feature = hp.TorchBasedFeature(read_npy(tmp_path / "x.npy")).pin_memory_()
    other = feature.to("pinned")
    assert feature._lock.writable == refused
    ids, one = torch.tensor([19_999, 0, 7, 7]), torch.tensor([7])
    for read in both_ways(feature):
        assert_same(read(ids), rows[ids])
    unpinned = feature.to("cpu")
    for _ in range(2):
        feature.update(torch.tensor([[-1, -2, -3]]), one)
        feature.update(torch.tensor([[4, 5, 6]]), torch.tensor([0]))
        for each in (feature, unpinned, other):  # they share the rows
            for read in both_ways(each):
                assert read(torch.tensor([7, 0, 1])).tolist() == [
                    [-1, -2, -3],
                    [4, 5, 6],
                    [3, 4, 5],
                ]
    assert feature.is_pinned()
    assert np.array_equal(np.load(tmp_path / "x.npy"), rows), "the file stays as it is"
    there = pickle.loads(pickle.dumps(feature))  # noqa: S301, our own
    assert torch.equal(there.read(), feature.read())


def both_ways(feature):
    """Reads by the CPU, and by the kernels of the GPU, if they are interpreted."""

    def by_kernels(ids):
        with dispatch.interpreted_device():
            return feature.read(ids)

    return [feature.read] if torch.cuda.is_available() else [feature.read, by_kernels]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("place", ["cpu", "pinned", "in place", "cuda"])
def test_every_placement_on_a_gpu(place):
    tensor = rows(100_000, (33,), torch.bfloat16)
    feature = hp.TorchBasedFeature(tensor.clone())
    feature = feature.pin_memory_() if place == "in place" else feature.to(place)
    assert feature.is_pinned() == (place in ("pinned", "in place"))
    ids = torch.randint(0, 100_000, (20_000,))
    for each in (ids, ids.int(), ids[:0]):
        got = feature.read(each.cuda())
        assert got.is_cuda
        assert_same(got.cpu(), tensor[each.long()])
        assert feature.read(each).is_cuda == (place == "cuda")
        assert_same(feature.read(each).cpu(), tensor[each.long()])
    for device in ("cpu", "cuda"):
        feature.update(tensor[:2], torch.tensor([7, 5], device=device))
        assert_same(feature.read(torch.tensor([5, 7]).cuda()).cpu(), tensor[[1, 0]])
    feature.update(tensor.flip(0))
    assert_same(feature.read(ids.cuda()).cpu(), tensor.flip(0)[ids])
