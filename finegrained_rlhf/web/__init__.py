"""What is served over HTTP: rewards to trainers.

Knows the other packages; none of them knows it. Needs `pip install '.[web]'`.
"""
