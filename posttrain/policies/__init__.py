"""Policies: what acts. A language model with its engine, a Gaussian controller, a prompt writer; and reading one from a folder."""
