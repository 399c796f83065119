"""Models over the whole graph as modules: modes, dtypes, copies, and what torch does with them."""

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import hopline.pipes as hp
from hopline.models import GCN, DistGAT, DistGCN, DistSAGE, DistSpmm, HaloPlan, launch
from hopline.models.conjugate import copy_to_ranks, sum_over_ranks
from hopline.models.rank_sums import global_mean, sum_gradients
from hopline.models.tensor_parallel import TensorParallelGCN
from hopline.partition import DistGraph, partition_graph
from tests.models.test_full_graph import NODES, close, cut, data, directed, whole_block

MODES = ("halo", "broadcast", "columns")
MODELS = (DistGCN, DistSAGE, DistGAT)
SIZES = (3, 8, 4)


def everything(rank, world_size, device, folder):
    torch.set_num_threads(1)
    with DistGraph(folder, timeout=60) as graph:
        plan = HaloPlan(graph)
        x = data(torch.float64)[0][plan.original_nodes]
        trains_after_inference(graph, x)
        copies(plan, x)
        no_gradients_of_gradients(plan, x)
        dtypes(plan, x)
        computed_again(plan, x)
        compiled(plan, x)


def trains_after_inference(graph, x):
    for mode in MODES:
        plan = HaloPlan(graph)  # has made nothing yet
        weight = torch.ones(plan.num_edges, dtype=x.dtype, requires_grad=True)
        spmm, found = DistSpmm(plan, "both", mode=mode, self_loop=True), []
        for used in (None, weight):
            with torch.inference_mode():
                spmm(x, used)
            own = x.clone().requires_grad_()
            spmm(own, used).sum().backward()
            found.append(own.grad)
        close(*found)
    with torch.inference_mode():
        plan = HaloPlan(graph)
    model = DistGAT(plan, *SIZES, attn_drop=0.5).double()
    sampled = DistSpmm(plan, boundary_rate=0.5)
    weight = torch.ones(plan.num_edges, dtype=x.dtype, requires_grad=True)
    for mode in (model.eval, model.train):  # in training mode: dropout at inference
        mode()
        with torch.inference_mode():
            model(x)
            sampled(x, weight)
    model(x).sum().backward()
    sampled(x.clone().requires_grad_(), weight).sum().backward()


def copies(plan, x):
    """As for `torch.optim.swa_utils.AveragedModel`."""
    for kind in MODELS:
        model = kind(plan, *SIZES).double()
        other = copy.deepcopy(model).eval()
        assert torch.equal(other(x), model.eval()(x))
        assert other.plan is plan
        for options in ({"stale": True}, {} if kind is DistGAT else {"boundary_rate": 0.5}):
            model = kind(plan, *SIZES, **options).double()
            model(x).sum().backward()
            sent = counted(model)
            other = copy.deepcopy(model)
            for each in (other, model):
                each(x).sum().backward()
                assert counted(each) == 2 * sent

    group = dist.new_group() if plan.world_size > 1 else None
    model = TensorParallelGCN(directed(), *SIZES, group=group).double().eval()
    other = copy.deepcopy(model)
    assert other.block is model.block
    assert not {id(p) for p in other.parameters()} & {id(p) for p in model.parameters()}
    mine = data(torch.float64)[0][:, model.columns(0)]
    assert torch.equal(other(mine), model(mine))


def counted(model):
    return model.bytes_sent if isinstance(model, DistGAT) else model.spmm.bytes_sent


def no_gradients_of_gradients(plan, x):
    weight = torch.ones(plan.num_edges, dtype=x.dtype, requires_grad=True)
    calls = [partial(DistSpmm(plan, mode=mode), edge_weight=weight) for mode in MODES]
    calls += [DistGAT(plan, *SIZES).double(), DistGCN(plan, *SIZES).double()]
    calls += [copy_to_ranks, sum_over_ranks] if plan.world_size == 1 else []
    for call in calls:
        own = x.clone().requires_grad_()
        [grad] = torch.autograd.grad(call(own).pow(2).sum(), own, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice"):
            grad.pow(2).sum().backward()


def dtypes(plan, x):
    for kind in MODELS:
        torch.manual_seed(0)
        model = kind(plan, *SIZES).double().eval()
        exact = model(x).detach()
        close(model(x.half().float()), model(x.half()))
        close(model(x.float()).float(), exact.float(), 1e-4)
        half = model.to(torch.bfloat16)(x.to(torch.bfloat16))
        assert half.dtype == torch.bfloat16
        close(half.detach().double(), exact, 0.3)
        model = model.float()
        with torch.autocast("cpu", torch.bfloat16):
            assert model(x.float()).dtype == torch.bfloat16


def computed_again(plan, x):
    for kind in MODELS:
        model = kind(plan, *SIZES, 3).double()
        for reentrant in (True, False):
            grads = []
            for run in (model, lambda *a: checkpoint(model, *a, use_reentrant=reentrant)):  # noqa: B023
                own = x.clone().requires_grad_()
                run(own, (1, 2, 3)).sum().backward()
                grads.append(own.grad)
            close(*grads)


def compiled(plan, x):
    for kind in MODELS:
        model, traced = kind(plan, *SIZES).double(), []
        out = torch.compile(model, backend=partial(record, traced))(x, (1, 2, 3))
        assert torch.equal(out, model(x, (1, 2, 3)))
        out.sum().backward()
        assert traced == []


def record(traced, graph, inputs):
    traced.append(graph)
    return graph.forward


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ranks", [1, 2])
def test_modules(tmp_path, ranks):
    cut(directed(), tmp_path / "p", ranks)
    if ranks == 1:
        everything(0, 1, "cpu", tmp_path / "p")
    else:
        launch(everything, ranks, tmp_path / "p", timeout=60)


def test_columns_of_another_dtype():
    model = TensorParallelGCN(directed(), *SIZES).eval().double()
    plain = GCN(*SIZES).double().eval()
    plain.load_state_dict(model.whole_state_dict())
    x = data(torch.float32)[0]
    close(model(x), plain([whole_block()] * 2, x))


def test_half_precision_of_many_neighbours(tmp_path):
    """More than float16 has numbers for: 65,504."""
    edges = 70_000
    ends = torch.zeros(edges, dtype=torch.int64), torch.ones(edges, dtype=torch.int64)
    graph = hp.from_coo(*ends, num_nodes=NODES, include_original_edge_id=True)
    data = type("Data", (), {"graph": graph, "feature": hp.BasicFeatureStore({}), "tasks": []})
    partition_graph(data, "g", 1, tmp_path / "p")
    with DistGraph(tmp_path / "p", timeout=60) as graph:
        plan = HaloPlan(graph)
        for norm in ("right", "both"):
            x = torch.ones(NODES, 2, dtype=torch.float16, requires_grad=True)
            out = DistSpmm(plan, norm)(x)
            assert out.dtype == torch.float16
            assert out[plan.original_nodes == 1].tolist() == [[1.0, 1.0]]
            out.sum().backward()
            close(x.grad[plan.original_nodes == 0], torch.ones(1, 2).half(), 2e-3)
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            mean = global_mean(torch.full((edges,), 2.0, dtype=dtype), plan)
            assert mean.item() == pytest.approx(2.0, abs=1e-6)
        what_is_no_loss_and_no_parameter(plan)


def what_is_no_loss_and_no_parameter(plan):
    assert global_mean(torch.tensor([[1.0, 3.0], [2.0, 6.0]]), plan).item() == 3.0
    with pytest.raises(ValueError, match="one number; expected one a node"):
        global_mean(torch.tensor(1.0), plan)
    model = DistGCN(plan, *SIZES)
    for wrong, words in ((model, "a DistGCN"), (model.layers[0].weight, "a Parameter")):
        with pytest.raises(TypeError, match=f"parameters are {words}; expected several"):
            sum_gradients(wrong, plan)
    with pytest.raises(TypeError, match="a parameter is a tuple"):
        sum_gradients(model.named_parameters(), plan)
