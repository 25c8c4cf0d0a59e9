"""A problem at lower resolutions."""

from dataclasses import replace

from kneematch.paper.energy import Problem
from kneematch.paper.template import Template, Window
from kneematch.sampling import resize


def pyramid(problem: Problem, factors: tuple[int, ...]) -> dict[int, Problem]:
    """Return the problem on images and templates that are each factor times smaller, by factor."""
    height, width = problem.images.shape[-2:]
    levels, terms = {}, problem.terms
    for factor in sorted(set(factors)):
        size = height // factor, width // factor
        rows, columns = (max(round(side / factor), 1) for side in problem.template.size)
        # Each image is made from the next larger one, so that its anti-aliasing filter is small.
        terms = tuple(
            replace(
                larger,
                images=larger.images
                if larger.images.shape[-2] <= size[0]
                else resize(larger.images, size),
                template=resize_template(term.template, (rows, columns)),
            )
            for term, larger in zip(problem.terms, terms, strict=True)
        )
        levels[factor] = Problem(terms)
    return levels


def resize_template(template: Template, size: tuple[int, int]) -> Template:
    """Resize a template to (height, width); its windows are rounded to pixels."""

    def resized(window: Window) -> Window:
        spans = []
        for span, before, after in zip(window[1:], template.size, size, strict=True):
            start = min(round(span.start * after / before), after - 2)
            spans.append(slice(start, max(round(span.stop * after / before), start + 2)))
        rows, columns = spans
        return ..., rows, columns

    local = template.local_contrast
    return replace(
        template,
        image=resize(template.image, size),
        local_contrast=None if local is None else resize(local, size),
        red=resized(template.red),
        green=resized(template.green),
    )
