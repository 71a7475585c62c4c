"""What people use today, each a program of its own: `python -m benchmarks.alternatives.NAME SPEC.json RESULT.json`."""
