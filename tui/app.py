"""The app's own module, kept importable without torch from the first day; the app itself is not built yet."""
