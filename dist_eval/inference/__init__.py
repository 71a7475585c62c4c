"""Inference on a rank's batches.

`forward` sends them to a model (see `models`); `in_flight` chooses the number of concurrent requests.
"""
