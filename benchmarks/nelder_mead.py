"""The downhill simplex method of Nelder and Mead, for fits of a few parameters above 0."""

import numpy as np

STRETCH = 1.25


def minimum(loss, start, steps=400):
    """Return the point of the least loss that so many steps find from a start."""
    points = [np.array(start, float)]
    points += [points[0] * np.where(np.arange(len(start)) == i, STRETCH, 1.0) for i in range(len(start))]
    values = [loss(p) for p in points]
    for _ in range(steps):
        order = np.argsort(values)
        points, values = [points[i] for i in order], [values[i] for i in order]
        middle = np.mean(points[:-1], 0)
        reflected = middle + (middle - points[-1])
        value = loss(reflected)
        if value < values[0]:
            further = middle + 2 * (middle - points[-1])
            value_there = loss(further)
            points[-1], values[-1] = (further, value_there) if value_there < value else (reflected, value)
        elif value < values[-2]:
            points[-1], values[-1] = reflected, value
        else:
            nearer = middle + 0.5 * (points[-1] - middle)
            value = loss(nearer)
            if value < values[-1]:
                points[-1], values[-1] = nearer, value
            else:
                points = [points[0], *(points[0] + 0.5 * (p - points[0]) for p in points[1:])]
                values = [values[0], *(loss(p) for p in points[1:])]
    return points[int(np.argmin(values))]
