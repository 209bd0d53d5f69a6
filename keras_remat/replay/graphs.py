"""Where in a nest of TensorFlow graphs a block runs, and in which iteration of which loop."""

from tensorflow.python.framework import ops

from keras_remat.replay.scope import scopes

try:  # TensorFlow 1.15+
    from tensorflow.python.ops.control_flow_v2_func_graphs import (
        CondBranchFuncGraph,
        WhileBodyFuncGraph,
        WhileCondFuncGraph,
    )
except ImportError:  # TensorFlow 1.14
    from tensorflow.python.ops.control_flow_util_v2 import (
        CondBranchFuncGraph,
        WhileBodyFuncGraph,
        WhileCondFuncGraph,
    )

_LOOPS = (WhileBodyFuncGraph, WhileCondFuncGraph)
_CONTROL_FLOW = _LOOPS + (CondBranchFuncGraph,)


def block_graph(everywhere=True):
    """Return the graph of the outermost block that the current graph is a branch or loop body of.

    None if there is none: a function that is traced while a block runs may be cached, so it must see
    nothing of the block, unless a scope says that it is the block's own. A scope that is open everywhere
    counts as a block, unless `everywhere` is false.
    """
    found = None
    everywhere = everywhere and any(scope.everywhere for scope in scopes())
    graphs = {id(scope.graph) for scope in scopes() if scope.graph is not None}
    graph = ops.get_default_graph()
    while graph is not None:
        if everywhere or id(graph) in graphs:
            found = graph
        if not isinstance(graph, _CONTROL_FLOW) and not _is_own_function(graph):
            break
        graph = graph.outer_graph
    return found


def _is_own_function(graph):
    return any(graph is own for scope in scopes() for own in scope.functions)


def iterations(outer):
    """List the loop counters of the loops between the current graph and `outer`."""
    counters = []
    graph = ops.get_default_graph()
    while graph is not outer:
        if isinstance(graph, _LOOPS):
            counters.append(graph.inputs[0] if graph.inputs else graph.get_operations()[0].outputs[0])
        graph = graph.outer_graph
    return counters


def in_loop(outer):
    """True inside a loop that the block whose graph is `outer` runs."""
    context = ops.get_default_graph()._get_control_flow_context()
    return bool(iterations(outer)) or context is not None and context.GetWhileContext() is not None
