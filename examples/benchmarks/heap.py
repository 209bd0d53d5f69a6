"""Exact heap measurements on a CPU: a counter in front of malloc, and processes to run under it.

Resident memory of a TensorFlow process says little about what a training step needs: freed
blocks stay with the process. Here every allocation is counted by ``heap_counter.c``, which is
compiled once and loaded into a child process with ``LD_PRELOAD``. The parent calls `run`, the
child makes a `Heap` and asks it. Linux with glibc and a C compiler are needed.
"""

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).with_name("heap_counter.c")
MB = 1e6

# oneDNN has a memory pool of its own, which the counter would see as never freed.
CHILD_ENVIRONMENT = {
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_USE_LEGACY_KERAS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def library():
    """Return the path of the compiled counter, compiling it when the source is new."""
    name = f"heap_counter-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    folder = Path(tempfile.gettempdir()) / f"keras_remat-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    compiled = folder / name
    if not compiled.exists():
        compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
        if sys.platform != "linux" or compiler is None:
            raise RuntimeError(
                "The heap counter needs Linux and a C compiler. Received: platform "
                f"{sys.platform!r}, compiler {compiler!r}. Install one, for example with "
                "`apt install gcc libc6-dev`."
            )
        # Written under another name first: two processes may compile at once.
        fresh = compiled.with_suffix(f".{os.getpid()}.tmp")
        flags = ["-std=gnu11", "-O2", "-Wall", "-shared", "-fPIC", "-fno-builtin"]
        subprocess.run([compiler, *flags, "-o", str(fresh), str(SOURCE)], check=True)
        fresh.replace(compiled)
    return str(compiled)


def run(script, *arguments, env=None):
    """Run a Python script in a child process under the counter and yield its output lines.

    Raises:
        RuntimeError: The child failed; what it wrote to standard error is in the message.
    """
    environment = dict(os.environ, **CHILD_ENVIRONMENT)
    environment.update(env or {}, LD_PRELOAD=library())
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


class _Sample(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_double), ("bytes", ctypes.c_double)]


class Heap:
    """The counter, asked from inside a process that `run` started. All sizes are in bytes."""

    def __init__(self):
        try:
            self._counter = ctypes.CDLL(os.environ["LD_PRELOAD"])
            for name in ("heap_live", "heap_peak", "heap_trace_stop"):
                getattr(self._counter, name).restype = ctypes.c_long
        except (KeyError, AttributeError) as error:
            raise RuntimeError(
                "A Heap counts only in a process started by heap.run, which preloads the counter. "
                f"Received: LD_PRELOAD={os.environ.get('LD_PRELOAD')!r}."
            ) from error

    def live(self):
        """Bytes in use now."""
        return self._counter.heap_live()

    @contextlib.contextmanager
    def watch(self):
        """Yield a function that tells the peak since the start, above what was live then."""
        start = self.live()
        self._counter.heap_reset_peak()
        yield lambda: self._counter.heap_peak() - start

    @contextlib.contextmanager
    def trace(self, step=100000, capacity=200000):
        """Yield a list that receives (seconds, bytes) for each move of the heap by `step` bytes.

        Both count from the start; the list is filled when the block ends.
        """
        buffer = (_Sample * capacity)()
        points = []
        start, zero = self.live(), time.monotonic()  # the clock of the counter
        self._counter.heap_trace_start(buffer, ctypes.c_long(capacity), ctypes.c_long(step))
        try:
            yield points
        finally:
            length = self._counter.heap_trace_stop()
            points.extend((s.seconds - zero, s.bytes - start) for s in buffer[:length])
