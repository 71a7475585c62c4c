"""Predictions, and the metrics of each problem type.

`catalogue` lists the metrics and where each is shown. `predictions` holds predictions and proves that they are
complete, `computing` aggregates them and computes the metrics that `multilabel`, `regression`, `ranking` and
`calibration` define, and `words` formats them; `exact_match` is that of generated texts. `custom_metrics` says what
custom metrics are, `metric_loading` loads them, and `custom_computing` computes them.
"""
