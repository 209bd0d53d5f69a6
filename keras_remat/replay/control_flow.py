"""The control flow of TensorFlow 1 in copied graphs: contexts of `tf.cond` and `tf.while_loop`.

In graphs without control flow v2 a conditional is a web of Switch and Merge ops and a loop is a cycle
of Enter, NextIteration and Exit; which op belongs to which branch or loop is known only to Python
objects, the contexts, and gradients need them. A copy of the ops therefore gets copies of the
contexts, written and read through the protocol buffers that TensorFlow has for meta graphs.
"""

from tensorflow.core.framework import attr_value_pb2
from tensorflow.core.protobuf import control_flow_pb2
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_ops

from keras_remat.errors import RematError


def context_of(op):
    """Return the innermost conditional or loop that `op` is part of, or None."""
    context = op._get_control_flow_context()
    while context is not None and context.IsXLAContext():
        context = context.outer_context
    return context


def contexts_of(op):
    """List the conditionals and loops that `op` is part of, innermost first."""
    found, context = [], op._get_control_flow_context()
    while context is not None:
        if not context.IsXLAContext():
            found.append(context)
        context = context.outer_context
    return found


def is_loop(context):
    """True for the context of a loop."""
    return isinstance(context, control_flow_ops.WhileContext)


def outermost(op, is_inside):
    """Return the outermost branch or loop around `op` that the block itself opened, or None."""
    found = None
    context = op._get_control_flow_context()
    while context is not None:
        if not context.IsXLAContext() and is_inside(_first_op(context)):
            found = context
        context = context.outer_context
    return found


def _first_op(context):
    return pivot(context).op


def pivot(context):
    """Return the tensor that ops of `context` without inputs wait for, known to Python alone."""
    return context.pivot if hasattr(context, "pivot") else context._pivot


def leaves(op, kept):
    """True if `op` carries a value out of one of the branches or loops in `kept`.

    That is the Exit of a loop, which is part of it, and the Merge after two branches, which is not.
    """
    context = op._get_control_flow_context()
    if op.type == "Exit":
        return _within(context, kept) and not _within(context.outer_context, kept)
    return not _within(context, kept) and any(
        _within(t.op._get_control_flow_context(), kept) for t in op.inputs if t.op.type != "Exit"
    )


def around_conditions(context, last):
    """Return the context around the conditions that `context` is in, up to a loop or to `last`."""
    while context is not last and isinstance(context, control_flow_ops.CondContext):
        context = context.outer_context
    return context


def _within(context, kept):
    while context is not None:
        if context in kept:
            return True
        context = context.outer_context
    return False


def exits(op):
    """List the exits of the loop variable that `op` passes on: its gradient starts there, used or not."""
    if op.type != "Switch" or not isinstance(context_of(op), control_flow_ops.WhileContext):
        return []
    return [consumer for consumer in op.outputs[0].consumers() if consumer.type == "Exit"]


def rename_frame(node, prefix):
    """Give the copy of a loop a frame of its own: the executor tells loops apart by frame names."""
    if "frame_name" in node.attr:
        name = prefix.encode() + b"/" + node.attr["frame_name"].s
        node.attr["frame_name"].CopyFrom(attr_value_pb2.AttrValue(s=name))


def contexts_around(tensor):
    """List the conditionals and loops that `tensor` is in; what leaves a loop is not in it."""
    found = contexts_of(tensor.op)
    return found[1:] if found and tensor.op.type in ("Exit", "RefExit") else found


def copy_contexts(copied, feeds, twins, around=()):
    """Give the copies of ops in conditionals and loops (`twins`, by name) contexts of their own.

    Contexts in `around`, which the block was called in, are not copied: the copies are where we are now.
    """
    contexts = []
    for op in copied:
        context = context_of(op)
        if context is not None and context not in contexts and context not in around:
            contexts.append(context)
    copies = {}
    for context in sorted(contexts, key=_depth):
        copies[context] = _copy(context, feeds, twins, copies)


def _depth(context):
    depth = 0
    while context is not None:
        context = context.outer_context
        depth += 1
    return depth


def _copy(context, feeds, twins, copies):
    def translate(name):
        if name in feeds:
            return feeds[name].name
        op, separator, index = name.partition(":")
        return twins[op].name + separator + index if op in twins else None

    def is_copied(name):
        return name not in feeds and name.partition(":")[0] in twins

    definition = _translate(context.to_proto(), translate, is_copied)
    if isinstance(context, control_flow_ops.WhileContext):
        definition.context_name = _frame_of(context, twins)
        copy = control_flow_ops.WhileContext(context_def=definition)
    else:
        copy = control_flow_ops.CondContext(context_def=definition)
    copy._outer_context = copies.get(
        context.outer_context, ops.get_default_graph()._get_control_flow_context()
    )
    return copy


def _frame_of(context, twins):
    for enter in context.loop_enters:
        if enter.op.name in twins:
            return twins[enter.op.name].get_attr("frame_name").decode()
    raise RematError(
        f"A loop inside a recomputed block must begin in it. Received: the loop {context.name!r}, which does "
        "not. Leave the layer that makes it out of the block."
    )


def _translate(definition, translate, is_copied):
    """Rewrite every tensor name of a context's protocol buffer; names outside the copy are dropped."""
    for field, _ in definition.ListFields():
        if field.name.endswith("_name") and field.name != "context_name":
            name = translate(getattr(definition, field.name))
            if name is None:
                definition.ClearField(field.name)
            else:
                setattr(definition, field.name, name)
        elif field.name.endswith("_names"):
            names = getattr(definition, field.name)
            kept = [n for n in map(translate, names) if n is not None]
            del names[:]
            names.extend(kept)
    values = control_flow_pb2.ValuesDef()
    for name, external in definition.values_def.external_values.items():
        if translate(name) is not None and translate(external) is not None:
            values.external_values[translate(name)] = translate(external)
    for name in definition.values_def.values:
        if is_copied(name) or translate(name) in set(values.external_values):
            values.values.append(translate(name))
    definition.values_def.CopyFrom(values)
    del definition.nested_contexts[:]
    return definition
