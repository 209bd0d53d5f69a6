"""Rebuild part of a TensorFlow graph with some of its tensors replaced.

A model whose graph lies there already is converted without calling its layers again: ops that depend on
a replaced tensor are copied, once, in the order in which they were made; all others stay in use. Random
ops become stateless ones seeded from their own generators, as while a block is recorded.
"""

import collections

from tensorflow.core.framework import graph_pb2, types_pb2
from tensorflow.python.framework import importer, ops

from keras_remat.replay import branches, control_flow, subgraph
from keras_remat.replay.ops import draw_seed

_TWINS = {
    "RandomUniform": "StatelessRandomUniform",
    "RandomStandardNormal": "StatelessRandomNormal",
    "TruncatedNormal": "StatelessTruncatedNormal",
}


class Rebuild:
    """What has been replaced in a graph: tensors and ops, by name.

    Args:
      graph: the graph.
      fixed: list of tensors that nothing is looked for behind: what the caller feeds.
    """

    def __init__(self, graph, fixed=()):
        self.graph = graph
        self.tensors = {}
        self.operations = {}
        self._seen = {t.op.name for t in fixed}

    def tensor(self, old):
        """Return what stands for the tensor `old` now."""
        return self.tensors.get(subgraph.key(old), old)

    def operation(self, old):
        """Return what stands for the op `old` now."""
        return self.operations.get(old.name, old)

    def reach(self, targets):
        """List the ops that compute `targets` (ops) and that no call listed before, in order of making."""
        found, pending = [], list(targets)
        while pending:
            op = pending.pop()
            if op.name in self._seen or op.graph is not self.graph:
                continue
            self._seen.add(op.name)
            found.append(op)
            pending.extend(t.op for t in op.inputs)
            pending.extend(op.control_inputs)
            pending.extend(control_flow.pivot(c).op for c in control_flow.contexts_of(op))
            pending.extend(control_flow.exits(op))
        return sorted(found, key=lambda op: op._id)

    def copy(self, found, stateless):
        """Copy those of the ops `found` that depend on something replaced, or are random if `stateless`."""
        changed = self._changed(found, stateless)
        if not changed:
            return
        copied = [op for op in found if op.name in changed]
        with self.graph.as_default(), ops.control_dependencies(None), ops.name_scope(None):
            feeds, graph_def = self._graph_def(copied, changed, stateless)
            names = [op.name for op in copied]
            twins = importer.import_graph_def(
                graph_def, input_map=feeds, return_elements=names, name="rebuilt"
            )
        for op, twin in zip(copied, twins):
            subgraph.finish(op, twin)
            # An op that gives no tensor cannot be named to the import.
            twin._add_control_inputs([self.operation(o) for o in op.control_inputs if o.name not in changed])
            self.operations[op.name] = twin
            for old, new in zip(op.outputs, twin.outputs):
                self.tensors[subgraph.key(old)] = new
        with self.graph.as_default():
            control_flow.copy_contexts(copied, feeds, dict(zip(names, twins)))

    def _changed(self, found, stateless):
        """Name the ops that must be copied; a condition or loop is copied as a whole."""
        changed, contexts, before = set(), set(), -1
        while before != len(changed):
            before = len(changed)
            for op in found:
                around = control_flow.contexts_of(op)
                if op.name in changed or not (
                    stateless
                    and _is_random(op)
                    or any(subgraph.key(t) in self.tensors or t.op.name in changed for t in op.inputs)
                    or any(o.name in self.operations or o.name in changed for o in op.control_inputs)
                    or any(c in contexts for c in around)
                ):
                    continue
                changed.add(op.name)
                contexts.update(around)
        return changed

    def _graph_def(self, copied, changed, stateless):
        graph_def = graph_pb2.GraphDef()
        graph_def.versions.CopyFrom(self.graph.graph_def_versions)
        frame = self.graph.unique_name("rebuilt", mark_as_used=False)
        feeds = collections.OrderedDict()
        for op in copied:
            node = graph_def.node.add()
            node.CopyFrom(op.node_def)
            del node.input[:]
            for tensor in op.inputs:
                name = subgraph.key(tensor)
                node.input.append(name)
                if tensor.op.name not in changed:
                    feeds[name] = self.tensor(tensor)
            if stateless and _is_random(op):
                _make_stateless(op, node, feeds)
            for control in op.control_inputs:
                if control.name in changed:
                    node.input.append("^" + control.name)
            subgraph.strip_colocation(node, changed)
            control_flow.rename_frame(node, frame)
        return feeds, graph_def


def _is_random(op):
    if any(control_flow.is_loop(c) for c in control_flow.contexts_of(op)):
        return False  # one seed would give all iterations the same numbers
    return op.type in _TWINS or branches.are_random(op)


def _make_stateless(op, node, feeds):
    """Rewrite the node of a random op; it takes a seed more than the op."""
    if op.type not in _TWINS:
        seeds = branches.make_stateless(op, node, _TWINS)
    else:
        seeds = [draw_seed(op.get_attr("seed"), op.get_attr("seed2"))]
        _rewrite(node, _TWINS[op.type])
    for i, seed in enumerate(seeds):
        name = "%s/seed_%d:0" % (op.name, i)
        feeds[name] = seed
        node.input.append(name)


def _rewrite(node, twin):
    """Make `node` the stateless op `twin`, whose second input is the seed."""
    node.op = twin
    del node.attr["seed"], node.attr["seed2"]
    node.attr["Tseed"].type = types_pb2.DT_INT32
