"""The builder of the Debian package graph, on a small made-up package index."""

import subprocess
import zlib

import numpy as np
import pytest

from hopline.pipes.datasets import build_debian
from hopline.pipes.datasets.debian import (
    expand_edges,
    expand_features,
    read_archive,
    text_lines,
)

INDEX = """\
Package: zeta
Source: alphabet (1.2)
Section: libs
Installed-Size: 300
Size: 7
Depends: alpha (>= 1.0) [amd64], virtual-editor:any | missing, zeta, alpha
Pre-Depends: beta
Breaks: alpha (<< 0.9)
Description: shared red word
 A long text with hidden words.
Description-md5: 00
Filename: pool/main/a/alphabet/zeta_1.2_amd64.deb

Package: alpha
Section: editors
Installed-Size: 100
Provides: virtual-editor (= 1), other-virtual
Maintainer: Nobody Inparticular <nobody@example.org>
Description: shared blue word
Description-md5: 00
Filename: pool/updates/main/a/alpha/alpha_1_amd64.deb

Package: beta
Section: editors
Provides: virtual-editor
Recommends: zeta <!nocheck>,
 alpha
Description: shared RED thing
Description-md5: 00
Filename: pool/main/b/beta/beta_1_amd64.deb

Package: beta
Section: libs
Description: another version
Description-md5: 00
Filename: pool/main/b/beta/beta_0_amd64.deb

Package: contributed
Section: contrib/editors
Description-md5: 00
Filename: pool/contrib/c/contributed/contributed_1_amd64.deb

Package: prefixed
Section: non-free/editors
Description-md5: 00
Filename: pool/main/p/prefixed/prefixed_1_amd64.deb

Package: foreign
Section: editors
Description: from a repository of someone else, laid out like Debian's
Filename: pool/main/f/foreign/foreign_1_amd64.deb

Package: installed-by-hand
Section: editors
Description: in no repository

"""


@pytest.fixture(scope="module")
def arrays():
    return build_debian.build_arrays(INDEX, feature_dim=18, min_sources=1, release="0 test")


def test_stanzas_keep_fields_and_continuation_lines():
    stanzas = list(build_debian.parse_stanzas(INDEX + "\n\nNo: package here\n"))
    assert len(stanzas) == 8
    assert stanzas[2]["Recommends"] == "zeta <!nocheck>,\nalpha"
    assert stanzas[0]["Depends"].startswith("alpha (>= 1.0)")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", []),
        ("a", ["a"]),
        ("a (>= 1:2.0~rc1), b", ["a", "b"]),
        ("a | b (<< 3) | c:any", ["a", "b", "c"]),
        ("a:amd64 (= 1),b[!i386],\n c <!nodoc>", ["a", "b", "c"]),
        ("libstdc++6(>= 12), ,g++", ["libstdc++6", "g++"]),
    ],
)
def test_relation_targets(value, expected):
    assert list(build_debian.relation_targets(value)) == expected


def test_only_packages_of_debian_main_once_each(arrays):
    assert text_lines(arrays["names"]) == ["alpha", "beta", "zeta"]
    assert text_lines(arrays["class_names"]) == ["editors", "libs"]
    assert arrays["labels"].tolist() == [0, 0, 1]  # the first version of beta counts
    assert text_lines(arrays["release"]) == ["0 test"]


def test_edges_resolve_providers_and_run_both_ways(arrays):
    edges, relation = expand_edges(arrays)
    names = text_lines(arrays["names"])
    kinds = text_lines(arrays["relation_names"])
    half = edges.shape[1] // 2
    forward = {
        (names[s], kinds[r], names[t])
        for s, t, r in zip(*edges[:, :half].tolist(), relation[:half].tolist(), strict=True)
    }
    assert forward == {
        ("zeta", "Depends", "alpha"),  # by name and as a provider: once
        ("zeta", "Depends", "beta"),  # provides virtual-editor
        ("zeta", "Pre-Depends", "beta"),
        ("zeta", "Breaks", "alpha"),
        ("beta", "Recommends", "zeta"),
        ("beta", "Recommends", "alpha"),
    }
    assert half == 6
    np.testing.assert_array_equal(edges[:, half:], edges[::-1, :half])
    np.testing.assert_array_equal(relation[half:], relation[:half] + len(kinds))
    assert edges.dtype == np.int32
    assert relation.dtype == np.int8


def test_features_are_signed_weighted_word_sums_of_length_one(arrays):
    features = expand_features(arrays)
    descriptions = ["shared blue word", "shared red thing", "shared red word"]
    used = {}
    for text in descriptions:
        for word in text.split():
            used[word] = used.get(word, 0) + 1
    expected = np.zeros((3, 16))
    for i, text in enumerate(descriptions):
        for word in text.split():
            code = zlib.crc32(word.encode())
            sign = 1 if (code >> 16) & 1 else -1
            expected[i, code % 16] += sign * np.log(3 / used[word])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(features[:, :16], expected, atol=1e-6)
    assert features.shape == (3, 18)
    assert features.dtype == np.float32
    # "shared" is everywhere and tells nothing; words beyond the first line do not count.
    assert len(arrays["word_idf"]) == 5


def test_sizes_are_scaled_logarithms_and_zero_when_unknown(arrays):
    logs = np.log1p([100.0, 300.0])
    scaled = 0.1 * (logs - logs.mean()) / logs.std()
    expected = [[scaled[0], 0], [0, 0], [scaled[1], 0]]  # beta tells none; one Size has no spread
    np.testing.assert_allclose(expand_features(arrays)[:, 16:], expected, atol=1e-4)


def test_rare_words_are_left_out_and_a_package_without_words_has_zeros():
    arrays = build_debian.build_arrays(INDEX, feature_dim=18, min_sources=3)
    assert len(arrays["word_idf"]) == 1  # "shared", whose weight is 0
    assert not expand_features(arrays)[:, :16].any()


def test_min_sources_counts_source_packages_not_packages():
    twins = "".join(
        f"Package: p{i}\nSource: same\nSection: s\nDescription: word\nDescription-md5: 0\n"
        f"Filename: pool/main/p{i}\n\n"
        for i in range(3)
    )
    assert len(build_debian.build_arrays(twins, min_sources=2)["word_idf"]) == 0


def test_split_goes_by_source_package(arrays):
    def bucket(source):
        k = zlib.crc32(source.encode()) % 10
        return 0 if k < 6 else 1 if k < 8 else 2

    assert arrays["splits"].tolist() == [bucket(s) for s in ("alpha", "beta", "alphabet")]
    shares = np.bincount([build_debian.split_of(f"source{i}") for i in range(5000)]) / 5000
    np.testing.assert_allclose(shares, [0.6, 0.2, 0.2], atol=0.03)


def test_file_has_the_same_bytes_again_and_no_text_but_names(tmp_path, arrays):
    for name in ("a.npz", "b.npz"):
        again = build_debian.build_arrays(INDEX, feature_dim=18, min_sources=1, release="0 test")
        build_debian.write_archive(tmp_path / name, again)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz"]
    read = read_archive(tmp_path / "a.npz")
    assert set(read) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
    content = b"".join(array.tobytes() for array in read.values())
    for secret in (b"Nobody", b"example", b"shared", b"blue"):
        assert secret not in content


def test_ids_beyond_16_bits_keep_their_value(tmp_path):
    count = 70_000
    text = "".join(
        f"Package: p{i:05}\nSection: s\nDepends: p{count - 1 - i:05}\nDescription: w\n"
        f"Description-md5: 0\nFilename: pool/main/p\n\n"
        for i in range(count)
    )
    edges, _ = expand_edges(build_debian.build_arrays(text))
    np.testing.assert_array_equal(edges[1, :count], np.arange(count)[::-1])


def test_an_index_without_debian_main_is_refused():
    with pytest.raises(ValueError, match=r"has 1 packages and none of Debian's component main"):
        build_debian.build_arrays("Package: x\nSection: s\nFilename: pool/contrib/x\n")


def _fake_apt(monkeypatch, returncode=0, stdout=b"", stderr=b"", error=None):
    def run(command, **_):
        assert command[0] == "apt-cache"
        if error is not None:
            raise error
        return subprocess.CompletedProcess(command, returncode, stdout, stderr)

    monkeypatch.setattr(build_debian.subprocess, "run", run)


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        ({"error": FileNotFoundError("apt-cache")}, "apt-cache was not found"),
        ({"stdout": b"\n"}, "Run `apt-get update` first"),
        ({"returncode": 100, "stderr": b"no such list"}, "ended with code 100: no such list"),
        ({"stdout": b"Package: x\n"}, "none of Debian's component main"),
    ],
)
def test_command_line_tells_what_is_wrong(monkeypatch, capsys, tmp_path, outcome, message):
    _fake_apt(monkeypatch, **outcome)
    assert build_debian.main([str(tmp_path / "out.npz")]) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_command_line_writes_the_file(monkeypatch, capsys, tmp_path):
    _fake_apt(monkeypatch, stdout=INDEX.encode())
    out = tmp_path / "out.npz"
    assert build_debian.main([str(out), "--feature-dim", "32", "--release", "1 x"]) == 0
    assert "3 packages, 6 relations" in capsys.readouterr().out
    assert expand_features(read_archive(out)).shape == (3, 32)


def test_a_file_of_another_format_version_is_refused(tmp_path, arrays):
    build_debian.write_archive(tmp_path / "new.npz", {**arrays, "format_version": np.array(99)})
    with pytest.raises(ValueError, match=r"new\.npz: format_version is 99; this version reads 1"):
        read_archive(tmp_path / "new.npz")
