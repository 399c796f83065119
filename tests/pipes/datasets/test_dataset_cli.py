"""The hopline command."""

import subprocess
import sys

import numpy as np
import pytest

from hopline.pipes.cli import main, parse_memory
from tests.pipes.datasets.dataset_files import tiny, typed, write


def test_preprocess(tmp_path, capsys):
    folder = write(tmp_path / "d", *tiny())
    assert main(["preprocess", str(folder)]) == 0
    assert capsys.readouterr() == (f"{folder / 'preprocessed'}\n", "")
    inode = (folder / "preprocessed" / "metadata.yaml").stat().st_ino
    assert main(["preprocess", str(folder)]) == 0
    assert (folder / "preprocessed" / "metadata.yaml").stat().st_ino == inode
    assert main(["preprocess", str(folder), "--force"]) == 0
    assert "again" in capsys.readouterr().err
    assert (folder / "preprocessed" / "metadata.yaml").stat().st_ino != inode


def test_preprocess_elsewhere_with_edge_ids(tmp_path, capsys):
    document, arrays = tiny()
    del document["feature_data"][1]
    folder, out = write(tmp_path / "d", document, arrays), tmp_path / "out"
    options = ["--out", str(out), "--include-original-edge-id", "--max-memory", "0.01"]
    assert main(["preprocess", str(folder), *options]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert (out / "graph" / "edge_attributes" / "_ORIGINAL_EDGE_ID.npy").exists()
    assert not (folder / "preprocessed").exists()


def test_info(tmp_path, capsys):
    assert main(["info", str(write(tmp_path / "d", *tiny()))]) == 0
    out = capsys.readouterr().out
    for text in ("tiny", "nodes         3", "edges         4", "weight  float64[4]",
                 "node, x  float32[3, 2]", "classify  train 2"):  # fmt: skip
        assert text in out
    assert main(["info", str(write(tmp_path / "e", *typed()))]) == 0
    out = capsys.readouterr().out
    for text in ("user  4", "user:likes:item  4", "edge, user:likes:item, x", "link  train 3"):
        assert text in out


def test_errors(tmp_path, capsys):
    document, arrays = tiny()
    arrays["edges.npy"] = np.array([[0, 1, 2, 9], [2, 0, 1, 1]])
    folder = write(tmp_path / "d", document, arrays)
    assert main(["preprocess", str(folder)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("hopline: error: ")
    assert "graph.edges[0].path: source 9" in err
    assert main(["info", str(tmp_path / "nowhere")]) == 1
    assert "nowhere" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["unknown"])


def test_as_a_command(tmp_path):
    folder = write(tmp_path / "d", *tiny())
    code = "import sys; from hopline.pipes.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "preprocess", folder],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{folder / 'preprocessed'}\n"
    assert done.stderr == ""  # no progress bar where nobody looks


@pytest.mark.parametrize(
    ("text", "size"),
    [("4", 4 << 30), ("0.5", 1 << 29), ("8GB", 8 * 10**9), ("8 gib", 8 << 30), ("64MiB", 64 << 20),
     ("1.5TB", 15 * 10**11), ("2KB", 2000), ("2KiB", 2048), ("1048576B", 1 << 20)],
)  # fmt: skip
def test_sizes(text, size):
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "GB", "8 G", "-1", "8GBB", "1e3", "8PB", "8iB", "inf"])
def test_wrong_sizes(tmp_path, capsys, text):
    with pytest.raises(SystemExit) as ended:
        main(["preprocess", str(tmp_path), f"--max-memory={text}"])
    assert ended.value.code == 2
    assert f"{text!r} is not a size; expected a number and a unit" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["9" * 400 + "GB", "9" * 30])
def test_sizes_that_no_machine_has(tmp_path, capsys, text):
    with pytest.raises(SystemExit) as ended:
        main(["preprocess", str(tmp_path), f"--max-memory={text}"])
    assert ended.value.code == 2
    assert f"is above {1 << 60} bytes" in capsys.readouterr().err


def test_progress_and_memory(tmp_path, capsys):
    folder = write(tmp_path / "d", *tiny())
    assert main(["preprocess", str(folder), "--progress", "--max-memory", "8MiB"]) == 0
    err = capsys.readouterr().err
    assert "checking edges: 100%" in err
    assert "of disk needed" in err
    assert main(["preprocess", str(folder), "--force", "--max-memory", "1KB"]) == 1
    assert "max_memory is 1000; expected" in capsys.readouterr().err
