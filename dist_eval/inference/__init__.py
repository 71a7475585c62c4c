"""A rank's share of the batches through the model: the window of requests in flight, and the passage of each batch."""
