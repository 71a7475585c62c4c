"""The folder of a run: its files, their names, who holds it, and what it says to whoever looks at it later."""
