"""Runs that are no simulations: a control loop kept in a folder."""
