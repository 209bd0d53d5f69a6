"""The recomputed block in eager mode: run without a tape, and again under one when its gradient is asked for.

The second run sees the values that variables had on entry (see `handles`). Tapes of the caller stay
active in it and see the block's inputs and variables as its sources, which makes higher derivatives
right.
"""

import contextlib

import numpy as np
import tensorflow as tf

from keras_remat.errors import RecomputeMismatchError, RematError
from keras_remat.replay import handles, host_random, tapes
from keras_remat.replay import scope as scopes
from keras_remat.replay.marks import unconverted
from keras_remat.replay.tapes import tape_lib

# Tells which variables a block reads while no tape records; TensorFlow 2.2+.
_VariableWatcher = getattr(tape_lib, "VariableWatcher", None)
_variable_accessed = getattr(tape_lib, "variable_accessed", None)
if _variable_accessed is None:
    from tensorflow.python.eager.tape import variable_accessed as _variable_accessed


@unconverted
def run(call, inputs, variables, name):
    """Call `call(inputs)` eagerly; return its tensors, to be computed again for the gradient.

    Args:
      call: function from a list of tensors to a list of tensors.
      inputs: list of tensors.
      variables: function that lists the variables that the block is known to use.
      name: of the block, for messages.
    """
    scope = scopes.Scope(None)
    randomness = host_random.state()
    with tapes.stopped(), scopes.opened(scope), _watching() as watched:
        outputs = [_new(t) for t in call(inputs)]
    used = _unique([_resource(v) for v in variables() + watched()])
    block = _Block(call, inputs, used, scope, outputs, name, randomness)
    sources = [t for t in inputs if _is_float(t)] + [v.handle for v in block.trainable]
    if tapes.is_forward_mode(sources):
        raise RematError(
            "A block that is recomputed eagerly has reverse-mode gradients only. Received: block "
            f"{name!r} under a tf.autodiff.ForwardAccumulator. Call the model in a tf.function, or under "
            "recompute_enabled(False)."
        )
    for variable in block.trainable:
        _variable_accessed(variable)
    tape_lib.record_operation("KerasRemat", outputs, sources, block.differentiate)
    return outputs


@contextlib.contextmanager
def _watching():
    if _VariableWatcher is None:
        yield list
    else:
        with _VariableWatcher() as watcher:
            yield lambda: list(watcher.watched_variables())


def _unique(variables):
    seen = {}
    for variable in variables:
        seen.setdefault(id(variable), variable)
    return list(seen.values())


def _resource(variable):
    """Return the resource variable behind a variable that casts or is mirrored."""
    while not isinstance(getattr(variable, "_handle", None), tf.Tensor) or hasattr(variable, "_variable"):
        if hasattr(variable, "_variable"):  # casts by itself (mixed precision)
            variable = variable._variable
        elif hasattr(variable, "_get"):  # mirrored: the one of this replica
            variable = variable._get()
        else:
            raise RematError(
                "A block that is recomputed eagerly may use resource variables only. Received: "
                f"{variable!r}. Leave the layer that owns it out of the recomputed block."
            )
    return variable


def _entry(variable, scope):
    noted = scope.written.get(id(variable._handle))
    return variable.read_value() if noted is None else noted[1]


def _new(tensor):
    """Return another tensor of the same buffer; `tf.identity` gives the same one up to TensorFlow 2.1."""
    return tf.raw_ops.Identity(input=tensor)


def _is_float(tensor):
    return tensor.dtype.is_floating or tensor.dtype.is_complex


class _Block:
    """What is kept of a block between its two runs."""

    def __init__(self, call, inputs, variables, scope, outputs, name, randomness):
        self.call, self.inputs, self.name = call, inputs, name
        self.randomness = randomness
        self.log = scope.log
        self.trainable = [v for v in variables if v.trainable and _is_float(v)]
        named = {id(v._handle) for v in variables}
        with tapes.stopped():
            self.entries = [(v, _entry(v, scope)) for v in variables]
        # Written, but by an object that nobody named: these are written back for the second run.
        self.unnamed = [entry for key, entry in scope.written.items() if key not in named]
        self.samples = [_sample(t) for t in outputs]
        self.signature = [(t.shape.as_list(), t.dtype) for t in outputs]

    def differentiate(self, *grads):
        """Run the block again and return the gradients of its inputs and trainable variables."""
        with handles.written_back(self.unnamed), handles.standing_in(self.entries), host_random.again(
            self.randomness
        ):
            with tf.GradientTape(watch_accessed_variables=_VariableWatcher is None) as tape:
                leaves = [_new(t) for t in self.inputs]
                sources = [t for t in leaves if _is_float(t)] + self.trainable
                for source in sources:
                    tape.watch(source)
                outputs = self._run_again(leaves)
                self._check_variables(tape.watched_variables())
            pairs = [(y, g) for y, g in zip(outputs, grads) if g is not None and _is_float(y)]
            if not pairs:
                return [None] * len(sources)
            return tape.gradient([y for y, _ in pairs], sources, output_gradients=[g for _, g in pairs])

    def _run_again(self, leaves):
        with scopes.opened(scopes.Scope(None, self.log)) as scope:
            with tf.variable_creator_scope(self._refuse_variable):
                outputs = self.call(leaves)
            scope.check_finished()
        self._check_outputs(outputs)
        return outputs

    def _refuse_variable(self, make, **kwargs):
        raise RecomputeMismatchError(
            "A layer in a recomputed block must make its weights in its first run. Received: block {!r} made "
            "{!r} in the second run. Make it in `build`.".format(self.name, kwargs.get("name"))
        )

    def _check_outputs(self, outputs):
        received = [(t.shape.as_list(), t.dtype) for t in outputs]
        if received != self.signature:
            self._raise(f"outputs of shapes and types {received}", f"{self.signature}")
        for index, (tensor, sample) in enumerate(zip(outputs, self.samples)):
            again = _sample(tensor)
            if not hasattr(again, "numpy"):  # in the loop that computes a Jacobian
                return
            if sample is not None and not _is_close(sample, again, tensor.dtype):
                self._raise(f"output {index} near {again}", f"{sample}")

    def _check_variables(self, watched):
        """Raise for a variable that is not the block's layers', where no watcher finds those."""
        known = {id(v) for v in self.trainable}
        for variable in watched:
            if id(_resource(variable)) not in known:
                raise RematError(
                    "Up to TensorFlow 2.1, a block that is recomputed eagerly may only use weights of its "
                    f"layers. Received: block {self.name!r} with the variable {variable.name!r}. Make it "
                    "an attribute of the layer."
                )

    def _raise(self, received, first):
        raise RecomputeMismatchError(
            "A recomputed block must do in its second run what it did in its first. Received: block "
            f"{self.name!r} gave {received} "
            f"where the first run gave {first}. Make the call independent of Python state that changes "
            "between calls (`is_recomputing()` tells the runs apart), or leave the layer out."
        )


_SAMPLE = 8


def _sample(tensor):
    """Read a few elements of an output, to see later whether the second run repeats the first."""
    if not tensor.dtype.is_floating:
        return None
    size = tensor.shape.num_elements()
    step = max(1, size // _SAMPLE)
    with tapes.stopped():
        return tf.reshape(tensor, [-1])[::step][:_SAMPLE]


def _is_close(first, second, dtype):
    """Compare within what a change of kernels may do; changed state differs by far more."""
    first, second = (tf.cast(t, tf.float64).numpy() for t in (first, second))
    tolerance = 1e-4 if dtype.base_dtype in (tf.float32, tf.float64) else 5e-2
    scale = np.max(np.abs(first)) if first.size else 0.0
    return np.allclose(first, second, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
