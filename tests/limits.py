"""What a Keras cannot do, and why: the one table of strict expected failures.

The compatibility page of the documentation is made from it. A reason names the limit of TensorFlow or
Keras itself; a fault of ours is repaired instead.
"""

import fnmatch
from typing import NamedTuple, Tuple


class Limit(NamedTuple):
    """Tests that cannot pass: a pattern of test names, where, and the reason."""

    tests: str
    targets: Tuple[str, ...]
    reason: str
    versions: Tuple[Tuple[int, int], Tuple[int, int]] = ((1, 14), (9, 0))

    def covers(self, test, target):
        """True if the limit holds for a test, `module.py::name[...]`, of a target."""
        first, last = self.versions
        return (
            target.name in self.targets
            and first <= target.version <= last
            and fnmatch.fnmatchcase(test, self.tests)
        )


KERAS3 = ("keras3-tensorflow", "keras3-jax", "keras3-torch")

LIMITS = (
    *(
        Limit(tests, ("keras",), "Keras 2.3.1 makes no layers of TensorFlow's operators")
        for tests in (
            "test_convert.py::test_model?*-operators?",
            "test_costs.py::test_calls_add_up_to_the_model?operators?",
        )
    ),
    Limit(
        "test_costs.py::test_loops_add_up_to_the_model?directions?",
        ("keras",),
        "TensorFlow 1.14 has no gradient of a loop as a function that updates variables with colocated ops",
        ((1, 14), (1, 14)),
    ),
    Limit(
        "test_costs.py::test_loops_add_up_to_the_model?directions?",
        ("keras3-tensorflow",),
        "TimeDistributed of Keras 3.3 takes no models",
        ((3, 3), (3, 3)),
    ),
    Limit(
        "test_layers_plain.py::test_layer?function-SpectralNormalization?",
        ("tf.keras",),
        "Keras' own SpectralNormalization tests a tensor as a bool in functions",
        ((2, 13), (2, 15)),
    ),
    Limit(
        "test_layers_plain.py::test_layer?*-SpectralNormalization?",
        ("tf_keras",),
        "tf_keras' own SpectralNormalization takes its input_spec from another Keras",
    ),
    *(
        Limit(
            f"test_mixed_precision.py::test_global_policy?*-{name}-mixed_bfloat16?",
            ("tf.keras",),
            f"TensorFlow lacks bfloat16 kernels of this layer up to 2.{last}",
            ((2, 4), (2, last)),
        )
        for name, last in (("conv", 6), ("layer norm", 11), ("lstm", 11))
    ),
    Limit(
        "test_layers_recurrent.py::test_stateful*",
        ("keras3-torch",),
        "Keras 3 on PyTorch writes states in place that a plain layer's gradient still needs",
    ),
    Limit(
        "test_layers_plain.py::test_layer?*-RandomBrightness?",
        ("keras3-torch",),
        "RandomBrightness of Keras 3 on PyTorch writes into its input",
    ),
    Limit(
        "test_layers_plain.py::test_layer?*-RandomCrop?",
        KERAS3,
        "RandomCrop of Keras 3 puts out another shape in inference since 3.8",
        ((3, 8), (9, 0)),
    ),
    Limit(
        "test_layers_plain.py::test_training_as_a_tensor?function*",
        ("keras3-tensorflow",),
        "layers of Keras 3 take `training` as a Python bool",
    ),
    Limit(
        "test_keras3.py::test_dicts_and_ops*",
        KERAS3,
        "Keras 3.3 has no losses for a dict of outputs that operations make",
        ((3, 3), (3, 3)),
    ),
    Limit(
        "test_arguments.py::test_none_in_a_nested_argument*",
        KERAS3,
        "layers of Keras 3 up to 3.12 take no None beside tensors in a nested argument",
        ((3, 3), (3, 12)),
    ),
    Limit(
        "test_control_flow.py::test_control_flow_of_keras?*-scan?",
        KERAS3,
        "Keras 3.3 has no ops.scan",
        ((3, 3), (3, 3)),
    ),
    Limit(
        "test_control_flow.py::test_random_numbers_of_keras?*-beta?",
        ("keras3-tensorflow",),
        "random.beta of Keras 3.3 tests a tensor as a bool where a model is made",
        ((3, 3), (3, 3)),
    ),
    Limit(
        "test_control_flow.py::test_random_numbers_of_keras?*-shuffle?",
        ("keras3-tensorflow",),
        "random.shuffle of Keras 3 has no gradient up to 3.7",
        ((3, 3), (3, 7)),
    ),
    Limit(
        "test_layers_attention.py::test_masks*",
        KERAS3,
        "Attention of Keras 3 up to 3.10 does not spread the mask of the values over the queries",
        ((3, 3), (3, 10)),
    ),
    Limit(
        "test_*.py::test_weight_files?*model by name?",
        KERAS3,
        "Keras 3 up to 3.7 does not read its own HDF5 files of models by name",
        ((3, 3), (3, 7)),
    ),
    Limit(
        "test_invisible.py::test_*files_load_without_us?nested.*",
        KERAS3,
        "Keras 3 up to 3.6 makes no model again in which a layer reads what came of its own output",
        ((3, 3), (3, 6)),
    ),
    Limit(
        "test_keras3.py::test_metric_inside*",
        ("keras3-jax",),
        "fit of Keras 3 on JAX has no values for metrics that a layer updates in its call",
    ),
    Limit(
        "test_layers_plain.py::test_layer?function-RandomTranslation?",
        ("tf.keras",),
        "tf.vectorized_map of TensorFlow 2.11 orders what a function draws in it by itself",
        ((2, 11), (2, 11)),
    ),
    Limit(
        "test_arguments.py::test_positional_tensors*",
        ("tf.keras",),
        "layers of tf.keras 1.14 take one positional argument",
        ((1, 14), (1, 14)),
    ),
    Limit(
        "test_layers_attention.py::test_masks*",
        ("tf.keras", "tf.keras-eager"),
        "Attention of tf.keras 1.14 takes no masks",
        ((1, 14), (1, 14)),
    ),
    Limit(
        "test_errors.py::test_bad_variable*",
        ("tf.keras",),
        "AutoGraph of TensorFlow 1.14 replaces what a layer raises by an error of its own",
        ((1, 14), (1, 14)),
    ),
    Limit(
        "test_variables.py::test_variables_of_nobody?loop?",
        ("tf.keras", "tf.keras-eager"),
        "up to TensorFlow 2.1 nothing tells which variables an eager block reads beside its weights",
        ((1, 14), (2, 1)),
    ),
    Limit(
        "test_arguments.py::test_positional_tensors*",
        ("keras",),
        "layers of Keras 2.3.1 take one positional argument",
    ),
    Limit(
        "test_control_flow.py::test_python_conditions_and_loops*",
        ("keras3-tensorflow",),
        "Keras 3 calls layers without AutoGraph",
    ),
    Limit(
        "test_arguments.py::test_tensors_beside_numbers*",
        KERAS3,
        "layers of Keras 3 refuse tensors beside other values in a nested argument",
    ),
    Limit(
        "test_arguments.py::test_nested_inputs*",
        ("keras",),
        "the first argument of layers of Keras 2.3.1 is a tensor or a flat list of them",
    ),
    Limit(
        "test_arguments.py::test_named_tuples*",
        ("keras",),
        "the output of layers of Keras 2.3.1 is a tensor or a flat list of them",
    ),
    Limit(
        "test_decorator.py::test_autograph_in_a_layer?function?",
        ("keras3-tensorflow",),
        "Keras 3 lets no AutoGraph convert the call of a layer",
    ),
    Limit(
        "test_saving.py::test_h5_file_stays_compiled",
        KERAS3,
        "Keras 3 builds the optimizer of an HDF5 file for no variables, so its model does not train on",
    ),
    Limit(
        "test_saving.py::test_export_serves_without_us",
        ("keras3-torch",),
        "Keras gives torch.export the shapes of a functional model in another structure than its inputs",
    ),
    Limit(
        "test_saving.py::test_export_serves_without_us",
        ("keras3-jax",),
        "TensorFlow 2.21 does not read the StableHLO of JAX 0.12",
    ),
)


def limit_of(test, target):
    """The first limit that covers a test, or None."""
    return next((limit for limit in LIMITS if limit.covers(test, target)), None)
