"""The lists of `dpilot list`, each beside those that need the same packages."""
