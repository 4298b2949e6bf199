"""The plots of docs/benchmarks/, one SVG file each."""

import itertools
import textwrap

import matplotlib

matplotlib.use('svg')

from matplotlib import pyplot  # noqa: E402

from page import PAGES  # noqa: E402

PANELS = {'figsize': (12, 4.2), 'layout': 'constrained'}  # side by side
PANEL = {'figsize': (6, 4.2), 'layout': 'constrained'}

MARKERS = 'osD^vP*X<>'  # so that series can be told apart in grey, too


def save(figure, name, about):
    """As plots/NAME.svg. Returns the Markdown that shows it."""
    plots = PAGES / 'plots'
    plots.mkdir(exist_ok=True)
    figure.savefig(plots / f'{name}.svg', metadata={'Date': None})
    pyplot.close(figure)
    return f'![{about}](plots/{name}.svg)\n\n'


def legend(figure, axis):
    """Of what the axis has, below all."""
    figure.legend(*axis.get_legend_handles_labels(), loc='outside lower center', ncols=4)


def dots(name, quantity, panels, level=None):
    """panels: {title: {group: {series: value, or None}}}, the same series in each. level: where a
    line is drawn. Returns Markdown."""
    figure, axes = pyplot.subplots(1, len(panels), sharey=True, squeeze=False, **PANELS)
    for axis, (title, groups) in zip(axes[0], panels.items(), strict=True):
        series = list(next(iter(groups.values())))
        for number, of in enumerate(series):
            shift = 0.8 * ((number + 0.5) / len(series) - 0.5)
            axis.plot([group + shift for group in range(len(groups))],
                      [float('nan') if values[of] is None else values[of]
                       for values in groups.values()], MARKERS[number], label=of)
        for edge in range(1, len(groups)):
            axis.axvline(edge - 0.5, color='lightgrey', linewidth=0.8)
        if level is not None:
            axis.axhline(level, color='black', linewidth=0.8, linestyle='--')
        axis.set_title(title)
        axis.set_xticks(range(len(groups)), [textwrap.fill(str(group), 12) for group in groups])
        axis.set_xlim(-0.5, len(groups) - 0.5)
    axes[0][0].set_ylabel(quantity)
    legend(figure, axes[0][0])
    return save(figure, name, quantity[0].upper() + quantity[1:])


def by_k(name, about, titles, series):
    """A panel for each of titles, {quantity: title}, over K. series: {label: {K or 'adaptive':
    {quantity: value}}}, of the K with its 'deviation' about 'mean'; None: there is none. What is
    adapted is a dotted line across. Returns Markdown."""
    figure, axes = pyplot.subplots(2, -(-len(titles) // 2), figsize=(12, 8), layout='constrained')
    panels = dict(zip(titles, axes.flat))
    for axis in axes.flat[len(titles):]:
        axis.set_axis_off()
    for number, (marker, (label, of_k)) in enumerate(zip(MARKERS, series.items())):
        *ks, adaptive = of_k
        colour = f'C{number}'
        for quantity, axis in panels.items():
            axis.errorbar(ks, [of_k[k][quantity] for k in ks],
                          [of_k[k]['deviation'] for k in ks] if quantity == 'mean' else None,
                          fmt=marker + '-', color=colour, capsize=3, label=label)
            if of_k[adaptive][quantity] is not None:
                axis.axhline(of_k[adaptive][quantity], color=colour, linestyle=':',
                             label=f'{label}, {adaptive}')
    for quantity, axis in panels.items():
        axis.set(title=titles[quantity], xlabel='K')
        axis.set_ylim(bottom=0)
    legend(figure, axes.flat[0])
    return save(figure, name, about)


def tails(name, quantity, series):
    """series: {label: values}. The share of values above each, both axes logarithmic. Returns
    Markdown."""
    figure, axis = pyplot.subplots(**PANEL)
    for style, (label, values) in zip(('-', '--', ':'), series.items()):
        ascending = sorted(values)
        above = [(len(values) - place) / len(values) for place in range(len(values))]
        axis.step(ascending, above, style, where='pre', label=label)
    axis.set(xscale='log', yscale='log', xlabel=quantity, ylabel='share that is as long or longer')
    legend(figure, axis)
    return save(figure, name, f'Share of {quantity} that are as long or longer')


def scatter(name, x, y, series):
    """series: {label: [(x, y)]}; a line where both are the same. Returns Markdown."""
    figure, axis = pyplot.subplots(**PANEL)
    for marker, (label, points) in zip(MARKERS, series.items()):
        axis.plot(*zip(*points, strict=True), marker, label=label, alpha=0.8)
    ends = [bound(value for points in series.values() for point in points for value in point)
            for bound in (min, max)]
    axis.plot(ends, ends, color='black', linewidth=0.8, linestyle='--')
    axis.set(xlabel=x, ylabel=y)
    legend(figure, axis)
    return save(figure, name, f'{y[0].upper()}{y[1:]}, against {x}')


def lines(name, x, y, panels):
    """panels: {title: {label: {x: y}}}, the same labels in each. Returns Markdown."""
    figure, axes = pyplot.subplots(1, len(panels), sharey=True, squeeze=False, **PANELS)
    for axis, (title, series) in zip(axes[0], panels.items(), strict=True):
        for marker, (label, of) in zip(itertools.cycle(MARKERS), series.items()):
            axis.plot(list(of), list(of.values()), marker + '-', label=label)
        axis.set(title=title, xlabel=x)
    axes[0][0].set_ylabel(y)
    legend(figure, axes[0][0])
    return save(figure, name, f'{y[0].upper()}{y[1:]}, against {x}')


def bars(name, quantity, values):
    """values: {label: value}. Returns Markdown."""
    figure, axis = pyplot.subplots(figsize=(8, 0.3 * len(values) + 1), layout='constrained')
    axis.barh(list(values), list(values.values()))
    axis.invert_yaxis()
    axis.set_xlabel(quantity)
    return save(figure, name, quantity)


def steps(by_isa):
    """by_isa: {instruction set: {rows: a benchmark of a step, as `bench decode` reports it}}.
    Returns Markdown."""
    figure, panels = pyplot.subplots(1, 2, **PANELS)
    for marker, (isa, by_rows) in zip(MARKERS, by_isa.items()):
        for panel, values in zip(panels, ([step['real_time'] / 1000 for step in by_rows.values()],
                                          [100 * step['of_memory'] for step in by_rows.values()])):
            panel.plot(list(by_rows), values, marker + '-', label=isa)
    for panel, title in zip(panels, ('ms a step', '% of the read bandwidth')):
        panel.set(title=title, xlabel='rows')
        panel.set_ylim(bottom=0)
    legend(figure, panels[0])
    return save(figure, 'cpu', 'A step, and its share of the read bandwidth, by rows')
