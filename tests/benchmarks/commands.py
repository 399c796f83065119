"""run, load: a benchmark as a user runs it, at a small size; and its parts."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Threads of OpenMP that wait for a core spin, which takes long beside other tests.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def run(script: str, *options: object) -> subprocess.CompletedProcess[str]:
    """Its exit code, and what it prints."""
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *map(str, options)],
        capture_output=True,
        text=True,
        timeout=200,
        env=ENVIRONMENT,
    )


def load(name: str) -> ModuleType:
    """The module of a script, which is in no package."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module
