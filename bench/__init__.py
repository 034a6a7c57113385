"""Benchmarks: workloads, baselines, timing harness and reports; `agentcompile bench` runs one recipe of them."""
