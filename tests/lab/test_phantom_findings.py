"""Views with metal and growth plates, and what is to be learnt from them."""

import torch

from kneematch.models.findings import COLUMNS, ROWS, STRIDE
from kneematch.models.locator import VIEW_SIZE
from phantom_findings import render_parts, sample_batch, targets


def test_targets_mark_cells_and_leave_out_what_is_not_clear() -> None:
    masks = torch.zeros(4, *VIEW_SIZE)
    top, left = ROWS.start + 5 * STRIDE, COLUMNS.start + 3 * STRIDE
    masks[:2, top : top + STRIDE, left : left + STRIDE] = 1  # all of a cell
    masks[2, top, left] = 1  # too little to be seen
    present = torch.tensor([True, True, True, False])
    cells, whole = targets(masks, present, torch.tensor([True, False, True, True]))
    assert cells[0].nan_to_num(-1).eq(1).nonzero().tolist() == [[5, 3]]
    assert int(cells[0].isnan().sum()) == 8  # its neighbours
    assert cells[1].isnan().all()
    assert cells[3].eq(0).all()
    assert whole.nan_to_num(-1).tolist() == [1, -1, -1, 0]


def test_sample_batch_draws_metal_and_plates_where_it_says() -> None:
    batch = sample_batch(render_parts(8, 1, "cpu"), 48, torch.Generator().manual_seed(1))
    assert batch.views.shape == (48, *VIEW_SIZE)
    assert batch.views.isfinite().all()
    for kind in range(2):
        shown, whole = batch.cells[:, kind].eq(1).any(-1).any(-1), batch.whole[:, kind]
        assert 4 < int(whole.eq(1).sum()) < 30
        assert shown[whole.eq(1)].all()
        assert not shown[whole.eq(0)].any()
