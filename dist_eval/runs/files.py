"""Names of the files in a run's folder."""

from __future__ import annotations

RESULTS = "results.json"
TUNING_RESULTS = "tuning.json"
JOURNAL = "journal"
"""The folder with the data that a resumed run continues from."""
FINGERPRINT, RECORDED_PLAN = "fingerprint.json", "sessions.json"
"""In the journal's folder: the inputs that its batches depend on, and how the batches were planned."""
PREDICTIONS = "predictions.parquet"
REPORT = "report.html"
CHECKS = "doctor.json"
