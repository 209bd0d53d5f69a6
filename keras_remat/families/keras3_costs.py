"""How Keras 3 has the costs of a call traced: in a scope of its own, so that nothing of it stays behind."""

from keras_remat.families import costs, keras3_models


def input_specs(family, model, size):
    """Return {key: (shape, dtype)} of the tensors that a model takes, None if they are not known yet."""
    inputs = getattr(model, "_functional", model)  # of a Sequential
    if inputs is None:
        return None
    inputs = inputs.inputs
    keys = ["0"] if keras3_models.is_chain(family, model) else [str(id(t)) for t in inputs]
    specs = [(size(i, tuple(t.shape)), t.dtype) for i, t in enumerate(inputs)]
    return dict(zip(keys, specs))


def trace(family, call, specs, wanted, masked):
    """Trace a call with inputs of shapes and dtypes `specs`; see `costs.trace`."""
    layers = [call.layer] if isinstance(call.layer, family.layer_class) else []
    scope_class = family.module("backend").StatelessScope
    held = _weights(family, layers)

    def run_call(values, tensors):
        with scope_class(state_mapping=list(zip(held, values)), collect_losses=True):
            keras3_models.run_call(family, call, tensors, {"training": True})
        for layer in family.all_sublayers(layers):
            layer._loss_ids.clear()

    values, trained = [v._value for v in held], [v.trainable for v in held]
    return costs.trace(family, call, run_call, specs, wanted, masked, values, trained)


def _weights(family, layers):
    """List the variables that stand for tensors in a trace.

    Not those of seeds, whose values PyTorch reads. On TensorFlow none, where loops keep what they read of
    variables in each step.
    """
    variables = [] if family.backend.REPLAYS_VARIABLES else family.all_variables(layers)
    return [v for v in variables if v._value is not None and "float" in str(v.dtype)]


def arguments_of(family, call):
    """Describe what a call is given, each tensor by its position among the call's inputs."""
    if call.node is call.layer:  # of a Sequential
        return ""
    tree, positions = family.module("tree"), {key: i for i, key in enumerate(call.inputs)}
    arguments = call.node.arguments

    def described(value):
        return f"tensor {positions[str(id(value))]}" if str(id(value)) in positions else repr(value)

    return str(tree.map_structure(described, (arguments.args, arguments.kwargs)))
