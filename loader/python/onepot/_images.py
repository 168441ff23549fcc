"""Images: what to make of pictures in files."""
from operator import index
from os import fsencode

from onepot import _core

_CROPS = {"random": 0, "centre": 1, "center": 1, None: 2}
_TYPES = {"uint8": 0, "float32": 1, "float16": 2, "bfloat16": 3}
_LAYOUTS = {"NCHW": False, "NHWC": True}
_FILTERS = {"bilinear": 0, "bicubic": 1, "nearest": 2}
_ALIGN = 64  # where each image of a sample begins, if there are several
_ERRORS = {"raise": 0, "skip": 1, "grey": 2}


def _choice(what, given, choices):
    if not isinstance(given, (str, type(None))) or given not in choices:
        raise ValueError("%s is one of %s, not %r" % (
            what, ", ".join(repr(name) for name in choices), given))
    return choices[given]


def _three(given, usual):
    """Three numbers, from one or three."""
    given = usual if given is None else given
    numbers = tuple(given) if hasattr(given, "__len__") else (given,) * 3
    if len(numbers) != 3:
        raise ValueError("mean and std are one number, or three: red, green, blue")
    return tuple(float(x) for x in numbers)


class Images:
    """Images(size=224, crop='random', scale=(0.08, 1), ratio=(3/4, 4/3), flip=True, resize=None,
           mean=None, std=None, dtype='uint8', layout='NCHW', interpolation='bilinear', *,
           exact=False, on_error='raise', raw=None)

    What a Loader or a Dataset makes of samples that are JPEG or PNG files, or .npy arrays of
    bytes: pixels of one size. Grey pictures get three channels, alpha is left out, CMYK is
    converted as PIL does it, of 16 bits the upper eight are taken.

    >>> onepot.Images((60, 90), crop=None, layout="NHWC").shape
    (60, 90, 3)
    >>> onepot.Images(dtype="float32", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    <onepot.Images: float32 (3, 224, 224), crop 'random'>

    size           of the result: a number, or (height, width)
    crop           'random': torchvision's RandomResizedCrop, with scale and ratio; 'centre': its
                   Resize(resize), then CenterCrop(size); None: the whole picture is resized
    flip           random crops are flipped left to right in half of the cases
    resize         the shorter side before the centre is cut out; None: 256 for a size of 224, and
                   in proportion
    mean, std      of float types: (byte / 255 - mean) / std, as torchvision's Normalize; one
                   number, or one for each channel
    dtype          'uint8', 'float16', 'float32' or 'bfloat16'
    layout         'NCHW' or 'NHWC'
    interpolation  'bilinear' or 'bicubic', both antialiased; or 'nearest', for masks: every value
                   is one of the file's, of a palette the number of the colour, in all three
                   channels. A PNG of 16 bits is then refused like a damaged one
    exact          don't shrink JPEG while it is decoded. It is shrunk by 2, 4 or 8 where a random
                   crop stays larger than size, any other three times: faster, and a little
                   different
    on_error       with a file that is no picture or a damaged one: 'raise', 'skip' (zeros, and not
                   valid), or 'grey' (a grey picture). Both count in stats['skipped']
    raw            (height, width, channels) of samples that are mere pixels

    Crops and flips depend on the seed, the epoch and the sample's number alone: they are the same
    on any number of ranks and threads, and after a resume. Orientation by EXIF is not applied, as
    in torchvision's ImageFolder. ValueError: an argument makes no sense.
    """

    __slots__ = ("_given", "_bytes", "dtype", "layout", "height", "width", "crop")
    __module__ = "onepot"

    def __init__(self, size=224, crop="random", scale=(0.08, 1), ratio=(3 / 4, 4 / 3), flip=True,
                 resize=None, mean=None, std=None, dtype="uint8", layout="NCHW",
                 interpolation="bilinear", *, exact=False, on_error="raise", raw=None):
        height, width = size if hasattr(size, "__len__") else (size, size)
        if index(height) < 1 or index(width) < 1:
            raise ValueError("images of %d by %d pixels" % (height, width))
        low, high = scale
        narrow, wide = ratio
        raw = tuple(raw) if raw is not None else (0, 0, 0)
        if len(raw) != 3:
            raise ValueError("raw is (height, width, channels)")
        has_values = mean is not None or std is not None
        self._given = (height, width, _choice("crop", crop, _CROPS), (low, high), (narrow, wide),
                       flip, 0 if resize is None else resize,
                       _choice("interpolation", interpolation, _FILTERS),
                       _choice("dtype", dtype, _TYPES), _three(mean, 0),
                       _three(std, 1) if has_values else (0, 0, 0),
                       _choice("layout", layout, _LAYOUTS), exact,
                       _choice("on_error", on_error, _ERRORS), *raw)
        self._bytes = _core._images_bytes(self._given)
        self.dtype, self.layout, self.crop = dtype, layout, crop
        self.height, self.width = index(height), index(width)

    @property
    def shape(self):
        """The shape of one image: (3, height, width), or (height, width, 3)."""
        size = self.height, self.width
        return (*size, 3) if self.layout == "NHWC" else (3, *size)

    def __eq__(self, other):
        return isinstance(other, Images) and self._given == other._given

    def __hash__(self):
        return hash(self._given)

    def __repr__(self):
        return "<onepot.Images: %s %r, crop %r>" % (self.dtype, self.shape, self.crop)

    def __reduce__(self):
        return _again, (self._given, self.dtype, self.layout, self.crop)


def _again(given, dtype, layout, crop):
    images = Images.__new__(Images)
    images._given, images._bytes = given, _core._images_bytes(given)
    images.dtype, images.layout, images.crop = dtype, layout, crop
    images.height, images.width = given[:2]
    return images


def of_argument(images):
    """For an Images, or a dict of them by the names of parts: the library's argument, the place
    of each image in a batch (type, shape, and where it begins in a sample's bytes; a dict of
    these), and the bytes of a sample. TypeError: it is neither."""
    if isinstance(images, Images):
        return images._given, (images.dtype, images.shape, 0), images._bytes
    if not hasattr(images, "items") or not all(isinstance(one, Images) for one in images.values()):
        raise TypeError("images is an onepot.Images, or a dict of them by the names of parts, not %r"
                        % (images,))
    given = [(fsencode(name), one._given) for name, one in images.items()]
    places, at = {}, 0
    for name, one in images.items():
        places[name] = one.dtype, one.shape, at
        at = (at + one._bytes + _ALIGN - 1) // _ALIGN * _ALIGN
    return given, places, _core._images_bytes(given)


# ---- torchvision's transforms ----


def _filter(transform):
    given = getattr(transform, "interpolation", "bilinear")
    return getattr(given, "value", given)


def _crop_random(transform, options):
    options.update(crop="random", size=tuple(transform.size), scale=tuple(transform.scale),
                   ratio=tuple(transform.ratio), interpolation=_filter(transform), flip=False)


def _resize(transform, options):
    size = transform.size
    size = tuple(size) if hasattr(size, "__len__") else (size,)
    options.update(interpolation=_filter(transform), flip=False)
    if len(size) == 2:
        options.update(crop=None, size=size)
    else:
        options.update(crop="unfinished", resize=size[0])


def _crop_centre(transform, options):
    if options.get("crop") != "unfinished":
        raise ValueError("fast: CenterCrop follows Resize(one number)")
    options.update(crop="centre", size=tuple(transform.size))


def _flip(transform, options):
    if options.get("crop") != "random" or transform.p != 0.5:
        raise ValueError("fast: RandomHorizontalFlip(0.5) follows RandomResizedCrop")
    options["flip"] = True


def _normalize(transform, options):
    options.update(mean=tuple(map(float, transform.mean)), std=tuple(map(float, transform.std)))


def _as_type(name):
    def take(transform, options):
        dtype = str(getattr(transform, "dtype", name)).rpartition(".")[2]
        options["dtype"] = dtype
    return take


_KNOWN = {"RandomResizedCrop": _crop_random, "Resize": _resize, "CenterCrop": _crop_centre,
          "RandomHorizontalFlip": _flip, "Normalize": _normalize, "ToTensor": _as_type("float32"),
          "PILToTensor": _as_type("uint8"), "ConvertImageDtype": _as_type("float32")}


def of_transform(transform):
    """Images() that make what torchvision's transforms make; without any, Images(). ValueError
    names one that is not known."""
    options = {}
    for step in getattr(transform, "transforms", [] if transform is None else [transform]):
        name = type(step).__name__
        if name not in _KNOWN or not type(step).__module__.startswith("torchvision."):
            raise ValueError("fast: %s is not known; known are %s. Give an onepot.Images as fast,"
                             " and what remains as transform" % (name, ", ".join(_KNOWN)))
        _KNOWN[name](step, options)
    if options.get("interpolation") == "nearest":
        raise ValueError("fast: 'nearest' is for masks here, and keeps the numbers of a palette's"
                         " colours; give an onepot.Images as fast")
    if options.get("crop") == "unfinished" or (options and "size" not in options):
        raise ValueError("fast: the transforms don't make images of one size")
    return Images(**options)
