"""The call of a block as a function of tensors alone.

Tensors are taken out of nested arguments, and what the call makes on the side (losses, and where a
family carries them masks and updates) is added to its outputs; afterwards everything is put back in
its place.
"""

import contextlib
from typing import Any, Callable, NamedTuple, Sequence

from keras_remat.errors import RematError


class Block(NamedTuple):
    """A call that may run twice: `run(*args, **kwargs)` uses only these layers, and modules of PyTorch."""

    name: str
    run: Callable
    layers: Sequence[Any]
    family: Any
    modules: Sequence[Any] = ()


class _Notes(NamedTuple):
    """What the first run put out beside tensors: where each tensor belongs."""

    leaves: Sequence[Any]
    places: Sequence[int]
    marks: Sequence[Any]
    spec: Any
    losses: Any


class Pure:
    """One call of a block. Calling it with `tensors`, or others like them, runs the block.

    Attributes:
      block: the `Block`.
      tensors: list of what the call depends on: tensors from the arguments, each once, then those
        that the family's state adds.
      surroundings: makes the context manager that a second run is in.
      is_kept: True for one that stands for later calls as well, and so must not hold tensors.
    """

    def __init__(self, block, args, kwargs, surroundings):
        backend = block.family.backend
        self.block, self.surroundings = block, surroundings
        self.leaves, self.spec = backend.flatten((args, kwargs))
        # A tensor that is passed several times is one input: its gradient counts once.
        slots = {id(leaf): leaf for leaf in self.leaves if backend.is_tensor(leaf)}
        numbers = {key: number for number, key in enumerate(slots)}
        self.places = [numbers.get(id(leaf)) for leaf in self.leaves]
        self._marks = [backend.marks(tensor) for tensor in slots.values()]
        self.leaves = [leaf if n is None else None for leaf, n in zip(self.leaves, self.places)]
        self.state = block.family.state(block.layers, list(slots.values()))
        self._count = len(slots)
        self.tensors = list(slots.values()) + self.state.tensors
        self.call_state = block.family.call_state(block.layers)
        self._notes = None
        self._has_run = self.is_kept = False

    def __call__(self, tensors):
        """Run the block with the given tensors; return its outputs and side outputs as a flat list."""
        family, backend = self.block.family, self.block.family.backend
        given, carried = tensors[: self._count], tensors[self._count :]
        stand_ins = [backend.marked(t, marks) for t, marks in zip(given, self._marks)]
        leaves = [x if n is None else stand_ins[n] for x, n in zip(self.leaves, self.places)]
        args, kwargs = backend.pack(self.spec, leaves)
        again = self._has_run
        with self._as_before() if again else contextlib.nullcontext():
            with self.state.opened(stand_ins, carried, again):
                losses = family.losses(self.block.layers)
                flat, spec = backend.flatten(self.block.run(*args, **kwargs))
                new = losses.withdraw() if again else losses.new()
                outputs = [x for x in flat if backend.is_tensor(x)]
                results = outputs + new + self.state.results(outputs)
        if not again:
            self._check_returned(flat)
            self._note(flat, spec, losses)
        return results

    def _check_returned(self, flat):
        """Raise if a tensor lies in an object that the backend does not look into: it has no gradient."""
        backend = self.block.family.backend
        if backend.FOLLOWS_OBJECTS:
            return
        for leaf in flat:
            if any(backend.is_tensor(x) and "float" in str(x.dtype) for x in _attributes(leaf)):
                raise RematError(
                    "A recomputed block must return tensors, or lists, tuples and dicts of them. Received: "
                    f"block {self.block.name!r} that returns a tensor in a {type(leaf).__name__}. Return a "
                    "dict or a named tuple instead."
                )

    @contextlib.contextmanager
    def _as_before(self):
        with self.surroundings(), self.block.family.entered(self.call_state):
            yield

    def _note(self, flat, spec, losses):
        backend = self.block.family.backend
        places = [i for i, x in enumerate(flat) if backend.is_tensor(x)]
        marks = [backend.marks(flat[i]) for i in places]
        leaves = [None if backend.is_tensor(x) else x for x in flat]
        self._notes = _Notes(leaves, places, marks, spec, losses)
        self._has_run = not self.is_kept

    def finish(self, results):
        """Put `results`, the tensors of the first run, in their places; return the block's outputs."""
        backend, notes = self.block.family.backend, self._notes
        if not self.is_kept:  # this lives on until the gradient is taken and must not keep the outputs
            self._notes = None
        count = len(notes.places)
        outputs = [backend.marked(t, marks) for t, marks in zip(results, notes.marks)]
        losses = notes.losses.replace(results[count:])
        self.state.commit(outputs, results[count + losses :])
        leaves = list(notes.leaves)
        for place, output in zip(notes.places, outputs):
            leaves[place] = output
        return backend.pack(notes.spec, leaves)


def _attributes(value):
    """List the values of the attributes of an object that is neither tensor nor variable."""
    if hasattr(value, "dtype"):
        return []
    slots = [getattr(value, name, None) for name in getattr(type(value), "__slots__", ())]
    return [*slots, *getattr(value, "__dict__", {}).values()]
