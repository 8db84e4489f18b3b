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
