"""Saved rows and states: whole after a kill, refused where damaged."""

import os
import re
import subprocess
import sys
import textwrap

import pytest
import torch
import yaml

from hopline.partition import DistEmbedding, DistGraph, DistTensor, SparseAdagrad, SparseAdam
from hopline.partition.row_files import save_rows
from tests.partition.graphs import heterogeneous, homogeneous
from tests.partition.test_dist_graph import cut

DTYPES = [torch.float32, torch.bfloat16, torch.bool, torch.uint8, torch.int16, torch.float64]


def state_of(optimizer):
    return [
        (steps, [rows.clone() for parts in state.values() for rows in parts.values()])
        for steps, state in zip(optimizer.steps, optimizer._state, strict=True)
    ]


def equal(one, other):
    return len(one) == len(other) and all(
        a[0] == b[0] and all(map(torch.equal, a[1], b[1])) for a, b in zip(one, other, strict=True)
    )


def trained(graph, steps, kind=SparseAdam):
    """Optimiser of two embeddings after some steps, of which the second has one less."""
    embs = [DistEmbedding(graph, None, 2, seed=seed) for seed in range(2)]
    optimizer = kind(embs, lr=0.1)
    for step in range(steps):
        for emb in embs[: 1 if step == 0 else 2]:
            emb(torch.arange(60)).square().sum().backward()
        optimizer.step()
    return optimizer


# -------------------------------------------------------------------------------------------------
# Kill points

# A child is forked for each point: before each sync, rename and removal, and before a file is
# opened to be written.
KILLED = textwrap.dedent(
    """
    import os, shutil, signal, sys
    sys.path.insert(0, sys.argv[1])
    from pathlib import Path
    import torch
    from hopline.partition import DistGraph, SparseAdam
    from tests.partition.test_row_files import equal, state_of, trained
    torch.set_num_threads(1)  # a forked process has none of the others
    root = Path(sys.argv[2])
    folder = root / "state"

    def save_until(optimizer, last):
        count = 0
        def point():
            nonlocal count
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)
        def look(event, arguments):
            writes = event == "open" and set(str(arguments[1])) & {*"wa+"}
            if (writes or event in ("os.rename", "os.remove")) and str(root) in str(arguments[0]):
                point()
        sync = os.fsync
        os.fsync = lambda file: (point(), sync(file))
        sys.addaudithook(look)
        optimizer.save(folder)

    with DistGraph(root / "parts") as graph:
        old, new, other = (trained(graph, steps) for steps in (2, 3, 1))
        old.save(folder)
        shutil.copytree(folder, root / "whole")
        last, seen = 0, []
        while True:
            last += 1
            child = os.fork()
            if child == 0:
                save_until(new, last)
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            other.load(folder)
            found = [equal(state_of(other), state_of(each)) for each in (old, new)]
            assert sum(found) == 1, (last, other.steps)
            seen.append(found[1])
            if status == 0:
                break
            assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
            if found[1]:
                shutil.rmtree(folder)
                shutil.copytree(root / "whole", folder)
        left = sorted(path.name for path in folder.iterdir())
        assert len(left) == 1 + 2 * 2 * 2, left  # of two parts, embeddings and moments
        print(last, seen.count(False), seen.count(True))
    """
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_killed_save_of_a_state_leaves_all_of_the_old_or_of_the_new(tmp_path, request):
    cut(homogeneous(), tmp_path / "parts", 2)
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(request.config.rootpath), str(tmp_path)],
        timeout=250, check=False, capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    points, old, new = map(int, run.stdout.split())
    assert points > 20
    assert old > new > 4


def test_a_state_is_of_these_embeddings_alone(tmp_path):
    cut(homogeneous(), tmp_path / "p", 2)
    with DistGraph(tmp_path / "p") as graph:
        optimizer = trained(graph, 2)
        # Rows and the state may share a folder.
        optimizer.embeddings[0].save(tmp_path / "s")
        optimizer.save(tmp_path / "s")
        optimizer.embeddings[0].load(tmp_path / "s")
        fresh = trained(graph, 1)
        fresh.load(tmp_path / "s")
        assert equal(state_of(fresh), state_of(optimizer))
        for call, message in (
            (SparseAdam(optimizer.embeddings[:1]).load, "embeddings is 2; expected 1"),
            (SparseAdagrad(optimizer.embeddings).load, "optimizer is 'SparseAdam'; expected"),
            (
                SparseAdam([optimizer.embeddings[0], DistEmbedding(graph, None, 3)]).load,
                r"optimizer.yaml: 1.dim is 2; expected 3",
            ),
        ):
            with pytest.raises(ValueError, match=message):
                call(tmp_path / "s")
        with pytest.raises(FileNotFoundError, match=r"optimizer.yaml is not there; expected a fol"):
            fresh.load(tmp_path / "nowhere")


@pytest.mark.parametrize("kind", [SparseAdam, SparseAdagrad])
def test_a_state_in_a_folder_an_embedding_is_loaded_until_there_is_a_newer(tmp_path, kind):
    cut(homogeneous(), tmp_path / "p", 2)
    with DistGraph(tmp_path / "p") as graph:
        old, fresh = trained(graph, 3, kind), trained(graph, 1, kind)
        for number, emb in enumerate(old.embeddings):
            about = emb.about() | {"optimizer": kind.__name__, "steps": old.steps[number]}
            save_rows(emb.meeting, tmp_path / "s" / str(number), about, old._state[number])
        fresh.load(tmp_path / "s")
        assert fresh.steps == [3, 2]
        assert equal(state_of(fresh), state_of(old))
        new = trained(graph, 4, kind)
        new.save(tmp_path / "s")
        fresh.load(tmp_path / "s")
        assert equal(state_of(fresh), state_of(new))


# -------------------------------------------------------------------------------------------------
# Damage


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_changed_byte_is_noticed(tmp_path, dtype):
    cut(homogeneous(), tmp_path / "p", 2)
    with DistGraph(tmp_path / "p") as graph:
        table = DistTensor(graph, None, 3, dtype, init=lambda ids: ids[:, None] + torch.arange(3))
        rows = table.read()
        table.save(tmp_path / "s")
        path = next((tmp_path / "s").glob("rows-0-*.npy"))
        content = path.read_bytes()
        for place in (-1, -(60 * 3 * dtype.itemsize) // 3, 128):  # the header has 128 bytes
            changed = bytearray(content)
            changed[place] ^= 1
            path.write_bytes(changed)
            with pytest.raises(ValueError, match=f"{re.escape(str(path))}: its rows have the sum"):
                table.load(tmp_path / "s")
            assert torch.equal(table.read(), rows)
        path.write_bytes(content)
        table.load(tmp_path / "s")
        # A save without sums is one of an earlier release, and loaded as it is.
        path.write_bytes(changed)
        description = tmp_path / "s" / "rows.yaml"
        document = yaml.safe_load(description.read_text())
        assert sorted(document["sums"]["rows"]) == [0, 1]
        for sums in ([], {}, {"rows": 3}, {"rows": {0: "3"}}, {"rows": {1: 3}}):
            description.write_text(yaml.safe_dump(document | {"sums": sums}))
            with pytest.raises(ValueError, match=r"rows.yaml: the sum of 'rows' of part 0 is"):
                table.load(tmp_path / "s")
        del document["sums"]
        description.write_text(yaml.safe_dump(document))
        table.load(tmp_path / "s")
        assert not torch.equal(table.read(), rows)


def test_a_changed_description_is_noticed(tmp_path):
    cut(homogeneous(), tmp_path / "p", 2)
    with DistGraph(tmp_path / "p") as graph:
        optimizer = trained(graph, 3)
        optimizer.save(tmp_path / "s")
        path = tmp_path / "s" / "optimizer.yaml"
        content = path.read_bytes()
        assert content.count(b"0.steps: 3") == 1
        path.write_bytes(content.replace(b"0.steps: 3", b"0.steps: 7"))
        with pytest.raises(ValueError, match=r"optimizer.yaml: has another CRC-32 than its last"):
            optimizer.load(tmp_path / "s")
        path.write_bytes(content)
        optimizer.load(tmp_path / "s")
        assert optimizer.steps == [3, 2]


def test_a_table_of_no_rows_is_saved_and_loaded(tmp_path):
    cut(heterogeneous(), tmp_path / "p", 2)
    with DistGraph(tmp_path / "p") as graph:
        table = DistTensor(graph, "nobody", init="normal")
        table.save(tmp_path / "s")
        table.load(tmp_path / "s")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x00", "cannot be read"),
        (b"a: &a [*a]", r"cannot be read \(a value contains itself"),
        (b"a: [", "cannot be read"),
        (b"a: 1\na: 2", r"cannot be read .* is given twice"),
        (b"[]", "holds \\[\\]; expected names and values"),
        (b"", "holds None; expected names and values"),
    ],
)
def test_an_odd_description_is_refused_by_its_name(tmp_path, content, message):
    cut(homogeneous(), tmp_path / "p", 2)
    with DistGraph(tmp_path / "p") as graph:
        table = DistTensor(graph, None)
        table.save(tmp_path / "s")
        (tmp_path / "s" / "rows.yaml").write_bytes(content)
        with pytest.raises(ValueError, match=rf"(?s)s/rows\.yaml: {message}"):
            table.load(tmp_path / "s")
