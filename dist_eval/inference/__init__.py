"""Inference on a rank's batches: `forward` predicts them, `in_flight` as many at a time as pay."""
