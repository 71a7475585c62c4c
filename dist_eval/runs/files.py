"""Names of the files in a run's folder."""

from __future__ import annotations

RESULTS = "results.json"
TUNING_RESULTS = "tuning.json"
JOURNAL = "journal"
"""The folder with what a resumed run continues from."""
PREDICTIONS = "predictions.parquet"
TIMELINE = "timeline.json"
REPORT = "report.html"
CHANGES = "backend_changes.jsonl"
"""The predictions that differ between a swarm and the local backend."""
