"""Analysis beyond the metrics: slices of the data, the most confident mistakes, and all sections in one call."""
