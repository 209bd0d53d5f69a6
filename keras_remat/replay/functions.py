"""Conditions and loops of TensorFlow 2, whose bodies are functions: made such that they can be repeated.

Random ops in branches take their seeds, and reads of variables their values, as inputs of the function.
"""

from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import dtypes, function_def_to_graph
from tensorflow.python.ops import control_flow_util_v2

from keras_remat.replay import library
from keras_remat.replay.random_ops import draw_seed

TWINS = {
    "RandomUniform": "StatelessRandomUniform",
    "RandomStandardNormal": "StatelessRandomNormal",
    "TruncatedNormal": "StatelessTruncatedNormal",
}
# For each op: the attributes that name functions, the inputs before the functions' first, types of inputs.
_KINDS = {
    "If": (("then_branch", "else_branch"), 1, "Tin"),
    "While": (("cond", "body"), 0, "T"),
}


def can_be_helped(op):
    """True if `op` is a condition or loop that `rewrite` changes."""
    kind = op.type.replace("Stateless", "")
    return kind in _KINDS and bool(_Rewrite(op, kind).is_needed())


def rewrite(op, node, feeds, read):
    """Rewrite the node of a condition or loop; `read(handle, dtype)` reads outside."""
    _Rewrite(op, op.type.replace("Stateless", "")).apply(node, feeds, read)


class _Rewrite:
    def __init__(self, op, kind):
        self.op, self.kind = op, kind
        self.attrs, self.first, self.types = _KINDS[kind]
        names = [op.get_attr(attr).name for attr in self.attrs]
        self.definitions = [_copy(library.definition(library.find_function(op.graph, n))) for n in names]
        self.randoms = [n for d in self.definitions for n in d.node_def if n.op in TWINS and kind == "If"]
        self.lifted = [
            i
            for i, t in enumerate(op.inputs[self.first :])
            if t.dtype.base_dtype.name == "resource" and self._is_read(i)
        ]

    def is_needed(self):
        """True if there is something to rewrite."""
        return self.randoms or self.lifted

    def _is_read(self, i):
        """True if the functions do nothing with their input `i` but read it, and pass it on in a loop."""
        return any(_users(d, i)[0] for d in self.definitions) and all(
            self._is_read_in(d, i) for d in self.definitions
        )

    def _is_read_in(self, definition, i):
        reads, passes, others = _users(definition, i)
        if self.kind == "If" and (passes or _returned(definition, i, passes)):
            return False
        return not others and all(len(n.input) == 1 for n in reads)

    def _dtype(self, i):
        return next(n.attr["dtype"].type for d in self.definitions for n in _users(d, i)[0])

    def apply(self, node, feeds, read):
        """Write the functions anew and make `node` call them."""
        for i in self.lifted:
            handle = self.op.inputs[self.first + i]
            value = read(handle, dtypes.as_dtype(self._dtype(i)))
            self._retype(node, i, value)
            node.input[self.first + i] = "%s/lifted_%d:0" % (self.op.name, i)
            feeds[node.input[self.first + i]] = value
        for i, random in enumerate(self.randoms):
            name = "keras_remat_seed_%d" % i
            seed = draw_seed(random.attr["seed"].i, random.attr["seed2"].i)
            _make_stateless(random, name)
            for definition in self.definitions:
                definition.signature.input_arg.add(name=name, type=types_pb2.DT_INT32)
            node.attr[self.types].list.type.append(types_pb2.DT_INT32)
            node.input.append("%s/seed_%d:0" % (self.op.name, i))
            feeds[node.input[-1]] = seed
        for attr, definition in zip(self.attrs, self.definitions):
            node.attr[attr].func.name = _register(self.op.graph, definition)
        if "_read_only_resource_inputs" in node.attr:
            del node.attr["_read_only_resource_inputs"]
        if library.is_stateless(self.op.graph, node):
            node.op = "Stateless" + self.kind

    def _retype(self, node, i, value):
        dtype = value.dtype.base_dtype.as_datatype_enum
        node.attr[self.types].list.type[i] = dtype
        if self.kind == "While" and len(node.attr["output_shapes"].list.shape):
            node.attr["output_shapes"].list.shape[i].CopyFrom(value.shape.as_proto())
        for number, definition in enumerate(self.definitions):
            reads, passes, _ = _users(definition, i)
            definition.signature.input_arg[i].type = dtype
            if hasattr(definition, "arg_attr") and i in definition.arg_attr:
                del definition.arg_attr[i]
            if self.kind == "While" and number == 1:
                definition.signature.output_arg[i].type = dtype
            for n in reads + passes:
                n.op = "Identity"
                n.attr["T"].type = dtype
            for n in reads:
                del n.attr["dtype"]
                _rename_output(definition, n.name, "value", "output")


def _copy(definition):
    copy = type(definition)()
    copy.CopyFrom(definition)
    return copy


def _users(definition, i):
    """List the nodes that read input `i` as a variable, those that pass it on, and all others."""
    refs, reads, passes, others = [definition.signature.input_arg[i].name], [], [], []
    while refs:
        ref = refs.pop()
        for node in definition.node_def:
            if ref in node.input:
                if node.op == "Identity":
                    passes.append(node)
                    refs.append(node.name + ":output:0")
                else:
                    (reads if node.op == "ReadVariableOp" else others).append(node)
    return reads, passes, others


def _returned(definition, i, passes):
    refs = [definition.signature.input_arg[i].name] + [n.name + ":output:0" for n in passes]
    return any(ref in refs for ref in definition.ret.values())


def _rename_output(definition, node, old, new):
    before, after = "%s:%s:0" % (node, old), "%s:%s:0" % (node, new)
    for other in definition.node_def:
        for k, name in enumerate(other.input):
            if name == before:
                other.input[k] = after
    for name, ref in list(definition.ret.items()):
        if ref == before:
            definition.ret[name] = after


def _make_stateless(node, seed):
    node.input.insert(1, seed)
    node.op = TWINS[node.op]
    del node.attr["seed"], node.attr["seed2"]
    node.attr["Tseed"].type = types_pb2.DT_INT32


def _register(graph, definition):
    name, number = definition.signature.name, 0
    while graph._is_function("%s_rebuilt_%d" % (name, number)):
        number += 1
    with graph.as_default():
        function = function_def_to_graph.function_def_to_graph(definition)
    function.name = "%s_rebuilt_%d" % (name, number)
    return control_flow_util_v2.create_new_tf_function(function)
