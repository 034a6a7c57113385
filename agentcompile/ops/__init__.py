"""The meaning of each operator: reference semantics, layouts of weights, and attention in PyTorch."""
