"""Variables in a block: reads for branches and loops are made before them, first writes are noted."""

from tensorflow.python.eager import context
from tensorflow.python.framework import dtypes, ops
from tensorflow.python.ops import gen_resource_variable_ops

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


def _write(original, resource, *args, **kwargs):
    """Note the value that a variable has before its first write in an eager block."""
    if context.executing_eagerly():
        for scope in scopes.scopes():
            if scope.graph is None and scope.mode == scopes.RECORD and id(resource) not in scope.written:
                if gen_resource_variable_ops.var_is_initialized_op(resource):
                    scope.written[id(resource)] = (resource, _value(resource))
        return original(resource, *args, **kwargs)
    graph = block_graph(everywhere=False)
    if graph is not None and not _is_plain_place(graph):
        if _is_noted(resource, "lifted") and in_loop(graph):
            raise RematError(
                "A variable that a recomputed block reads in tf.while_loop may not be written there "
                f"afterwards. Received: a write by {original.__name__}. Write it outside the loop, or "
                "leave this layer "
                "out of the recomputed block."
            )
        for scope in scopes.scopes():
            scope.written[id(resource)] = None
    return original(resource, *args, **kwargs)


def _value(resource):
    """Read the variable behind an eager handle."""
    dtype = dtypes.as_dtype(resource._handle_data.shape_and_type[0].dtype)
    return gen_resource_variable_ops.read_variable_op(resource, dtype)


_WRITES = (
    "assign_variable_op",
    "assign_add_variable_op",
    "assign_sub_variable_op",
    "resource_scatter_add",
    "resource_scatter_div",
    "resource_scatter_max",
    "resource_scatter_min",
    "resource_scatter_mul",
    "resource_scatter_nd_add",
    "resource_scatter_nd_sub",
    "resource_scatter_nd_update",
    "resource_scatter_sub",
    "resource_scatter_update",
)


wrap(gen_resource_variable_ops, "read_variable_op", _read)
for _name in _WRITES:
    wrap(gen_resource_variable_ops, _name, _write)
