"""Workloads, baselines, harness and reports; `agentcompile bench` runs a recipe."""
