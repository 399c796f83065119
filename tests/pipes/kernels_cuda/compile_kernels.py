"""Compiles kernels for a GPU that need not be here; test_compiles.py runs it as a process.

Standard input has one JSON object a line: module, name, types (of the arguments that are no
constants), constants and options. Prints one line for each that does not compile.
"""

from __future__ import annotations

import importlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)


def compile_kernel(line: str) -> str | None:
    wanted = json.loads(line)
    kernel = getattr(importlib.import_module(wanted["module"]), wanted["name"])
    constants = wanted["constants"]
    names = kernel.arg_names
    others = (name for name in names if name not in constants)
    types = dict(zip(others, wanted["types"], strict=True))
    constants |= {name: None for name, kind in types.items() if kind is None}
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
    )
    try:
        compiled = triton.compile(source, target=HOPPER, options=wanted["options"])
    except Exception as error:
        return f"{line.strip()}: {type(error).__name__}: {error}"
    for text in compiled.asm["ptx"].splitlines():
        # Promise 1: no fused multiply-add, which rounds once where the CPU rounds twice. And no
        # atomic operation that is a fence: kernels tell each other nothing while they run.
        if "fma.rn.f64" in text or "acq_rel" in text:
            return f"{line.strip()}: {text}"
    return None


if __name__ == "__main__":
    with ThreadPoolExecutor(2) as pool:
        for complaint in pool.map(compile_kernel, sys.stdin.readlines()):
            if complaint:
                print(complaint)
