"""A model as calls of its layers, run segment by segment: what tf.keras and Keras 3 do alike."""

from keras_remat.errors import RematError
from keras_remat.families import wrapping
from keras_remat.families.base import Call


def depth(family, layer):
    """Estimate how many tensors like its output a layer holds: the layers inside that hold no layer."""
    inner = family.sublayers(layer)
    return max(1, sum(1 for x in inner if len(family.sublayers(x)) == 1))


def chain_calls(family, layers, input_shape):
    """List the calls of layers that run one after the other, on inputs of a shape or, unknown, None."""
    sizes = wrapping.output_sizes(layers, input_shape) or [1] * len(layers)
    return [
        Call(layer, (str(i),), (str(i + 1),), size, size * depth(family, layer), layer)
        for i, (layer, size) in enumerate(zip(layers, sizes))
    ]


def run_chain_call(call, tensors, training):
    """Run one of the calls that `chain_calls` lists."""
    (key,), (result,) = call.inputs, call.outputs
    tensors[result] = wrapping.run_chain([call.layer], tensors[key], training, None)


def check_chain(model, converted):
    """Raise if layers were added to a Sequential, or taken from it, after it was converted."""
    if list(model.layers) != converted:
        raise RematError(
            f"A converted Sequential must keep its layers. Received: {model.name!r} with {len(model.layers)} "
            f"layers, {len(converted)} when it was converted. Call recompute_all again."
        )


def run_segments(family, model, parts, tensors, wanted, run_call, runtime):
    """Run segments of `model` in order, blocks as such; return the tensors of the keys `wanted`.

    `run_call(call, tensors)` runs one call on tensors by their keys, and adds its outputs to them.
    """

    def run(segment):
        _run_segment(family, model, segment, tensors, run_call, runtime)

    return _run_in_order(parts, run, tensors, wanted)


def _run_in_order(parts, run, tensors, wanted):
    """Run calls or segments, and let go of each tensor that none of the rest reads; return those `wanted`."""
    last = {key: i for i, part in enumerate(parts) for key in (*part.inputs, *part.outputs)}
    last.update(dict.fromkeys(wanted, len(parts)))
    for i, part in enumerate(parts):
        run(part)
        for key in {*part.inputs, *part.outputs}:
            if last[key] == i:
                tensors.pop(key, None)
    return [tensors[key] for key in wanted]


def _run_segment(family, model, segment, tensors, run_call, runtime):
    def run(*inputs):
        local = dict(zip(segment.inputs, inputs))
        if segment.inside:
            return run_segments(family, model, segment.inside, local, segment.outputs, run_call, runtime)
        return _run_in_order(segment.calls, lambda call: run_call(call, local), local, segment.outputs)

    inputs = [tensors[key] for key in segment.inputs]
    if segment.is_block:
        # Operations of Keras 3 are calls as well, and no layers.
        layers = [call.layer for call in segment.calls if isinstance(call.layer, family.layer_class)]
        name = f"{model.name} ({segment.calls[0].layer.name} to {segment.calls[-1].layer.name})"
        outputs = runtime.call(name, run, layers, family, inputs, {})
    else:
        outputs = run(*inputs)
    tensors.update(zip(segment.outputs, outputs))
