"""Attention dropout of whole-graph GAT: on any number of ranks, what one process draws by edge."""

import pytest
import torch
import torch.nn.functional as F

from hopline.models import GAT, launch
from hopline.models.full_graph_gat import DistGAT
from hopline.models.halo_plan import HaloPlan
from hopline.models.node_dropout import NodeDropout
from hopline.partition import DistGraph
from hopline.pipes.graph import ORIGINAL_EDGE_ID
from hopline.pipes.random import Purpose, batch_key, fold
from tests.models.test_full_graph import (
    NODES,
    close,
    cut,
    data,
    directed,
    step_over_ranks,
    whole_block,
)

SIZES, HEADS, SEED, P, STEPS = (3, 4, 4, 3), 4, 7, 0.5, 3


def edges_of(graph, self_loop):
    """The names of a whole graph's edges, those of a destination one after another."""
    ids, names = graph.edge_attributes[ORIGINAL_EDGE_ID].tolist(), []
    for node in range(NODES):
        names += ids[graph.csc_indptr[node] : graph.csc_indptr[node + 1]]
        names += [-1 - node] * self_loop
    return names


def factors(graph, self_loop, step, layer, heads):
    """float64[edges, heads]: by the plain definition, 0 or 1 / (1 - p)."""
    word = batch_key(SEED, Purpose.DROPOUT, 0, step)
    draws = [
        [fold(word, -1 - layer, name, head) >> 40 for head in range(heads)]
        for name in edges_of(graph, self_loop)
    ]
    return (torch.tensor(draws) >= round(P * (1 << 24))).double() / (1 - P)


def single(self_loop):
    """Losses of training in one process, the last gradients, and outputs without dropout."""
    torch.manual_seed(0)
    model = GAT(*SIZES, num_heads=HEADS, self_loop=self_loop).double()
    graph, block, nodes = directed(), whole_block(), torch.arange(NODES)
    x, labels, train = data(torch.float64)
    drop, losses, last = NodeDropout(0.5), [], len(model.layers) - 1
    for step in range(STEPS):
        h = x
        for i, layer in enumerate(model.layers):
            layer.feat_drop.p = 0.0
            factor = factors(graph, self_loop, step, i, layer.num_heads)
            h = layer(block, h, attn_drop=factor.__mul__)
            h = h.mean(1) if i == last else drop(F.elu(h.flatten(1)), nodes, (SEED, 0, step), i)
        loss = F.cross_entropy(h[train], labels[train])
        model.zero_grad()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    out = model.eval()([block] * len(model.layers), x).detach()
    return losses, [p.grad for p in model.parameters()], out


def attention_is_dropped_by_edge(rank, world_size, device, folder):
    torch.set_num_threads(1)
    x, labels, train = data(torch.float64)
    with DistGraph(folder, timeout=60) as graph:
        plan = HaloPlan(graph)
        mine = plan.original_nodes
        edges_are_those_of_the_whole_graph(plan)
        for self_loop in (False, True):
            losses, gradients, out = single(self_loop)
            torch.manual_seed(0)
            model = DistGAT(plan, *SIZES, HEADS, attn_drop=P, self_loop=self_loop).double()
            assert list(model.state_dict()) == list(GAT(*SIZES, num_heads=HEADS).state_dict())
            chosen = torch.isin(mine, train)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step, expected in enumerate(losses):
                loss = step_over_ranks(
                    model, x[mine], (SEED, 0, step), chosen, labels[mine][chosen], optimizer
                )
                assert abs(loss - expected) < 1e-10, (self_loop, step)
            for p, gradient in zip(model.parameters(), gradients, strict=True):
                close(p.grad, gradient)
            close(model.eval()(x[mine], (SEED, 0, 0)).detach(), out[mine])


def edges_are_those_of_the_whole_graph(plan):
    """In the order of the block: from the same sources to the same destinations."""
    whole = directed()
    place = whole.edge_attributes[ORIGINAL_EDGE_ID].argsort()[plan.original_edges]
    columns = torch.repeat_interleave(torch.arange(NODES), whole.csc_indptr.diff())
    own = torch.repeat_interleave(plan.original_nodes, plan.block.indptr.diff())
    assert torch.equal(columns[place], own)
    rows, inside = plan.block.indices.long(), plan.block.indices < len(plan.own)
    assert torch.equal(whole.indices[place][inside].long(), plan.original_nodes[rows[inside]])
    assert plan.original_edges.unique().numel() == plan.block.num_edges()


@pytest.mark.parametrize(("ranks", "parts"), [(1, 1), (1, 3), (2, 4), (3, 3)])
def test_against_one_process(tmp_path, ranks, parts):
    cut(directed(), tmp_path / "p", parts)
    if ranks == 1:
        threads = torch.get_num_threads()
        try:
            attention_is_dropped_by_edge(0, 1, "cpu", tmp_path / "p")
        finally:
            torch.set_num_threads(threads)
    else:
        launch(attention_is_dropped_by_edge, ranks, tmp_path / "p", timeout=60)


def test_names_of_edges_do_not_meet(tmp_path):
    """Those of self edges and of others; and draws of attention are not those of values."""
    cut(directed(), tmp_path / "p", 1)
    with DistGraph(tmp_path / "p") as graph:
        model = DistGAT(HaloPlan(graph), *SIZES, HEADS, attn_drop=P)
    names = model._edge_names
    assert names.unique().numel() == len(names) == directed().total_num_edges + NODES
    attention = torch.ones(len(names), HEADS)
    plain = torch.arange(len(names))
    drawn = [model._drop_attention(i, (SEED, 0, 0), attention) for i in range(2)]
    drawn += [model.dropout(attention, plain, (SEED, 0, 0), i) for i in range(2)]
    for k, mask in enumerate(drawn):
        assert 0.4 < (mask == 0).double().mean() < 0.6
        for other in drawn[:k]:
            assert 0.4 < (mask == other).double().mean() < 0.6
