"""What JPEG, JPEG-LS and JPEG 2000 codestreams say about themselves, read before they are decoded.

A few bytes can ask a decoder for gigabytes or for minutes: code-blocks and precincts of a few
pixels, thousands of layers, tiles or scans.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kneematch.errors import NotAnImage
from kneematch.films.radiograph import memory_budget

JPEG_START: Final = b"\xff\xd8"  # SOI, of JPEG-LS, too
JPEG_2000_START: Final = b"\xff\x4f\xff\x51"  # SOC and SIZ
JPEG_FRAMES: Final = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}  # SOF markers
JPEG_SCAN: Final = b"\xff\xda"
MAX_SCANS: Final = 200  # the usual progressive JPEG has ten
SIZ, COD, COC, SOT, SOD = 0xFF51, 0xFF52, 0xFF53, 0xFF90, 0xFF93  # markers of JPEG 2000
# Memory that OpenJPEG takes, at most: for a code-block with data, a precinct, and a tile.
BLOCK_BYTES, PRECINCT_BYTES, TILE_BYTES = 2048, 1024, 8192
WHOLE: Final = 15  # exponent of the default precinct: a whole resolution


def codestream_shape(frame: bytes) -> tuple[int, int, int] | None:
    """Return (height, width, samples) as the codestream itself states them, or None."""
    if frame.startswith(JPEG_2000_START):
        right, bottom, left, top = struct.unpack_from(">4I", frame, 8)
        (samples,) = struct.unpack_from(">H", frame, 40)
        return bottom - top, right - left, samples
    at = 2  # after the marker of the image's start
    while at + 10 <= len(frame) and frame[at] == 0xFF:
        marker, length = frame[at + 1], int.from_bytes(frame[at + 2 : at + 4])
        if marker in JPEG_FRAMES:
            height, width, samples = struct.unpack_from(">2HB", frame, at + 5)
            return height, width, samples
        at += 1 if marker == 0xFF else 2 + length  # a marker may have fill bytes before it
    return None


def check_codestream(path: Path, content: bytes, memory: int) -> None:
    """Refuse a film that takes far more memory or time than others of its size.

    Args:
        path: its file.
        content: its codestream, perhaps inside the boxes of a JP2 file.
        memory: bytes that its pixels take.
    """
    start = 0 if content.startswith(JPEG_START) else max(content.find(JPEG_2000_START), 0)
    frame = content[start:]
    # Each scan visits all pixels. Entropy-coded data cannot hold the marker.
    scans = 0 if frame.startswith(JPEG_2000_START) else frame.count(JPEG_SCAN)
    if scans > MAX_SCANS or structure_bytes(frame) > memory_budget(path) - memory:
        raise NotAnImage(
            f"{path}: The pixels are compressed in a way that takes a lot of memory or time to "
            "undo. Export it again."
        )


def structure_bytes(frame: bytes) -> int:
    """Return the memory that tiles, precincts and code-blocks of a codestream take; 0 for JPEG.

    The most demanding of all coding styles, for tiles and components, counts for the whole film.
    """
    shape = codestream_shape(frame)
    if shape is None or not frame.startswith(JPEG_2000_START):
        return 0
    height, width, samples = shape
    tile_width, tile_height = struct.unpack_from(">2I", frame, 24)
    tiles = _cells(height, max(int(tile_height), 1)) * _cells(width, max(int(tile_width), 1))
    styles = [_style_bytes(style, layers, height, width) for layers, style in _styles(frame)]
    return samples * (tiles * TILE_BYTES + max(styles, default=0))


def resolution_levels(frame: bytes) -> int:
    """Return how often a JPEG 2000 codestream can be decoded at half of the size before."""
    return min((style[1] for _, style in _styles(frame)), default=0)


def _segments(frame: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield markers and contents of all segments of the main header and those of tile-parts."""
    at, end = 2, len(frame)  # the next segment; the end of the tile-part
    while at + 4 <= len(frame):
        marker, length = struct.unpack_from(">2H", frame, at)
        if marker == SOT:
            (size,) = struct.unpack_from(">I", frame, at + 6)
            end = at + max(size, length) if size else len(frame)
        if marker == SOD:
            at = max(end, at + 2)  # a wrong length may lead back
            continue
        yield marker, frame[at + 4 : at + 2 + length]
        at += 2 + length


def _styles(frame: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the coding styles: the number of layers, and what COD and COC have in common."""
    layers, wide = 1, struct.unpack_from(">H", frame, 40)[0] > 256
    for marker, content in _segments(frame):
        if marker == COD:
            (layers,) = struct.unpack_from(">H", content, 2)
            yield layers, content[:1] + content[5:]
        elif marker == COC:
            yield layers, content[2 if wide else 1 :]


def _style_bytes(style: bytes, layers: int, height: int, width: int) -> int:
    """Return the memory for one component of a film of this size."""
    has_precincts, levels = style[0] & 1, style[1]
    total, most_precincts = 0, 0
    for level in range(levels + 1):  # from the smallest resolution on
        exponent = style[6 + level] if has_precincts else WHOLE << 4 | WHOLE
        wide, high = exponent & 15, exponent >> 4
        scale = 1 << levels - level
        precincts = _cells(height, scale << high) * _cells(width, scale << wide)
        # A precinct of all but the smallest resolution is halved by its three bands.
        inner = int(level > 0)
        block_wide, block_high = min(style[2] + 2, wide - inner), min(style[3] + 2, high - inner)
        blocks = (4**inner - inner) * _cells(height, scale << max(block_high, 0) + inner)
        blocks *= _cells(width, scale << max(block_wide, 0) + inner)
        total += precincts * PRECINCT_BYTES + blocks * BLOCK_BYTES
        most_precincts = max(most_precincts, precincts)
    # The decoder notes, in 16 bits, which layers of each precinct it has seen.
    return total + 2 * (layers + 1) * (levels + 1) * most_precincts


def _cells(length: int, size: int) -> int:
    return -(-length // size)
