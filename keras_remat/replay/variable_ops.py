"""Variables in a block: reads for branches and loops are made before them, first writes are noted."""

import re

from tensorflow.python.eager import context
from tensorflow.python.framework import dtypes, ops
from tensorflow.python.ops import gen_array_ops, gen_resource_variable_ops, gen_state_ops

from keras_remat.errors import RematError
from keras_remat.replay import scope as scopes
from keras_remat.replay.graphs import block_graph, in_loop
from keras_remat.replay.wrapping import wrap


def _read(original, resource, dtype, name=None):
    """Read a variable once, in the block's graph, also where a branch or loop asks for it."""
    graph = None if context.executing_eagerly() else block_graph(everywhere=False)
    if graph is None or _is_plain_place(graph) or _is_noted(resource, "written"):
        return original(resource, dtype, name=name)
    for scope in scopes.scopes():
        scope.lifted.add(id(resource))
    with graph.as_default(), ops.control_dependencies(None):
        return original(resource, dtype, name=name)


def _is_plain_place(graph):
    """True in the block's own graph, outside the branches and loops of TensorFlow 1."""
    return graph is ops.get_default_graph() and graph._get_control_flow_context() is None


def _is_noted(resource, where):
    return any(id(resource) in getattr(scope, where) for scope in scopes.scopes())


def _write(original, *args, **kwargs):
    """Note the value that a variable has before its first write in an eager block."""
    resource = args[0] if args else kwargs["ref" if "ref" in kwargs else "resource"]
    if context.executing_eagerly():
        for scope in scopes.scopes():
            if scope.graph is None and scope.mode == scopes.RECORD and id(resource) not in scope.written:
                if gen_resource_variable_ops.var_is_initialized_op(resource):
                    scope.written[id(resource)] = (resource, _value(resource))
        return original(*args, **kwargs)
    graph = block_graph(everywhere=False)
    if graph is not None and not _is_plain_place(graph):
        if _is_noted(resource, "lifted") and in_loop(graph):
            raise RematError(
                "A variable that a recomputed block reads in tf.while_loop may not be written there "
                f"afterwards. Received: a write by {original.__name__}. Write it outside the loop, or "
                "leave this layer out of the recomputed block."
            )
        for scope in scopes.scopes():
            scope.written[id(resource)] = None
    return original(*args, **kwargs)


def _value(resource):
    """Read the variable behind an eager handle."""
    dtype = dtypes.as_dtype(resource._handle_data.shape_and_type[0].dtype)
    return gen_resource_variable_ops.read_variable_op(resource, dtype)


_MODULES = gen_resource_variable_ops, gen_state_ops, gen_array_ops
_IS_WRITE = re.compile(
    r"assign(_add|_sub)?_variable_op|resource_(scatter_(nd_)?[a-z]+|strided_slice_assign|count_up_to)"
)


wrap(gen_resource_variable_ops, "read_variable_op", _read)
for _module in _MODULES:
    for _name in filter(_IS_WRITE.fullmatch, dir(_module)):
        wrap(_module, _name, _write)
