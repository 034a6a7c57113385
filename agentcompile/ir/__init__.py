"""The data types that every stage shares: frozen dataclasses that need only the standard library."""
