"""Promise 3: importing the package needs nothing special and changes nothing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import hopline.models
import hopline.partition
import hopline.pipes

ROOT = Path(__file__).parent.parent.parent
PACKAGES = [Path(p.__path__[0]) for p in (hopline.pipes, hopline.partition, hopline.models)]


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter; a value of None leaves a variable out."""
    everything = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=everything,
        timeout=200,
    )


WATCH = """
    import json, logging, multiprocessing, os, random, signal, sys, threading, warnings
    # What other packages do at their import is theirs.
    import numba, numpy, pydantic, torch, torchdata.nodes, torchmetrics, tqdm, yaml, filelock
    import torch.distributed, torch.multiprocessing

    def process():
        return {
            "filters": [str(f) for f in warnings.filters],
            "showwarning": [id(warnings.showwarning), id(warnings.formatwarning)],
            "environment": dict(os.environ),
            "torch threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
            "numba threads": numba.get_num_threads(),
            "threads": sorted(t.name for t in threading.enumerate()),
            "python rng": hash(random.getstate()),
            "numpy rng": numpy.random.get_state()[1].tobytes().hex(),
            "torch rng": bytes(torch.get_rng_state()).hex(),
            "dtype": [str(torch.get_default_dtype()), str(torch.get_default_device())],
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "printing": str(numpy.get_printoptions()),
            "errors": str(numpy.geterr()),
            "alignment": numpy.lib.format.ARRAY_ALIGN,
            "signals": [str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM)],
            "hooks": [id(sys.excepthook), id(threading.excepthook), sys.getswitchinterval()],
            "start method": multiprocessing.get_start_method(allow_none=True),
            "sharing": torch.multiprocessing.get_sharing_strategy(),
            "logging": [logging.root.level, str(logging.root.handlers)],
            "cuda": torch.cuda.is_initialized(),
            "groups": torch.distributed.is_initialized(),
            "path": list(sys.path),
        }

    before = process()
    import hopline.pipes, hopline.partition, hopline.models
    after = process()
    changed = {key: [before[key], after[key]] for key in before if before[key] != after[key]}
    foreign = [m for m in ("dgl", "torch_geometric", "pyg_lib", "torch_sparse", "torch_scatter",
                           "triton", "pandas", "pyarrow", "graphlearn_torch", "cugraph")
               if m in sys.modules]
    """


def test_importing_changes_nothing_and_needs_no_compiler_and_no_gpu(tmp_path):
    """Then kernels are compiled, from nothing, and a chain runs."""
    script = (
        WATCH
        + """
    import hopline.pipes as hp
    src, dst = torch.arange(40) % 7, torch.arange(40) % 9
    graph = hp.from_coo(src, dst, 9)
    store = hp.BasicFeatureStore({("node", None, "x"): hp.TorchBasedFeature(torch.ones(9, 2))})
    sampler = hp.ItemSampler(hp.ItemSet(9, "seeds"), 4, shuffle=True, seed=1)
    chain = sampler.sample_neighbor(graph, [2, -1]).fetch_feature(store, ["x"]).copy_to("cpu")
    count = len(list(hp.DataLoader(chain, num_workers=2)))
    print(json.dumps({"changed": changed, "foreign": foreign, "count": count}))
    """
    )
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    done = run(
        script,
        PATH=str(nothing),
        CC="/nowhere/cc",
        CXX="/nowhere/c++",
        CUDA_VISIBLE_DEVICES="",
        NUMBA_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert done.stderr == ""
    assert json.loads(done.stdout) == {"changed": {}, "foreign": [], "count": 3}
    assert list((tmp_path / "cache").rglob("*.nbc")), "kernels were not compiled here"


def test_the_watch_sees_a_change():
    meddle = """\
    import hopline.pipes, warnings, os, random
    warnings.simplefilter("ignore"); os.environ["MEDDLED"] = "1"; torch.set_num_threads(7)
    random.random(); torch.rand(1); numpy.random.rand(1)
    import hopline.partition, hopline.models
"""
    script = WATCH.replace("    import hopline.pipes, hopline.partition, hopline.models\n", meddle)
    done = run(script + "\n    print(json.dumps(sorted(changed)))\n")
    assert done.stderr == ""
    assert set(json.loads(done.stdout)) == {
        "filters", "environment", "torch threads", "python rng", "numpy rng", "torch rng",
    }  # fmt: skip


def requirements() -> dict[str, list[str]]:
    """Names of required distributions, by extra; "" for those always required."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project.get("optional-dependencies", {})}
    return {
        group: [re.split(r"[^A-Za-z0-9_.-]", line)[0].lower() for line in lines]
        for group, lines in groups.items()
    }


def test_nothing_is_required_that_is_tied_to_a_torch_release():
    everything = {name for names in requirements().values() for name in names}
    assert {"torch", "numpy", "numba"} <= everything, "found no requirements: the search is broken"
    assert not everything & {
        "dgl", "torch-geometric", "pyg-lib", "torch-sparse", "torch-scatter", "torch-cluster",
        "torch-spline-conv", "torchvision", "torchaudio", "torchtext",
    }  # fmt: skip


def test_nothing_of_the_cpu_asks_for_triton():
    """Torch's builds for CPUs lack it: neither the import nor any stage on the CPU may want it."""
    script = """
        import importlib.abc, sys

        class Triton(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name.partition(".")[0] == "triton":
                    asked.append(name)
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        asked = []
        sys.meta_path.insert(0, Triton())
        import torch, torchmetrics  # what they ask for is theirs
        asked.clear()
        import hopline.pipes as hp
        import hopline.models, hopline.partition
        src, dst = torch.arange(40) % 7, torch.arange(40) % 9
        graph = hp.from_coo(src, dst, 9).to("cpu")
        table = hp.TorchBasedFeature(torch.ones(9, 2))
        cached = hp.gpu_cached_feature(table, 40, device="cpu")
        store = hp.BasicFeatureStore({("node", None, "x"): cached})
        sampler = hp.ItemSampler(hp.ItemSet(torch.stack([src, dst], 1), "seeds"), 4, seed=1)
        chain = sampler.sample_uniform_negative(graph, 1, exclude_true_edges=True)
        chain = chain.sample_neighbor(graph, [2, -1], num_gpu_cached_edges=9).exclude_seed_edges()
        chain = chain.fetch_feature(store, ["x"]).copy_to("cpu")
        print(len(list(hp.DataLoader(chain, num_workers=2))), asked)
        try:
            hopline.pipes.kernels.dispatch.check_triton()
        except RuntimeError as error:
            print(error)
    """
    done = run(script)
    assert done.returncode == 0, done.stderr
    count, refusal = done.stdout.splitlines()
    assert count == "10 []"
    assert "on a GPU need Triton" in refusal


COMES_WITH = {"llvmlite": "numba", "pydantic_core": "pydantic"}
# Imported where a graph, a feature or a seed is on a GPU, and by this folder alone. Torch's builds
# for GPUs bring the version that they need, and other builds have no use for it.
COMES_WITH_TORCH = {"triton": PACKAGES[0] / "kernels" / "cuda"}


def test_every_requirement_is_imported_where_it_is_required():
    """A module that is imported at the top of some file is no optional one."""
    needed = {name.replace("-", "_") for name in requirements()[""]}
    found: dict[str, set[Path]] = {}  # the folders of the files that import each module
    for package in PACKAGES:
        for path in package.rglob("*.py"):
            for line in path.read_text(encoding="utf-8").splitlines():
                if match := re.match(r"(?:import|from) (\w+)", line):  # not indented: at import
                    found.setdefault(match[1], set()).add(path.parent)
    distributions = importlib.metadata.packages_distributions()
    foreign = {m for m in found if m not in sys.stdlib_module_names and m != "hopline"}
    assert {"torch", "numba"} <= foreign
    for module, folder in COMES_WITH_TORCH.items():
        assert found[module] == {folder}, f"{module} is imported in {found[module]}"
    for module in foreign - COMES_WITH_TORCH.keys():
        names = {name.lower().replace("-", "_") for name in distributions.get(module, [module])}
        names.add(COMES_WITH.get(module, module))
        assert names & needed, f"{module} is imported, not required"


def test_the_packages_hold_no_compiled_code():
    suffixes = {
        path.suffix for package in PACKAGES for path in package.rglob("*") if path.is_file()
    }
    assert ".py" in suffixes
    assert not suffixes & {".so", ".pyd", ".dll", ".dylib", ".c", ".cc", ".cpp", ".cu", ".pyx"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_the_packages_are_typed(package):
    assert (package / "py.typed").exists()


def test_kernels_work_where_no_cache_can_be_written():
    """A read-only installation, without a home folder."""
    script = """
        import numba.core.caching as caching
        caching.CacheImpl._locator_classes = []
        import hopline.pipes as hp
        import hopline.models
        chain = hp.ItemSampler(hp.ItemSet(5, names="seeds"), 2, shuffle=True, seed=1)
        print(sorted(int(seed) for minibatch in chain for seed in minibatch.seeds))
    """
    done = run(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[0, 1, 2, 3, 4]"


@pytest.mark.skipif(os.name != "posix", reason="where the home folder is asked of is patched")
def test_a_user_without_a_home_gets_no_folder_named_like_one(tmp_path):
    """Numba would make the folders "~" and ".cache" in it, in the current folder."""
    script = f"""
        import os, pwd
        for name in ("HOME", "XDG_CACHE_HOME"):
            os.environ.pop(name, None)

        def nobody(number):
            raise KeyError(number)

        pwd.getpwuid = nobody
        from numba.core.caching import CacheImpl
        # The package's folder is read-only, and NUMBA_CACHE_DIR not set.
        by_home = [k for k in CacheImpl._locator_classes if "UserWideCache" in k.__name__]
        CacheImpl._locator_classes = by_home
        os.chdir({str(tmp_path)!r})
        import hopline.models
        import hopline.pipes as hp
        chain = hp.ItemSampler(hp.ItemSet(5, names="seeds"), 2, shuffle=True, seed=1)
        print(sorted(int(seed) for minibatch in chain for seed in minibatch.seeds), len(by_home))
    """
    done = run(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[0, 1, 2, 3, 4] 1"
    assert list(tmp_path.iterdir()) == []


KERNEL = """
    import errno, sys
    sys.path.insert(0, {folder!r})
    from numba.core.caching import IndexDataCacheFile
    plain = IndexDataCacheFile._save_data
    def save(self, name, data):
        raise OSError(errno.ENOSPC, "No space left on device")
    if {full}:
        IndexDataCacheFile._save_data = save
    import a_kernel
    print(a_kernel.f(1))
    """


def test_a_full_disk_and_a_damaged_cache_only_cost_time(tmp_path):
    source = tmp_path / "a_kernel.py"

    def outcome(*, full=False):
        script = KERNEL.format(folder=str(tmp_path), full=full)
        done = run(script, NUMBA_CACHE_DIR=str(tmp_path / "cache"), PYTHONDONTWRITEBYTECODE="1")
        return done.stdout.strip() or done.stderr

    def write(number):
        code = "from hopline.pipes.kernels.compiling import kernel\n\n\n@kernel\n"
        source.write_text(f"{code}def f(x):\n    return x + {number}\n")

    write(1)
    assert outcome(full=True) == "2"
    assert outcome() == "2"
    # An older source's machine code is not taken for the new one's.
    write(10)
    assert outcome(full=True) == "11"
    assert outcome() == "11"
    (file,) = (tmp_path / "cache").rglob("*.nbc")  # the older source's is gone
    os.truncate(file, 40)
    assert outcome() == "11"
    assert file.stat().st_size > 40, "it was not written anew"


SHARED = """
    import sys
    from pathlib import Path
    from hopline.pipes.kernels import compiling
    compiling.INSTRUCTIONS = Path({folder!r}, "instructions.py")
    sys.path.insert(0, {folder!r})
    import a_kernel
    print(a_kernel.f(1), sum(a_kernel.f.stats.cache_hits.values()))
    """


def test_an_edit_of_the_instructions_that_kernels_share_is_seen(tmp_path):
    code = "from hopline.pipes.kernels.compiling import kernel\n\n\n@kernel\n"
    (tmp_path / "a_kernel.py").write_text(f"{code}def f(x):\n    return x + 1\n")
    (tmp_path / "instructions.py").write_text("ONE = 1\n")

    def outcome():
        script = SHARED.format(folder=str(tmp_path))
        done = run(script, NUMBA_CACHE_DIR=str(tmp_path / "cache"), PYTHONDONTWRITEBYTECODE="1")
        return done.stdout.strip() or done.stderr

    assert [outcome(), outcome()] == ["2 0", "2 1"]
    (tmp_path / "instructions.py").write_text("ONE = 1  # edited\n")
    assert [outcome(), outcome()] == ["2 0", "2 1"]
    assert len(list((tmp_path / "cache").rglob("*.nbc"))) == 1  # the older one's is gone


# Both choose their files, then one's machine code is written, then all of the other's, in turn.
AT_ONCE = """
    import sys, time
    from pathlib import Path
    folder, me, argument = Path({folder!r}), {me!r}, {argument}
    sys.path.insert(0, str(folder))
    from numba.core.caching import IndexDataCacheFile
    plain = IndexDataCacheFile._save_data

    def wait(name):
        for _ in range(15_000):
            if (folder / name).exists():
                return
            time.sleep(0.01)
        raise SystemExit(f"waited in vain for {{name}}")

    def save(self, name, data):
        (folder / f"{{me}} chose").touch()
        wait("second chose" if me == "first" else "first wrote")
        plain(self, name, data)
        (folder / f"{{me}} wrote").touch()
        if me == "first":
            wait("second ended")

    if me != "third":
        IndexDataCacheFile._save_data = save
    import a_kernel
    print(a_kernel.f(argument))
    (folder / f"{{me}} ended").touch()
    if me == "third":
        print(a_kernel.f(1), sum(a_kernel.f.stats.cache_hits.values()))
    """


def test_two_processes_that_compile_two_signatures_at_once(tmp_path):
    code = "from hopline.pipes.kernels.compiling import kernel\n\n\n@kernel\n"
    (tmp_path / "a_kernel.py").write_text(f"{code}def f(x):\n    return x * 2\n")

    def outcome(me, argument):
        script = AT_ONCE.format(folder=str(tmp_path), me=me, argument=argument)
        done = run(script, NUMBA_CACHE_DIR=str(tmp_path / "cache"), PYTHONDONTWRITEBYTECODE="1")
        return done.stdout.strip() or done.stderr

    with ThreadPoolExecutor(2) as threads:
        both = threads.map(outcome, ["first", "second"], [1, 1.25])
        assert list(both) == ["2", "2.5"]
    assert outcome("third", 1.25) == "2.5\n2 2", "both are found, each under its signature"
