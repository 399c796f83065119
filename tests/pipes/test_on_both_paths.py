"""What `tests/pipes/conftest.py` tests on a GPU's path as well goes by names: they are there."""

from __future__ import annotations

import importlib

import pytest

from tests.pipes.conftest import ON_BOTH_PATHS, ON_THE_CPU_ONLY


def comparisons(module: str) -> set[str]:
    """The tests of a module against twins."""
    names = vars(importlib.import_module(f"tests.pipes.{module}"))
    return {name for name in names if name.startswith("test_") and "twin" in name}


@pytest.mark.parametrize("module", sorted(ON_BOTH_PATHS))
def test_every_module_has_tests_for_both_paths(module):
    assert comparisons(module) - ON_THE_CPU_ONLY


def test_what_is_left_out_is_there():
    assert set.union(*map(comparisons, ON_BOTH_PATHS)) >= ON_THE_CPU_ONLY
