"""Inference on a rank's batches.

`forward` predicts them, with `send_options` for each; `in_flight` chooses the number of concurrent requests.
"""
