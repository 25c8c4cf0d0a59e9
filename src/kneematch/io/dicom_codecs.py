"""A pydicom decoding plug-in for JPEG, JPEG-LS, JPEG 2000 and HTJ2K frames, through imagecodecs."""

from importlib.util import find_spec
from typing import Final, cast

import numpy as np
from pydicom.pixels.common import PhotometricInterpretation
from pydicom.pixels.decoders.base import DecodeRunner, get_decoder
from pydicom.uid import (
    HTJ2K,
    JPEG2000,
    UID,
    HTJ2KLossless,
    HTJ2KLosslessRPCL,
    JPEG2000Lossless,
    JPEGLSTransferSyntaxes,
    JPEGTransferSyntaxes,
)

PLUGIN: Final = "kneematch"
JPEG_2000_SYNTAXES: Final = (JPEG2000Lossless, JPEG2000, HTJ2KLossless, HTJ2KLosslessRPCL, HTJ2K)
CODESTREAM_SYNTAXES: Final = (*JPEGTransferSyntaxes, *JPEGLSTransferSyntaxes, *JPEG_2000_SYNTAXES)
DECODER_DEPENDENCIES: Final = dict.fromkeys(CODESTREAM_SYNTAXES, ("imagecodecs",))
ADOBE: Final = b"\xff\xee\x00\x0eAdobe"  # the JPEG segment that says which colours are stored


def is_available(syntax: UID) -> bool:
    """Whether the plug-in decodes a transfer syntax, as pydicom asks when it is registered."""
    return syntax in CODESTREAM_SYNTAXES and find_spec("imagecodecs") is not None


def decode_frame(frame: bytes, runner: DecodeRunner) -> bytes:
    """Decode one frame and tell the runner how its samples are laid out.

    Colours are returned as they are stored, and pydicom converts YBR to RGB. The exceptions are
    JPEG 2000's own colour transforms and a JPEG with an Adobe segment, which are undone here.
    """
    import imagecodecs  # loaded when the first compressed film is read

    syntax = runner.transfer_syntax
    if syntax in JPEGTransferSyntaxes:
        as_stored = runner.samples_per_pixel > 1 and ADOBE not in frame
        space = "RGB" if as_stored else None  # equal spaces: no conversion
        # Not `jpeg_decode`: on broken frames that one tries another codec, which may not return.
        pixels = imagecodecs.jpeg8_decode(frame, colorspace=space, outcolorspace=space)
    elif syntax in JPEGLSTransferSyntaxes:
        pixels = imagecodecs.jpegls_decode(frame)
    else:
        pixels = imagecodecs.jpeg2k_decode(frame)
        if runner.photometric_interpretation in ("YBR_ICT", "YBR_RCT"):
            runner.set_option("photometric_interpretation", PhotometricInterpretation.RGB)
    runner.set_option("bits_allocated", 8 * pixels.itemsize)
    if pixels.ndim == 3:
        runner.set_option("planar_configuration", 0)  # (H, W, samples)
    return cast(bytes, np.ascontiguousarray(pixels).data)  # any buffer will do


for _syntax in CODESTREAM_SYNTAXES:
    get_decoder(_syntax).add_plugin(PLUGIN, (__name__, decode_frame.__name__))
