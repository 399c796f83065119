import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.partition import (
    assignment_files,
    load_partition,
    partition_graph,
    read_assignment,
)
from hopline.partition.cli import main
from tests.partition.graphs import NODES, heterogeneous, homogeneous
from tests.partition.test_cli import data_set  # noqa: F401

LINE = hp.from_coo(torch.arange(4), torch.arange(1, 5), num_nodes=5)


@pytest.mark.parametrize(
    "text", ["0\n1\n2\n1\n0\n", "0\n1\n2\n1\n0", "0\r\n1\r\n2\r\n1\r\n0\r\n", " 0\n01\n2 \n1\n0\n"]
)
def test_a_part_a_line(tmp_path, text):
    (tmp_path / "parts.txt").write_bytes(text.encode())
    parts = read_assignment(tmp_path / "parts.txt", LINE)
    assert parts.dtype == torch.int32
    assert parts.tolist() == [0, 1, 2, 1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0\n1\n2\n1\n", "has 4 parts; expected one for each of 5 nodes"),
        ("", "has 0 parts"),
        ("0\n1\n2\n1\n0\n0\n", "has more than 5 lines"),
        ("0\n1\n\n1\n0\n", "line 3 is b''; expected a part's number"),
        ("0\n1\n2\n1\n-1\n", "line 5 is b'-1'"),
        ("0\n1.0\n2\n1\n0\n", "line 2 is b'1.0'"),
        ("0 1\n1\n2\n1\n0\n", "line 1 is b'0 1'"),
        ("0\n32768\n2\n1\n0\n", "line 2 is b'32768'; expected a part's number, 0 to 32767"),
        ("0\n" + "9" * 19 + "\n", "line 2 is b'9999"),
        ("1" * (3 << 20), "line 1 is b'1111111"),
        ("0\n1\n2\n1\nx", "line 5 is b'x'"),
    ],
)
def test_what_are_no_parts_is_refused(tmp_path, text, message):
    (tmp_path / "parts.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_assignment(tmp_path / "parts.txt", LINE)


def test_a_line_longer_than_a_block_counts_once(tmp_path, monkeypatch):
    monkeypatch.setattr(assignment_files, "BLOCK", 30)
    (tmp_path / "parts.txt").write_text("0" + " " * 40 + "\n1\n2\n1\n")  # four lines for five nodes
    with pytest.raises(ValueError, match="line 2 is b''"):
        read_assignment(tmp_path / "parts.txt", LINE)


def test_long_files_are_read_in_blocks(tmp_path):
    nodes = 1_000_000
    none = torch.empty(0, dtype=torch.int64)
    graph = hp.from_coo(none, none, num_nodes=nodes)
    parts = np.arange(nodes) % 1000
    (tmp_path / "parts.txt").write_text("\n".join(map(str, parts.tolist())) + "\n")
    assert np.array_equal(read_assignment(tmp_path / "parts.txt", graph).numpy(), parts)


def test_a_file_for_each_type(tmp_path):
    graph = heterogeneous().graph
    folder = tmp_path / "parts"
    folder.mkdir()
    expected = {kind: np.arange(count) % 3 for kind, count in NODES.items()}
    for kind, parts in expected.items():
        if kind == "user":
            np.save(folder / "user.npy", parts)
        else:
            (folder / f"{kind}.txt").write_text("".join(f"{part}\n" for part in parts))
    parts = read_assignment(folder, graph)
    assert {kind: each.tolist() for kind, each in parts.items()} == {
        kind: each.tolist() for kind, each in expected.items()
    }
    partition_graph(graph, "g", 3, tmp_path / "out", part_method=parts)
    assert load_partition(tmp_path / "out").quality["nodes"] == [46, 45, 45]
    (folder / "user.txt").write_text("0\n")
    with pytest.raises(ValueError, match=r"has both of user.txt and user.npy"):
        read_assignment(folder, graph)
    (folder / "user.txt").unlink()
    np.save(folder / "user.npy", np.zeros(90))
    with pytest.raises(ValueError, match=r"user.npy: .*expected integers"):
        read_assignment(folder, graph)
    np.save(folder / "user.npy", np.zeros((2, 45), int))
    with pytest.raises(ValueError, match=r"user.npy: "):
        read_assignment(folder, graph)
    (folder / "user.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"has neither of user\.txt and user\.npy"):
        read_assignment(folder, graph)
    with pytest.raises(ValueError, match="is no folder; expected one with a file for each of"):
        read_assignment(folder / "item.txt", graph)
    with pytest.raises(FileNotFoundError, match="no such file; expected a part for each"):
        read_assignment(tmp_path / "none", homogeneous().graph)
    with pytest.raises(TypeError, match="expected a FusedCSCSamplingGraph"):
        read_assignment(folder, "graph")
    hostile = hp.from_coo(
        {"../a:to:../a": (torch.tensor([0]), torch.tensor([0]))}, num_nodes={"../a": 1}
    )
    with pytest.raises(ValueError, match="is no file's name"):
        read_assignment(folder, hostile)


def test_the_command(data_set, tmp_path, capsys):  # noqa: F811
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "_N.txt").write_text("0\n" * 7 + "1\n" * 3)
    command = ["partition", str(data_set), "--parts", "2", "--assignment", str(tmp_path / "parts")]
    assert main([*command, "--verify"]) == 0
    assert "line: 2 parts by given" in capsys.readouterr().out
    assert load_partition(data_set / "partition-2").quality["nodes"] == [7, 3]
    for options, message in (
        (["--method", "ldg"], "exclude one another"),
        (["--balance-edges"], "leave out --balance"),
        (["--parts", "1"], "has part 1; expected 0 to 0: give --parts 2"),
    ):
        assert main([*command, "--force", *options]) == 1
        assert message in capsys.readouterr().err
    assert main(["partition", str(data_set)]) == 1
    assert "expected --parts N" in capsys.readouterr().err
