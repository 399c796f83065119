"""Every public callable refuses wrong input with one clear error; see the tables beside."""

from __future__ import annotations

import inspect
import re

import pytest

import hopline.models as hm
import hopline.pipes as hp
from tests.wrong_input import (
    table_features, table_graph, table_items, table_layers, table_stages, table_tensors,
    table_training, table_converters
)  # fmt: skip
from tests.wrong_input.things import Entry

TABLES = (
    table_items, table_stages, table_graph, table_tensors, table_features, table_converters,
    table_layers, table_training,
)  # fmt: skip
ENTRIES: list[Entry] = [entry for module in TABLES for entry in module.TABLE]


def label(number: int, name: str) -> str:
    return f"{name}-{number}"


@pytest.mark.parametrize(
    ("name", "call", "error", "message"),
    [pytest.param(*entry, id=label(i, entry[0])) for i, entry in enumerate(ENTRIES)],
)
def test_wrong_input_is_refused(name, call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error, repr(caught.value)
    assert re.search(message, str(caught.value), re.DOTALL), repr(caught.value)
