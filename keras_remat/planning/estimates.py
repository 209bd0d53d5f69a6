"""What calls are taken to keep and to cost where they cannot be traced: by the sizes of what they put out.

That is all that is known of a model without input shapes, say, or of a call that needs data. A call is taken
to keep what it reads, and what it holds inside by the family's estimate.
"""

from keras_remat.planning.calls import Calls, Cost

_WIDTH = 4  # bytes of a number


class Estimates:
    """Takes the place of `costs.Tensors`: tensors are known by their keys alone.

    Args:
      batch_size: samples that sizes are for.
    """

    def __init__(self, batch_size):
        self.batch_size = batch_size
        self.roots = _Itself()

    def of_inner(self, names):
        """Return the tensors that a model inside takes."""
        return self

    def with_masks(self, names):
        """Return `names`: masks are not counted."""
        return names

    def calls(self, calls, outputs):
        """Return the `Calls` of `families.base.Call`s; `outputs` are keys of what the model puts out."""
        width = _WIDTH * self.batch_size
        sizes = {key: width * call.size // len(call.outputs) for call in calls for key in call.outputs}
        return Calls(tuple(_cost(call, sizes, width) for call in calls), sizes, tuple(dict.fromkeys(outputs)))


class _Itself(dict):
    def __missing__(self, key):
        return key


def _cost(call, sizes, width):
    inputs = tuple(dict.fromkeys(call.inputs))
    return Cost(
        name=call.layer.name,
        inputs=inputs,
        outputs=tuple(call.outputs),
        inner=width * max(0, call.inside - call.size),
        needs=frozenset(inputs),
        work=float(width * max(call.inside, call.size)),
        transient=sum(sizes.get(key, 0) for key in inputs),
    )
