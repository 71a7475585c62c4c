"""This process on its host: its temporary files and children, its chatter, its limits. Knows nothing of evaluations."""
