"""Rebuild part of a TensorFlow graph with some of its tensors replaced.

A model whose graph lies there already is converted without calling its layers again: ops that depend on
a replaced tensor are copied, once, in the order in which they were made; all others stay in use. Random
ops become stateless ones seeded from their own generators, as while a block is recorded.
"""

import collections

from tensorflow.core.framework import graph_pb2, types_pb2
from tensorflow.python.framework import importer, ops
from tensorflow.python.ops import gen_resource_variable_ops

from keras_remat.replay import control_flow, functions, lifting, subgraph
from keras_remat.replay.random_ops import draw_seed


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
        self._reads = {}
        self._seen = {t.op.name for t in fixed}

    def tensor(self, old):
        """Return what stands for the tensor `old` now."""
        return self.tensors.get(subgraph.key(old), old)

    def operation(self, old):
        """Return what stands for the op `old` now."""
        return self.operations.get(old.name, old)

    def replace(self, old, new):
        """Let the tensors `new` stand for `old` from now on."""
        self.tensors.update(zip(map(subgraph.key, old), new))
        self._seen.update(t.op.name for t in new)

    def reversed(self):
        """Return the rebuild that replaces what is new by what was there before."""
        back = Rebuild(self.graph)
        back._seen = set(self._seen)
        for name, new in self.tensors.items():
            back.tensors[subgraph.key(new)] = self.graph.get_tensor_by_name(name)
        for name, new in self.operations.items():
            back.operations[new.name] = self.graph.get_operation_by_name(name)
        return back

    def peek(self, targets):
        """List what `reach` would, without noting that it did."""
        seen = set(self._seen)
        found = self.reach(targets)
        self._seen = seen
        return found

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

    def behind(self, sources, found):
        """List those of the ops `found` whose results depend on the tensors `sources`."""
        names = {t.op.name for t in sources}
        dependent = []
        for op in sorted(found, key=lambda op: op._id):
            if any(t.op.name in names for t in op.inputs):
                names.add(op.name)
                dependent.append(op)
        return dependent

    def copy(self, found, repeatable):
        """Copy those of the ops `found` that depend on something replaced.

        If `repeatable`, also those that a recomputed block could not run again as they are: random ops,
        and conditions and loops that read variables.
        """
        lifted = lifting.Lifted(found if repeatable else [])
        changed = self._changed(found, lifted, repeatable)
        if not changed:
            return
        copied = [op for op in found if op.name in changed]
        names = [op.name for op in copied]
        with self.graph.as_default(), ops.control_dependencies(None), ops.name_scope(None):
            feeds, graph_def = self._graph_def(copied, changed, lifted, repeatable)
            twins = importer.import_graph_def(
                graph_def, input_map=feeds, return_elements=names, name="rebuilt"
            )
            for op, twin in zip(copied, twins):
                self._finish(op, twin, changed)
            control_flow.copy_contexts(copied, feeds, dict(zip(names, twins)))

    def _finish(self, op, twin, changed):
        # An op that gives no tensor cannot be named to the import.
        twin._add_control_inputs([self.operation(o) for o in op.control_inputs if o.name not in changed])
        self.operations[op.name] = twin
        self._seen.add(twin.name)
        subgraph.finish(op, twin)
        self.tensors.update((subgraph.key(old), new) for old, new in zip(op.outputs, twin.outputs))

    def _changed(self, found, lifted, repeatable):
        """Name the ops that must be copied; a condition or loop is copied as a whole."""
        changed = set()
        if repeatable:
            changed = {o.name for o in found if o in lifted or _is_random(o) or functions.can_be_helped(o)}
        contexts, before = set(), None
        while before != (len(changed), len(contexts)):
            before = len(changed), len(contexts)
            for op in found:
                around = control_flow.contexts_of(op)
                if (
                    op.name in changed
                    or any(subgraph.key(t) in self.tensors or t.op.name in changed for t in op.inputs)
                    or any(o.name in self.operations or o.name in changed for o in op.control_inputs)
                    or any(c in contexts for c in around)
                ):
                    changed.add(op.name)
                    contexts.update(around)
        return changed

    def _graph_def(self, copied, changed, lifted, repeatable):
        graph_def = graph_pb2.GraphDef()
        graph_def.versions.CopyFrom(self.graph.graph_def_versions)
        frame = self.graph.unique_name("rebuilt", mark_as_used=False)
        feeds = collections.OrderedDict()
        for op in copied:
            node = graph_def.node.add()
            node.CopyFrom(op.node_def)
            del node.input[:]
            for tensor in op.inputs:
                node.input.append(subgraph.key(tensor))
            if op in lifted:
                lifted.rewrite(op, node, feeds, self._read)
            elif repeatable and _is_random(op):
                _make_stateless(op, node, feeds)
            elif repeatable and functions.can_be_helped(op):
                functions.rewrite(op, node, feeds, self._read)
            for tensor in op.inputs:
                name = subgraph.key(tensor)
                if tensor.op.name not in changed and name in node.input:
                    feeds[name] = self.tensor(tensor)
            node.input.extend("^" + o.name for o in op.control_inputs if o.name in changed)
            subgraph.strip_colocation(node, changed)
            control_flow.rename_frame(node, frame)
        return feeds, graph_def

    def _read(self, handle, dtype):
        """Read a variable, once, outside of conditions and loops."""
        name = subgraph.key(handle)
        if name not in self._reads:
            self._reads[name] = gen_resource_variable_ops.read_variable_op(handle, dtype)
        return self._reads[name]


def _is_random(op):
    # In a loop of TensorFlow 1, one seed would give all iterations the same numbers.
    return op.type in functions.TWINS and not any(map(control_flow.is_loop, control_flow.contexts_of(op)))


def _make_stateless(op, node, feeds):
    """Rewrite the node of a random op: its second input is a seed."""
    name = op.name + "/seed:0"
    node.op = functions.TWINS[op.type]
    node.input.append(name)
    feeds[name] = draw_seed(op.get_attr("seed"), op.get_attr("seed2"))
    del node.attr["seed"], node.attr["seed2"]
    node.attr["Tseed"].type = types_pb2.DT_INT32
