"""Predictions, and the metrics of each problem type.

`catalogue` lists the metrics with their formulas and where each is shown. `definitions` defines them as functions of
sums (`confusion`, `calibration`) and scores (`ranking`), for any weights of the examples (`statistic`, `units`).
`computing` computes them for all examples, with reasons for undefined ones. `predictions` stores predictions and proves
that they are complete; `totals` are sums that are computed twice; `texts` has metrics of generated texts.
`custom_metrics` defines custom metrics, and `metric_loading` loads them.
"""
