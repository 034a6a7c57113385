"""What each operator means: reference semantics, layouts of weights, attention in PyTorch."""
