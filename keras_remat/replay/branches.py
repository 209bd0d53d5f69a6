"""Random ops in the branches of `tf.cond` of TensorFlow 2: a branch is a function, rewritten with seeds "
"as inputs."""

from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import function_def_to_graph
from tensorflow.python.ops import control_flow_util_v2

from keras_remat.replay import subgraph
from keras_remat.replay.ops import draw_seed

_BRANCHES = ("then_branch", "else_branch")
_RANDOM = ("RandomUniform", "RandomStandardNormal", "TruncatedNormal")


def are_random(op):
    """True if `op` is a condition with a random op in a branch."""
    return op.type in ("If", "StatelessIf") and any(_random_nodes(d) for d in _definitions(op))


def _definitions(op):
    return [
        subgraph.definition(subgraph.find_function(op.graph, op.get_attr(branch).name))
        for branch in _BRANCHES
    ]


def _random_nodes(definition):
    return [node for node in definition.node_def if node.op in _RANDOM]


def make_stateless(op, node, twins):
    """Give the node of a condition branches that take seeds; return the seeds, drawn."""
    definitions = [_copy(d) for d in _definitions(op)]
    randoms = [n for definition in definitions for n in _random_nodes(definition)]
    names = ["keras_remat_seed_%d" % i for i in range(len(randoms))]
    seeds = [draw_seed(n.attr["seed"].i, n.attr["seed2"].i) for n in randoms]
    for random, name in zip(randoms, names):
        random.input.insert(1, name)
        random.op = twins[random.op]
        del random.attr["seed"], random.attr["seed2"]
        random.attr["Tseed"].type = types_pb2.DT_INT32
    for branch, definition in zip(_BRANCHES, definitions):
        for name in names:
            definition.signature.input_arg.add(name=name, type=types_pb2.DT_INT32)
        node.attr[branch].func.name = _register(op.graph, definition, op.get_attr(branch).name)
    node.attr["Tin"].list.type.extend([types_pb2.DT_INT32] * len(seeds))
    if subgraph.is_stateless(op.graph, node):
        node.op = "StatelessIf"
    return seeds


def _copy(definition):
    copy = type(definition)()
    copy.CopyFrom(definition)
    return copy


def _register(graph, definition, name):
    number = 0
    while graph._is_function("%s_seeded_%d" % (name, number)):
        number += 1
    with graph.as_default():
        function = function_def_to_graph.function_def_to_graph(definition)
    function.name = "%s_seeded_%d" % (name, number)
    return control_flow_util_v2.create_new_tf_function(function)
