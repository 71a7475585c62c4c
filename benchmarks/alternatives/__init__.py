"""Common alternatives: functions that `benchmarks.worker` calls in separate processes."""
