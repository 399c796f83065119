"""GPU kernels: Triton, with the same results as the CPU kernels, bit for bit.

Triton comes with torch's builds for GPUs; it is imported when the first graph, feature or seed is
on one, never before. With `TRITON_INTERPRET=1` set before that, Triton runs the same kernels on the
CPU: so they are tested on machines without a GPU.
"""
