"""Controls how a process starts, reports, ends and handles signals.

All process-wide state that tfdist changes in a user's program is changed here, or is listed here:

- `runtime.startup`: the environment variables TF_CPP_MIN_LOG_LEVEL, where Slurm gives several tasks
  of a node the same GPUs, CUDA_VISIBLE_DEVICES, and, in `tfdist train`, TF_ENABLE_ONEDNN_OPTS.
- `runtime.tf_log_filter`: `sys.meta_path`, until TensorFlow is imported; file descriptor 2 and
  TF_CPP_MIN_LOG_LEVEL, while it is; the level of the logger `tensorflow`, where it has none.
- `runtime.threads`: TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS and OMP_NUM_THREADS, where they
  are not set and Slurm or a container gives this task a number of CPUs.
- `runtime.resources`: TMPDIR, where no usual folder for temporary files can be written.
- `runtime.log`: the logger `tfdist`, its handler and level.
- `runtime.excepthook`: `sys.excepthook`; `sys.last_value`, when an error of tfdist ends the
  process.
- `runtime.lost_output`: `sys.stdout`, `sys.stderr` and, once they are lost, file descriptors 1 and
  2; in `tfdist train`.
- `runtime.shutdown`: `atexit`, `sys.exit` (to record the code), a daemon thread for each exit
  action, and the handler of SIGINT, in a process that ends by it.
- `runtime.wakeup`: `signal.set_wakeup_fd`, a daemon thread that reads it, and a function that runs
  in a forked child; where workers have a ring, in process 1 (a container's), and in the launcher.
- `runtime.sigterm`: the handler of SIGTERM, during a `fit` that saves checkpoints, and after
  TensorFlow has taken the signal for itself. In process 1 also a handler for the life of the
  process, and a function that runs in a forked child.
- `runtime.process_one`: where `tfdist train` is process 1, that process itself: the work continues
  in a child.
- `runtime.heartbeat`: the file that TFDIST_HEARTBEAT names; the handler of SIGUSR1, where it is
  set.
- `runtime.watchdog`: a child process while TensorFlow connects to the other tasks.

In other packages:

- `launcher.signals`: the handlers of SIGINT, SIGTERM, SIGHUP and SIGUSR2, while `tfdist.launch`
  runs.
- `rendezvous` remembers which cluster was met.
- `collectives`: TensorFlow's global seed, on the workers that have none. It remembers the ring of
  each strategy, with its daemon thread, and that this process waits for the others at its end.
- `strategy.registry` remembers the newest strategy, and which cluster TensorFlow is connected to.
  While it builds a strategy: attributes of `tf.distribute.MultiWorkerMirroredStrategy` and of
  TensorFlow's `CollectiveAllReduceExtended`.
- `strategy.devices`: TensorFlow's logical devices and memory growth.
- `strategy.beats`: file descriptor 217 in ps and workers that serve; a daemon thread for each task
  in the chief.
- `training.step`, while it traces a step: `keras.Loss.__call__`, `reduce_weighted_values` of Keras'
  losses, `tf.GradientTape.gradient`.
- `training.rehearsal`, while it tries a step: TensorFlow's functions that draw random numbers, and
  `assign`, `assign_add` and `assign_sub` of its variables.
- `keras_internals`: the functions by which the two above change TensorFlow's and Keras' classes,
  and put them back; the methods of an optimizer that a step has wrapped.
"""
