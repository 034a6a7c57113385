"""Models that the benchmarks run on: presets with random weights, and a small trained sample checkpoint.

`presets.py` writes published shapes with seeded random weights into a directory that is never committed. `sample/`
holds a trained checkpoint; `train_sample.py` made it and `evaluate_sample.py` measured it (see README.md).
"""
