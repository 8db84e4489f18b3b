"""Keras' own tests that are left out, as "about: test", each with its reason.

A star stands for anything. Where KERAS_SUITE=plain, nothing is left out.
"""

from __future__ import annotations

from tests.training.keras_suite.collecting import is_among

_LAST_STEP = "the last call is named by its last step; Keras names the step it might have reached"
_BACKUP = "BackupAndRestore is refused where several replicas train"
_STEP_A_CALL = "data of unknown length is taken a step a call, whatever steps_per_execution is"

# Plain Keras fails these here too.
EVERYWHERE = {
    **{
        f"trainer: *_{name}*": "it needs jax, torch, grain or scipy, which are not installed"
        for name in ("jax", "torch", "grain", "scipy")
    },
    "orbax_checkpoint: *": "it needs orbax, which is not installed",
}
MIRRORED = {
    "trainer: *[!n]_jit": "XLA cannot compile collectives; its twin without XLA runs",
    "trainer: test_evaluate_with_custom_compute_loss": (
        "variables of losses and metrics are made by a call of compute_loss as in training"
    ),
    "trainer: *_unknown_data_size_not_match_but_high_enough_*": (
        "data that ends before steps_per_epoch is refused in the next epoch, where Keras warns"
    ),
    "trainer: test_nested_inputs": (
        "it calls predict_on_batch, which is Keras' own and gives each replica the whole batch"
    ),
    "trainer: test_retracing": "it counts traces, and each replica has one of its own",
    "trainer: test_steps_per_execution_steps_count_without_training": (
        "predict takes a batch a call whatever steps_per_execution is"
    ),
    "trainer: test_steps_per_execution_steps_count_[0-9]*": _LAST_STEP,
    "trainer: test_steps_per_execution_unrolled_steps_steps_count_*[2-9]": _LAST_STEP,
    "trainer: test_steps_per_execution_steps_per_epoch_match_multi_epoch_*": (
        "with two steps a call an epoch of five takes three calls; Keras carries a step over"
    ),
    "trainer: test_steps_per_execution_steps_count_unknown_*": _STEP_A_CALL,
    "trainer: test_steps_per_execution_steps_per_epoch_unknown_data_size_*": _STEP_A_CALL,
    "trainer: test_trainer_with_raggeds_*": "ragged tensors given as arrays are refused",
    # Two of them take int() of a variable before that, which TensorFlow refuses.
    "backup_and_restore: test_b[ae]*_c*": _BACKUP,
    "backup_and_restore: test_model_deleted_*": _BACKUP,
    "callback: test_model_state_is_current_on_epoch_end": (
        "it takes int() of a variable, which TensorFlow refuses for a mirrored one"
    ),
    "reduce_lr_on_plateau: test_cooldown": (
        "it hands NumPy a variable, which TensorFlow refuses for a mirrored one"
    ),
    "terminate_on_nan: test_raise_error_terminate_preserves_backup": _BACKUP,
    "swap_ema_weights: test_swap_ema_weights_with_tf_distribute": (
        "it makes a strategy of its own; test_on_one_device.py runs it"
    ),
}


def reason(test: str, *tables: dict[str, str]) -> str:
    """Why the test, given as "about: test", is left out; "" where it is not."""
    for table in tables:
        for pattern, why in table.items():
            if is_among(test, (pattern,)):
                return why
    return ""
