"""Reports of a sweep: figures of its points, heat maps, the best settings.

Imports `report` and what is below it. Begin with `figures.py`.
"""
