"""What predictions say beyond their metrics: parts of the data, the surest mistakes, and all of it as one `view`."""
