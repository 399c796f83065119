import numpy as np
import pytest
import yaml

from hopline.partition import load_partition
from hopline.partition.cli import main


@pytest.fixture
def data_set(tmp_path):
    """Ten nodes on a line, in a folder with metadata.yaml."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "edges.csv").write_text("".join(f"{i},{i + 1}\n" for i in range(9)))
    np.save(folder / "seeds.npy", np.arange(4))
    document = {
        "dataset_name": "line",
        "graph": {"nodes": [{"num": 10}], "edges": [{"format": "csv", "path": "edges.csv"}]},
        "tasks": [
            {
                "name": "nodes",
                "train_set": [
                    {"data": [{"name": "seeds", "format": "numpy", "path": "seeds.npy"}]}
                ],
            }
        ],
    }
    (folder / "metadata.yaml").write_text(yaml.safe_dump(document))
    return folder


def test_partition_and_inspect(data_set, capsys):
    assert main(["partition", str(data_set), "--parts", "2", "--verify", "--eps", "0.5"]) == 0
    said = capsys.readouterr().out
    assert "metis takes up to 2.94 kB beside the graph" in said
    assert "line: 2 parts by metis, 1 hop of halo, seed 0" in said
    assert "verified" in said
    out = data_set / "partition-2"
    assert said.rstrip().endswith(str(out))
    assert load_partition(out).quality["nodes"] == [5, 5]
    assert main(["inspect", str(out)]) == 0
    shown = capsys.readouterr().out
    assert shown.strip() in said
    assert "cut 1 of 9 edges (11.1%)" in shown
    assert "#" * 30 in shown


def test_training_nodes_are_balanced(data_set, capsys):
    arguments = ["partition", str(data_set), "--parts", "2", "--balance-training", "--eps", "0.2"]
    assert main([*arguments, "--out", str(data_set / "even")]) == 0
    assert load_partition(data_set / "even").quality["groups"] == {
        "group False": [3, 3], "group True": [2, 2],
    }  # fmt: skip


def test_errors_are_told(data_set, capsys):
    assert main(["partition", str(data_set), "--parts", "0"]) == 1
    told = capsys.readouterr()
    assert "hopline: error: num_parts is 0" in told.err
    assert told.out == ""
    assert main(["partition", str(data_set), "--parts", "2", "--max-memory", "1KB"]) == 1
    assert "above the 1 kB of max_memory; method='kaminpar' takes less" in capsys.readouterr().err
    assert main(["partition", str(data_set), "--parts", "2", "--method", "random"]) == 0
    capsys.readouterr()
    assert main(["partition", str(data_set), "--parts", "2", "--method", "random"]) == 1
    assert "overwrite=True (--force)" in capsys.readouterr().err
    file = data_set / "partition-2" / "partition.yaml"
    assert main(["inspect", str(file)]) == 1
    assert f"{file} is no folder; expected the one that" in capsys.readouterr().err
    assert main(["inspect", str(data_set)]) == 1
    assert "no such file; expected the result of partition_graph" in capsys.readouterr().err
    assert main(["partition", "nosuch", "--parts", "2"]) == 1
    assert "nosuch" in capsys.readouterr().err


def test_the_other_commands_are_there(data_set, capsys):
    assert main(["info", str(data_set)]) == 0
    assert "nodes         10" in capsys.readouterr().out
