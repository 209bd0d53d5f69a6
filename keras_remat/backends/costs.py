"""What a trace of one call tells of its costs, whatever framework made it."""

import functools
import operator
from typing import Any, List, NamedTuple, Optional, Tuple


class Traced(NamedTuple):
    """The costs of a call.

    Attributes:
      outputs: (shape, dtype) of each tensor that it puts out.
      views: for each output, the position of the input whose buffer it is, or None.
      sizes: for each output, its bytes; none where it is a weight or a constant, which are there anyway.
      inner: bytes of what it makes inside that its backward pass reads, beside inputs and outputs.
      needs_inputs, needs_outputs: for each, whether its backward pass reads it.
      work: FLOPs, and 20 for each byte that its ops read or write.
      tail: the part of `work` that nothing which the backward pass reads depends on.
      is_differentiable: whether a gradient flows back from its outputs.
      transient: the most bytes that its backward pass holds while it runs, beside `inner` and a place for the
        gradient of each input and output.
    """

    outputs: List[Tuple[Tuple[int, ...], Any]]
    views: List[Optional[int]]
    sizes: List[int]
    inner: int
    needs_inputs: List[bool]
    needs_outputs: List[bool]
    work: int
    tail: int
    is_differentiable: bool
    transient: int


def prod(numbers):
    """Multiply integers, as `math.prod` of Python 3.8 does."""
    return functools.reduce(operator.mul, map(int, numbers), 1)
