"""The functions of a TensorFlow graph: which an op calls, what they do, and how another graph gets them."""

from keras_remat.errors import RematError

# Stateful, but on a resource that each copy makes for itself and that lives in one step.
_LOCAL_RESOURCES = ("TensorArray", "Stack")
_FUNCTION_ATTRS = ("then_branch", "else_branch", "cond", "body", "f", "branches")


def find_function(graph, name):
    """Return the function called `name` seen from `graph`, or None."""
    while graph is not None:
        found = graph._get_function(name)
        if found is not None:
            return found
        graph = getattr(graph, "outer_graph", None)
    return None


def function_names(node_def):
    """Yield the names of the functions that a node may call."""
    for attr in _FUNCTION_ATTRS:
        if attr in node_def.attr:
            value = node_def.attr[attr]
            if value.func.name:
                yield value.func.name
            for func in value.list.func:
                yield func.name


def definition(function):
    """Return the protocol buffer of a function."""
    for attr in ("cached_definition", "definition"):
        found = getattr(function, attr, None)
        if found is not None:
            return found
    raise RematError(
        "The definition of each TensorFlow function in a recomputed block must be readable. Received: the "
        f"function {function.name!r} of type {type(function).__name__}. Leave the layer that calls it out."
    )


def is_stateless(graph, node_def):
    """True if `node_def` is stateful only for what it could call: the functions it does call are not."""
    names = list(function_names(node_def))
    for name in names:
        function = find_function(graph, name)
        if function is None:
            return False
        for node in definition(function).node_def:
            if _op_def(graph, node.op).is_stateful and not is_local(node.op):
                if not is_stateless(graph, node):
                    return False
    return bool(names)


def _op_def(graph, op_type):
    find = getattr(graph, "op_def_for_type", None) or graph._get_op_def
    return find(op_type)


def is_local(op_type):
    """True for ops on a resource that each copy makes for itself."""
    return op_type.startswith(_LOCAL_RESOURCES) and op_type.endswith(("V2", "V3"))


def share_function(source_graph, graph, name):
    """Make the function called `name`, and those that it calls, known to `graph`."""
    if graph is source_graph or find_function(graph, name) is not None and graph._is_function(name):
        return
    function = find_function(source_graph, name)
    if function is None:
        return
    for node in definition(function).node_def:
        for inner in function_names(node):
            share_function(source_graph, graph, inner)
    if not graph._is_function(name):
        function.add_to_graph(graph)
