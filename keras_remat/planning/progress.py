"""A bar on the terminal while something takes long, by tqdm if it is installed."""

import importlib
import os
import sys
import time

_AFTER = 1.0  # seconds, before which nothing is shown
_VARIABLE = "KERAS_REMAT_PROGRESS"


def watched(items, label):
    """Yield `items`, with a bar on stderr if that takes longer than a second.

    It is shown where stderr is a terminal. The environment variable `KERAS_REMAT_PROGRESS`, read when it
    begins, decides otherwise: `1` shows it everywhere, `0` nowhere.

    Example:
        >>> list(watched(["a", "b"], "letters"))
        ['a', 'b']
    """
    make, bar, begin = _bars(), None, time.monotonic()
    try:
        for i, item in enumerate(items):
            if make is not None and bar is None and time.monotonic() - begin > _AFTER:
                bar = make(total=len(items), initial=i, desc=label, file=sys.stderr, leave=False)
            yield item
            if bar is not None:
                bar.update(1)
    finally:
        if bar is not None:
            bar.close()


def _bars():
    """Return what makes bars, None where there are none to be."""
    asked = os.environ.get(_VARIABLE)
    if asked == "0" or asked != "1" and not (sys.stderr is not None and sys.stderr.isatty()):
        return None
    try:
        return importlib.import_module("tqdm").tqdm
    except ImportError:
        return None  # what it would show is no result
