"""Environments of other packages: each file makes one kind of them an Environment whose prompts are a function of (index, split) and
whose episodes can be replayed."""
