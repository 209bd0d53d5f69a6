"""Which inputs of layers TensorFlow keeps for the gradient: eager tensors that live, tensors read later."""

import gc
import weakref

import steps
from proofs import floats


class Watch:
    """Notes the inputs of layers, and tells which of them something keeps for the gradient."""

    def __init__(self):
        self._forget()

    def _forget(self):
        self.seen, self.graph, self.size = [], None, 0

    def __call__(self, layer):
        def change(call):
            def noted(inputs, **kwargs):
                self._note(inputs)
                outputs = call(inputs, **kwargs)
                self.size = len(self.graph.get_operations()) if self.graph is not None else 0
                return outputs

            return noted

        steps.change_call(layer, change)
        return layer

    def _note(self, inputs):
        if hasattr(inputs, "numpy"):
            self.seen.append(weakref.ref(inputs))
            return
        if inputs.graph is not self.graph:
            self.graph, self.seen = inputs.graph, []
        self.seen.append(inputs)

    def kept(self, target, mode, model, x):
        """The positions of the layers whose inputs are kept in a step of training."""
        found = []
        if not target.is_symbolic:
            self._forget()

        def before_gradient():
            found[:] = self._held()

        trainer = steps.trainer(target, mode, model, before_gradient=before_gradient)
        trainer.train([x], floats(len(x), 2), 1)
        return found if self.graph is None else self._read_later()

    def _held(self):
        gc.collect()
        return [i for i, ref in enumerate(self.seen) if ref() is not None]

    def _read_later(self):
        later = {op.name for op in self.graph.get_operations()[self.size :]}
        return [
            i
            for i, tensor in enumerate(self.seen)
            if any(op.name in later and op.type != "IdentityN" for op in tensor.consumers())
        ]
