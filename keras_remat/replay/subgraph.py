"""Copy a piece of a TensorFlow graph: the second run of a block in graph mode.

Calling a layer's Python again would need everything the layer read from the outside (learning phase,
call contexts, autocast, losses) to be as it was. The graph already says exactly what was computed,
so the second run is a copy of those ops. What an op would not repeat is never copied: the results
of stateful ops (reads of variables, random numbers, Python functions, writes) are *boundary*: they
are kept and fed to the copy. A block is therefore exact whatever it contains; an op that cannot be
repeated only costs the bytes of its result.
"""

import collections

import tensorflow as tf
from tensorflow.python.framework import importer, ops

from keras_remat.replay import control_flow
from keras_remat.replay.library import function_names, is_local, is_stateless, share_function

_SOURCES = frozenset(["Placeholder", "PlaceholderWithDefault", "VarHandleOp", "VariableV2", "Arg"])
OPAQUE = (tf.resource, tf.variant)  # no numbers: they pass through no IdentityN


def key(tensor):
    """Name a tensor within its graph (tensors of TensorFlow 2 are not hashable)."""
    return tensor.name


class _Repeatable:
    """Tells whether running a copy of an op gives the same values and has no effect on anything else."""

    def __init__(self, is_inside, stops, kept):
        self._is_inside, self._stops, self._kept = is_inside, stops, kept
        self._known = {}

    def __call__(self, op):
        if op.name not in self._known:
            self._known[op.name] = True  # the answer in a loop, which asks for itself
            self._known[op.name] = self._by_itself(op) and all(
                self._is_own(t) for t in op.inputs if t.dtype.base_dtype in OPAQUE
            )
        return self._known[op.name]

    def _by_itself(self, op):
        if op.type in _SOURCES:
            return False
        if is_local(op.type):
            # Where the results of a loop are kept, a TensorArray that it wrote is not there again.
            return not self._kept
        return not op.op_def.is_stateful or is_stateless(op.graph, op.node_def)

    def _is_own(self, tensor):
        """True if a list of tensors or a handle comes from ops that are copied: it cannot be fed."""
        op = tensor.op
        if key(tensor) in self._stops or not self._is_inside(op) or control_flow.leaves(op, self._kept):
            return False
        return self(op)


def find_boundary(outputs, inputs, is_inside):
    """List the tensors that a copy of `outputs` is fed with, each once, in the order they are met.

    `inputs` are boundary; so is every tensor whose op does not satisfy `is_inside` (it was there
    before the block) and every result of an op that is not repeatable.
    """
    kept = set()
    while True:
        found, context = _walk(outputs, {key(t) for t in inputs}, is_inside, kept)
        if context is None:
            return found
        kept.add(context)


def _walk(outputs, stops, is_inside, kept):
    """Walk back from `outputs`; return the boundary, or the loop or condition that must be kept too.

    An op that cannot be repeated inside a branch or loop of TensorFlow 1 has no result outside it:
    then the results of the whole condition or loop are kept, and the walk starts again.
    """
    repeatable = _Repeatable(is_inside, stops, kept)
    found = collections.OrderedDict()
    seen = set()
    pending = list(reversed(outputs))
    while pending:
        tensor = pending.pop()
        name = key(tensor)
        if name in seen:
            continue
        seen.add(name)
        op = tensor.op
        if name in stops or not is_inside(op) or control_flow.leaves(op, kept):
            found[name] = tensor
        elif not repeatable(op):
            context = control_flow.outermost(op, is_inside)
            if context is not None:
                return None, context
            found[name] = tensor
        else:
            pending.extend(op.inputs)
            context = control_flow.context_of(op)
            if context is not None:
                pending.extend(o.outputs[0] for o in op.control_inputs if o.outputs and is_inside(o))
                if is_inside(control_flow.pivot(context).op):
                    pending.append(control_flow.pivot(context))
    return list(found.values()), None


def copy_tensors(outputs, feeds, gate):
    """Copy what computes `outputs` into the current graph; return {`key`: copy} of all that is copied or fed.

    Args:
      outputs: tensors of one graph.
      feeds: dict from `key` of a boundary tensor to the tensor of the current graph that stands
        for it in the copy.
      gate: a tensor of the current graph; ops of the copy that depend on no feed wait for it,
        so that nothing large is computed before its time. None if there is nothing to wait for.
    """
    around = control_flow.contexts_around(outputs[0]) if outputs else []
    copied = _select(outputs, feeds, around)
    if not copied:
        return feeds
    graph = ops.get_default_graph()
    source_graph = outputs[0].graph
    frame = graph.unique_name("copy", mark_as_used=False)
    graph_def, input_map = _graph_def(copied, feeds, gate, frame, source_graph, graph)
    names = [op.name for op in copied]
    twins = importer.import_graph_def(graph_def, input_map=input_map, return_elements=names, name="copy")
    twins = dict(zip(names, twins))
    for op in copied:
        finish(op, twins[op.name])
    control_flow.copy_contexts(copied, feeds, twins, around)
    copies = {key(t): twin for op in copied for t, twin in zip(op.outputs, twins[op.name].outputs)}
    return {**copies, **feeds}


def _select(outputs, feeds, around):
    """List the ops that compute `outputs` from `feeds`."""
    selected = collections.OrderedDict()
    pending = [t.op for t in outputs if key(t) not in feeds]
    while pending:
        op = pending.pop()
        if op.name in selected:
            continue
        selected[op.name] = op
        pending.extend(t.op for t in op.inputs if key(t) not in feeds)
        context = control_flow.context_of(op)
        if context is not None and context not in around:
            inner = (o for o in op.control_inputs if control_flow.context_of(o) is not None)
            pending.extend(o for o in inner if control_flow.context_of(o) not in around)
            pending.append(control_flow.pivot(context).op)
    for op in list(selected.values()):
        selected.update((o.name, o) for o in control_flow.exits(op))
    return list(selected.values())


def _graph_def(copied, feeds, gate, frame, source_graph, graph):
    """Write `copied` as a GraphDef whose missing inputs are in the returned input map."""
    from tensorflow.core.framework import graph_pb2

    graph_def = graph_pb2.GraphDef()
    graph_def.versions.CopyFrom(source_graph.graph_def_versions)
    names = {op.name for op in copied}
    input_map = {}
    gate_name = None
    for op in copied:
        node = graph_def.node.add()
        node.CopyFrom(op.node_def)
        del node.input[:]
        fed = False
        for tensor in op.inputs:
            name = key(tensor)
            if name in feeds:
                node.input.append(name)
                input_map[name] = feeds[name]
                fed = True
            else:
                node.input.append(name)
        for control in op.control_inputs:
            if control.name in names and control_flow.context_of(op) is not None:
                node.input.append("^" + control.name)
        if gate is not None and not fed and _starts_by_itself(op):
            node.input.append("^" + _GATE)
            gate_name = _GATE
        strip_colocation(node, names)
        control_flow.rename_frame(node, frame)
        for function in function_names(node):
            share_function(source_graph, graph, function)
    if gate_name:
        input_map["^" + _GATE] = gate
    return graph_def, input_map


_GATE = "keras_remat_gate"
_SMALL = 1024


def _starts_by_itself(op):
    """True if `op` makes a large tensor from constants alone, which would be made when a step begins."""
    if op.type == "Const" or any(t.op.type != "Const" for t in op.inputs):
        return False
    if control_flow.context_of(op) is not None:
        return False
    return any((t.shape.num_elements() or _SMALL) >= _SMALL for t in op.outputs)


def strip_colocation(node, names):
    """Drop from `node` the wish to be where an op is that is not in `names`."""
    if "_class" in node.attr:
        kept = [s for s in node.attr["_class"].list.s if s[len(b"loc:@") :].decode() in names]
        del node.attr["_class"].list.s[:]
        node.attr["_class"].list.s.extend(kept)
        if not kept:
            del node.attr["_class"]


def finish(op, twin):
    """Give the copy what Python knows about the original and the GraphDef does not."""
    gradient = getattr(op, "_gradient_function", None)
    if gradient is not None:
        twin._gradient_function = gradient
    for old, new in zip(op.outputs, twin.outputs):
        if new.dtype != old.dtype:
            continue  # a handle whose place the value has taken
        if old.shape.ndims is not None:
            new.set_shape(old.shape)
        data = getattr(old, "_handle_data", None)
        if data is not None and getattr(new, "_handle_data", None) is None:
            new._handle_data = data
