"""The same problem at lower resolutions."""

from dataclasses import replace

from torch import Tensor

from kneematch.geometry.sampling import resize
from kneematch.matching.template import Template, Window
from kneematch.solvers.problem import Problem


def pyramid(problem: Problem, factors: tuple[int, ...]) -> dict[int, Problem]:
    """The problem on halves and templates that are each factor times smaller."""
    height, width = problem.halves.shape[-2:]
    levels, larger = {}, problem.terms
    for factor in sorted(set(factors)):
        # A small image is made from the next larger one: its filter is then small too.
        larger = tuple(
            replace(
                above,
                halves=resize_down(above.halves, (height // factor, width // factor)),
                template=shrink_template(term.template, factor),
            )
            for term, above in zip(problem.terms, larger, strict=True)
        )
        levels[factor] = Problem(larger)
    return levels


def resize_down(halves: Tensor, size: tuple[int, int]) -> Tensor:
    """Halves resized to (height, width), unless they are that small already."""
    return halves if halves.shape[-2] <= size[0] else resize(halves, size)


def shrink_template(template: Template, factor: int) -> Template:
    """A template factor times smaller."""
    if factor == 1:
        return template
    height, width = (max(round(side / factor), 1) for side in template.size)
    return resize_template(template, (height, width))


def resize_template(template: Template, size: tuple[int, int]) -> Template:
    """A template of another size, its windows rounded to its pixels."""

    def window(of: Window) -> Window:
        _, rows, columns = of
        return (
            ...,
            _scaled(rows, template.size[0], size[0]),
            _scaled(columns, template.size[1], size[1]),
        )

    return replace(
        template,
        image=resize(template.image, size),
        red=window(template.red),
        green=window(template.green),
    )


def _scaled(span: slice, before: int, after: int) -> slice:
    start = min(round(span.start * after / before), after - 2)
    return slice(start, max(round(span.stop * after / before), start + 2))
