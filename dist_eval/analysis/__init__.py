"""Analysis beyond the metrics: `slices` of the data and the most confident `mistakes`; `options` runs all of it.

`texts` has the metrics of generated texts, with intervals and slices.
"""
