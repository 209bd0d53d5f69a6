"""The questions that a family of Keras answers."""

import contextlib
import importlib
from typing import Any, NamedTuple, Tuple

from keras_remat import backends
from keras_remat.families import optimizers, replaced, wrapping
from keras_remat.families.new_losses import NewLosses


class Call(NamedTuple):
    """One call of a layer in a model's graph.

    `inputs` and `outputs` hold keys of tensors, `size` the elements per sample of all outputs
    (unknown dimensions count 1), `inside` an estimate of those that the layer holds while it runs.
    """

    layer: Any
    inputs: Tuple[str, ...]
    outputs: Tuple[str, ...]
    size: int
    inside: int
    node: Any


class Segment(NamedTuple):
    """Consecutive calls of a model: keys of the tensors that they read and that others read of them.

    If `is_block`, they run as one recomputed block, of the segments `inside` if there are any; otherwise it
    is a single call that runs plainly.
    """

    calls: Tuple[Call, ...]
    inputs: Tuple[str, ...]
    outputs: Tuple[str, ...]
    is_block: bool
    inside: Tuple["Segment", ...] = ()


class State:
    """What a block's call takes in and gives back as tensors beside arguments and outputs.

    Where `replay` looks after variables that is nothing, which is what this class says.
    """

    #: What the call depends on, beside its arguments.
    tensors = []
    #: Variables that are among them, places of arguments whose masks are, and variables that are not.
    variables, masked, entries = (), (), ()
    #: Layers whose losses the block reads, with those from before it.
    earlier = ()

    def opened(self, given, carried, again):
        """Context manager around a run: arguments `given`, and `carried` in the place of `tensors`."""
        return contextlib.nullcontext()

    def results(self, outputs):
        """List what the run made on the side, as tensors, inside of `opened`."""
        return []

    def commit(self, outputs, results):
        """Put what `results` stand for in its place: `outputs` and `results` of the first run."""


NO_STATE = State()


class Family:
    """One Keras: how its layers are called, and where they put what they make on the side.

    Subclasses answer every method that raises here; of the others, conversion is that of Kerases whose models
    and layers may have a `call` of their own on the instance. `root` is the package that holds the family's
    modules, such as `tf_keras.src`.
    """

    backend_name = "tensorflow"

    def __init__(self, root):
        self.root = root
        self.backend = backends.load(self.backend_name)

    def module(self, name):
        """Import a module of this Keras."""
        return importlib.import_module(self.root + "." + name)

    #: True if a model would train the weights of a layer once for each wrapper of it.
    has_one_wrapper = False

    def make_wrappers(self, runtime):
        """Make and register the family's classes Recompute and RecomputeSequential."""
        raise NotImplementedError

    def is_inference(self):
        """True if what is being called now is a model that predicts, evaluates or is saved."""
        raise NotImplementedError

    def sublayers(self, layer):
        """List `layer` and all layers inside it, each once."""
        raise NotImplementedError

    def all_sublayers(self, layers):
        """List `layers` and all layers inside them, each once."""
        return list({id(x): x for layer in layers for x in self.sublayers(layer)}.values())

    def loss_lists(self, layer):
        """List the Python lists in which `layer` itself collects losses."""
        raise NotImplementedError

    def variables(self, layers):
        """List the variables that `layers` own, trainable or not, metrics included."""
        raise NotImplementedError

    def all_variables(self, layers):
        """List them as objects of Keras, those of generators as well where they are variables."""
        return self.variables(layers)

    def number_of(self, variable):
        """Return what a variable of `all_variables` is, as NumPy's array."""
        return variable.numpy()

    def call_state(self, layers):
        """Note what Keras knows about the present call of `layers` (training phase, casts, caches)."""
        raise NotImplementedError

    def entered(self, state):
        """Context manager: be again in the call that `state` was noted in."""
        raise NotImplementedError

    def calls(self, model):
        """List the calls of a model's graph in topological order, None if it has no graph."""
        raise NotImplementedError

    def is_model(self, layer):
        """True if `layer` is a model."""
        raise NotImplementedError

    def output_keys(self, model):
        """List the keys of a model's output tensors."""
        raise NotImplementedError

    def input_specs(self, model, size):
        """Return {key: (shape, dtype)} of what `model` takes; `size(position, shape)` gives their shapes.

        None where the inputs of the model, and so the costs of its calls, are not known yet.
        """
        raise NotImplementedError

    def trace(self, call, specs, wanted, masked):
        """Trace the costs of a call; see `costs.trace`."""
        raise NotImplementedError

    def arguments_of(self, call):
        """Describe what a call is given: calls of like layers that differ in it differ in their costs."""
        raise NotImplementedError

    @property
    def callback_class(self):
        """The base class of this Keras's callbacks."""
        return self.module("callbacks").Callback

    def memory(self):
        """Return the module that measures the memory of the backend."""
        return backends.load(self.backend_name + "_memory")

    def slots(self, optimizer):
        """Return how many bytes an optimizer keeps for each byte of the weights that it trains."""
        return optimizers.slots(optimizer, self.variable())

    def variable(self):
        """Make a variable, a matrix."""
        raise NotImplementedError

    def like_layers(self, model):
        """List the layers that a subclassed model holds in lists of layers of one class."""
        return wrapping.like_layers(self, model)

    def convert(self, model, segments, runtime):
        """Make `model` run its calls segment by segment, in place."""
        raise NotImplementedError

    def forget_functions(self, model):
        """Drop what `compile` and `fit` made of the model before it was converted or restored."""
        raise NotImplementedError

    def convertible(self, function, layer):
        """Return `function`, a method of `layer` or a function (None), as AutoGraph would call it."""
        is_own = layer is not None and self.is_own_class(layer)
        return function if is_own else self.backend.convertible(function)

    def convert_layer(self, layer, runtime):
        """Run each call of `layer`, by itself, as a recomputed block."""
        replaced.make_block(self, layer, runtime)

    def restore(self, layer):
        """Undo `convert` or `convert_layer`, not those of layers inside."""
        replaced.restore_call(layer)

    def is_converted(self, layer):
        """True if `layer` itself was converted."""
        return replaced.is_call_replaced(layer)

    def segments(self, model):
        """Return the `Segment`s that `convert` was given for `model`, None if it was not called."""
        return replaced.segments_of(model)

    def may_differentiate(self):
        """True if a gradient may be asked of what is computed now."""
        return self.backend.may_differentiate(self.is_inference())

    def state(self, layers, tensors):
        """Return the `State` that a call of `layers` with `tensors` takes along as tensors."""
        return NO_STATE

    def losses(self, layers):
        """Note the losses that `layers` hold now, to tell new ones from them."""
        return NewLosses(self, layers)

    def is_own_class(self, layer):
        """True if the class of `layer` is Keras's own, so that AutoGraph leaves it alone."""
        return type(layer).__module__.split(".")[: len(self.root.split("."))] == self.root.split(".")
