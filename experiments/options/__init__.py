"""The options of the commands, and the checks of them that need neither data nor tensors; one module each."""
