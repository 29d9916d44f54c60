"""Measures collectives of several libraries on the same work; the README in the folder above says how."""
