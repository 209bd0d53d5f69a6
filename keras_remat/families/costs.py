"""A call of a model, traced for its costs: its masks are tensors that it takes and gives like others."""

from keras_remat import backends
from keras_remat.replay import host_random


def trace(family, call, run_call, specs, wanted, masked, values=(), trained=()):
    """Return the `backends.costs.Traced` of a call, and the positions of the outputs that have masks.

    Args:
      run_call: function of (values, tensors): runs the call on `tensors`, by their keys, and adds outputs.
      specs: (shape, dtype) of the inputs, then of the masks that some have.
      wanted: for each, whether its gradient is wanted.
      masked: positions of the inputs that have masks.
      values: of variables that stand for tensors in the trace, of which `trained` tells which are trained.
    """
    found = []

    def run(values, *tensors):
        local = dict(zip(call.inputs, tensors))
        for position, mask in zip(masked, tensors[len(call.inputs) :]):
            family.set_mask(local[call.inputs[position]], mask)
        run_call(values, local)
        outputs = [local[key] for key in call.outputs]
        masks = [family.mask_of(tensor) for tensor in outputs]
        found[:] = [i for i, mask in enumerate(masks) if mask is not None]
        return outputs + [masks[i] for i in found]

    backend = backends.load(family.backend_name + "_costs")
    with host_random.again(host_random.state()):
        return backend.trace(run, specs, wanted, list(values), list(trained)), tuple(found)
