"""Full-graph training over parts: outputs, losses and gradients are those of one process."""

import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import hopline.pipes as hp
from hopline.models import GAT, GCN, SAGE, launch, normalised_product
from hopline.models.conjugate import copy_to_ranks, sum_over_ranks
from hopline.models.dist_modes import rows_sent
from hopline.models.dist_spmm import DistSpmm
from hopline.models.full_graph import DistGCN, DistSAGE
from hopline.models.full_graph_gat import DistGAT
from hopline.models.halo_exchange import Halo
from hopline.models.halo_plan import HaloPlan
from hopline.models.node_dropout import NodeDropout
from hopline.models.rank_sums import global_mean, sum_gradients
from hopline.partition import DistGraph, partition_graph

NODES, EDGES = 40, 160


def directed(seed=0):
    """A directed multigraph with weights, self-loops, repeats, and nodes without edges."""
    draw = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, NODES * 3 // 4, (2, EDGES), generator=draw)
    weight = torch.rand(EDGES, generator=draw, dtype=torch.float64) + 0.5
    return hp.from_coo(
        *ends, num_nodes=NODES, edge_attributes={"weight": weight}, include_original_edge_id=True
    )


def cut(graph, folder, parts):
    """Into parts, of which one is empty where there are more than two."""
    assignment = torch.arange(NODES) % (parts if parts < 3 else parts - 1)
    if parts > 2:
        assignment += assignment >= 1
    data = type("Data", (), {"graph": graph, "feature": hp.BasicFeatureStore({}), "tasks": []})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        partition_graph(data, "g", parts, folder, part_method=assignment)


def dense(graph, norm, self_loop, weight):
    """float64[nodes, nodes], row i: what destination i sums."""
    columns = torch.repeat_interleave(torch.arange(NODES), graph.csc_indptr.diff())
    matrix = torch.zeros(NODES, NODES, dtype=torch.float64)
    matrix = matrix.index_put((columns, graph.indices.long()), weight, accumulate=True)
    counts = torch.zeros(NODES, NODES, dtype=torch.float64)
    counts.index_put_((columns, graph.indices.long()), torch.ones_like(weight), accumulate=True)
    if self_loop:
        matrix, counts = matrix + torch.eye(NODES), counts + torch.eye(NODES)
    incoming, outgoing = counts.sum(1).clamp(min=1), counts.sum(0).clamp(min=1)
    if norm == "right":
        matrix = matrix / incoming[:, None]
    if norm == "both":
        matrix = matrix / (incoming[:, None] * outgoing[None, :]).sqrt()
    return matrix


def close(a, b, tolerance=1e-10):
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    assert (a - b).abs().max() <= tolerance if a.numel() else True


def own_edges(plan, whole):
    """int64[num_edges]: where in the whole graph the edges of `plan.block` are."""
    return whole.edge_attributes["_ORIGINAL_EDGE_ID"].argsort()[plan.original_edges]


def spmm_is_exact(rank, world_size, device, folder):
    whole = directed()
    with DistGraph(folder, timeout=60) as graph:
        plan = HaloPlan(graph)
        mine = plan.original_nodes
        assert torch.equal(plan.out_degrees, whole.indices.long().bincount(minlength=NODES)[mine])
        by_new = own_edges(plan, whole)
        parts = list(graph.parts.values())
        before = torch.cat([part.original_edges[""] for part in parts])
        first = graph.book.edge_range(parts[0].number).start
        assert torch.equal(before[plan.edge_ids - first], plan.original_edges)
        draw = torch.Generator().manual_seed(1)
        x_all = torch.randn(NODES, 3, generator=draw, dtype=torch.float64)
        aim = torch.randn(NODES, 3, generator=draw, dtype=torch.float64)
        for norm in ("none", "right", "both"):
            for self_loop in (False, True):
                for weighted in (False, True):
                    weight = whole.edge_attributes["weight"].clone().requires_grad_()
                    x = x_all.clone().requires_grad_()
                    used = weight if weighted else torch.ones_like(weight)
                    out = dense(whole, norm, self_loop, used) @ x
                    (out * aim).sum().backward()
                    spmm = DistSpmm(plan, norm, self_loop=self_loop)
                    own = x_all[mine].clone().requires_grad_()
                    own_weight = weight.detach()[by_new].clone().requires_grad_()
                    got = spmm(own, own_weight if weighted else None)
                    close(got, out.detach()[mine])
                    (got * aim[mine]).sum().backward()
                    close(own.grad, x.grad[mine])
                    if weighted:
                        close(own_weight.grad, weight.grad[by_new])
                    rows = len(plan.send_rows) + len(plan.halo)
                    assert spmm.bytes_sent == rows * 3 * 8
        ways_agree(plan, x_all[mine], aim[mine], whole.edge_attributes["weight"][by_new])
        rounded = DistSpmm(plan, "both", wire_dtype=torch.bfloat16)(x_all[mine])
        exact = DistSpmm(plan, "both")(x_all[mine])
        assert (rounded - exact).abs().max() < 0.05 if len(mine) else True
        assert rounded.dtype == torch.float64
        check_gradients(plan, mine)
        own_rows_are_summed_while_others_are_under_way(plan, x_all[mine])


def own_rows_are_summed_while_others_are_under_way(plan, x):
    """Forward and backward."""
    seen, scaled_sum = [], normalised_product.scaled_sum

    class Watched(Halo):
        def start(self, rows, back):
            super().start(rows, back)
            seen.append("start")

        def wait(self, back):
            seen.append("wait")
            return super().wait(back)

    def watched_sum(block, *args, **options):
        if block is plan.local or block is plan.local.transposed:
            seen.append("own")
        return scaled_sum(block, *args, **options)

    halo = Watched(plan, None, lambda size: None)
    remote = normalised_product.Remote(plan.remote, halo)
    factors, rows = normalised_product.Factors(None, None), x.clone().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normalised_product, "scaled_sum", watched_sum)
        out = normalised_product.normalised_product(rows, plan.local, factors, True, remote)
        assert seen == ["start", "own", "wait"]
        out.sum().backward()
    assert seen == ["start", "own", "wait"] * 2


def ways_agree(plan, x, aim, weight):
    """Whatever is sent, sums and gradients are the same, and bytes are what the plan says."""
    for weighted in (False, True):
        found = {}
        for mode in ("halo", "broadcast", "columns", "auto"):
            spmm = DistSpmm(plan, "both", self_loop=True, mode=mode)
            own, own_weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
            out = spmm(own, own_weight if weighted else None)
            (out * aim).sum().backward()
            found[mode] = out.detach(), own.grad, own_weight.grad
            for got, expected in zip(found[mode], found["halo"], strict=True):
                assert (got is None) == (expected is None)
                if got is not None:
                    close(got, expected)
            total = torch.tensor([spmm.bytes_sent], dtype=torch.float64)
            if plan.world_size > 1:
                dist.all_reduce(total)
            expected = 2 * rows_sent(plan)[spmm.mode] * 3 * 8
            assert total.item() == expected or weighted or spmm.mode == "columns"
        sent = rows_sent(plan)
        assert spmm.mode == ("columns" if sent["columns"] < sent["halo"] else "halo")
    with pytest.raises(ValueError, match="leave out wire_dtype"):
        DistSpmm(plan, mode="broadcast", wire_dtype=torch.bfloat16)


def check_gradients(plan, mine):
    spmm = DistSpmm(plan, "both", self_loop=True)

    def whole_product(x):
        own = spmm(copy_to_ranks(x)[mine])
        return sum_over_ranks(torch.zeros_like(x).index_add(0, mine, own))

    draw = torch.Generator().manual_seed(2)
    x = torch.randn(NODES, 1, generator=draw, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(whole_product, (x,))


MODELS = {
    "gcn": (GCN, DistGCN, (3, 8, 4, 3), {}),
    "weighted gcn": (GCN, DistGCN, (3, 8, 4, 3), {}),
    "sage": (SAGE, DistSAGE, (3, 8, 4, 3), {}),
    "gat": (GAT, DistGAT, (3, 4, 4, 3), {"feat_drop": 0.0}),
}


def whole_block():
    graph = directed()
    return hp.Block(graph.csc_indptr, graph.indices, NODES, NODES)


def single(name, dtype, steps):
    """Losses and weights of training in one process, with the dropout of nodes."""
    plain, _, sizes, options = MODELS[name]
    torch.manual_seed(0)
    model = plain(*sizes, **options).to(dtype)
    x, labels, train = data(dtype)
    block, drop = whole_block(), NodeDropout(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    graph = directed()
    degrees = (graph.indices.long().bincount(minlength=NODES), graph.csc_indptr.diff())
    edge_weight = weights_of(name, graph, dtype)
    for step in range(steps):
        h = x
        for i, layer in enumerate(model.layers):
            last = i == len(model.layers) - 1
            if plain is GCN:
                h = layer(block, h, edge_weight, degrees)
            else:
                h = layer(block, h)
            if name == "gat":
                h = h.mean(1) if last else F.elu(h.flatten(1))
            elif not last:
                h = h.relu()
            if not last:
                h = drop(h, torch.arange(NODES), (7, step, 0), i)
        loss = F.cross_entropy(h[train], labels[train])
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        gradients = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
    if edge_weight is not None:
        gradients.append(edge_weight.grad)
    return losses, gradients, list(model.parameters())


def weights_of(name, graph, dtype):
    """Of edges, for a model that has them."""
    if not name.startswith("weighted"):
        return None
    return graph.edge_attributes["weight"].to(dtype).clone().requires_grad_()


def data(dtype):
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(NODES, 3, generator=draw, dtype=torch.float64).to(dtype)
    labels = torch.randint(0, 4, (NODES,), generator=draw)
    return x, labels, torch.arange(0, NODES, 6)


def step_over_ranks(model, rows, key, chosen, labels, optimizer, *edge_weight):
    """A step of training on a rank's own rows, and the loss over all ranks."""
    values = F.cross_entropy(model(rows, key, *edge_weight)[chosen], labels, reduction="none")
    loss = global_mean(values, model.plan)
    optimizer.zero_grad()
    loss.backward()
    sum_gradients(model.parameters(), model.plan)
    optimizer.step()
    total = loss.detach().clone()
    if model.plan.world_size > 1:
        dist.all_reduce(total)
    return total.item()


def training_is_that_of_one_process(rank, world_size, device, folder):
    with DistGraph(folder, timeout=60) as graph:
        plan = HaloPlan(graph)
        mine = plan.original_nodes
        for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
            for name, (_, distributed, sizes, _) in MODELS.items():
                losses, gradients, weights = single(name, dtype, 4)
                torch.manual_seed(0)
                model = distributed(plan, *sizes).to(dtype)
                x, labels, train = data(dtype)
                chosen = torch.isin(mine, train)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                edge_weight, by_new = weights_of(name, directed(), dtype), []
                if edge_weight is not None:
                    by_new = [edge_weight.detach()[own_edges(plan, directed())].requires_grad_()]
                for step, expected in enumerate(losses):
                    loss = step_over_ranks(
                        model, x[mine], (7, step, 0), chosen, labels[mine][chosen], optimizer,
                        *by_new,
                    )  # fmt: skip
                    assert abs(loss - expected) < tolerance, (name, step)
                for p, gradient, weight in zip(model.parameters(), gradients, weights):  # noqa: B905
                    close(p.grad, gradient, tolerance)
                    close(p.detach(), weight.detach(), tolerance)
                if by_new:
                    close(by_new[0].grad, gradients[-1][own_edges(plan, directed())], tolerance)


@pytest.mark.parametrize(
    ("ranks", "parts"), [(1, 1), (1, 3), (2, 2), (3, 3), (2, 4), (3, 6), (4, 4)]
)
def test_against_one_process(tmp_path, ranks, parts):
    cut(directed(), tmp_path / "p", parts)
    if ranks == 1:
        spmm_is_exact(0, 1, "cpu", tmp_path / "p")
        training_is_that_of_one_process(0, 1, "cpu", tmp_path / "p")
    else:
        launch(both, ranks, tmp_path / "p", timeout=60)


def both(rank, world_size, device, folder):
    torch.set_num_threads(1)
    spmm_is_exact(rank, world_size, device, folder)
    training_is_that_of_one_process(rank, world_size, device, folder)
