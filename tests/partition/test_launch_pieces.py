"""Pieces of `hopline launch`: host files, what ssh is told, output, frames, checks on hosts."""

from __future__ import annotations

import contextlib
import io
import random
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import hopline.pipes as hp
from hopline.partition import load_partition, partition_graph
from hopline.partition.agreement import check_meeting_place, compare
from hopline.partition.cli import main
from hopline.partition.frames import FrameError, read_frames, report
from hopline.partition.host_job import HostJob
from hopline.partition.hosts import Host, read_hosts
from hopline.partition.launch_plan import Plan
from hopline.partition.on_host import _check
from hopline.partition.prefixed import Prefixed
from hopline.partition.ssh import SshOptions, explain, ssh_command

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs signals of POSIX")


@pytest.fixture
def parts(tmp_path):
    dataset = hp.planted_partition(60, 2, 4, 4, seed=1)
    partition_graph(dataset, "planted", 3, tmp_path / "my parts", part_method="random", eps=9.0)
    return tmp_path / "my parts"


def test_what_a_host_looks_at_before_the_start(parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").touch()
    host = Host("node1", 3, None, None, "node1", 1)

    def check(script="script.py", workdir=str(tmp_path), parts="my parts"):
        return _check(Plan([host], [script], {}, workdir, "python", parts).jobs(0)[0])

    assert check()["partition"] == load_partition(parts).partition_id
    with pytest.raises(ValueError, match=r"none.py: no such file in .*--workdir"):
        check(script="none.py")
    with pytest.raises(ValueError, match=r"/nowhere: cannot be the working folder"):
        check(workdir="/nowhere")
    file = next((parts / "part-1").rglob("*.npy"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=re.escape(f"{file}: has ")):
        check()
    shutil.rmtree(parts / "part-1")
    shutil.copytree(parts / "part-2", parts / "part-1")
    with pytest.raises(ValueError, match="is part 2 of partition"):
        check()
    for line in (b"", b"{}", b"stop it", b'{"node": 0}', b"[" * 100_000):
        with pytest.raises(ValueError, match="not one that this release runs"):
            HostJob.parse(line)


BAD_FILES = {
    "": "names no host",
    "# nothing\n\n": "names no host",
    "a\nb\na slots=2\n": "line 3: a is in line 1 already",
    "A\na\n": "line 2: a is in line 1 already",
    "a 22\nb\nme@a 22\n": "line 3: a is in line 1 already",
    "-oProxyCommand=x\n": "line 1: the address is '-oProxyCommand=x'; expected a name",
    "a\n\n-lroot@b\n": "line 3: the user is '-lroot'; expected letters",
    "me@-b\n": "line 1: the address is '-b'",
    "@a\n": "line 1: the user is ''",
    "a;reboot\n": "line 1: the address is 'a;reboot'",
    "$(x)\n": "line 1: the address is '$(x)'",
    "a\0b\n": "line 1: the address is 'a\\x00b'",
    "a\x1b[2J\n": "line 1: the address is 'a\\x1b[2J'",
    "größe\n": "line 1: the address is 'größe'",
    "a:22\n": "expected the port of its SSH server after a space",
    "[a]\n": "expected brackets for IPv6 only",
    "1::2::3\n": "no IPv6 address",
    "a slots=0\n": "slots is '0'; expected a number from 1 to 4096",
    "a slots=-1\n": "slots is '-1'",
    "a slots=\n": "slots is ''",
    "a slots=x\n": "slots is 'x'",
    "a slots=99999999999999999999\n": "slots is '9999",
    "a slots=٣\n": "slots is '٣'",
    "a slots=1 slots=2\n": "there is a second slots",
    "a 0\n": "port is '0'; expected a number from 1 to 65535",
    "a 65536\n": "port is '65536'",
    "a ssh\n": "port is 'ssh'",
    "a 22 23\n": "there is a second port",
    "a max_slots=4\n": "'max_slots=4' is not known here; expected `address [slots=N] [port]`",
    "a" * 300: "line 1: the address is 'aaa",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_bad_host_files(text, tmp_path, capsys):
    path = tmp_path / "hosts.txt"
    path.write_text(text)
    assert main(["launch", "--hosts", str(path), "--", "x.py"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"hopline: error: {path}")
    assert BAD_FILES[text] in said
    assert said.count("\n") == 1
    assert len(said) < len(str(path)) + 400


def test_host_files_that_are_no_text(tmp_path):
    path = tmp_path / "hosts.txt"
    path.write_bytes(b"\xff\xfea\0")
    with pytest.raises(ValueError, match="is not UTF-8"):
        read_hosts(path)
    path.write_bytes(b"a\n" * (1 << 20))
    with pytest.raises(ValueError, match="has above"):
        read_hosts(path)
    for name in ("nosuch", "."):
        with pytest.raises(OSError, match="no such file; expected `address"):
            read_hosts(tmp_path / name)


def test_host_files(tmp_path):
    path = tmp_path / "hosts.txt"
    path.write_bytes(
        b"\xef\xbb\xbf10.0.0.1 30050\r\n\tnode-2.site slots=4 # four\n[fe80::1] slots=2 2222\n"
        b"::1\nCORP\\me@x 22\nx 23\n"
    )
    found = [(h.address, h.slots, h.port, h.user, h.label) for h in read_hosts(path, slots=8)]
    assert found == [
        ("10.0.0.1", 8, 30050, None, "10.0.0.1"),
        ("node-2.site", 4, None, None, "node-2.site"),
        ("fe80::1", 2, 2222, None, "fe80::1"),
        ("::1", 8, None, None, "::1"),
        ("x", 8, 22, "CORP\\me", "x:22"),
        ("x", 8, 23, None, "x:23"),
    ]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh client in PATH")
def test_host_keys_are_checked_whatever_is_asked_for():
    host = Host("x", 1, 22, "me", "x", 1)
    options = SshOptions("file", ("StrictHostKeyChecking=no", "BatchMode=no"))
    words = ssh_command("ssh", host, options, "run it")
    given = [words[i + 1] for i, word in enumerate(words) if word == "-o"]
    # The first counts.
    assert given.index("StrictHostKeyChecking=yes") < given.index("StrictHostKeyChecking=no")
    assert given.index("BatchMode=yes") < given.index("BatchMode=no")
    assert words[-3:] == ["--", "x", "run it"]
    said = subprocess.run(
        ["ssh", "-G", *[w if w != "file" else "/dev/null" for w in words[1:-1]]],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "stricthostkeychecking true" in said
    assert "batchmode yes" in said
    assert "requesttty false" in said
    assert "user me" in said
    assert explain(host, "something new") == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "there is no script"),
        (["x.py", "--epochs", "3"], "there is no script; expected it after --"),
        (["--"], "there is no script"),
        (["--", "-m"], "there is no script"),
        (["--env", "1X=2", "--", "x.py"], "--env is '1X=2'"),
        (["--env", "HOPLINE_NOT_THERE", "--", "x.py"], "which the environment lacks"),
        (["--ssh-config", "nosuch", "--", "x.py"], "nosuch: no such file"),
        (["--parts", "my parts", "--nproc-per-host", "2", "--", "x.py"], "4 ranks and 3 parts"),
        (["--", "x.py", "\udcff"], r"'\udcff' is not UTF-8"),
        (["--env", "X=\udcff", "--", "x.py"], r"'\udcff' is not UTF-8"),
        (["--workdir", "/\udcff", "--", "x.py"], r"'/\udcff' is not UTF-8"),
    ],
)
def test_arguments_that_cannot_be(arguments, expected, parts, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("hosts.txt").write_text("a\nb\n")
    assert main(["launch", "--hosts", "hosts.txt", *arguments]) == 1
    assert expected in capsys.readouterr().err


def test_some_time_is_needed_for_the_start(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["launch", "--hosts", "hosts.txt", "--timeout", "0", "--", "x.py"])
    assert "argument --timeout: '0' is no number of seconds above 0" in capsys.readouterr().err


def test_first_host_is_reachable_for_the_others():
    hosts = [Host(name, 1, None, None, name, 1) for name in ("localhost", "node2")]
    with pytest.raises(ValueError, match="which node2 cannot reach"):
        check_meeting_place(hosts, None)
    with pytest.raises(ValueError, match="which node2 cannot reach"):
        check_meeting_place(hosts[::-1], "::1")
    check_meeting_place(hosts, "node1")
    check_meeting_place(hosts[:1] * 2, None)


def test_hosts_have_the_same_versions():
    def of(partition="p", **versions):
        known = {"hopline": "1.0", "torch": "2.9.0+cpu", "python": "3.11.7", **versions}
        return {"versions": known, "partition": partition}

    def named(other):
        return compare(["a", "b"], [of(), other])

    assert named(of()) == (None, [])
    assert named(of(hopline="1.1"))[0][1].startswith("it has hopline 1.1, and a has hopline 1.0")
    assert named(of(torch="2.9.1+cpu"))[0][1].startswith("it has torch 2.9.1")
    assert named(of(partition="q"))[0] is not None
    assert named({"versions": {}, "partition": None})[0][0] == 1
    assert named(of(torch="2.9.0", python="3.12.1")) == (
        None, ["b has torch 2.9.0, and a has 2.9.0+cpu", "b has Python 3.12.1, and a has 3.11.7"],
    )  # fmt: skip


def test_lines_keep_their_bytes():
    for size in (1, 7, 1000, 1 << 20):
        text = b"one\ntwo\r\n\n10%\r\r\n" + b"y" * (300 * size) + b"\n\xff\nlast"
        text = text[: 1 << 20]
        stream = io.BytesIO()
        output = Prefixed("h", stream, threading.Lock())
        for i in range(0, len(text), size):
            output.write(text[i : i + size])
        output.finish()
        expected = b"".join(b"[h] " + line for line in text.splitlines(keepends=True)) + b"\n"
        assert stream.getvalue() == expected


def test_frames_of_anything():
    draw = random.Random(0)
    whole = report(kind="ended", code=0) + b"o\0\0\0\3abc"
    assert [kind for kind, _ in read_frames(io.BytesIO(whole))] == [b"r", b"o"]
    for _ in range(2000):
        damaged = bytearray(whole[: draw.randrange(len(whole) + 1)])
        for _ in range(draw.randrange(3)):
            if damaged:
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        with contextlib.suppress(FrameError):
            for _ in read_frames(io.BytesIO(bytes(damaged))):
                pass
    with pytest.raises(FrameError, match="where a frame begins"):
        list(read_frames(io.BytesIO(b"bash: welcome")))
    with pytest.raises(FrameError, match="no JSON"):
        list(read_frames(io.BytesIO(b"r\0\0\0\4{{{{")))
