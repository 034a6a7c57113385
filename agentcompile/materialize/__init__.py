"""Specialisation of a template to one region, configuration and target: data goes in, program text comes out."""

from agentcompile.materialize.cpp import flags as isa_flags
from agentcompile.materialize.specialise import PROLOGUES, inlined, specialise

__all__ = ["PROLOGUES", "inlined", "isa_flags", "specialise"]
