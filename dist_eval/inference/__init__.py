"""Inference on a rank's batches: the window of requests in flight, and the forward of each batch."""
