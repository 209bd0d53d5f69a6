"""Convert a whole existing model in place, and back.

A functional model runs its own graph of layers segment by segment through the engine; in a subclassed
model chosen layers become blocks. Layers, names, weights, config and files stay the plain model's.
"""

import warnings

from keras_remat import conversion
from keras_remat.errors import RematError, UnsupportedFamilyError
from keras_remat.families import family_of
from keras_remat.families.wrapping import check_policy
from keras_remat.layers import RUNTIME
from keras_remat.matching import matcher
from keras_remat.planning import models
from keras_remat.planning.plan import Plan
from keras_remat.plans import Request


def recompute_all(
    model,
    *,
    strategy="auto",
    memory_budget=None,
    batch_size=None,
    input_shapes=None,
    match=None,
    exclude=None,
    policy=None,
):
    """Converts a model in place so that training keeps less for the backward pass, and returns it.

    The model goes on as the same object: same layers, names, order of weights, `summary()` and
    `get_config()`, and files saved from it are those of the plain model, which load without
    keras_remat. All numbers are the plain model's. It may be called before or after `compile`; a
    compiled model stays compiled and keeps the state of its optimizer. A second call replaces the first.
    It helps where activations fill the memory (many layers, large batches, long sequences) and not
    where weights do. A step takes up to a third longer: the forward pass runs twice.

    Which calls become blocks is chosen by what each call of the model keeps and costs, as `plan` does: that
    is a trace of each kind of layer, some seconds for a large model.

    Method: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016,
    https://arxiv.org/abs/1604.06174.

    Args:
      model: a Sequential, functional or subclassed model of Keras 3, standalone Keras 2.3.1, tf.keras
        or tf_keras. In a subclassed model the blocks are the layers that `match` chooses; without it,
        the lists of like layers that the model holds (`self.blocks = [...]`). It has no graph to cut, so
        it takes no `strategy` and no `memory_budget`.
      strategy: "auto" (the least peak with one recomputation), "sqrt" (about the square root of the number
        of layers), "every" (each layer by itself), a number of segments, "measured", or a `Plan`.
      memory_budget, batch_size, input_shapes: as of `plan`.
      match: which layers become blocks, each by itself: a name or regular expression that matches
        the whole name, a class, a predicate of the layer, or a list of these. Layers inside layers
        and models are searched too.
      exclude: which layers are never recomputed, given in the same ways.
      policy: None, to recompute all of a block.

    Returns:
      `model`.

    Warns:
      UserWarning: if no plan lowers the predicted peak; then the model stays as it is.

    Raises:
      UnsupportedFamilyError: if `model` is no model of a supported Keras.
      BudgetError: if no plan fits `memory_budget`; it has the smallest budget that does.
      RematError: if an argument is none of the above, nothing matches, or `match` is not given and a
        subclassed model has no list of like layers, or a Sequential of Keras 2.3.1 or tf.keras 1.x no
        input shape.

    Example:
        >>> import keras
        >>> from keras_remat import recompute_all
        >>> model = keras.Sequential([keras.layers.Dense(8, "relu") for _ in range(9)])
        >>> model = recompute_all(model, strategy="sqrt")
        >>> model.compile("adam", "mse")
    """
    family = _family_of_model(model)
    check_policy(policy)
    request = _request(strategy, memory_budget, batch_size, input_shapes, match)
    matches = matcher(match, "match") if match is not None else None
    excluded = matcher(exclude, "exclude") if exclude is not None else lambda layer: False
    if exclude is not None and not any(map(excluded, family.sublayers(model))):
        raise RematError(
            f"`exclude` must match a layer of the model. Received: exclude={exclude!r}, which matches none "
            f"of: {_names(family, model)}. Correct it, or leave it out."
        )
    # All that may fail comes first: until here the model keeps the blocks that it has.
    cut, layers = None, []
    if isinstance(strategy, Plan):
        cut = _planned_cut(family, model, strategy, exclude)
    elif matches is not None or family.calls(model) is None:
        if matches is None:
            _check_no_cut(family, model, request)
        layers = _chosen_layers(family, model, matches, excluded, match)
    else:
        cut, _ = request.cut(family, model, excluded=excluded)
    restore(model)
    try:
        if cut is not None:
            conversion.apply(family, cut)
        for layer in layers:
            family.convert_layer(layer, RUNTIME)
        family.forget_functions(model)
    except BaseException:
        restore(model)
        raise
    if cut is not None and not isinstance(strategy, Plan) and request.budget is None and not _has_blocks(cut):
        warnings.warn(
            f"Nothing that could be computed again would lower the predicted peak of {model.name!r}, so it "
            "stays as it is. Make the batch smaller, or choose blocks yourself with match=...",
            stacklevel=2,
        )
    return model


def _has_blocks(cut):
    return bool(cut.blocks) or any(map(_has_blocks, cut.inner.values()))


def _request(strategy, memory_budget, batch_size, input_shapes, match):
    """Check how a model is to be cut, and return it as a `plans.Request`; None for a plan."""
    if match is not None and (strategy != "auto" or memory_budget is not None):
        raise RematError(
            "`strategy` and `memory_budget` cut a whole model; the layers that `match` chooses are blocks by "
            f"themselves. Received: strategy={strategy!r}, memory_budget={memory_budget!r} and "
            f"match={match!r}. Leave one of them out."
        )
    if not isinstance(strategy, Plan):
        return Request(strategy, memory_budget, batch_size, input_shapes)
    if (memory_budget, batch_size, input_shapes) != (None, None, None):
        raise RematError(
            "A plan was made for a budget and a batch. Received: a plan, and "
            f"memory_budget={memory_budget!r}, batch_size={batch_size!r}, input_shapes={input_shapes!r}. "
            "Make the plan with them."
        )
    return None


def restore(model):
    """Makes a model that `recompute_all` converted the plain model again, in place, and returns it.

    Args:
      model: a model; one that was not converted is returned as it is.

    Raises:
      UnsupportedFamilyError: if `model` is no model of a supported Keras.

    Example:
        >>> import keras
        >>> from keras_remat import recompute_all, restore
        >>> model = recompute_all(keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(8)]))
        >>> model = restore(model)
    """
    family = _family_of_model(model)
    conversion.undo(family, model)
    return model


def _family_of_model(model):
    family = family_of(model)
    if not family.is_model(model):
        raise UnsupportedFamilyError(
            f"recompute_all takes a model. Received: the layer {model.name!r} of type "
            f"{type(model).__name__}. Wrap a layer with Recompute."
        )
    return family


def _check_no_cut(family, model, request):
    """Raise if a model without a graph is to be cut; that each of its blocks is one goes without saying."""
    if type(model).call.__module__.startswith(family.root + "."):
        raise RematError(
            "This Keras makes the graph of a Sequential, along which it is cut, when it knows the shape of "
            f"its inputs. Received: {model.name!r}, which has none yet. Give its first layer input_shape=..."
        )
    if request.strategy not in ("auto", "every") or request.budget is not None:
        asked = "a memory_budget" if request.budget is not None else f"strategy={request.strategy!r}"
        raise RematError(
            "A strategy or a memory_budget cuts the graph of a Sequential or functional model. Received: "
            f"{asked} for {model.name!r} of type {type(model).__name__}, which has none. Leave it out: "
            "blocks are the lists of like layers that the model holds, or the layers that match=... chooses."
        )


def _chosen_layers(family, model, matches, excluded, match):
    """List the layers that become blocks each by itself."""
    if matches is None:
        return _like_layers(family, model, excluded)
    return _matching_layers(family, model, matches, excluded, match)


def _matching_layers(family, model, matches, excluded, match):
    """List the matching layers, the outermost where one lies in another."""
    chosen, inside = [], set()
    for layer in family.sublayers(model):
        if layer is model or id(layer) in inside:
            continue
        if matches(layer) and not any(map(excluded, family.sublayers(layer))):
            chosen.append(layer)
            inside.update(id(x) for x in family.sublayers(layer))
    if not chosen:
        raise RematError(
            f"`match` must match a layer of the model. Received: match={match!r}, which matches none of: "
            f"{_names(family, model)}. Correct it, or exclude less."
        )
    return chosen


def _names(family, model):
    names = sorted(layer.name for layer in family.sublayers(model) if layer is not model)
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")


def _like_layers(family, model, excluded):
    """List the layers of a subclassed model that lie in lists of one class."""
    blocks = [x for x in family.like_layers(model) if not any(map(excluded, family.sublayers(x)))]
    if not blocks:
        raise RematError(
            "A subclassed model must hold its blocks in a list of layers of one class, or `match` must "
            f"choose them. Received: {model.name!r} of type {type(model).__name__}, which holds no such "
            "list. Pass match=<name, regular expression, class or predicate>."
        )
    return blocks


def _planned_cut(family, model, plan, exclude):
    """Return the blocks of a plan in a model; raise if it does not fit."""
    if exclude is not None or family.calls(model) is None:
        raise RematError(
            "A plan is for all calls of a Sequential or functional model. Received: a plan for "
            f"{model.name!r} of type {type(model).__name__}, and exclude={exclude!r}. Give one of "
            '"auto", "sqrt", "every" and a number instead.'
        )
    return plan.cut(models.part_of(family, model, plan.is_every))
