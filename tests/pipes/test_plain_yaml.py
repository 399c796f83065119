"""YAML files that are wrong or hostile."""

import os
import sys
from pathlib import Path

import pytest
import torch

import hopline.pipes as hp
from hopline.pipes import plain_yaml
from hopline.pipes.datasets.fingerprint import fingerprint
from hopline.pipes.datasets.location import is_free
from hopline.pipes.datasets.yaml_file import MetadataError, read_yaml
from hopline.pipes.plain_yaml import read_plain_yaml, show

LAUGHS = b"a0: &a0 [x, x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "more than 1000000 values; write it without aliases"),
        (b"a: &a [*a]", "contains itself"),
        (b"a: " + b"[" * 20_000, "nested too deeply"),
        (b"a: " + b"9" * 5000, "digits"),
        (b"a: 1\nb: 2\na: 3", "key 'a' is given twice"),
        (b"a: !!python/object/apply:os.abort []", "could not determine a constructor"),
        (b"a: \0", "not allowed"),
        (b"\xff\xfe\xff", "codec|unacceptable|truncated"),
        (b"a: 1\n---\na: 2", "single document"),
        (b"a: !!timestamp x", "not of the form of its tag"),
        (b"a: !!int ''", "not of the form of its tag"),
    ],
)
@pytest.mark.parametrize("name", ["metadata.yaml", "graph.yaml"])
def test_what_is_no_plain_document_is_refused(tmp_path, name, text, message):
    path = tmp_path / "g" / name
    graph = hp.from_coo(torch.tensor([0]), torch.tensor([1]), 2)
    graph.save(tmp_path / "g")
    path.write_bytes(text)
    read = hp.FusedCSCSamplingGraph.load if name == "graph.yaml" else read_yaml
    with pytest.raises(ValueError, match=message) as caught:
        read(path.parent if name == "graph.yaml" else path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "value", ["0x" + "f" * 5000, "[" + "1, " * 5000 + "]", "'" + "x" * 9999 + "'"]
)
@pytest.mark.parametrize("key", ["format_version", "other", "node_attributes", "node_type_offset"])
def test_messages_about_a_graph_stay_short(tmp_path, key, value):
    graph = hp.from_coo(torch.tensor([0]), torch.tensor([1]), 2)
    graph.save(tmp_path / "g")
    path = tmp_path / "g" / "graph.yaml"
    kept = [line for line in path.read_text().splitlines() if not line.startswith(key)]
    path.write_text("\n".join([*kept, f"{key}: {value}"]))
    with pytest.raises(ValueError, match=r"graph\.yaml: ") as caught:
        hp.FusedCSCSamplingGraph.load(tmp_path / "g")
    assert len(str(caught.value)) < 1000


def test_long_documents_are_refused_before_they_take_long(tmp_path, monkeypatch):
    path = tmp_path / "x.yaml"
    monkeypatch.setattr(plain_yaml, "MAX_VALUES", 100)
    path.write_text("a: [" + "1, " * 90 + "]")
    assert len(read_plain_yaml(path)["a"]) == 90
    path.write_text("a: [" + "1, " * 100 + "}")  # wrong, at a place that is not reached
    with pytest.raises(ValueError, match=r"^more than 100 values$"):
        read_plain_yaml(path)
    monkeypatch.setattr(plain_yaml, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match=r"^305 bytes; expected 10 or less$"):
        read_plain_yaml(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_pipes_and_devices_are_not_waited_for(tmp_path):
    path = tmp_path / "metadata.yaml"
    os.mkfifo(path)
    with pytest.raises(MetadataError, match="no regular file"):
        read_yaml(path)
    assert not is_free(tmp_path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(MetadataError, match="no regular file"):
        read_yaml(path)
    assert not is_free(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has a file that cannot be read")
def test_a_file_that_cannot_be_read_is_named():
    with pytest.raises(OSError, match="/proc/self/mem"):
        fingerprint(Path("/proc/self/mem"))


def test_show():
    loop: list[object] = []
    loop.append(loop)
    assert show(16**5000) == "a int"
    assert show("x" * 100, 10) == "'xxxxxxxxx..."
    assert show(loop) == "[[...]]"
