"""The vocabulary of the flow: frozen dataclasses, standard library only, imported by every stage."""
