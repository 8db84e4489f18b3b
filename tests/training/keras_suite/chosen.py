"""Keras' tests that run where all of them would take too long, as "about: test"."""

from __future__ import annotations

# Each sends calls through the Trainer, and is about something else.
SHORT = (
    "trainer: test_evaluate_flow_graph_fn",
    "trainer: test_fit_flow_graph_fn",
    "trainer: test_fit_with_custom_train_step",
    "trainer: test_fit_with_data_adapter_py_dataset_cw",
    "trainer: test_metric_update_in_compute_loss",
    "trainer: test_predict_flow_graph_fn",
    "early_stopping: test_early_stopping_reuse",
    "lambda_callback: test_lambda_callback_with_batches",
    "terminate_on_nan: test_terminate_on_nan_graceful_stop",
)

# On one device, where Keras' own step runs whatever the test: of the variants of a test (compiled
# by XLA, eager, of other lengths) one runs, and of callbacks that only look on, a few.
VARIANTS = (
    "trainer: *[!w]_jit",
    "trainer: *[!w]_eager",
    "trainer: test_*_flow_s*",
    "trainer: test_*_infinite*",
    "trainer: test_fit_with_data_adapter_py_dataset_multi*",
    "trainer: test_predict_*_50_*",
    "trainer: test_steps_per_epoch_*t[!c]*_non_jit",
    "trainer: test_steps_per_execution_*_101_*",
    "trainer: test_steps_per_execution_steps_per_epoch_*",
    "trainer: test_steps_per_execution_unrolled_steps_*",
    "trainer: test_*sparse*",
    "trainer: test_fit_with_val_split_s*",
    "trainer: test_evaluate_return_list*",
    "trainer: test_fit_flow_jit",
    "trainer: test_loss_*",
    "trainer: test_nested_*",
    "trainer: test_predict_*_non_jit",
    "trainer: test_re[!t]*",
    "trainer: test_steps_per_epoch_*",
    "backup_and_restore: test_b*",
    "early_stopping: test_early_stopping_[!r]*",
    "lambda_callback: test_lambda_callback_[!w]*",
    "learning_rate_scheduler: test_[!l]*",
    "csv_logger: test_CSV*",
    "model_checkpoint: test_model_checkpoint_options",
    "monitor_callback: test_monitor_op_logic",
    "early_stopping: test_early_stopping_*_*",
    "early_stopping: test_early_stopping",
    "reduce_lr_on_plateau: test_[!r]*",
    "swap_ema_weights: test_swap_ema_weights_*",
    "tensorboard: test_TensorBoard_[!b]*",
    "terminate_on_nan: test_*raise*",
)
