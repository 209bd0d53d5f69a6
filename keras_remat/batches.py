"""The largest batch that fits a device, before anything runs."""

import functools

from keras_remat.engine import recompute_enabled
from keras_remat.errors import BudgetError, RematError
from keras_remat.families import optimizers
from keras_remat.planning import models, scaling
from keras_remat.planning.simulate import plain
from keras_remat.plans import Sizes, check_strategy, family_of_graph, parse_size

_FIRST = 2  # where the first line begins: batches of one may be special
_LINES = 4  # how many are drawn
_SLOTS = 2  # what Adam keeps for each weight


def max_batch_size(model, memory, *, strategy="auto", input_shapes=None):
    """Returns the largest batch size whose training step is predicted to fit in the memory of a device.

    Counted are all weights, a gradient of each that is trained, what the optimizer keeps (that of a compiled
    model is asked; else two slots for each trained weight, as Adam has), and the predicted peak of tensors
    that depend on the batch. What kernels take while they run, and what a framework reserves, is not: leave
    them some of the device's memory, a tenth for example.

    Calls are traced for two batch sizes at a time, from which costs of others follow where they grow by the
    sample, until that is so of the result; where it never is, each batch size that is tried is traced.

    Args:
      model: a Sequential or functional model whose calls can be traced.
      memory: bytes as an int, or a string like "11GB" or "80GiB".
      strategy: "auto", "sqrt", "every" or a number of segments, as for `plan`; None for the model without
        recomputation.
      input_shapes: shape of the input, or a list of shapes of all inputs, for models that leave dimensions
        beside the batch open; the batch dimension is None.

    Returns:
      A positive int, for `plan(model, strategy=strategy, batch_size=...)`.

    Raises:
      BudgetError: if a batch of one does not fit; it has the memory that it takes.
      RematError: if an argument is none of the above, the batch size of the model is fixed, or the calls of
        the model cannot be traced; for a compiled model of Keras 2.3.1, or of tf.keras on TensorFlow 1.

    Example:
        >>> import keras
        >>> from keras_remat import max_batch_size
        >>> layers = [keras.layers.Dense(64, "relu") for _ in range(16)]
        >>> model = keras.Sequential([keras.Input((64,)), *layers])
        >>> max_batch_size(model, "10MB") > 1.7 * max_batch_size(model, "10MB", strategy=None)
        True
    """
    family = family_of_graph(model)
    if strategy is not None:
        check_strategy(strategy)
        if strategy == "measured":
            raise RematError(
                'Batch sizes are found before anything runs. Received: strategy="measured". Take "auto".'
            )
    available = parse_size(memory) - _resident(family, model)
    trace = _tracer(family, model, input_shapes, strategy == "every")

    def peak(batch_size):
        return _peak(trace(batch_size), strategy)

    _check_growth(model, peak)
    found = _by_lines(trace, strategy, available)
    found = _largest(peak, available) if found is None else found
    if found == 0:
        raise _over(available, peak(1), parse_size(memory))
    return found


def _by_lines(trace, strategy, available):
    """The largest batch size, with costs on a line through those of two; None if that does not find it.

    What a gradient holds while it runs is the most of several moments, each on a line of its own. So the line
    is drawn again through what was found, until traces of that and of the next size say that it is so.
    """
    size = _FIRST
    for _ in range(_LINES):
        ends = [(n, trace(n)) for n in (size, size + 1)]
        if _peak(ends[0][1], strategy) <= available < _peak(ends[1][1], strategy):
            return size
        if scaling.scaled_part(*ends, 1) is None:
            return None
        found = _largest(lambda n, ends=ends: _peak(scaling.scaled_part(*ends, n), strategy), available)
        size = max(1, found)
    return None


def _resident(family, model):
    """The bytes of weights, of their gradients, and of what the optimizer keeps of them."""
    weights, trained = (sum(map(optimizers.bytes_of, w)) for w in (model.weights, model.trainable_weights))
    optimizer = getattr(model, "optimizer", None)
    slots = _SLOTS if optimizer is None else family.slots(optimizer)
    return int(weights + trained + slots * trained)


def _tracer(family, model, input_shapes, is_every):
    """Return the function that traces the costs of a model for a batch size, once for each."""

    @functools.lru_cache(maxsize=None)
    def trace(batch_size):
        sizes = Sizes(batch_size, input_shapes)
        with recompute_enabled(False):  # what is traced is the plain model
            part, reason = models.part_with_costs(family, model, sizes, is_every)
        if reason is not None:
            raise RematError(
                "A largest batch size needs the costs of calls, which are known where calls can be traced. "
                f"Received: {model.name!r}, where {reason}. Try batch sizes instead."
            )
        if sizes.notes:
            raise RematError(
                "`input_shapes` must give the dimensions that a model leaves open, beside the batch. "
                f"Received: input_shapes={input_shapes!r}, and {sizes.notes[0]}. For example: (None, 128)."
            )
        return part

    return trace


def _check_growth(model, peak):
    if peak(_FIRST + 1) <= peak(_FIRST):
        raise RematError(
            "A largest batch size is for a model whose batch dimension is open. Received: "
            f"{model.name!r}, whose tensors do not grow with the batch. Make it with open inputs, and leave "
            "the batch dimension of `input_shapes` None."
        )


def _peak(part, strategy):
    """The most bytes that a step holds which depend on the batch."""
    from keras_remat.planning import cutting  # which needs NumPy, as every Keras does

    return (
        plain(models.flat(part)).peak
        if strategy is None
        else cutting.peak(cutting.by_strategy(part, strategy))
    )


def _largest(needed, available):
    """The largest number whose `needed` bytes are available; it is doubled, then halved between."""
    low, high = 0, 1
    while needed(high) <= available:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle) <= available else (low, middle)
    return low


def _over(available, least, memory):
    smallest = memory - available + least
    return BudgetError(
        "A training step of one sample must fit the memory. Received: "
        f"{memory} bytes. With weights, their gradients and the optimizer's slots it takes {smallest}. "
        "Give it that much, or make the model smaller.",
        smallest,
    )
