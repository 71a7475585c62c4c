"""A Petals swarm: joining one, looking at what it covers, and starting a private one on this host."""
