"""Predictions, and the metrics of each problem type.

`catalogue` lists the metrics with their formulas, and where each is shown. `definitions` says which sums (`confusion`,
`calibration`) and scores (`ranking`) they are functions of, for any weights of the examples (`statistic`, `units`);
`computing` computes them for all examples, with the reasons of undefined ones. `predictions` holds predictions and
proves that they are complete, `totals` are sums that are computed twice; `texts` has metrics of generated texts.
`custom_metrics` says what custom metrics are, and `metric_loading` loads them.
"""
