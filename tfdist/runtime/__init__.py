"""Controls how a process starts, reports, ends and handles signals.

All process-wide state that tfdist changes is changed here, or is listed here:

- `startup`: the environment variables TF_CPP_MIN_LOG_LEVEL, where Slurm gives several tasks of a
  node the same GPUs, CUDA_VISIBLE_DEVICES, and, in `tfdist train`, TF_ENABLE_ONEDNN_OPTS.
- `remarks`: file descriptor 2, while TensorFlow is imported.
- `quiet_import`: `sys.meta_path`, until TensorFlow is imported.
- `threads`: TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS and OMP_NUM_THREADS, where they are not
  set and Slurm or a container gives this task a number of CPUs.
- `temporary`: TMPDIR, where no usual folder for temporary files can be written.
- `log`: the logger `tfdist`, its handler and level.
- `excepthook`: `sys.excepthook`; `sys.last_value`, when an error of tfdist ends the process.
- `shutdown`: `atexit`, `sys.exit` (to record the code), a daemon thread for each exit action.
- `sigterm`: the handler of SIGTERM, during a `fit` that saves checkpoints, and after TensorFlow
  has taken the signal for itself. In process 1 (a container's) also a handler for the life of the
  process, a daemon thread, `signal.set_wakeup_fd`, and a function that runs in a forked child.
- `process_one`: where `tfdist train` is process 1, that process itself, which goes on in a child.
- `heartbeat`: the file that TFDIST_HEARTBEAT names; the handler of SIGUSR1, where it is set.
- `watchdog`: a child process while TensorFlow connects to the other tasks.

Outside of this package: `rendezvous.once` remembers which cluster was met, `collectives.leaving`
that this process waits for the others at its end, `collectives.seeds` sets TensorFlow's global
seed on the workers that have none, `strategy.built` remembers the strategy that was built last,
and `strategy.devices` sets TensorFlow's logical devices and memory growth.
"""
