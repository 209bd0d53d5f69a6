"""The most that the gradient of a call holds while it runs, by the order of its ops.

They run in the order in which they were made, as far as one waits for another. A buffer is held until its
last reader has run, and an op that goes number by number writes its result over an input that was made here
and that nobody reads later. What kernels take for themselves depends on the device, and is not counted.
"""

_IN_PLACE = {
    *("Add", "AddV2", "AddN", "Sub", "Mul", "RealDiv", "Maximum", "Minimum", "Pow", "BiasAdd", "Softmax"),
    *("Neg", "Exp", "Square", "Sqrt", "Rsqrt", "Tanh", "Sigmoid", "Erf", "Erfc"),
    *("TanhGrad", "SigmoidGrad", "SqrtGrad", "RsqrtGrad", "ReciprocalGrad"),
    *("ReluGrad", "Relu6Grad", "EluGrad", "SeluGrad", "SoftplusGrad", "SoftsignGrad"),
}


def most_held(ops, held, stays, buffer):
    """Return the most bytes that are held while `ops` run.

    Args:
      ops: list of `tf.Operation`, in the order in which they run.
      held: {key: bytes} of the buffers that are there before.
      stays: keys of buffers that are held to the end.
      buffer: function of a tensor, the (key, bytes) of its buffer.
    """
    reads = [{buffer(t)[0] for t in op.inputs} for op in ops]
    last = {key: i for i, keys in enumerate(reads) for key in keys}
    last.update(dict.fromkeys(stays, len(ops)))
    kept, held = set(held), dict(held)
    now = most = sum(held.values())
    for i, op in enumerate(ops):
        made = {key: size for key, size in map(buffer, op.outputs) if key not in held}
        ending = {key for key in reads[i] if key in held and last[key] == i}
        reused = op.type in _IN_PLACE and any(held[key] in made.values() for key in ending - kept)
        held.update(made)
        now += sum(made.values())
        most = max(most, now - (max(made.values()) if reused else 0))
        for key in ending.union(key for key in made if key not in last):
            now -= held.pop(key)
    return most
