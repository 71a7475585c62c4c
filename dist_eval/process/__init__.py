"""This process on its host: its temporary files and children, its logging, its limits. Knows nothing of evaluations."""
