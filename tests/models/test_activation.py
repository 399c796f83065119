"""ReLU and dropout in one pass, and linear maps into used memory, against torch's operations."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from hopline.models import SAGEConv, keyed_rng
from hopline.models import activation_kernels as kernels_of_activation
from hopline.models import kernels as kernels_of_layers
from hopline.models.activation import relu_dropout
from hopline.models.dropout import LEVELS, Dropout
from hopline.models.linear import linear
from hopline.models.sums import join_mean
from hopline.pipes.kernels import cpu
from hopline.pipes.random import fold
from tests.models.test_aggregate import make_block, normal

KEY = (7, 0, 1)


def drawn_key():
    """The one draw of torch's generator from which all draws follow."""
    with keyed_rng(KEY, "cpu"):
        return int(torch.empty((), dtype=torch.int64).random_(-(2**63), None)) % (1 << 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(count=st.integers(0, 600), p=st.sampled_from([0.1, 0.5, 0.9]))
def test_equals_the_plain_definition(dtype, count, p):
    x = normal(count).to(dtype)
    with keyed_rng(KEY, "cpu"):
        got = relu_dropout(x, Dropout(p))
    key = drawn_key()
    draws = [fold(key, k // 4) >> 16 * (k % 4) & 0xFFFF for k in range(count)]
    kept = torch.tensor([draw >= round(p * LEVELS) for draw in draws], dtype=torch.bool)
    assert torch.equal(got, torch.where(kept, x.clamp(min=0) * (1 / (1 - p)), 0.0).to(dtype))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.75])
def test_keeps_the_mean_and_the_gradient_follows(p):
    x = torch.ones(200_003, requires_grad=True)
    out = relu_dropout(x, Dropout(p))
    zeros = (out == 0).double().mean().item()
    assert abs(zeros - p) < 5 * (p * (1 - p) / len(x)) ** 0.5
    kept = out[out != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - p)))
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_draws_are_those_of_dropout_alone(dtype):
    x, dropout = normal(31, 33).to(dtype), Dropout(0.3)
    with keyed_rng(KEY, "cpu"):
        got = relu_dropout(x, dropout)
    with keyed_rng(KEY, "cpu"):
        assert torch.equal(got, dropout(torch.relu(x)))


def test_draws_follow_from_torchs_generator():
    x = torch.ones(1000)
    torch.manual_seed(3)
    first, second = (relu_dropout(x, Dropout(0.5)) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(relu_dropout(x, Dropout(0.5)), first)


@pytest.mark.parametrize("dropout", [Dropout(0.0), Dropout(0.5).eval()], ids=["0", "eval"])
def test_without_dropout_it_is_relu_and_draws_nothing(dropout):
    x = normal(50, 7, requires_grad=True)
    before = torch.get_rng_state()
    out = relu_dropout(x, dropout)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(out, torch.relu(x))
    weight = normal(50, 7)
    (got,) = torch.autograd.grad((out * weight).sum(), x)
    (want,) = torch.autograd.grad((torch.relu(x) * weight).sum(), x)
    assert torch.equal(got, want)


def test_rows_that_are_not_contiguous_and_gradients_that_are_expanded():
    x = normal(7, 50, requires_grad=True)
    out = relu_dropout(x.T, Dropout(0.0))
    assert torch.equal(out, torch.relu(x.T))
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, (x > 0).double())


def test_nan_is_not_lost():
    x = torch.tensor([float("nan"), -1.0, 2.0])
    for dropout in (Dropout(0.0), Dropout(0.5)):
        assert relu_dropout(x, dropout).isnan().tolist() == [True, False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_gradients_of_values_that_are_not_finite_are_torchs(dtype, p):
    """Of those kept and of those dropped; what is dropped gets 0."""
    negative_nan = -torch.tensor(float("nan"))
    special = [float("nan"), negative_nan, float("inf"), -float("inf"), 0.0, -0.0, 1e-40, 1.0]
    x = torch.tensor(special * 1000, dtype=dtype, requires_grad=True)
    weight = normal(len(x)).to(dtype)
    results = []
    for act in (lambda d: relu_dropout(x, d), lambda d: d(torch.relu(x))):
        with keyed_rng(KEY, "cpu"):
            out = act(Dropout(p))
        (grad,) = torch.autograd.grad(out, x, weight)
        results.append((out, grad))
    (out, grad), (plain_out, plain_grad) = results
    assert torch.equal(out.isnan(), plain_out.isnan())
    assert torch.equal(out.nan_to_num(), plain_out.nan_to_num())
    assert torch.equal(grad, plain_grad)
    assert (grad == 0).any()
    assert (grad.view(1000, 8)[:, :3] != 0).any(dim=0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_has_no_fused_way_is_done_one_by_one(dtype):
    x = normal(4, 5).to(dtype)
    assert not relu_dropout(x, Dropout(1.0)).any()
    assert torch.equal(relu_dropout(x, Dropout(0.5).eval()), torch.relu(x))
    assert torch.equal(relu_dropout(x, torch.nn.Identity()), torch.relu(x))
    assert relu_dropout(x, Dropout(0.5)).dtype == dtype


@pytest.mark.parametrize("where", ["module", "all modules", "forward"])
def test_hooks_of_dropout_are_called(where):
    dropout, calls, x = Dropout(0.5), [], normal(4, 5)
    plain = dropout.forward
    if where == "forward":
        dropout.forward = lambda rows: calls.append(rows) or plain(rows)
    elif where == "module":
        dropout.register_forward_hook(lambda module, args, out: calls.append(args[0]))
    else:
        hook = torch.nn.modules.module.register_module_forward_hook(
            lambda module, args, out: calls.append(args[0])
        )
    try:
        relu_dropout(x, dropout)
    finally:
        if where == "all modules":
            hook.remove()
    assert len(calls) == 1
    assert torch.equal(calls[0], torch.relu(x))


def test_a_probability_that_is_0_in_16_bits_draws_as_dropout_does():
    x, dropout = normal(31, 33), Dropout(2.0**-20)
    with keyed_rng(KEY, "cpu"):
        got, after = relu_dropout(x, dropout), torch.get_rng_state()
    with keyed_rng(KEY, "cpu"):
        assert torch.equal(got, dropout(torch.relu(x)))
        assert torch.equal(torch.get_rng_state(), after)


@given(
    rows=st.integers(0, 5),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    bias=st.booleans(),
)
def test_linear_and_its_gradients(rows, sizes, bias):
    x, weight = normal(rows, sizes[0], requires_grad=True), normal(*sizes[::-1], requires_grad=True)
    b = normal(sizes[1], requires_grad=True) if bias else None
    inputs = [each for each in (x, weight, b) if each is not None]
    got, want = linear(x, weight, b), F.linear(x, weight, b)
    torch.testing.assert_close(got, want)
    factor = normal(*want.shape)
    for one, other in zip(
        torch.autograd.grad((got * factor).sum(), inputs),
        torch.autograd.grad((want * factor).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_linear_makes_and_keeps_what_is_needed_alone():
    x, weight = normal(4, 3), normal(2, 3, requires_grad=True)
    saved = [each for each in linear(x, weight, None).grad_fn.saved_tensors if each is not None]
    assert [each.shape for each in saved] == [(4, 3)], "the weight was kept for no gradient"


@pytest.mark.parametrize("name", ["fc_self", "fc_neigh"])
def test_hooks_and_other_modules_in_a_layer_are_honoured(name):
    block = make_block([(0, 1), (0, 2), (1, 2)], 3, 2)
    conv, x = SAGEConv(4, 5).double(), normal(3, 4)
    conv._sum_first = lambda block: True
    plain = conv(block, x)
    hook = getattr(conv, name).register_forward_hook(lambda module, args, out: 2 * out)
    assert not torch.allclose(conv(block, x), plain)
    hook.remove()
    torch.testing.assert_close(conv(block, x), plain)
    setattr(conv, name, torch.nn.utils.parametrizations.weight_norm(getattr(conv, name)))
    torch.testing.assert_close(conv(block, x), plain)
    calls = []
    getattr(conv, name).register_forward_pre_hook(lambda module, args: calls.append(name))
    conv(block, x)
    assert calls == [name]


def test_hooks_of_all_modules_and_a_forward_of_its_own_are_honoured():
    block = make_block([(0, 1), (0, 2), (1, 2)], 3, 2)
    conv, x, seen = SAGEConv(4, 5).double(), normal(3, 4), []
    conv._sum_first = lambda block: True
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, out: seen.append(module)
    )
    try:
        plain = conv(block, x)
    finally:
        hook.remove()
    assert seen == [conv.fc_self, conv.fc_neigh, conv]
    own = conv.fc_neigh.forward
    conv.fc_neigh.forward = lambda rows: 2 * own(rows)
    assert not torch.allclose(conv(block, x), plain)


def test_weights_of_two_dtypes_are_refused_by_the_map_itself():
    block = make_block([(0, 1), (0, 2), (1, 2)], 3, 2)
    conv = SAGEConv(4, 5)
    conv._sum_first = lambda block: True
    conv.fc_neigh.double()
    with pytest.raises(RuntimeError, match="dtype"):
        conv(block, normal(3, 4))


def test_a_destination_without_a_row_is_refused():
    with pytest.raises(IndexError, match="x has 1 rows for 2 destinations"):
        join_mean(make_block([(0, 0), (1, 0)], 3, 2), normal(1, 4))


@pytest.mark.parametrize("frozen", ["fc_self", "fc_neigh"])
def test_a_frozen_map_gets_no_gradient(frozen):
    block = make_block([(0, 1), (0, 2), (1, 2)], 3, 2)
    conv, x = SAGEConv(4, 5).double(), normal(3, 4)
    conv._sum_first = lambda block: True
    conv(block, x).square().sum().backward()
    wanted = {name: p.grad for name, p in conv.named_parameters()}
    conv.zero_grad()
    getattr(conv, frozen).requires_grad_(False)
    conv(block, x).square().sum().backward()
    for name, p in conv.named_parameters():
        if name.startswith(frozen):
            assert p.grad is None
        else:
            torch.testing.assert_close(p.grad, wanted[name])


def test_gradients_of_gradients_are_refused():
    block = make_block([(0, 1), (0, 2), (1, 2)], 3, 2)
    conv, x = SAGEConv(4, 5).double(), normal(3, 4, requires_grad=True)
    conv._sum_first = lambda block: True
    for out in (conv(block, x), relu_dropout(x, Dropout(0.5))):
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice"):
            grad.square().sum().backward()


def test_rows_between_layers_that_are_changed_in_place_are_refused():
    x = normal(30, 40, requires_grad=True)
    out = relu_dropout(x, Dropout(0.5))
    loss = out.sum()
    out.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_copies_of_a_helper_are_those_of_the_pipeline():
    """Numba's cache sees edits of a kernel's own file only, so each file has its helpers itself."""

    def helpers(path):
        return {
            node.name: "\n".join(
                map(ast.unparse, node.body[1:] if ast.get_docstring(node) else node.body)
            )
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef)
        }

    original = {}
    for path in Path(cpu.__file__).parent.glob("*.py"):
        original |= helpers(path)
    for module, names in (
        (kernels_of_layers, ["_prefetch"]),
        (kernels_of_activation, ["_mix64", "_fold"]),
    ):
        own = helpers(Path(module.__file__))
        assert {name: own[name] for name in names} == {name: original[name] for name in names}
