#!/usr/bin/env python3
"""Lower bounds on what any plan can reach, by a program that shares nothing with crates/model.

For each of 200 drawn instances of 30 applications and 4 paths. Every path's load is cut into many
narrow intervals; in one, an application costs what it would at the interval's lower end, which is
never more than it really costs, and a path takes applications, the last one split, up to the
interval's upper end. Every application pays a price for being served; each path then chooses its
interval and whom it serves on its own. All prices, less what the paths gain at best, is at most
the least cost (Lagrangian relaxation); prices are improved by subgradient steps.

    pip install numpy
    ./bounds.py plans.csv > bounds.csv

plans.csv is what the planner found (instance,unmet,overloaded,lateness_nanos,delay_nanos). It only
sets the length of steps, and when to stop: no bound depends on its being right. Columns:
the least number unmet; the least summed delay of plans without unmet demands, 0 if the planner
found none such.
"""

import math
import sys

import numpy as np

INSTANCES, PATHS, APPS = 200, 4, 30
# By how much of what is left over an interval is narrower than the one before.
COARSE, FINE = 0.03, 0.002
MASK = (1 << 64) - 1


class Draw:
    """SplitMix64 (Steele, Lea and Flood 2014)."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def between(self, low, high):
        return low + self.next() % (high - low + 1)


def instance(seed):
    """Paths (bit/s, ns) and applications (bytes, ns, ns): whole numbers only."""
    draw = Draw(seed)
    paths = [
        (draw.between(50, 500) * 1_000_000, draw.between(1, 60) * 1_000_000)
        for _ in range(PATHS)
    ]
    load_percent = [30, 50, 70, 85][seed % 4]
    drawn = []
    for _ in range(APPS):
        length = draw.between(1, 9) * 10 ** draw.between(3, 5)
        weight = draw.between(1, 30)
        demand = draw.between(30, 250) * 1_000_000
        drawn.append((length, weight, demand))
    weights = sum(weight for _, weight, _ in drawn)
    capacity = sum(bandwidth for bandwidth, _ in paths)
    apps = []
    for length, weight, demand in drawn:
        rate = capacity * load_percent * weight // (100 * weights)
        apps.append((length, length * 8 * 10**9 // rate, demand))
    return paths, apps


def rate_of(app):
    length, interval, _ = app
    return -(-length * 8 * 10**9 // interval)


def limit(path, app):
    """The largest load with which the application is met on the path."""
    bandwidth, propagation = path
    transfer = app[2] - propagation
    if transfer <= 0:
        return -1
    needed = -(-app[0] * 8 * 10**9 // transfer)
    return min(bandwidth - needed + rate_of(app), bandwidth - 1)


class Path:
    """One path's costs by interval (row) and application (column)."""

    def __init__(self, path, apps, goal, factor):
        bandwidth, propagation = path
        self.rates = np.array([rate_of(app) for app in apps], float)
        lengths = np.array([app[0] * 8e9 for app in apps])
        limits = np.array([limit(path, app) for app in apps], float)
        left = (1 - factor) ** np.arange(0, math.ceil(math.log(0.002) / math.log(1 - factor)))
        low = bandwidth * (1 - left)
        self.high = np.append(low[1:], bandwidth)
        at = np.maximum(low[:, None], self.rates[None, :])
        unmet = limits[None, :] < at
        if goal == "unmet":
            self.cost = unmet.astype(float)
            # Overloaded: everybody is unmet, and there is room for all.
            self.cost = np.vstack([self.cost, np.ones(len(apps))])
            self.high = np.append(self.high, self.rates.sum())
        else:
            others = np.maximum(at - self.rates, 0)
            delay = propagation + lengths / np.maximum(bandwidth - others, 1)
            self.cost = np.where(unmet, np.inf, delay / 1e6)
        self.cost[self.rates[None, :] > self.high[:, None]] = np.inf

    def best(self, prices, rows):
        """The least cost less prices among `rows`: value by row, and who is served in the best."""
        reduced = np.minimum(self.cost[rows] - prices, 0.0)
        order = np.argsort(reduced / self.rates, axis=1)
        sorted_cost = np.take_along_axis(reduced, order, 1)
        sorted_rate = self.rates[order]
        before = np.cumsum(sorted_rate, axis=1) - sorted_rate
        part = np.clip((self.high[rows][:, None] - before) / sorted_rate, 0.0, 1.0)
        values = (sorted_cost * part).sum(axis=1)
        row = int(np.argmin(values))
        served = np.zeros(len(prices))
        gaining = sorted_cost[row] < 0
        served[order[row][gaining]] = part[row][gaining]
        return values, served


def bound(paths, apps, goal, found, rounds):
    """Subgradient steps with the known plan as target, then once more with narrow intervals."""
    parts = [Path(path, apps, goal, COARSE) for path in paths]
    if goal == "delay":
        half = [part.cost[len(part.cost) // 8] for part in parts]
        prices = np.nan_to_num(np.min(half, axis=0), posinf=found / len(apps))
    else:
        prices = np.full(len(apps), 0.5)
    best, best_prices, step, since, course = -math.inf, prices, 1.0, 0, np.zeros(len(apps))
    for _ in range(rounds):
        value, slope = prices.sum(), np.ones(len(apps))
        for part in parts:
            values, served = part.best(prices, slice(None))
            value += min(values.min(), 0.0)
            slope -= served
        if value > best:
            best, best_prices, since = value, prices.copy(), 0
        else:
            since += 1
            if since > 10:
                step, since = step * 0.7, 0
        # A part of the last direction where the two disagree (Camerini, Fratta, Maffioli 1975).
        agreement, length = float(slope @ course), float(course @ course)
        if agreement < 0 and length > 0:
            slope = slope - 1.5 * agreement / length * course
        course, length = slope, float(slope @ slope)
        if length < 1e-12 or step < 3e-3:
            break
        prices = prices + step * max(found - value, found * 1e-4) / length * slope
        if goal == "unmet":
            prices = np.clip(prices, 0.0, 1.0)
    value = best_prices.sum()
    for path in paths:
        values, _ = Path(path, apps, goal, FINE).best(best_prices, slice(None))
        value += min(values.min(), 0.0)
    return value


def main():
    plans = {}
    with open(sys.argv[1]) as file:
        for line in file:
            if line[0].isdigit():
                fields = [int(field) for field in line.split(",")]
                plans[fields[0]] = fields[1:5]
    print("instance,unmet,delay_nanos", flush=True)
    for seed in range(INSTANCES):
        paths, apps = instance(seed)
        unmet, _, _, found = plans[seed]
        least, delay = 0, 0
        if unmet > 0:
            value = bound(paths, apps, "unmet", float(unmet), 500)
            least = max(0, math.ceil(value - 1e-6))
        else:
            value = bound(paths, apps, "delay", found / 1e6, 500)
            delay = max(0, math.floor(value * 1e6))
        print(f"{seed},{least},{delay}", flush=True)


if __name__ == "__main__":
    main()
