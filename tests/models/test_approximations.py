"""Stale halos, boundary sampling and integers on the wire: each is what its docs say it is."""

import pytest
import torch
import torch.distributed as dist

from hopline.models import DistGAT, DistGCN, DistSAGE, DistSpmm, HaloPlan, launch
from hopline.models.boundary_sample import BoundarySample
from hopline.models.wire import decode, encode
from hopline.partition import DistGraph
from tests.models.test_full_graph import NODES, close, cut, data, dense, directed, step_over_ranks

WIDTH = 5


def test_integers_are_off_by_less_than_a_step_and_right_on_average():
    rows = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    step = (rows.amax(1) - rows.amin(1))[:, None] / 255
    total = torch.zeros_like(rows)
    for word in range(400):
        sent = encode(rows, torch.int8, word)
        assert sent.dtype == torch.uint8
        assert sent.shape == (7, WIDTH + 8)
        got = decode(sent, rows.dtype, torch.int8)
        assert got.dtype == rows.dtype
        assert ((got - rows).abs() < step * 1.0001 + 1e-6).all()
        total += got
    # A rounding has a standard deviation of at most half a step; five of those of a mean of 400.
    assert ((total / 400 - rows).abs() < step * 0.5 / 20 * 5 + 1e-6).all()
    again = encode(rows, torch.int8, 399)
    assert torch.equal(again, sent)
    assert not torch.equal(encode(rows, torch.int8, 398), sent)


def test_integers_of_odd_rows():
    for dtype in (torch.float32, torch.float64):
        rows = torch.tensor([[2.5, 2.5], [0.0, 0.0], [0.0, 255.0]], dtype=dtype)
        assert torch.equal(decode(encode(rows, torch.int8, 1), dtype, torch.int8), rows)
        for shape in ((0, 3), (3, 0), (0, 0), (1, 3)):
            rows = torch.zeros(shape, dtype=dtype)
            assert decode(encode(rows, torch.int8, 1), dtype, torch.int8).shape == shape
        rows = torch.tensor([[1.0, float("nan")], [float("inf"), 1.0], [1.0, 2.0]], dtype=dtype)
        got = decode(encode(rows, torch.int8, 1), dtype, torch.int8)
        assert got.isfinite().all(1).tolist() == [False, False, True]


def matrices(graph, plan, norm="both"):
    """The rows of own nodes of the dense product: from own nodes, and from others."""
    whole = dense(graph, norm, False, torch.ones(len(graph.indices), dtype=torch.float64))
    mine = plan.original_nodes
    own = torch.zeros(NODES, dtype=torch.bool)
    own[mine] = True
    return torch.where(own, whole[mine], 0), torch.where(own, 0, whole[mine])


def every_row(rows, mine):
    """float64[NODES, width] of the ranks' rows."""
    total = torch.zeros(NODES, rows.shape[1], dtype=rows.dtype).index_add(0, mine, rows.detach())
    if dist.is_initialized():
        dist.all_reduce(total)
    return total


def transposed_product(matrix, gradient, mine):
    """float64[own, width]: what own nodes get back from all ranks."""
    total = matrix.T @ gradient
    if dist.is_initialized():
        dist.all_reduce(total)
    return total[mine]


def draws(seed, rows):
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed),
                       dtype=torch.float64)  # fmt: skip


def stale_rows_are_of_the_step_before(plan, graph):
    mine = plan.original_nodes
    local, remote = matrices(graph, plan)
    spmm = DistSpmm(plan, "both", stale=True)
    rows, gradients = [], []
    for step in range(4):
        x, aim = draws(step, NODES)[mine].requires_grad_(), draws(10 + step, NODES)[mine]
        rows.append(every_row(x, mine))
        out = spmm(x, key=(0, step, 0))
        close(out.detach(), local @ rows[-1] + remote @ rows[max(0, step - 1)])
        gradients.append(aim)
        (out * aim).sum().backward()
        expected = transposed_product(local, aim, mine)
        expected = expected + transposed_product(remote, gradients[max(0, step - 1)], mine)
        close(x.grad, expected)
        spmm.eval()
        close(spmm(x).detach(), (local + remote) @ rows[-1])
        spmm.train()
    counts = len(plan.send_rows) * 8 + len(plan.halo) * 4  # rows forward, and in evaluation
    assert spmm.bytes_sent == counts * WIDTH * 8
    if plan.world_size > 1:
        with pytest.raises(
            ValueError, match=r"rows of 3 values .* follow those of 5 of .*; give each layer"
        ):
            spmm(x[:, :3])
    layers = DistSpmm(plan, "both", stale=True)
    for layer, width in enumerate((2, 3)):
        close(layers(x[:, :width], layer=layer).detach(), spmm.eval()(x[:, :width]).detach())


def samples_are_right_on_average(plan, graph):
    mine = plan.original_nodes
    local, remote = matrices(graph, plan)
    spmm = DistSpmm(plan, "both", boundary_rate=0.25)
    x, aim = draws(0, NODES), draws(1, NODES)[mine]
    weight = torch.ones(plan.num_edges, dtype=torch.float64)
    exact, steps, kept = (local + remote) @ x, 300, 0
    total, back = torch.zeros_like(exact), torch.zeros_like(x[mine])
    spread = torch.zeros_like(exact)
    for step in range(steps):
        own = x[mine].requires_grad_()
        before = spmm.bytes_sent
        out = spmm(own, key=(0, step, 0))
        sample = BoundarySample(plan, 0.25, (0, step, 0))
        kept += sample.sends.num_edges()
        assert spmm.bytes_sent - before == sample.sends.num_edges() * WIDTH * 8
        (out * aim).sum().backward()
        total, back = total + out.detach(), back + own.grad
        spread += (out.detach() - exact).square()
        if step < 3:
            close(spmm(x[mine], weight, key=(0, step, 0)), out.detach())
            close(spmm(x[mine], key=(0, step, 0)), out.detach())  # another layer of the step
    # Five standard errors, as the sample's own spread gives them.
    allowed = 5 * (spread / steps).sqrt() / steps**0.5 + 1e-9
    assert ((total / steps - exact).abs() <= allowed).all()
    expected = transposed_product(local + remote, aim, mine)
    assert (back / steps - expected).abs().max() < 1.0 if len(mine) else True
    count = len(plan.send_rows) * steps
    assert abs(kept - count / 4) <= 5 * (count * 3 / 16) ** 0.5
    if len(plan.halo):
        assert (spread > 0).any()
    close(spmm.eval()(x[mine]), exact)
    close(DistSpmm(plan, "both", boundary_rate=1.0)(x[mine]), exact)


def gradients_are_those_of_the_sampled_product(plan, mine):
    """<A x, y> = <x, A' y>, of one sample; the ranks' shares add up."""
    spmm = DistSpmm(plan, "both", self_loop=True, boundary_rate=0.5)
    x, y = draws(2, NODES)[mine].requires_grad_(), draws(3, NODES)[mine]
    for key in ((0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1)):
        out = spmm(x, key=key)
        (gradient,) = torch.autograd.grad((out * y).sum(), x)
        sums = torch.stack([(out.detach() * y).sum(), (x.detach() * gradient).sum()])
        if plan.world_size > 1:
            dist.all_reduce(sums)
        assert abs(sums[0] - sums[1]) < 1e-9


def integers_over_ranks(plan, graph):
    mine = plan.original_nodes
    local, remote = matrices(graph, plan, "none")
    x, aim = draws(4, NODES), draws(5, NODES)[mine]
    spmm = DistSpmm(plan, wire_dtype=torch.int8)
    own = x[mine].requires_grad_()
    out = spmm(own, key=(0, 1, 0))
    # All rows are within 6 steps of 255 around 0; a sum is off by as many steps as there are rows.
    bound = remote.sum(1, keepdim=True) * (x.amax() - x.amin()) / 255 + 1e-5
    difference = (out.detach() - (local + remote) @ x).abs()
    assert (difference <= bound).all()
    (out * aim).sum().backward()
    assert spmm.bytes_sent == (len(plan.send_rows) + len(plan.halo)) * (WIDTH + 8)
    expected = transposed_product(local + remote, aim, mine)
    assert (own.grad - expected).abs().max() < 0.5 if len(mine) else True
    assert torch.equal(spmm(own, key=(0, 1, 0)), out)


def models_learn(plan, graph):
    """Losses fall as far as the exact ones do, about; and the same twice."""
    mine = plan.original_nodes
    x, labels, train = data(torch.float64)
    chosen = torch.isin(mine, train)
    last = {}
    ways = {
        "exact": {},
        "stale": {"stale": True},
        "sampled": {"boundary_rate": 0.5},
        "integers": {"wire_dtype": torch.int8},
        "stale integers": {"stale": True, "wire_dtype": torch.int8},
        "sampled bfloat16": {"boundary_rate": 0.5, "wire_dtype": torch.bfloat16},
        "again": {"boundary_rate": 0.5, "wire_dtype": torch.bfloat16},
    }
    for kind in (DistGCN, DistSAGE, DistGAT):
        for way, options in ways.items():
            if kind is DistGAT and "boundary_rate" in options:
                continue
            torch.manual_seed(0)
            model = kind(plan, 3, 8, 4, 2, dropout=0.0, **options).double()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
            for step in range(40):
                last[way] = step_over_ranks(
                    model, x[mine], (7, step, 0), chosen, labels[mine][chosen], optimizer
                )
        assert all(abs(value - last["exact"]) < 0.35 for value in last.values()), last
        assert last["exact"] < 1.1, last
        assert last.get("again") == last.get("sampled bfloat16")


def everything(rank, world_size, device, folder):
    torch.set_num_threads(1)
    with DistGraph(folder, timeout=60) as parts:
        plan, graph = HaloPlan(parts), directed()
        stale_rows_are_of_the_step_before(plan, graph)
        samples_are_right_on_average(plan, graph)
        gradients_are_those_of_the_sampled_product(plan, plan.original_nodes)
        integers_over_ranks(plan, graph)
        models_learn(plan, graph)


@pytest.mark.parametrize(("ranks", "parts"), [(1, 1), (2, 2), (3, 3)])
def test_approximations(tmp_path, ranks, parts):
    cut(directed(), tmp_path / "p", parts)
    if ranks == 1:
        everything(0, 1, "cpu", tmp_path / "p")
    else:
        launch(everything, ranks, tmp_path / "p", timeout=60)
