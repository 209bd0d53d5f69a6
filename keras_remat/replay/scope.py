"""The scope in which a block runs: what is random or written is noted, or given again.

TensorFlow's generated op functions are wrapped once; the wrappers do nothing unless a scope is open
on the thread. In *record*, a random op becomes a stateless one whose seed, two integers, is drawn
from the generator of the original op (so `seed=` and `set_seed` mean what they meant), and results
that cannot be made again are noted. In *replay* (eager mode only: graphs are copied, see
`subgraph`) the noted seeds and results are given again, in order.
"""

import contextlib
import threading

from keras_remat.errors import RecomputeMismatchError

RECORD, REPLAY = "record", "replay"


class _Stack(threading.local):
    def __init__(self):
        self.scopes = []


_STACK = _Stack()


class Scope:
    """One run of a block: `graph` is the graph it runs in, None when it runs eagerly.

    A scope that is open `everywhere` is no block's: it holds in every graph that is made meanwhile.
    """

    def __init__(self, graph, log=None, everywhere=False):
        self.graph = graph
        self.everywhere = everywhere
        self.context = None if graph is None else graph._get_control_flow_context()
        self.mode = RECORD if log is None else REPLAY
        self.log = [] if log is None else log
        self.written = {}
        self.lifted = set()
        self.functions = []  # graphs of functions that are part of the block
        self._position = 0

    def next(self, what):
        """Return the next noted value of a replay; `what` is the op that asks for it."""
        if self._position >= len(self.log) or self.log[self._position][0] != what:
            noted = self.log[self._position][0] if self._position < len(self.log) else "nothing"
            raise RecomputeMismatchError(
                "The second run of a block must use the same random ops in the same order as the first. "
                f"Received: {what} where the first run had {noted}. Make the layer's call independent of "
                "Python state that changes between calls, or leave the layer out."
            )
        value = self.log[self._position][1]
        self._position += 1
        return value

    def check_finished(self):
        """Raise if the replay did not use everything that the record noted."""
        if self._position != len(self.log):
            self.next("nothing")


@contextlib.contextmanager
def opened(scope):
    """Open `scope` on this thread."""
    _STACK.scopes.append(scope)
    try:
        yield scope
    finally:
        _STACK.scopes.pop()


@contextlib.contextmanager
def suspended():
    """Close all scopes of this thread for a while: for code that is no part of the block."""
    scopes, _STACK.scopes = _STACK.scopes, []
    try:
        yield
    finally:
        _STACK.scopes = scopes


def scopes():
    """List the scopes that are open on this thread, outermost first."""
    return _STACK.scopes


def is_replaying():
    """True while a block runs again on this thread."""
    return any(scope.mode == REPLAY for scope in _STACK.scopes)


def noted(what, make, depth=None):
    """Return `make()`, noted by every eager scope that records; a scope that replays gives its note.

    `what` names the op. Scopes nest: what the inner block notes in its first run, inside the second
    run of the outer block, comes from the notes of the outer one.
    """
    depth = len(_STACK.scopes) if depth is None else depth
    if depth == 0:
        return make()
    scope = _STACK.scopes[depth - 1]
    if scope.mode == REPLAY:
        return scope.next(what)
    value = noted(what, make, depth - 1)
    if scope.graph is None:
        scope.log.append((what, value))
    return value
