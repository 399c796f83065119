"""Ranks that differ in what they must have alike are noticed, all of them, before they train on."""

import warnings

import pytest
import torch
import torch.nn.functional as F

from hopline.models import (
    DistGAT,
    DistGCN,
    DistSAGE,
    DistSpmm,
    HaloPlan,
    TensorParallelGCN,
    global_mean,
    launch,
    sum_gradients,
)
from hopline.partition import DistGraph
from tests.models.test_full_graph import cut, data, directed

KINDS = (DistGCN, DistSAGE, DistGAT)


class Training:
    """Steps of a model, which a rank may do otherwise than the others."""

    def __init__(self, plan, kind=DistGCN, seed=0, out_size=4, **options):
        torch.manual_seed(seed)
        self.model = kind(plan, 3, 8, out_size, 2, **options)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.plan = plan

    def step(self, key, summed=True):
        x, labels, _ = data(torch.float32)
        mine = self.plan.original_nodes
        out = self.model(x[mine], key)
        loss = global_mean(F.cross_entropy(out, labels[mine], reduction="none"), self.plan)
        self.optimizer.zero_grad()
        loss.backward()
        if summed:
            sum_gradients(self.model.parameters(), self.plan)
        self.optimizer.step()


def refused(message, steps):
    with pytest.raises(ValueError, match=message):
        steps()


def differing_ranks_are_noticed(rank, world_size, device, folder):
    torch.set_num_threads(1)
    with DistGraph(folder, timeout=20) as graph:
        for kind in KINDS:
            plan = HaloPlan(graph)
            weights = r"rank . has other weights than rank .; .*torch.manual_seed.* sum_gradients"
            refused(
                weights, lambda kind=kind, plan=plan: Training(plan, kind, rank).step((0, 0, 0))
            )
            lonely = Training(plan := HaloPlan(graph), kind)

            def alone(lonely=lonely):
                for step in range(10):
                    lonely.step((0, step, 0), summed=False)

            refused(weights, alone)
            plan = HaloPlan(graph)
            key = rf"rank {rank} has made this step with key \({rank}, 0, 0\), rank {1 - rank}"
            refused(key, lambda kind=kind, plan=plan: Training(plan, kind).step((rank, 0, 0)))
            wide = r"the model differs between ranks: rank . has .*rank . has something else"
            refused(
                wide,
                lambda kind=kind: Training(HaloPlan(graph), kind, out_size=4 + rank).step(
                    (0, 0, 0)
                ),
            )
        plan = HaloPlan(graph)
        sampled = Training(plan, boundary_rate=0.5)
        refused("key differs between ranks: rank", lambda: sampled.step((rank, 0, 0)))
        rows = torch.ones(len(plan.own), 2 + rank)
        for mode in ("halo", "broadcast", "columns"):
            spmm = DistSpmm(plan, mode=mode)
            refused(rf"a product differs .*rows of {2 + rank} of", lambda spmm=spmm: spmm(rows))
            one_rank_alone_needs_gradients(plan, spmm, rank)
        ranks_that_round_otherwise_go_on(graph, rank)
        keys_used_again(graph)


def one_rank_alone_needs_gradients(plan, spmm, rank):
    """Its backward pass would wait for the other's until the timeout."""
    leaf = torch.ones(len(plan.own), 4, requires_grad=rank == 0)
    weight = torch.ones(plan.num_edges, requires_grad=rank == 1)
    refused("a product differs between ranks", lambda: spmm(leaf))
    refused("a product differs between ranks", lambda: spmm(torch.ones(len(plan.own), 4), weight))
    with torch.no_grad():  # none has a backward pass
        spmm(leaf, weight)
    other = torch.ones(plan.num_edges, dtype=(torch.float32, torch.float64)[rank])
    spmm = DistSpmm(plan, mode=spmm.mode)  # in its first pass
    refused("a product differs", lambda: spmm(torch.ones(len(plan.own), 4), other))
    head = torch.nn.Linear(3, 2 + rank)
    refused("what gradients are of differs", lambda: sum_gradients(head.parameters(), plan))


def columns_of_ranks_that_differ(rank, world_size, device):
    def model(seed=0, **options):
        torch.manual_seed(seed)
        made = TensorParallelGCN(directed(), 3, 8, 4, **options)
        with torch.no_grad():
            for bias in made.biases:
                bias.add_(seed)
        return made

    x = data(torch.float32)[0]

    def step(made, key=(0, 0, 0)):
        return made(x[:, made.columns(0)], key)

    refused("the model differs between ranks", lambda: step(model(dropout=0.1 * rank)))
    refused(r"rank . has other weights than rank .; .*manual_seed", lambda: step(model(rank)))
    same = model()
    step(same)
    refused(r"with key \(0, ., 0\), rank . with another", lambda: step(same, (0, rank, 0)))
    step(same.eval(), (0, rank, 0))  # nothing is drawn


def test_ranks_that_differ_by_columns():
    launch(columns_of_ranks_that_differ, 2, timeout=20)


def ranks_that_round_otherwise_go_on(graph, rank):
    training = Training(HaloPlan(graph))
    with torch.no_grad():
        for p in training.model.parameters():
            p.mul_(1 + 1e-6 * rank)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(5):
            training.step((0, step, 0))


def keys_used_again(graph):
    training = Training(HaloPlan(graph))
    training.step((0, 0, 0))
    with pytest.warns(UserWarning, match=r"this step has key \(0, 0, 0\), as the step before"):
        training.step((0, 0, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.step((0, 0, 0))  # said once
        plain = Training(HaloPlan(graph), dropout=0.0)
        for _ in range(3):
            plain.step((0, 0, 0))


def test_differing_ranks_are_noticed(tmp_path):
    cut(directed(), tmp_path / "p", 2)
    launch(differing_ranks_are_noticed, 2, tmp_path / "p", timeout=20)


def test_one_rank_has_nothing_to_compare_but_keys(tmp_path):
    cut(directed(), tmp_path / "p", 2)
    with DistGraph(tmp_path / "p") as graph:
        training = Training(HaloPlan(graph))
        training.step((0, 0, 0), summed=False)
        training.step((0, 1, 0))
        keys_used_again(graph)
