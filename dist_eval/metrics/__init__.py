"""Figures out of predictions: what a batch's logits are worth, and every metric of each problem.

`predictions` holds and proves them, `computing` adds them up and computes what `multilabel`, `regression`, `ranking`
and `calibration` define; `metric_loading` and `custom_metrics` bring in the caller's own.
"""
