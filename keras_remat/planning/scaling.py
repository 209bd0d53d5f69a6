"""The costs of a model at any batch size or sequence length, from those at two: both let numbers grow alike.

Not all do so everywhere: a layer may pad batches, or make a product of all pairs of samples or tokens, and
the most that a gradient holds is that of one moment or another. Who asks must see whether the result is so.
"""

from keras_remat.planning.calls import Calls


def scaled(one, other, size):
    """Return the `Calls` of a size, or None if they do not follow from the others.

    Args:
      one, other: (size, `Calls`), of two batch sizes, or of two sequence lengths.
      size: positive int.

    Example:
        >>> from keras_remat.planning.calls import chain
        >>> found = scaled((2, chain([20, 6])), (3, chain([30, 7])), 5)
        >>> found.sizes, [cost.work for cost in found.costs]
        ({0: 50, 1: 9}, [50.0, 9.0])
    """
    (small, first), (large, second) = one, other
    if first.results != second.results or len(first.costs) != len(second.costs):
        return None
    line = _Line(small, large, size)
    costs = tuple(line.cost(a, b) for a, b in zip(first.costs, second.costs))
    sizes = line.sizes(first.sizes, second.sizes)
    return None if sizes is None or None in costs else Calls(costs, sizes, first.results)


def scaled_part(one, other, size):
    """Return a `models.Part` of a size, as `scaled` does with its calls and those of parts inside."""
    (small, first), (large, second) = one, other
    costs = scaled((small, first.costs), (large, second.costs), size)
    inner = {i: scaled_part((small, part), (large, second.inner[i]), size) for i, part in first.inner.items()}
    return None if costs is None or None in inner.values() else first._replace(costs=costs, inner=inner)


class _Line:
    """The line through the numbers of two sizes."""

    def __init__(self, small, large, size):
        self.step, self.away = large - small, size - small

    def number(self, a, b):
        """The number of the size, no less than none; None for bytes that would be no whole number."""
        grown = (b - a) * self.away
        if isinstance(a, float):
            return max(0.0, a + grown / self.step)
        return max(0, a + grown // self.step) if grown % self.step == 0 else None

    def cost(self, a, b):
        """The cost of a call, None if the two differ in more than numbers."""
        fields = {}
        for name, x, y in zip(a._fields, a, b):
            is_number = isinstance(x, (int, float))
            fields[name] = self.number(x, y) if is_number else x
            if fields[name] is None or not is_number and x != y:
                return None
        return a._replace(**fields)

    def sizes(self, a, b):
        """The sizes of tensors, None if they are others."""
        if a.keys() != b.keys():
            return None
        found = {key: self.number(size, b[key]) for key, size in a.items()}
        return None if None in found.values() else found
