"""How much memory JAX has in use on its devices: where they tell, which a CPU does not."""

import jax

from keras_remat.errors import RematError

_PEAK = "peak_bytes_in_use"


def check():
    """Raise if nothing can be measured."""
    devices = jax.local_devices()
    if not all(_PEAK in (device.memory_stats() or {}) for device in devices):
        raise RematError(
            "Peaks are measured on devices that tell JAX their memory statistics, such as a GPU. "
            f"Received: {', '.join(map(str, devices))}. Leave the callback out."
        )


def check_steps():
    """Do nothing: steps are compiled and not run, so that no device need tell anything."""


def reset():
    """Do nothing: JAX tells the peak since the process began."""


def peak():
    """Return the most bytes that were in use at once, on the device where that is most."""
    return max(device.memory_stats()[_PEAK] for device in jax.local_devices())


def peak_of_step(model, specs):
    """Return the bytes that XLA sets aside for a step of training, beside what the step is given.

    The program is compiled and asked, not run; so devices need not tell their statistics.

    Args:
      specs: list of (shape, dtype) of what the model takes.
    """
    inputs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in specs]
    inputs = inputs if len(inputs) > 1 else inputs[0]
    weights = [variable.value for variable in model.trainable_variables]
    state = [variable.value for variable in model.non_trainable_variables]

    def loss(weights, state, inputs):
        outputs, state = model.stateless_call(weights, state, inputs, training=True)
        outputs = jax.tree_util.tree_leaves(outputs)
        return sum(jax.numpy.mean(jax.numpy.square(t.astype("float32"))) for t in outputs), state

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    found = step.lower(weights, state, inputs).compile().memory_analysis()
    if found is None:
        raise RematError(
            "Steps are measured where XLA tells what a program takes. Received: "
            f"{', '.join(map(str, jax.local_devices()))}, whose compiler does not. Take another strategy."
        )
    return found.temp_size_in_bytes + found.output_size_in_bytes
