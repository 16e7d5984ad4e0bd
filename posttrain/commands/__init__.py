"""The commands: one file each, with `options(parser)` and `main(args)`. None imports torch before it runs."""
