"""Spoil files in ways that their formats suggest; used by fuzz.py.

Every function takes the bytes of a good file and a random generator, and returns spoilt bytes.
"""

import io
import json
import struct
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import pydicom
from pydicom.encaps import encapsulate, get_frame
from pydicom.uid import UID_dictionary

from kneematch.films.codestreams import JPEG_FRAMES, codestream_shape

Mutation = Callable[[bytes, Random], bytes]

NUMBERS = (0, 1, 2, 7, 8, 16, 31, 32, 126, 127, 128, 255, 256, 32767, 32768, 65535, 65536)
NUMBERS += (2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
VRS = (b"AE", b"AT", b"CS", b"DS", b"FD", b"FL", b"IS", b"LO", b"OB", b"OW", b"PN", b"SQ", b"SS")
VRS += (b"UC", b"UI", b"UL", b"UN", b"UR", b"US", b"UT", b"OV", b"XX", b"\0\0")
SYNTAXES = [uid for uid, entry in UID_dictionary.items() if entry[1] == "Transfer Syntax"]
TEXTS = (b"", b"\0", b"\n", b'"', b"'", b",", b"\xff", b"-1", b"nan", b"inf", b"1e999", b"=1+1")
TEXTS += (b"1\\2", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"../x", b"9" * 400, b"R", b"\r\n")
VALUES: tuple[Any, ...] = (None, True, 0, -1, 1e308, float("nan"), float("inf"), 10**400, "", "\0")
VALUES += ("\ud800", "../x", "x" * 5000, [], {}, [[]], {"": None}, [1, 2, 3, 4], "left")
SIDES = (8, 64, 300, 1000, 3000, 8000, 12000, 20000, 65500)  # pixels
JPEG_MARKERS = (0xC0, 0xC1, 0xC2, 0xC3, 0xC4, 0xC9, 0xDA, 0xDB, 0xDC, 0xDD, 0xD8, 0xD9, 0xE0, 0xF7)


def mutate_bytes(data: bytes, rng: Random) -> bytes:
    """Change, remove, repeat or insert a few bytes anywhere."""
    spoilt = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8, 30))):
        at, length = rng.randrange(len(spoilt) + 1), rng.choice((1, 1, 2, 4, 16, 300))
        kind = rng.randrange(7)
        if kind == 0:
            spoilt[at : at + 1] = rng.randbytes(1)
        elif kind == 1 and at < len(spoilt):
            spoilt[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            size, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
            number = rng.choice(NUMBERS) % (1 << 8 * size)
            spoilt[at : at + size] = number.to_bytes(size, order)  # type: ignore[arg-type]
        elif kind == 3:
            del spoilt[at : at + length]
        elif kind == 4:
            spoilt[at:at] = spoilt[at : at + length] * rng.choice((1, 2, 20))
        elif kind == 5:
            spoilt[at:at] = rng.choice(TEXTS)
        elif rng.random() < 0.3:
            del spoilt[at:]
    return bytes(spoilt)


def mutate_dicom(data: bytes, rng: Random) -> bytes:
    """Spoil one element's value, length, type or presence, the transfer syntax or the frame."""
    try:
        dataset = pydicom.dcmread(io.BytesIO(data), force=True)
        raw = [dataset.get_item(tag) for tag in dataset.keys()]  # noqa: SIM118 - tags, not elements
        elements = [item for item in raw if hasattr(item, "value_tell")]
    except Exception:  # noqa: BLE001 - an odd seed is spoilt as plain bytes
        return mutate_bytes(data, rng)
    kind = rng.randrange(8)
    if kind == 0 or not elements:
        return mutate_bytes(data, rng)
    if kind == 1:
        return _change_syntax(data, dataset, rng)
    if kind in (2, 3) and dataset.get("PixelData") and dataset.file_meta.get("TransferSyntaxUID"):
        spoilt = _spoil_frame(dataset, rng)
        if spoilt is not None:
            return spoilt
    return _spoil_element(data, rng.choice(elements), rng)


def _spoil_element(data: bytes, element: Any, rng: Random) -> bytes:
    at = element.value_tell
    end = at + (element.length if element.length != 0xFFFFFFFF else 8)
    kind = rng.randrange(6)
    if kind == 0:  # its value, of the same length
        value = (rng.choice(TEXTS) or b"\0") * (end - at) if end - at < 4096 else b"\0"
        return data[:at] + value[: end - at] + data[end:]
    if kind == 1:  # its value as a number
        size = rng.choice((2, 4, 8))
        return (
            data[:at]
            + (rng.choice(NUMBERS) % (1 << 8 * size)).to_bytes(size, "little")
            + data[at + size :]
        )
    if kind == 2:  # its length
        size = rng.choice((2, 4))
        length = (rng.choice(NUMBERS) % (1 << 8 * size)).to_bytes(size, "little")
        return data[: at - size] + length + data[at:]
    if kind == 3:  # its type
        back = rng.choice((4, 8))
        return data[: at - back] + rng.choice(VRS) + data[at - back + 2 :]
    if kind == 4:  # gone
        return data[: at - 8] + data[end:]
    whole = data[at - 8 : end]
    return data[: at - 8] + whole * rng.choice((2, 3, 400)) + data[end:]  # repeated


def _change_syntax(data: bytes, dataset: Any, rng: Random) -> bytes:
    element = dataset.file_meta.get_item("TransferSyntaxUID") if dataset.file_meta else None
    now = str(dataset.file_meta.get("TransferSyntaxUID", "")).encode() if element else b""
    if not now or now not in data:
        return mutate_bytes(data, rng)
    new = rng.choice(SYNTAXES).encode()
    return data.replace(now, new[: len(now)].ljust(len(now), b"\0"), 1)


def _spoil_frame(dataset: Any, rng: Random) -> bytes | None:
    """Return the file with its frame spoilt, or None if it cannot be written again."""
    try:
        if dataset.file_meta.TransferSyntaxUID.is_encapsulated:
            frame = get_frame(dataset.PixelData, 0, number_of_frames=1)
            frame = mutate_jpeg(frame, rng)
            shape = codestream_shape(frame)
            if shape is not None:  # or the film would be refused before it is decoded
                dataset.Rows, dataset.Columns, dataset.SamplesPerPixel = shape
            dataset.PixelData = encapsulate([frame])
        else:
            dataset.PixelData = mutate_bytes(dataset.PixelData[:4096], rng)
        file = io.BytesIO()
        dataset.save_as(file)
        return file.getvalue()
    except Exception:  # noqa: BLE001 - it need not be writable
        return None


def mutate_jpeg(data: bytes, rng: Random) -> bytes:
    """Spoil the segments of a JPEG, JPEG-LS or JPEG 2000 codestream, or its bytes."""
    if rng.random() < 0.4:
        return _restyle_jpeg_2000(data, rng) if data[1] == 0x4F else _restyle_jpeg(data, rng)
    starts = [at for at in range(len(data) - 4) if data[at] == 0xFF and data[at + 1] >= 0x4F]
    if not starts or rng.random() < 0.3:
        return mutate_bytes(data, rng)
    at = rng.choice(starts[:24])
    length = 2 + int.from_bytes(data[at + 2 : at + 4])
    kind = rng.randrange(5)
    if kind == 0:  # another marker
        return data[: at + 1] + bytes([rng.choice(JPEG_MARKERS)]) + data[at + 2 :]
    if kind == 1:  # another length
        return data[: at + 2] + (rng.choice(NUMBERS) % 65536).to_bytes(2) + data[at + 4 :]
    if kind == 2:  # another parameter
        where = at + 4 + rng.randrange(max(min(length, 40) - 3, 1))
        return data[:where] + bytes([rng.choice(NUMBERS) % 256]) + data[where + 1 :]
    if kind == 3:  # gone
        return data[:at] + data[at + length :]
    return data[:at] + data[at : at + length] * rng.choice((2, 50)) + data[at + length :]


def _restyle_jpeg_2000(data: bytes, rng: Random) -> bytes:
    """Give a codestream another size, tiles, code-blocks, precincts, layers or levels."""
    size, tile = rng.choice(SIDES), rng.choice((*SIDES, 1, 4, 16, 128, 2**32 - 1))
    if rng.random() < 0.7:
        data = data[:8] + struct.pack(">6I", size, size, 0, 0, tile, tile) + data[32:]
    at = data.index(b"\xff\x52")
    levels, precincts = rng.choice((data[at + 9], rng.randrange(34))), rng.random() < 0.5
    layers = rng.choice((1, 1, 2, 100, 65535))
    style = struct.pack(">BBHB", precincts, rng.randrange(6), layers, 0)
    style += bytes([levels, rng.randrange(9), rng.randrange(9), rng.choice((0, data[at + 12]))])
    style += data[at + 13 : at + 14]
    if precincts:
        style += bytes(rng.choice((0x00, 0x11, 0x22, 0x77, 0xFF)) for _ in range(levels + 1))
    segment = b"\xff\x52" + struct.pack(">H", 2 + len(style)) + style
    end = at + 2 + int.from_bytes(data[at + 2 : at + 4])
    first = data.index(b"\xff\x90\x00\x0a")  # tile-part
    part = data[first : first + 6] + bytes(4) + data[first + 10 :]  # a tile-part of any length
    if rng.random() < 0.3:  # the style is that of a tile only
        return data[:first] + part[:12] + segment + part[12:]
    return data[:at] + segment + data[end:first] + part


def _restyle_jpeg(data: bytes, rng: Random) -> bytes:
    """Give a JPEG another size, another process, or many scans of any coefficients."""
    at = next(k for k in range(len(data) - 9) if data[k] == 0xFF and data[k + 1] in JPEG_FRAMES)
    size = struct.pack(">2H", rng.choice(SIDES), rng.choice(SIDES))
    process = rng.choice((data[at + 1], 0xC2, 0xC2, 0xC1, 0xC0))
    data = data[: at + 1] + bytes([process]) + data[at + 2 : at + 5] + size + data[at + 9 :]
    first = rng.randrange(64)
    band = bytes([first, rng.randrange(first, 64), rng.choice((0, 0x10, 0x21, 0x0D))])
    scan = b"\xff\xda\x00\x08\x01" + bytes([rng.randrange(1, 4), 0]) + band
    scan += rng.randbytes(rng.randrange(4)).replace(b"\xff", b"")
    return data[:-2] + scan * rng.choice((0, 1, 10, 150, 190, 5000)) + data[-2:]


def mutate_png(data: bytes, rng: Random) -> bytes:
    """Spoil chunks and give them a valid checksum, so that a decoder does not stop there."""
    if rng.random() < 0.25:
        return mutate_bytes(data, rng)
    chunks, at = [], 8
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += length + 12
    number = rng.randrange(len(chunks))
    name, content = chunks[number]
    kind = rng.randrange(5)
    if kind == 0:
        del chunks[number]
    elif kind == 1:
        chunks[number:number] = [chunks[number]] * rng.choice((1, 100))
    elif kind == 2:
        chunks[number] = rng.choice((b"PLTE", b"tRNS", b"eXIf", b"iCCP", b"acTL", b"zTXt")), content
    elif name == b"IDAT":
        chunks[number] = name, zlib.compress(mutate_bytes(zlib.decompress(content), rng))
    elif content:
        where = rng.randrange(len(content))
        number_of_bytes = rng.choice((1, 4))
        value = (rng.choice(NUMBERS) % (1 << 8 * number_of_bytes)).to_bytes(number_of_bytes)
        chunks[number] = name, content[:where] + value + content[where + number_of_bytes :]
    parts = (
        struct.pack(">I", len(body)) + kind_ + body + struct.pack(">I", zlib.crc32(kind_ + body))
        for kind_, body in chunks
    )
    return data[:8] + b"".join(parts)


def mutate_tiff(data: bytes, rng: Random) -> bytes:
    """Spoil an entry of the first directory: its tag, type, count or value; or write a new one."""
    if rng.random() < 0.3 or len(data) < 8:
        return mutate_bytes(data, rng)
    order = "<" if data[:2] == b"II" else ">"
    (directory,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, directory)
    if rng.random() < 0.4:
        return _tiff(data, rng)
    entry = directory + 2 + 12 * rng.randrange(max(count, 1))
    offset, size = rng.choice(((0, 2), (2, 2), (4, 4), (8, 4), (8, 2), (8, 2)))
    value = rng.choice((*NUMBERS, *range(1, 17))) % (1 << 8 * size)
    changed = struct.pack(f"{order}{'H' if size == 2 else 'I'}", value)
    return data[: entry + offset] + changed + data[entry + offset + size :]


def _tiff(data: bytes, rng: Random) -> bytes:
    """Return a TIFF of one strip or tile, of any size, whose pixels are `data` or zeros."""
    method = rng.choice((1, 2, 3, 4, 5, 7, 8, 32773, 34925, 50000))
    zeros = zlib.compress(bytes(rng.choice((100, 10**6, 10**8)))) if method == 8 else bytes(10**5)
    pixels = rng.choice((data, zeros))
    entries = {256: rng.choice(SIDES), 257: rng.choice(SIDES), 258: rng.choice((1, 8, 16, 32))}
    entries |= {259: method, 262: rng.choice((0, 1, 2, 3, 6)), 277: rng.choice((1, 1, 3, 4, 9))}
    entries |= {317: rng.choice((1, 2, 3)), 339: rng.choice((1, 2, 3))}
    if rng.random() < 0.5:
        entries |= {322: rng.choice(SIDES), 323: rng.choice(SIDES), 324: 8, 325: len(pixels)}
    else:
        entries |= {273: 8, 278: rng.choice((*SIDES, 1, 2**32 - 1)), 279: len(pixels)}
    rows = (struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(entries.items()))
    directory = struct.pack("<H", len(entries)) + b"".join(rows) + bytes(4)
    return struct.pack("<2sHI", b"II", 42, 8 + len(pixels)) + pixels + directory


def mutate_json(data: bytes, rng: Random) -> bytes:
    """Replace, remove or add a value anywhere in a JSON document, or spoil its text."""
    if rng.random() < 0.25:
        return mutate_bytes(data, rng)
    document = json.loads(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        document = _spoil_value(document, rng)
    text = json.dumps(document)
    if rng.random() < 0.02:
        text = "[" * 100_000 + text
    return text.encode("utf-8", "surrogatepass")


def _spoil_value(value: Any, rng: Random) -> Any:
    if isinstance(value, (dict, list)) and value and rng.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = rng.choice(keys)
        kind = rng.randrange(6)
        if kind == 0:
            del value[key]
        elif kind == 1 and isinstance(value, dict):
            value[rng.choice(("", "\ud800", "x" * 300, "=1", "centre"))] = value.pop(key)
        elif kind == 1 and isinstance(value, list):
            value.append(value[key])
        else:
            value[key] = _spoil_value(value[key], rng)
        return value
    return rng.choice(VALUES)


def mutate_csv(data: bytes, rng: Random) -> bytes:
    """Spoil a cell, a line or the header of a table."""
    if rng.random() < 0.25:
        return mutate_bytes(data, rng)
    rows = [line.split(b",") for line in data.split(b"\n")]
    row = rng.choice(rows)
    column, kind = rng.randrange(len(row)), rng.randrange(5)
    if kind == 0:
        del row[column]
    elif kind == 1:
        row.insert(column, rng.choice(TEXTS))
    elif kind == 2:
        rows[rng.randrange(len(rows))] = list(rng.choice(rows))
    else:
        row[column] = rng.choice((*TEXTS, row[column] + b'"', b'"' + row[column]))
    return b"\n".join(b",".join(cells) for cells in rows)


def mutate_safetensors(data: bytes, rng: Random) -> bytes:
    """Spoil the header of a safetensors file, its metadata, or a number in a tensor."""
    (length,) = struct.unpack_from("<Q", data)
    header, tensors = data[8 : 8 + length], data[8 + length :]
    kind = rng.randrange(5)
    if kind == 0:
        return struct.pack("<Q", rng.choice((*NUMBERS, length + 1))) + header + tensors
    if kind == 1:
        at = rng.randrange(max(len(tensors) - 2, 1))
        number = rng.choice((b"\x00\x7c", b"\x00\x7e", b"\xff\xff", b"\x00\x00\xc0\x7f"))
        return data[: 8 + length] + tensors[:at] + number + tensors[at + len(number) :]
    if kind == 2:
        return data[: rng.randrange(len(data))]
    document = json.loads(header)
    about = document.get("__metadata__", {})
    if kind == 3 and "about" in about:
        about["about"] = mutate_json(about["about"].encode(), rng).decode("utf-8", "replace")
        changed = json.dumps(document).encode()
    else:
        changed = mutate_json(header, rng)
    return struct.pack("<Q", len(changed)) + changed + tensors
