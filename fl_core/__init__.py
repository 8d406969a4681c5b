"""The federation: data, models, methods, privacy and the round. It knows nothing of reinforcement learning."""
