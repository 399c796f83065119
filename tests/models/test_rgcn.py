"""RelGraphConv and RGCN against dense matrices, with types that a batch lacks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.models import RGCN, RelGraphConv
from tests.models.test_aggregate import assert_same_with_gradients, dense_mean, make_block, normal

SIZES = {"user": 3, "item": 2, "tag": 3}
ETYPES = ["user:buys:item", "item:bought:user", "user:knows:user", "tag:marks:item"]


def ends(etype):
    source, _, destination = etype.split(":")
    return source, destination


@st.composite
def hops(draw, max_nodes=4, max_edges=6):
    """{edge type: Block} with {node type: rows}; types may have no row, blocks no edge."""
    num_dst = {ntype: draw(st.integers(0, max_nodes)) for ntype in SIZES}
    num_src = {ntype: count + draw(st.integers(0, max_nodes)) for ntype, count in num_dst.items()}
    blocks = {}
    for etype in draw(st.lists(st.sampled_from(ETYPES), unique=True)):
        rows, columns = num_src[ends(etype)[0]], num_dst[ends(etype)[1]]
        edges = []
        if rows and columns:
            edge = st.tuples(st.integers(0, columns - 1), st.integers(0, rows - 1))
            edges = sorted(draw(st.lists(edge, max_size=max_edges)))
        blocks[etype] = make_block(edges, rows, columns)
    return blocks, num_src


def rows_of(num_src, sizes=SIZES):
    return {t: normal(num_src[t], size, requires_grad=True) for t, size in sizes.items()}


def relation_weights(conv):
    if conv.num_bases is None:
        return list(conv.weights)
    sizes = [conv.in_sizes[ends(etype)[0]] for etype in conv.etypes]
    return [
        sum(c * basis for c, basis in zip(row, conv.bases[str(size)], strict=True))
        for row, size in zip(conv.coefficients, sizes, strict=True)
    ]


def dense_conv(conv, blocks, x):
    out = {}
    for i, ntype in enumerate(conv.in_sizes):
        counts = [b.num_dst for etype, b in blocks.items() if ends(etype)[1] == ntype]
        if not counts and not conv.self_loop:
            continue
        count = counts[0] if counts else len(x[ntype])
        total = torch.zeros(count, conv.out_size, dtype=torch.float64)
        if conv.self_loop:
            total = total + x[ntype][:count] @ conv.self_weights[i].T
        for etype, weight in zip(conv.etypes, relation_weights(conv), strict=True):
            if etype in blocks and ends(etype)[1] == ntype:
                total = total + dense_mean(blocks[etype], x[ends(etype)[0]]) @ weight.T
        out[ntype] = total + conv.bias
    return out


def make_conv(*sizes, **settings):
    conv = RelGraphConv(*sizes, **settings).double()
    torch.nn.init.normal_(conv.bias)
    return conv


def joined(out):
    return torch.cat([torch.zeros(0, dtype=torch.float64), *(h.flatten() for h in out.values())])


@pytest.mark.parametrize("num_bases", [None, 1, 2])
@pytest.mark.parametrize("self_loop", [True, False])
@pytest.mark.parametrize("out_size", [1, 5])  # both orders of sum and map come up
@given(hop=hops())
def test_conv_and_its_gradients(num_bases, self_loop, out_size, hop):
    blocks, num_src = hop
    conv = make_conv(SIZES, out_size, ETYPES, num_bases=num_bases, self_loop=self_loop)
    x = rows_of(num_src)
    got, want = conv(blocks, x), dense_conv(conv, blocks, x)
    assert list(got) == list(want)
    assert [h.shape for h in got.values()] == [h.shape for h in want.values()]
    inputs = [*x.values(), *conv.parameters()]
    if want:
        got_all, want_all = (
            joined(out) + sum(0 * each.sum() for each in inputs)  # reaches what no edge reaches
            for out in (got, want)
        )
        assert_same_with_gradients(got_all, want_all, inputs)


@pytest.mark.parametrize("num_bases", [None, 2])
def test_gradcheck_of_a_layer(num_bases):
    conv = make_conv(SIZES, 2, ETYPES, num_bases=num_bases)
    blocks = {
        "user:buys:item": make_block([(0, 0), (0, 3), (0, 3), (2, 1)], 4, 3),
        "user:knows:user": make_block([(0, 0), (1, 3)], 4, 2),
        "tag:marks:item": make_block([], 0, 3),
        "item:bought:user": make_block([(1, 2)], 3, 2),
    }
    x = rows_of({"user": 4, "item": 3, "tag": 0})
    names = [name for name, _ in conv.named_parameters()]

    def call(*values):
        rows = dict(zip(SIZES, values[:3], strict=True))
        weights = dict(zip(names, values[3:], strict=True))
        return joined(torch.func.functional_call(conv, weights, (blocks, rows)))

    assert torch.autograd.gradcheck(call, (*x.values(), *conv.parameters()))


@pytest.mark.parametrize("num_bases", [None, 2])
@pytest.mark.parametrize("leave_out", [True, False])
def test_absent_types_leave_gradients_of_zeros_not_none(num_bases, leave_out):
    """As DistributedDataParallel wants it without a search for unused parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = RGCN(SIZES, 16, 2, ETYPES, num_layers=2, num_bases=num_bases)
    full = make_block([(0, 1), (1, 0)], 2, 2)
    hop = {"user:knows:user": full}
    x = {"user": torch.randn(2, 3, generator=torch.Generator().manual_seed(1))}
    if not leave_out:
        hop |= {
            "user:buys:item": make_block([], 2, 0),
            "item:bought:user": make_block([], 0, 2),
            "tag:marks:item": make_block([], 0, 0),
        }
        x |= {"item": torch.empty(0, 2), "tag": torch.empty(0, 3)}
    out = model([hop, hop], x)
    assert {ntype: len(rows) for ntype, rows in out.items()} == {"user": 2, "item": 0, "tag": 0}
    out["user"].square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.shape == parameter.shape
        assert parameter.grad.isfinite().all()
    if num_bases is None:
        knows, tags = ETYPES.index("user:knows:user"), list(SIZES).index("tag")
        for layer in model.layers:
            used = [bool(weight.grad.any()) for weight in layer.weights]
            assert used == [i == knows for i in range(len(ETYPES))]
            assert not layer.self_weights[tags].grad.any()
            assert layer.self_weights[0].grad.any()


def test_distributed_data_parallel_without_a_search_for_unused_parameters(tmp_path):
    """It refuses a second step when a parameter had no gradient in the first."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(RGCN(SIZES, 4, 2, ETYPES, num_bases=2))
        hop = {"user:knows:user": make_block([(0, 1), (1, 0)], 2, 2)}
        for _ in range(3):
            model.zero_grad()
            model([hop, hop], {"user": torch.ones(2, 3)})["user"].sum().backward()
            assert all(parameter.grad is not None for parameter in model.parameters())
    finally:
        torch.distributed.destroy_process_group()


def test_a_loss_on_an_empty_type_gives_zeros():
    model = RGCN(SIZES, 4, 2, ETYPES, num_layers=2)
    hop = {"user:knows:user": make_block([(0, 1)], 2, 1)}
    out = model([hop, {"user:knows:user": make_block([], 1, 1)}], {"user": torch.ones(2, 3)})
    out["item"].sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_unused_zeros_do_not_spread_nan():
    conv = RelGraphConv(SIZES, 2, ETYPES)
    with torch.no_grad():
        conv.weights[ETYPES.index("tag:marks:item")].fill_(float("nan"))
    blocks = {"user:knows:user": make_block([(0, 1)], 2, 1)}
    out = conv(blocks, {"user": torch.ones(2, 3)})["user"]
    assert out.isfinite().all()


def test_rows_of_a_type_that_nothing_ends_in():
    """Its number of destinations is unknown: all rows come out, and the next layer cuts them."""
    sizes, etypes = {"user": 3, "item": 2}, ["user:buys:item"]
    model = RGCN(sizes, 4, 2, etypes, num_layers=2).double().eval()
    # Seeds: item 0. Hop 1 finds users 0 and 1; hop 2 goes on from item 0 and finds user 2 also.
    inner = {"user:buys:item": make_block([(0, 0), (0, 1)], 2, 1)}
    outer = {"user:buys:item": make_block([(0, 0), (0, 1), (0, 2)], 3, 1)}
    x = rows_of({"user": 3, "item": 1}, sizes)
    first, second = model.layers
    hidden = dense_conv(first, outer, x)
    assert hidden["user"].shape == (3, 4)
    hidden = {"user": hidden["user"][:2].relu(), "item": hidden["item"].relu()}
    got, want = model([outer, inner], x), dense_conv(second, inner, hidden)
    torch.testing.assert_close(got["item"], want["item"])
    assert got["user"].shape == (2, 2)


def test_one_size_for_all_types_and_shared_bases():
    conv = RelGraphConv(4, 5, ETYPES, num_bases=2)
    assert conv.in_sizes == {"user": 4, "item": 4, "tag": 4}
    shapes = {name: tuple(p.shape) for name, p in conv.named_parameters()}
    assert shapes["bases.4"] == (2, 5, 4)
    assert shapes["coefficients"] == (4, 2)
    assert "weights.0" not in shapes


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_lower_precision(dtype):
    blocks = {"user:knows:user": make_block([(d, s) for d in range(9) for s in range(12)], 12, 9)}
    conv, x = make_conv({"user": 6}, 4, ["user:knows:user"]), normal(12, 6)
    want = dense_conv(conv, blocks, {"user": x})["user"]
    torch.testing.assert_close(conv.float()(blocks, {"user": x})["user"], want.float())
    stored = x.to(dtype)
    got = conv(blocks, {"user": stored})["user"]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, conv(blocks, {"user": stored.float()})["user"])
    got = conv.to(dtype)(blocks, {"user": x})["user"]
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, rtol=0.1, atol=0.1)


def test_training_learns_a_relation():
    """The label of an item is the kind of the users who buy it; who views it says nothing."""
    generator = torch.Generator().manual_seed(1)
    kind = torch.randint(2, (40,), generator=generator)
    labels = torch.randint(2, (60,), generator=generator)
    buys, views = [], torch.randint(40, (60, 3), generator=generator)
    for item in range(60):
        fitting = (kind == labels[item]).nonzero().flatten().tolist()
        buys += [(item, fitting[k % len(fitting)]) for k in range(item, item + 3)]
    blocks = {
        "user:buys:item": make_block(buys, 40, 60),
        "user:views:item": make_block([(i, int(u)) for i in range(60) for u in views[i]], 40, 60),
    }
    x = {"user": torch.nn.functional.one_hot(kind).float(), "item": torch.ones(60, 1)}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = RGCN({"user": 2, "item": 1}, 8, 2, list(blocks), num_layers=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model([blocks], x)["item"], labels).backward()
        optimizer.step()
    assert (model([blocks], x)["item"].argmax(1) == labels).double().mean() > 0.95


BLOCK = make_block([(0, 1)], 2, 1)
KNOWS = ["user:knows:user"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: RelGraphConv(3, 2, []), "at least one"),
        (lambda: RelGraphConv(3, 2, KNOWS * 2), "each once"),
        (lambda: RelGraphConv(3, 2, ["knows"]), "three names"),
        (lambda: RelGraphConv({"user": 3}, 2, ETYPES), r"also \['item', 'tag'\]"),
        (lambda: RelGraphConv(0, 2, KNOWS), "1 or more"),
        (lambda: RelGraphConv(3, 2, KNOWS, num_bases=0), "num_bases is 0"),
        (lambda: RGCN(3, 4, 2, KNOWS, num_layers=0), "1 or more"),
        (lambda: RGCN(3, 4, 2, KNOWS)([], {}), "0 blocks for 2 layers"),
        (lambda: RelGraphConv(3, 2, KNOWS)({"a:b:c": BLOCK}, {}), r"blocks has \['a:b:c'\]"),
        (lambda: RelGraphConv(3, 2, KNOWS)({}, {"a": torch.ones(1, 3)}), r"x has \['a'\]"),
        (
            lambda: RelGraphConv(3, 2, KNOWS)({KNOWS[0]: BLOCK}, {"user": torch.ones(3, 3)}),
            "3 rows of node type 'user'; expected 2",
        ),
        (lambda: RelGraphConv(3, 2, KNOWS)({KNOWS[0]: BLOCK}, {}), "0 rows of node type 'user'"),
        (
            lambda: RelGraphConv(3, 2, KNOWS)({KNOWS[0]: BLOCK}, {"user": torch.ones(2, 4)}),
            r"\(2, 4\); expected \[rows, 3\]",
        ),
        (
            lambda: RelGraphConv(3, 2, ETYPES)(
                {"user:buys:item": BLOCK, "tag:marks:item": make_block([], 0, 2)},
                {"user": torch.ones(2, 3), "item": torch.ones(2, 3)},
            ),
            "1 and 2 destinations of node type 'item'",
        ),
        (
            lambda: RelGraphConv(3, 2, ETYPES)(
                {"user:buys:item": BLOCK}, {"user": torch.ones(2, 3)}
            ),
            "0 rows of node type 'item', of which 1 are destinations",
        ),
    ],
)
def test_unfit_arguments(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def hetero_graph():
    """Users, items and tags with random edges; some nodes have none."""
    generator = torch.Generator().manual_seed(3)
    counts = {"item": 12, "tag": 5, "user": 15}
    edges = {}
    for etype in ETYPES:
        source, destination = ends(etype)
        pairs = torch.stack(
            [torch.randint(counts[t], (30,), generator=generator) for t in (source, destination)]
        )
        edges[etype] = pairs
    return counts, edges


def test_sampled_with_all_neighbours_it_equals_the_whole_graph():
    counts, edges = hetero_graph()
    ntypes = {ntype: i for i, ntype in enumerate(counts)}
    etypes = {etype: i for i, etype in enumerate(ETYPES)}
    offset = torch.tensor([0, *counts.values()]).cumsum(0)
    starts = dict(zip(counts, offset.tolist(), strict=False))
    fused = torch.cat(
        [
            pairs + torch.tensor([[starts[t]] for t in ends(etype)])
            for etype, pairs in edges.items()
        ],
        1,
    )
    kinds = torch.arange(len(ETYPES)).repeat_interleave(30)
    order = torch.argsort(fused[1] * len(ETYPES) + kinds, stable=True)
    indptr = torch.cat([torch.zeros(1), torch.bincount(fused[1], minlength=32).cumsum(0)]).long()
    graph = hp.fused_csc_sampling_graph(
        indptr,
        fused[0][order],
        node_type_offset=offset,
        type_per_edge=kinds[order],
        node_type_to_id=ntypes,
        edge_type_to_id=etypes,
    )
    whole = {}
    for etype, pairs in edges.items():
        source, destination = ends(etype)
        whole[etype] = make_block(
            sorted((int(d), int(s)) for s, d in pairs.T), counts[source], counts[destination]
        )
    x = {t: normal(count, SIZES[t]) for t, count in counts.items()}
    model = RGCN({t: SIZES[t] for t in counts}, 6, 3, ETYPES, num_layers=2).double().eval()
    expected = model([whole, whole], x)
    for ntype in ("item", "user"):
        items = hp.HeteroItemSet({ntype: hp.ItemSet(torch.arange(counts[ntype]), "seeds")})
        chain = hp.ItemSampler(items, 4).sample_neighbor(graph, [-1, -1])
        for minibatch in chain:
            rows = {t: x[t][ids.long()] for t, ids in minibatch.input_nodes.items()}
            got = model(minibatch.blocks, rows)[ntype]
            torch.testing.assert_close(got, expected[ntype][minibatch.seeds[ntype]])
