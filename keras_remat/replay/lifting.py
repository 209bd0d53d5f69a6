"""Reads of variables in conditions and loops of TensorFlow 1, taken out of them.

A read in a branch or loop cannot be repeated, and neither can then the whole condition or loop. The handle
comes there through Switch and Enter ops; if nothing else reads it there, they can as well carry the value.
"""

from keras_remat.replay import control_flow

_CARRIERS = ("Switch", "Enter")


class Lifted:
    """Which of the ops `found` read variables in conditions and loops, and which bring them the handles."""

    def __init__(self, found):
        names = {op.name for op in found}
        chains = {}
        for op in found:
            if op.type == "ReadVariableOp" and control_flow.contexts_of(op) and _waits_inside(op):
                chain = _carriers(op)
                if chain:
                    chains[op.name] = (op, chain)
        self.reads, self.carriers = {}, {}
        before = -1
        while before != len(chains):
            before = len(chains)
            self.reads = {name: op for name, (op, _) in chains.items()}
            self.carriers = {c.name: op for op, chain in chains.values() for c in chain}
            for name, (_, chain) in list(chains.items()):
                users = [u.name for c in chain for t in c.outputs for u in t.consumers()]
                if any(u in names and u not in self.reads and u not in self.carriers for u in users):
                    del chains[name]

    def __contains__(self, op):
        return op.name in self.reads or op.name in self.carriers

    def rewrite(self, op, node, feeds, read):
        """Rewrite the node of a read or carrier; `read(handle, dtype)` reads outside."""
        if op.name in self.reads:
            node.op = "Identity"
            node.attr["T"].type = node.attr["dtype"].type
            del node.attr["dtype"]
            return
        example = self.carriers[op.name]
        node.attr["T"].type = example.outputs[0].dtype.as_datatype_enum
        handle = op.inputs[0]
        if handle.op.name not in self.carriers:
            name = "%s/lifted:0" % op.name
            node.input[0] = name
            feeds[name] = read(handle, example.outputs[0].dtype)


def _carriers(read):
    """List the ops that bring a read its handle from outside all conditions and loops."""
    chain, op = [], read.inputs[0].op
    while op.type in _CARRIERS:
        chain.append(op)
        op = op.inputs[0].op
    return chain if not control_flow.contexts_of(op) else []


def _waits_inside(read):
    """True if nothing outside must happen before the read."""
    return all(control_flow.contexts_of(op) for op in read.control_inputs)
