"""Heap measurements on a CPU: an exact counter in front of malloc, and processes to run under it.

Resident memory of a process says little about what a training step needs: freed blocks stay with
the process. Here every allocation is counted by ``heap_counter.c``, which is compiled once and
loaded into a child process with ``LD_PRELOAD``. The parent calls `run`, the child asks
`heap_of_this_process`. Without glibc or a C compiler, TensorFlow's own allocator is
asked instead, which is about 5 % less exact.
"""

import contextlib
import ctypes
import gc
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).with_name("heap_counter.c")
MB = 1e6

CHILD_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    # Its oneDNN has a memory pool of its own, which the counter would see as never freed.
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # Threads of PyTorch that wait by spinning take the other core from those that work.
    "OMP_WAIT_POLICY": "passive",
}
ASK_TENSORFLOW = {"TF_CPU_ALLOCATOR_USE_BFC": "1"}  # the allocator with statistics


def compiler():
    """The C compiler for the counter, or None where the counter cannot work."""
    if platform.libc_ver()[0] != "glibc":
        return None
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")


def library():
    """Return the path of the compiled counter, compiling it when the source is new."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    compiled = SOURCE.parent / "__pycache__" / f"heap_counter-{platform.machine()}-{digest}.so"
    if not compiled.exists():
        compiled.parent.mkdir(exist_ok=True)
        # Written under another name first: two processes may compile at once.
        fresh = compiled.with_suffix(f".{os.getpid()}.tmp")
        flags = ["-std=gnu11", "-O2", "-Wall", "-shared", "-fPIC", "-fno-builtin"]
        subprocess.run([compiler(), *flags, "-o", str(fresh), str(SOURCE)], check=True)
        fresh.replace(compiled)
    return str(compiled)


def run(script, *arguments, env=None):
    """Run a Python script in a child process that is counted, and yield its output lines.

    Raises:
        RuntimeError: The child failed; what it wrote to standard error is in the message.
    """
    environment = dict(os.environ, **CHILD_ENVIRONMENT)
    environment.update({"LD_PRELOAD": library()} if compiler() else ASK_TENSORFLOW, **env or {})
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, "-u", str(script), *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            universal_newlines=True,
        )
        try:
            yield from child.stdout
        except BaseException:  # Ctrl-C, or the reader stopped reading
            child.kill()
            raise
        finally:
            child.stdout.close()
            code = child.wait()
        if code:
            errors.seek(0)
            command = " ".join([Path(script).name, *map(str, arguments)])
            raise RuntimeError(f"{command} ended with code {code}:\n{errors.read()[-6000:]}")


def heap_of_this_process():
    """What to ask, in a process that `run` started: `Heap`, or the next best `AllocatorHeap`."""
    if "heap_counter" in os.environ.get("LD_PRELOAD", ""):
        return Heap(ctypes.CDLL(os.environ["LD_PRELOAD"]))
    from allocator_heap import AllocatorHeap

    return AllocatorHeap()


def settle():
    """Let the last step end: what it left would seem in use before the next one.

    Python's reference cycles hold tensors of PyTorch; JAX frees buffers a moment after it gives results.
    """
    gc.collect()
    time.sleep(0.05)


class _Sample(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_double), ("bytes", ctypes.c_double)]


class Heap:
    """The counter, asked from inside the process. All sizes are in bytes."""

    def __init__(self, counter):
        self._counter = counter
        for name in ("heap_live", "heap_peak", "heap_trace_stop"):
            getattr(counter, name).restype = ctypes.c_long

    def watch(self):
        """Return a function that tells the peak since now, above what is in use now."""
        start = self._counter.heap_live()
        self._counter.heap_reset_peak()
        return lambda: self._counter.heap_peak() - start

    @contextlib.contextmanager
    def trace(self, step=100000, capacity=200000):
        """Yield a list that receives (seconds, bytes) for each move of the heap by `step` bytes.

        Both count from the start; the list is filled when the block ends.
        """
        buffer = (_Sample * capacity)()
        points = []
        start, zero = self._counter.heap_live(), time.monotonic()  # the clock of the counter
        self._counter.heap_trace_start(buffer, ctypes.c_long(capacity), ctypes.c_long(step))
        try:
            yield points
        finally:
            length = self._counter.heap_trace_stop()
            points.extend((s.seconds - zero, s.bytes - start) for s in buffer[:length])
