"""Compares samplers with their twins twice: on the CPU's path, and on that of a GPU."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import settings

ON_BOTH_PATHS = {
    "test_layer",
    "test_link_seeds",
    "test_neighbor",
    "test_temporal",
    "test_weighted",
    "stages.test_in_subgraph",
    "stages.test_negative",
}
EXAMPLES = 8  # of hypothesis: the interpreter takes 100 ms for a mini-batch
# Of kernels alone, or of many draws.
ON_THE_CPU_ONLY = {
    "test_equals_the_twin_with_hash_tables",
    "test_scores_are_the_logarithm_and_bit_for_bit_the_twins",
    "test_without_weights_the_twins_agree",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Adds the path to the parameters of the tests of samplers against their twins."""
    module = metafunc.module.__name__.removeprefix("tests.pipes.")
    name = metafunc.function.__name__
    if module in ON_BOTH_PATHS and "twin" in name and name not in ON_THE_CPU_ONLY:
        metafunc.parametrize("path", ["cpu", "gpu"], indirect=True)


@pytest.fixture(autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Has Triton's interpreter run the kernels of a GPU, on the tensors that the test has made."""
    with contextlib.ExitStack() as stack:
        if getattr(request, "param", "cpu") == "gpu":
            pytest.importorskip("triton", reason="kernels are interpreted by Triton: not installed")
            from hopline.pipes.kernels.cuda.launching import INTERPRETED
            from hopline.pipes.kernels.dispatch import interpreted_device

            if not INTERPRETED:
                pytest.skip("kernels are compiled here, and the test has tensors of the CPU")
            if hasattr(request.function, "hypothesis"):
                name = "_hypothesis_internal_use_settings"
                few = settings(getattr(request.function, name, None), max_examples=EXAMPLES)
                monkeypatch.setattr(request.function, name, few, raising=False)
            stack.enter_context(interpreted_device())
        yield
