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
# Without those that run eagerly, which take ten times as long.
MIRRORED = (
    *SHORT,
    "trainer: test_callback_methods_keys",
    "trainer: test_compute_loss_no_training_backwards_compatibility",
    "trainer: test_evaluate_return_list_respect_metrics_order",
    "trainer: test_evaluate_with_custom_test_step_dict",
    "trainer: test_fit_sparse_tf_graph",
    "trainer: test_fit_with_data_adapter_generator_infinite",
    "trainer: test_fit_with_data_adapter_native_array",
    "trainer: test_fit_with_data_adapter_py_dataset_infinite",
    "trainer: test_fit_with_data_adapter_tf_dataset",
    "trainer: test_fit_with_val_split_graph_fn",
    "trainer: test_fwd_pass_loss_presence_in_compute_loss",
    "trainer: test_internal_only_loss",
    "trainer: test_loss_weights",
    "trainer: test_max_epochs_and_steps",
    "trainer: test_metric_tracking",
    "trainer: test_nested_input_predict",
    "trainer: test_nested_trainer_metrics",
    "trainer: test_partial_loss_partial_label",
    "trainer: test_predict_flow_struct_graph_fn",
    "trainer: test_predict_preserve_order_50_non_jit",
    "trainer: test_recompile",
    "trainer: test_steps_per_epoch_match_multi_epoch_non_jit",
    "trainer: test_steps_per_epoch_not_match_too_low_non_jit",
    "trainer: test_stop_loop_*",
    "trainer: test_validation_data_infinite_generator",
    "csv_logger: test_stop_training_csv",
    "learning_rate_scheduler: test_schedule_dependent_on_previous_learning_rate",
    "model_checkpoint: test_model_checkpoint_loading",
    "reduce_lr_on_plateau: test_honors_min_lr",
    "tensorboard: test_TensorBoard_basic",
)
