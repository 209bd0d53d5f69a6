"""The most that the gradient of a call holds while it runs, by the order of its ops.

They run in the order in which they were made, as far as one waits for another. A buffer is held until its
last reader has run, and an op that goes number by number writes its result over an input that was made here
and that nobody reads later. Steps of a loop run ahead of each other as far as they may. What kernels take for
themselves depends on the device, and is not counted.
"""

from keras_remat.backends.tensorflow_loops import LOOPS, ahead, loops_in

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
        most = max(most, now - (max(made.values()) if reused else _spared(op, held, ending, buffer)))
        for key in ending.union(key for key in made if key not in last):
            now -= held.pop(key)
    return most


def _spared(op, held, ending, buffer):
    """How much less than all its inputs and outputs a loop holds, or a function with one; more is negative.

    What goes round is there once, if nobody else reads it. Lists that a loop takes get shorter while steps
    that run ahead make what is to be added up.
    """
    waiting, share = max(map(ahead, loops_in(op)), default=(0, 0))
    pairs = zip(op.inputs, op.outputs) if op.type in LOOPS else ()
    rounds = {buffer(given)[0]: buffer(made)[1] for given, made in pairs}
    once = {key: min(held[key], size) for key, size in rounds.items() if key in ending}
    lists = {buffer(t)[0] for t in op.inputs if t.dtype.name == "variant"} & ending - set(once)
    return sum(once.values()) - max(0, waiting - int(share * sum(held[key] for key in lists)))
