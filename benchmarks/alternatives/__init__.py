"""What people use today: functions that `benchmarks.worker` calls in processes of their own."""
