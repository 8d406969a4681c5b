"""The commands of `dpilot`, one module each."""
