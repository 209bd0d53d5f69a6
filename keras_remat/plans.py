"""What a model's training step would hold, with and without recomputation, before anything runs."""

import re

from keras_remat import measured
from keras_remat.engine import recompute_enabled
from keras_remat.errors import RematError
from keras_remat.families import family_of
from keras_remat.planning import models
from keras_remat.planning.plan import plan_of

_STRATEGIES = ("auto", "sqrt", "every", "measured")
_BATCH, _LENGTH = 32, 128  # what dimensions are taken to be that nobody gave
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def plan(model, *, strategy="auto", memory_budget=None, batch_size=None, input_shapes=None):
    """Chooses what to recompute in a model by what each of its calls keeps and costs; returns a `Plan`.

    The model stays as it is. Each call of it is traced with its gradient on tensors without data, so nothing
    is computed: what the gradient reads is what is kept. Calls of like layers are traced once.

    Methods: Chen et al., 2016, https://arxiv.org/abs/1604.06174 (segments); Kusumoto et al., 2019,
    https://arxiv.org/abs/1905.11722 (cuts that several tensors cross); Beaumont et al., 2019,
    https://arxiv.org/abs/1911.13214 (segments inside segments, where a budget needs them).

    Args:
      model: a Sequential or functional model of any supported Keras. Where its calls cannot be traced, their
        costs are estimates by the sizes of their outputs, which the plan notes.
      strategy: "auto" (of the plans with the least predicted peak, the one that repeats the least work),
        "sqrt", "every", a number of segments, or "measured": of a few plans that are predicted to be good,
        the one whose step takes the least memory here. The model is converted by each in turn and runs a step
        on made-up inputs; its variables and blocks are what they were afterwards. A GPU tells every backend
        its memory; a CPU tells JAX, and TensorFlow with TF_CPU_ALLOCATOR_USE_BFC=1 in the environment.
      memory_budget: bytes as an int, or a string like "8GB" or "512MiB": the plan that repeats the least work
        among those that hold no more. It is for tensors that depend on the batch: take weights, their
        gradients and the optimizer's state off what the device has.
      batch_size: int, for models whose batch size is open (default 32).
      input_shapes: shape of the input, or a list of shapes of all inputs, batch dimension included, for
        models that leave other dimensions open (they are taken to be 128, which the plan notes).

    Returns:
      A `Plan`, for `recompute_all(model, strategy=plan)`.

    Raises:
      BudgetError: if no plan fits `memory_budget`; it has the smallest budget that does.
      RematError: if an argument is none of the above, or nothing can be measured.

    Example:
        >>> import keras
        >>> from keras_remat import plan
        >>> layers = [keras.layers.Dense(8, "relu") for _ in range(9)]
        >>> chosen = plan(keras.Sequential([keras.Input((8,)), *layers]), strategy=3, batch_size=1000)
        >>> len(chosen.rows), chosen.baseline_bytes > chosen.peak_bytes
        (3, True)
    """
    family = family_of_graph(model)
    request = Request(strategy, memory_budget, batch_size, input_shapes)
    cut, notes = request.cut(family, model)
    return plan_of(cut, request.sizes.batch_size, notes, strategy == "every")


class Request:
    """What a user asks of a plan; the arguments are those of `plan`."""

    def __init__(self, strategy, memory_budget=None, batch_size=None, input_shapes=None):
        check_strategy(strategy, memory_budget)
        self.strategy = strategy
        self.budget = parse_size(memory_budget) if memory_budget is not None else None
        self.sizes = Sizes(batch_size, input_shapes)

    def cut(self, family, model, **options):
        """Return the `models.Cut` of a model that is asked for, and notes on its costs.

        Args:
          options: `excluded`, as `models.part_of` takes it.
        """
        with recompute_enabled(False):  # what is traced is the plain model
            part, reason = models.part_with_costs(
                family, model, self.sizes, self.strategy == "every", **options
            )
        notes = self.sizes.all_notes(reason)
        if self.strategy == "measured":
            return measured.best(family, model, part, self._specs(family, model)), notes
        from keras_remat.planning import cutting  # which needs NumPy, as every Keras does

        if self.budget is not None:
            return cutting.by_budget(part, self.budget), notes
        return cutting.by_strategy(part, self.strategy), notes

    def _specs(self, family, model):
        """List the (shape, dtype) of what a model takes."""
        specs = family.input_specs(model, self.sizes.of)
        if specs is None:
            raise RematError(
                "A model is measured with inputs of known shapes. Received: "
                f"{model.name!r}, which has none. Build it, or begin it with an Input."
            )
        return list(specs.values())


def family_of_graph(model):
    """Return the family of a Sequential or functional model; raise for others."""
    family = family_of(model)
    if not family.is_model(model) or family.calls(model) is None:
        raise RematError(
            "The costs of calls are known of a Sequential or functional model. Received: "
            f"{model.name!r} of type {type(model).__name__}. Choose its blocks with "
            "recompute_all(model, match=...)."
        )
    return family


class Sizes:
    """What the dimensions are that a model leaves open, and what was not given and is taken to be so."""

    def __init__(self, batch_size=None, input_shapes=None):
        _check_batch_size(batch_size)
        self.batch_size = batch_size or _BATCH
        self.shapes = _list_of_shapes(input_shapes)
        self.notes = []

    def of(self, position, shape):
        """Return the shape of the input at a position, which Keras gives as `shape`, with open dimensions."""
        given = self.shapes[position] if position < len(self.shapes) else shape
        if len(given) != len(shape) or any(a not in (b, None) for a, b in zip(shape, given) if b is not None):
            raise RematError(
                f"`input_shapes` must fit the model's inputs. Received: {given} for input {position}, which "
                f"has the shape {tuple(shape)}. Give the batch dimension as well."
            )
        if any(size is None for size in given[1:]):
            self.notes.append(f"dimensions that nobody gave are taken to be {_LENGTH}: pass input_shapes")
        first = [self.batch_size if size is None else size for size in given[:1]]
        return (*first, *(_LENGTH if size is None else int(size) for size in given[1:]))

    def all_notes(self, reason):
        """List what to know about the numbers, where costs are estimates for a `reason` that is not None."""
        notes = list(dict.fromkeys(self.notes))  # of several inputs the same
        if reason is not None:
            notes.append(f"costs are estimates by the sizes of outputs, because {reason}")
        return notes


def _check_batch_size(batch_size):
    if batch_size is not None and (
        isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1
    ):
        raise RematError(
            f"`batch_size` must be a positive int. Received: batch_size={batch_size!r}. Give the size of the "
            "batches that you train with."
        )


def _list_of_shapes(shapes):
    if shapes is None:
        return []
    one = isinstance(shapes, (list, tuple)) and all(size is None or isinstance(size, int) for size in shapes)
    several = isinstance(shapes, (list, tuple)) and all(isinstance(shape, (list, tuple)) for shape in shapes)
    if not one and not several:
        raise RematError(
            "`input_shapes` must be a shape, or a list of the shapes of all inputs. Received: "
            f"input_shapes={shapes!r}. For example: (32, 128)."
        )
    return [tuple(shapes)] if one else [tuple(shape) for shape in shapes]


def is_strategy(strategy):
    """True for "auto", "sqrt", "every", "measured" and a number of segments."""
    if isinstance(strategy, str):
        return strategy in _STRATEGIES
    return isinstance(strategy, int) and not isinstance(strategy, bool) and strategy > 0


def check_strategy(strategy, memory_budget=None):
    """Raise unless `strategy` is one, and leaves the choice to a budget if there is one."""
    if not is_strategy(strategy):
        raise RematError(
            '`strategy` must be "auto", "sqrt", "every", "measured" or a positive int, for recompute_all a '
            f"Plan, too. Received: strategy={strategy!r}. Take one of these."
        )
    if memory_budget is not None and strategy != "auto":
        raise RematError(
            "A `memory_budget` chooses the segments itself. Received: "
            f"memory_budget={memory_budget!r} and strategy={strategy!r}. Leave one of them out."
        )


def parse_size(size):
    """Return a number of bytes, which is given as an int or as a string.

    Example:
        >>> parse_size("8GB"), parse_size("1.5 MiB"), parse_size(7)
        (8000000000, 1572864, 7)
    """
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    pattern = r"\s*(\d+\.?\d*|\.\d+)\s*((?:[kmg]i?)?)b\s*"
    found = re.fullmatch(pattern, size.lower()) if isinstance(size, str) else None
    if found is None:
        raise RematError(
            "A memory budget must be a positive int of bytes or a string with a unit. Received: "
            f'{size!r}. For example: "8GB" or "512MiB".'
        )
    return int(float(found.group(1)) * _UNITS[found.group(2)])
