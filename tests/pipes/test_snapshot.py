"""Snapshot: whether tensors are still as they were."""

from __future__ import annotations

import torch

from hopline.pipes.snapshot import Snapshot


def test_the_same_tensors_unchanged():
    a, b = torch.arange(3), torch.arange(4)
    taken = Snapshot(a, None, b)
    assert taken.is_of(a, None, b)
    assert not taken.is_of(a.clone(), None, b)
    assert not taken.is_of(b, None, a)
    assert not taken.is_of(a, b, b)
    assert not taken.is_of(a, None, None)
    assert not taken.is_of(a, None)


def test_a_change_in_place_is_seen_through_views_too():
    a = torch.arange(3)
    taken = Snapshot(a)
    a[1:].add_(1)
    assert not taken.is_of(a)
    assert Snapshot(a).is_of(a)


def test_of_tensors_made_in_inference_mode_changes_are_not_counted():
    with torch.inference_mode():
        a = torch.arange(3)
    taken = Snapshot(a)
    assert taken.is_of(a)
    assert not taken.is_of(a.clone())
