"""Analysis beyond the metrics: `slices` of the data and the most confident `mistakes`; `options` runs them.

`texts` analyses generated texts: metrics, intervals and slices.
"""
