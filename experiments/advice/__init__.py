"""Advice before a run, from its settings alone: is privacy affordable, for how many rounds, and with which clip norm.

No sample of any client is used. Noise follows from the accounting, the length of updates from a round on random data
(`fl_core.run.calibration`), and how accuracy follows from both from runs of proxy clients (`calibrate`).
"""
