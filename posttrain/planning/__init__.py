"""What a run on many GPUs would need and how fast it would be, before any is rented: memory by part, layouts, a simulation.

Nothing here imports torch. `posttrain doctor --hardware 8xh100-80gb` prints it; docs/scale.md says what was measured.
"""
