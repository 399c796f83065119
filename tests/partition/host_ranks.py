"""A training script whose ranks are on machines of their own: `python -m ... FOLDER [options]`.

FOLDER has `data` and `parts`; each rank writes what it has trained, or why it could not, to
RANK.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import hopline.pipes as hp
from hopline.models import SAGE, TrainingRun, forward_features, join_ranks, train_epoch
from hopline.partition import DistDataset

RANKS, BATCH, SEED = 4, 4, 5
PATIENCE = 120.0  # seconds until all have started
BAD = 2  # the rank that kills itself, if told to


def make_loader(dataset, rank, ranks):
    """Mini-batches of a rank: 15 or so an epoch, of which the last is short."""
    items = dataset.tasks[0].train_set
    chain = hp.DistributedItemSampler(
        items, BATCH, shuffle=True, seed=SEED, num_replicas=ranks, rank=rank
    )
    chain = chain.sample_neighbor(dataset.graph, [5, 5])
    chain = chain.fetch_feature(dataset.feature, ["feat"])
    return hp.DataLoader(chain, num_workers=2)


def make_model():
    torch.manual_seed(0)
    model = SAGE(16, 8, 4, num_layers=2, dropout=0.5)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def digest(minibatch):
    """Of what a mini-batch has that does not change with ids."""
    parts = [minibatch.labels, minibatch.node_features["feat"]]
    content = hashlib.sha256()
    for part in parts:
        content.update(part.contiguous().numpy().tobytes())
    return content.hexdigest()


def train(rank, world_size, device, options):
    folder = Path(options.folder)
    (folder / f"{rank}.joined").touch()
    if options.hold:
        wait_until((folder / "go").exists)
    seen = []

    def forward(model, minibatch):
        seen.append(digest(minibatch))
        return forward_features(model, minibatch)

    with DistDataset(folder / "parts", timeout=options.timeout) as dataset:
        loader = make_loader(dataset, rank, world_size)
        model, optimizer = make_model()
        model = DistributedDataParallel(model)
        run = TrainingRun(
            model, optimizer, loader, directory=options.checkpoint, every=3, settings={}
        )
        resumed = run.resume() and [run.epoch, loader.state_dict()["batch"]]
        losses, steps = [], 0

        def after_batch():
            nonlocal steps
            steps += 1
            run.after_batch()
            if steps == 3:
                (folder / f"{rank}.training").touch()
            time.sleep(options.pause)  # a model that takes its time
            if steps == options.kill_at and rank == BAD and not resumed:
                os.kill(os.getpid(), signal.SIGKILL)
            if steps == options.hang_at and rank == BAD:
                time.sleep(PATIENCE)

        while run.epoch < options.epochs:
            losses.append(
                train_epoch(model, loader, optimizer, forward=forward, total=run.total,
                            after_batch=after_batch)
            )  # fmt: skip
            run.end_epoch(-losses[-1])
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()
    return {"losses": losses, "seen": seen, "weights": weights, "resumed": resumed}


def run_rank(rank, world_size, device, options):
    place = Path(options.folder, f"{rank}.json")
    try:
        result = train(rank, world_size, device, options)
    except BaseException as error:
        told = {"kind": type(error).__name__, "error": str(error)}
        place.write_text(json.dumps(told | {"ranks": getattr(error, "ranks", None)}))
        raise
    place.write_text(json.dumps(result))


def wait_at_start(folder):
    """Waits until all ranks have imported what they need, which takes one longer than another."""
    (folder / f"{os.environ['RANK']}.started").touch()
    wait_until(lambda: len(list(folder.glob("*.started"))) == RANKS)


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def main(arguments):
    p = argparse.ArgumentParser()
    p.add_argument("folder")
    p.add_argument("--timeout", type=float, default=60.0)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--pause", type=float, default=0.0)
    p.add_argument("--kill-at", type=int, help="step at which rank 2 kills itself, once")
    p.add_argument("--hang-at", type=int, help="step at which rank 2 comes to no end")
    p.add_argument("--hold", action="store_true", help="open no parts before FOLDER/go is there")
    p.add_argument("--checkpoint")
    options = p.parse_args(arguments)
    wait_at_start(Path(options.folder))
    join_ranks(run_rank, options, timeout=options.timeout)


if __name__ == "__main__":
    main(sys.argv[1:])
