"""Keras' tests that run where all of them would take too long, as "about: test"."""

from __future__ import annotations

# Each sends calls through the Trainer, and is about something else.
SHORT = (
    "trainer: test_evaluate_flow_graph_fn",
    "trainer: test_fit_flow_graph_fn",
    "trainer: test_fit_with_custom_train_step",
    "trainer: test_fit_with_data_adapter_py_dataset_cw",
    "trainer: test_fit_with_val_split_graph_fn",
    "trainer: test_loss_weights",
    "trainer: test_metric_tracking",
    "trainer: test_metric_update_in_compute_loss",
    "trainer: test_predict_flow_graph_fn",
    "early_stopping: test_early_stopping_patience",
    "callback: test_model_state_is_current_on_epoch_end",
    "terminate_on_nan: test_terminate_on_nan_graceful_stop",
)
