"""Names of the files in a run's folder."""

from __future__ import annotations

RESULTS = "results.json"
TUNING_RESULTS = "tuning.json"
JOURNAL = "journal"
"""The folder with what a resumed run continues from."""
FINGERPRINT, RECORDED_PLAN = "fingerprint.json", "sessions.json"
"""What the journal's batches depend on, and how they were planned; in the journal's folder."""
PREDICTIONS = "predictions.parquet"
REPORT = "report.html"
