"""What a program is asked to do: the options as records (`config`), and their command line and file (`commandline`)."""
