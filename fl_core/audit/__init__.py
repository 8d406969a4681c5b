"""Attacks on the real rounds of a federation: does it leak no more than it claims?"""
