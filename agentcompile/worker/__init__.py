"""Processes that run generated code: the child, which serves one request at a time, and the parent's end of it.

They exchange frames of JSON and raw bytes over pipes, never pickle. A worker that fails in any way is killed with its
process group.
"""
