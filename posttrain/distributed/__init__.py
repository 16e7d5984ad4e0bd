"""More than one process: ranks of torchrun that train one model together."""
