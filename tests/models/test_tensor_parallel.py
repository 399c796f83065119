"""TensorParallelGCN: outputs, losses, gradients and weights are those of a GCN in one process."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import hopline.pipes as hp
from hopline.models import GCN, launch
from hopline.models.conjugate import copy_to_ranks, sum_over_ranks
from hopline.models.tensor_columns import columns_of_rank
from hopline.models.tensor_parallel import TensorParallelGCN
from tests.models.test_full_graph import (
    NODES,
    close,
    data,
    directed,
    single,
    weights_of,
    whole_block,
)


def test_columns_are_shared_out():
    for width in range(8):
        for ranks in range(1, 6):
            parts = [columns_of_rank(width, rank, ranks) for rank in range(ranks)]
            assert [c for part in parts for c in range(width)[part]] == list(range(width))
            sizes = [part.stop - part.start for part in parts]
            assert max(sizes) - min(sizes) <= 1


def equal_to_one_process(rank, world_size, device):
    torch.set_num_threads(1)
    graph = directed()
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        losses, gradients, weights = single("gcn", dtype, 4)
        torch.manual_seed(0)
        model = TensorParallelGCN(graph, 3, 8, 4, 3).to(dtype)
        x, labels, train = data(dtype)
        x = x[:, model.columns(0)]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step, expected in enumerate(losses):
            loss = F.cross_entropy(model(x, (7, step, 0))[train], labels[train])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert abs(loss.item() - expected) < tolerance, step
        for i, bias in enumerate(model.biases):
            close(bias.grad, gradients[2 * i + 1], tolerance)
            close(model.weights[i].grad, gradients[2 * i][:, model.columns(i)], tolerance)
        whole = GCN(3, 8, 4, 3).to(dtype)
        whole.load_state_dict(model.whole_state_dict())
        for p, weight in zip(whole.parameters(), weights, strict=True):
            close(p.detach(), weight.detach(), tolerance)
        model.load_whole_state_dict(GCN(3, 8, 4, 3).to(dtype).state_dict())
        model.load_whole_state_dict(whole.state_dict())
        close(model.eval()(x), whole.eval()([whole_block()] * 3, data(dtype)[0]).detach(), 1e-4)
    hidden_sizes(graph)
    state_of_optimizer(graph)
    pair_of_collectives(world_size)
    if world_size == 3:
        group_of_two(rank, graph)


def hidden_sizes(graph):
    """One, and a prime number of columns."""
    for hidden in (1, 7):
        torch.manual_seed(1)
        model = TensorParallelGCN(graph, 3, hidden, 4, dropout=0.0).double()
        plain = GCN(3, hidden, 4, dropout=0.0).double()
        plain.load_state_dict(model.whole_state_dict())
        x = data(torch.float64)[0]
        got, expected = model(x[:, model.columns(0)]), plain([whole_block()] * 2, x)
        close(got.detach(), expected.detach())
        got.square().sum().backward()
        expected.square().sum().backward()
        for i, layer in enumerate(plain.layers):
            close(model.weights[i].grad, layer.weight.grad[:, model.columns(i)])
            close(model.biases[i].grad, layer.bias.grad)


def state_of_optimizer(graph):
    """Whole, it is that of one process; a new model that takes it goes on as the old one."""
    x, labels, train = data(torch.float64)
    models, optimizers = [], []
    for _ in range(2):
        torch.manual_seed(2)
        models.append(TensorParallelGCN(graph, 3, 2, 4).double())
        optimizers.append(torch.optim.AdamW(models[-1].parameters(), lr=0.1))
    torch.manual_seed(2)
    plain = GCN(3, 2, 4, dropout=0.0).double()
    alone = torch.optim.AdamW(plain.parameters(), lr=0.1)

    def step(out, optimizer):
        optimizer.zero_grad()
        F.cross_entropy(out[train], labels[train]).backward()
        optimizer.step()

    mine = x[:, models[0].columns(0)]
    assert models[0].whole_optimizer_state(optimizers[0])["state"] == {}
    for _ in range(2):
        step(models[0].eval()(mine), optimizers[0])
        step(plain([whole_block()] * 2, x), alone)
    state = models[0].whole_optimizer_state(optimizers[0])
    same_state(state, alone.state_dict())
    alone.load_state_dict(state)
    models[1].load_whole_state_dict(models[0].whole_state_dict())
    models[1].load_whole_optimizer_state(optimizers[1], state)
    same_state(models[1].whole_optimizer_state(optimizers[1]), state)
    for model, optimizer in zip(models, optimizers, strict=True):
        step(model.eval()(mine), optimizer)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)


def same_state(a, b):
    assert a["param_groups"] == b["param_groups"]
    assert sorted(a["state"]) == sorted(b["state"])
    for number, values in b["state"].items():
        assert list(a["state"][number]) == list(values)
        for name, value in values.items():
            close(a["state"][number][name], value)


def group_of_two(rank, graph):
    group = dist.new_group([0, 1], timeout=timedelta(seconds=60))
    if rank == 2:
        with pytest.raises(ValueError, match="no rank of group"):
            TensorParallelGCN(graph, 3, 8, 4, group=group)
        return
    model = TensorParallelGCN(graph, 3, 8, 4, group=group).double().eval()
    assert model.world_size == 2
    plain = GCN(3, 8, 4).double().eval()
    plain.load_state_dict(model.whole_state_dict())
    x = data(torch.float64)[0]
    close(model(x[:, model.columns(0)]).detach(), plain([whole_block()] * 2, x).detach())


def weights_of_edges(graph):
    losses, gradients, _ = single("weighted gcn", torch.float64, 1)
    torch.manual_seed(0)
    model = TensorParallelGCN(graph, 3, 8, 4, 3).double()
    x, labels, train = data(torch.float64)
    edge_weight = weights_of("weighted gcn", graph, torch.float64)
    out = model(x[:, model.columns(0)], (7, 0, 0), edge_weight)
    loss = F.cross_entropy(out[train], labels[train])
    loss.backward()
    assert abs(loss.item() - losses[0]) < 1e-10
    close(edge_weight.grad, gradients[-1])
    close(model.weights[0].grad, gradients[0][:, model.columns(0)])


def pair_of_collectives(world_size):
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    total = sum_over_ranks(copy_to_ranks(x) * 3)
    assert total.tolist() == [3.0 * world_size, 6.0 * world_size]
    total.sum().backward()
    assert x.grad.tolist() == [3.0 * world_size] * 2


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_against_one_process(ranks):
    if ranks == 1:
        equal_to_one_process(0, 1, "cpu")
    else:
        launch(equal_to_one_process, ranks, timeout=60)


def test_what_is_refused():
    graph = hp.from_coo(
        {"a:to:b": (torch.tensor([0]), torch.tensor([0]))}, num_nodes={"a": 1, "b": 1}
    )
    with pytest.raises(ValueError, match="expected a homogeneous graph"):
        TensorParallelGCN(graph, 3, 8, 4)
    model = TensorParallelGCN(directed(), 3, 8, 4)
    with pytest.raises(ValueError, match=rf"x has shape \(2, 3\); expected \({NODES}, 3\)"):
        model(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"groups of \[1\] parameters; expected one"):
        model.whole_optimizer_state(torch.optim.SGD([model.biases[0]]))
    optimizer = torch.optim.Adam(model.parameters())
    other = torch.optim.Adam(GCN(3, 8, 4, 3).parameters()).state_dict()
    with pytest.raises(ValueError, match="expected those of a GCN with 2 layers"):
        model.load_whole_optimizer_state(optimizer, other)
    plain = torch.optim.SGD(GCN(3, 8, 4).parameters()).state_dict()
    before = optimizer.state_dict()
    with pytest.raises(ValueError, match=r"this is a Adam with .*; expected the same kind"):
        model.load_whole_optimizer_state(optimizer, plain)
    assert optimizer.state_dict() == before
    wide = torch.optim.Adam(model.parameters()).state_dict()
    wide["state"] = {0: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(8, 5)}}
    with pytest.raises(ValueError, match=r"exp_avg has shape \(8, 5\); expected \(8, 3\)"):
        model.load_whole_optimizer_state(optimizer, wide)
    with pytest.raises(ValueError, match="norm"):
        TensorParallelGCN(directed(), 3, 8, 4, norm="left")
