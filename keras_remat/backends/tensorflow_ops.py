"""Kinds of ops in a graph of TensorFlow, by what becomes of the buffers of their inputs."""

VIEWS = {"Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "Bitcast"}
RESIDENT = {"Const", "ReadVariableOp", "VarHandleOp", "Variable", "VariableV2", "PlaceholderWithDefault"}
SHAPES = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"}  # read nothing of their input's buffer
FREE = VIEWS | RESIDENT | SHAPES | {"Placeholder", "NoOp", "IdentityN"}


def key_of(tensor):
    """What tells a tensor from others of its graph: those of TensorFlow 2 are not hashable."""
    return tensor.op.name, tensor.value_index
