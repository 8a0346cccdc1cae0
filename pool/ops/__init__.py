"""The user-facing parts: commands, board, doctor, reports, simulation, exporter and the embedded
supervisor.
"""
