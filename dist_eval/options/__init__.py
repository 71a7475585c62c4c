"""What a program is asked to do: the options as records (`config`), and how a command line or a file gives them."""
