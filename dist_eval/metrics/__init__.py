"""Predictions, and the metrics of each problem type.

`catalogue` lists the metrics and where each is shown. `predictions` holds predictions and proves that they are
complete, `computing` aggregates them and computes the metrics that `multilabel`, `regression`, `ranking` and
`calibration` define; `metric_loading` and `custom_metrics` add custom metrics.
"""
