"""Inference on a rank's batches: `forward` predicts them, and `in_flight` chooses the number of concurrent requests."""
