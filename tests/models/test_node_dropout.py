"""Dropout by node: the kernel against torch's operations and the definition, and its draws."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest
import torch
import torch._dynamo
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend

from hopline.models import activation_kernels, node_dropout_kernels
from hopline.models.node_dropout import BITS, NodeDropout, _on_device
from hopline.pipes.random import Purpose, batch_key, fold
from tests.chi_square import standard_normal

KEY = (7, 3, 1)
EVEN = 2.0**-BITS  # the smallest probability that is met


def rows(count, width, dtype=torch.float32, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=draw, dtype=torch.float64).to(dtype)


def names(count, seed=1):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(-(1 << 62), 1 << 62, (count,), generator=draw)


def by_torch(p, x, ids, key=KEY, layer=2, first_column=0):
    return _on_device(x, ids, *key, layer, first_column, p)


def same_bits(a, b):
    """Also of zeros' signs and of NaNs."""
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.dtype.itemsize]
    assert torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def zeros_of(ids, width=64, p=0.5, key=KEY, layer=2, first_column=0):
    """bool[n, width]: what is set to 0."""
    ones = torch.ones(len(ids), width)
    return NodeDropout(p)(ones, ids, key, layer, first_column) == 0


# Layouts of float[count, width] that are not the plain one.
LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: x.T.contiguous().T,
    "part": lambda x: torch.cat([x, x + 1, x], 1)[:, x.shape[1] : 2 * x.shape[1]],
    "every other": lambda x: torch.cat([x, x + 1], 0)[::2],
    "one row": lambda x: x[:1].expand(x.shape),
    "one column": lambda x: x[:, :1].expand(x.shape),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    count=st.integers(0, 9), width=st.integers(0, 70), layout=st.sampled_from(list(LAYOUTS)),
    p=st.sampled_from([EVEN / 4, EVEN, 0.1, 0.5, 0.9, 1 - EVEN]), first=st.sampled_from([0, 1, 77]),
)  # fmt: skip
def test_equals_torchs_operations_bit_for_bit(dtype, count, width, layout, p, first):
    count, width = (max(count, 1), max(width, 1)) if "one" in layout else (count, width)
    x, ids = LAYOUTS[layout](rows(count, width, dtype)), names(count)
    weight = LAYOUTS[layout](rows(count, width, dtype, seed=5))
    found = []
    for drop in (
        lambda *a: NodeDropout(p)(*a, KEY, 2, first),
        lambda *a: by_torch(p, *a, KEY, 2, first),
    ):
        leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
        out = drop(leaf, ids)
        (grad,) = torch.autograd.grad(out, leaf, weight)
        found.append((out.detach(), grad))
        same_bits(drop(x, ids), out.detach())
    same_bits(found[0][0], found[1][0])
    same_bits(found[0][1], found[1][1])


@pytest.mark.parametrize("p", [0.2, 0.5, EVEN, 1 - EVEN])
@pytest.mark.parametrize("key", [(0, 0, 0), KEY, ((1 << 64) - 5, 1 << 33, 2), (-3, 0, 0)])
def test_equals_the_plain_definition(p, key):
    ids = torch.tensor([0, 1, -1, 17, (1 << 63) - 1, -(1 << 63)])
    for layer, first in ((0, 0), (3, 5), (-4, 1 << 40)):
        x = rows(len(ids), 9)
        word = batch_key(key[0], Purpose.DROPOUT, *key[1:])
        draws = [[fold(word, layer, v, first + c) >> 40 for c in range(9)] for v in ids.tolist()]
        kept = torch.tensor(draws) >= round(p * (1 << BITS))
        expected = x * (kept.float() * (1 / (1 - p)))
        same_bits(NodeDropout(p)(x, ids, key, layer, first), expected)


def test_does_not_depend_on_threads():
    x, ids, before = rows(9000, 64), names(9000), torch.get_num_threads()
    try:
        outs = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            outs.append(NodeDropout(0.3)(x, ids, KEY, 2))
            same_bits(outs[0], outs[-1])
    finally:
        torch.set_num_threads(before)
    same_bits(outs[0], by_torch(0.3, x, ids))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    x, ids = rows(50, 9, dtype).requires_grad_(), names(50)
    out = NodeDropout(0.3)(x, ids, KEY, 2)
    same_bits(out.detach(), by_torch(0.3, x.detach().float(), ids).to(dtype))
    (grad,) = torch.autograd.grad(out.sum(), x)
    same_bits(grad, by_torch(0.3, torch.ones(50, 9), ids).to(dtype))


def test_values_that_are_not_finite_are_torchs():
    special = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-42, -1.0]
    x = torch.tensor(special).repeat(300, 1)
    same_bits(NodeDropout(0.5)(x, names(300), KEY, 2), by_torch(0.5, x, names(300)))


def test_gradients_are_those_of_finite_differences():
    ids, drop = names(6), NodeDropout(0.4)
    for layout in LAYOUTS.values():
        x = layout(rows(6, 5, torch.float64)).clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda x: drop(x, ids, KEY, 2, 3), (x,))


def test_nothing_of_xs_size_is_kept_for_the_backward_pass():
    kept, x, ids = [], rows(30, 8).requires_grad_(), names(30)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        NodeDropout(0.5)(x, ids, KEY, 2)
    assert [t.data_ptr() for t in kept] == [ids.data_ptr()]


@pytest.mark.parametrize("p", [1.0, 1 - EVEN / 4])
def test_all_is_dropped(p):
    x = rows(5, 4).requires_grad_()
    out = NodeDropout(p)(x, names(5), KEY, 2)
    assert not out.any()
    assert not torch.autograd.grad(out.sum(), x)[0].any()


def test_all_is_kept_in_evaluation_and_with_0():
    x = rows(5, 4)
    assert NodeDropout(0.0)(x, names(5), KEY, 2) is x
    assert NodeDropout(0.5).eval()(x, names(5), KEY, 2) is x
    same_bits(NodeDropout(EVEN / 4)(x, names(5), KEY, 2), x)


def test_parts_of_rows_and_columns_draw_what_the_whole_draws():
    x, ids, drop = rows(40, 13), names(40), NodeDropout(0.5)
    whole = drop(x, ids, KEY, 2)
    for low, high in ((0, 5), (5, 12), (12, 13), (13, 13)):
        same_bits(drop(x[:, low:high], ids, KEY, 2, low), whole[:, low:high])
    order = torch.randperm(40, generator=torch.Generator().manual_seed(2))[:11]
    same_bits(drop(x[order], ids[order], KEY, 2), whole[order])


def test_wrong_input():
    drop, x, ids = NodeDropout(0.5), rows(4, 3), names(4)
    with pytest.raises(TypeError, match=r"x has dtype torch.int64; expected a floating-point"):
        drop(x.long(), ids, KEY, 0)
    with pytest.raises(TypeError, match=r"ids have dtype torch.int32; expected torch.int64"):
        drop(x, ids.int(), KEY, 0)
    with pytest.raises(ValueError, match=r"shapes \(4, 3\) and \(3,\); expected \[n, width\]"):
        drop(x, ids[:3], KEY, 0)
    with pytest.raises(ValueError, match=r"shapes \(12,\) and \(4,\)"):
        drop(x.view(-1), ids, KEY, 0)


def test_compiled_it_is_one_graph_for_all_steps():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    drop = NodeDropout(0.5)
    compiled = torch.compile(drop, dynamic=True, fullgraph=True, backend=counter)
    for step in range(6):
        results = []
        for each in (drop, compiled):
            x = rows(10 + step, 4).requires_grad_()
            out = each(x, names(10 + step), (7, step // 3, step), 2)
            results.append((out.detach(), *torch.autograd.grad(out.square().sum(), x)))
        same_bits(results[0][0], results[1][0])
        same_bits(results[0][1], results[1][1])
    assert counter.frame_count <= 4
    torch._dynamo.reset()


# -------------------------------------------------------------------------------------------------
# Draws. All are fixed, so results never change.

NODES = 4096


def assert_binomial(counts, draws, p):
    """Counts of successes, each of that many independent draws."""
    excess = ((counts.double() - draws * p) ** 2).sum().item() / (draws * p * (1 - p))
    assert abs(standard_normal(excess, len(counts))) < 4


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("start", [0, 1 << 32, -NODES])
def test_rates_of_rows_and_columns(p, start):
    zeros = zeros_of(torch.arange(start, start + NODES), p=p)
    assert_binomial(zeros.sum().view(1), zeros.numel(), p)
    assert_binomial(zeros.sum(0), NODES, p)
    assert_binomial(zeros.sum(1), 64, p)


def assert_independent(a, b):
    """Of two masks with rates of one half: they agree in one half, in all rows and columns."""
    equal = a == b
    assert_binomial(equal.sum().view(1), equal.numel(), 0.5)
    assert_binomial(equal.sum(0), len(a), 0.5)
    assert_binomial(equal.sum(1), a.shape[1], 0.5)


def test_draws_of_other_layers_epochs_steps_and_seeds_are_independent():
    ids = torch.arange(NODES)
    places = [
        *[((7, 0, 0), layer) for layer in (0, 1, 2, ~0, ~1, ~2)],
        *[((7, epoch, step), 0) for epoch, step in ((0, 1), (1, 0), (1, 1), (0, 2))],
        ((8, 0, 0), 0),
    ]
    masks = [zeros_of(ids, key=key, layer=layer) for key, layer in places]
    for a, b in itertools.combinations(masks, 2):
        assert_independent(a, b)


def test_draws_of_other_nodes_and_columns_are_independent():
    ids = torch.arange(NODES)
    zeros = zeros_of(ids, 66)
    first = zeros[:, :64]
    for others in (ids + 1, ids + 2, ~ids, ids + (1 << 32), ids ^ (1 << 62)):
        assert_independent(first, zeros_of(others))
    for skipped in (1, 2):
        assert_independent(first, zeros[:, skipped : 64 + skipped])
    # Node v and column c, node v + 1 and column c - 1.
    assert_independent(zeros[:-1, 1:65], zeros[1:, :64])
    assert_independent(zeros[:-1, :64], zeros[1:, 1:65])


def test_copies_of_helpers_are_those_of_dropouts_kernels():
    """Numba's cache sees edits of a kernel's own file only, so each file has its helpers itself."""
    found = []
    for module in (activation_kernels, node_dropout_kernels):
        tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        found.append({f.name: ast.unparse(f) for f in functions if f.name in ("_mix64", "_fold")})
    assert found[0] == found[1]
    assert len(found[0]) == 2
