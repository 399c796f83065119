"""Every Python block of README, CONTRIBUTING and docs runs as it stands, page by page."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import hopline.models
import hopline.partition
import hopline.pipes

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks_run(page, tmp_path, monkeypatch):
    text = page.read_text(encoding="utf-8")
    blocks = [(m.group(1), text[: m.start()].count("\n") + 1) for m in BLOCK.finditer(text)]
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    for block, line in blocks:
        # Blank lines put the block at its own lines in tracebacks.
        exec(compile("\n" * line + block, str(page), "exec"), namespace)  # noqa: S102


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page} links to {target}, which is not there"


def modules():
    for package in (hopline.pipes, hopline.partition, hopline.models):
        yield package.__name__
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            yield info.name


@pytest.mark.parametrize("name", list(modules()))
def test_doctests(name):
    module = importlib.import_module(name)
    results = doctest.testmod(module, extraglobs={"torch": importlib.import_module("torch")})
    assert results.failed == 0
